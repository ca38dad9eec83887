//! The parts of a word's logits: the sum over its tokens, each computed after the tokens before it.

use std::{collections::BTreeMap, ops::ControlFlow};

use thermocline_engine::{
    Error, Result,
    cpu::Cpu,
    eval::{Attribution, NeuronEffect, SwitchingOff, attribution, switching_off},
    model::NeuronIndex,
    runtime::{CallInputs, PlacedPicture},
    session::{Engine, PromptInputs},
};

/// Largest number of explained tokens of a word. The model reads the text before the word once for
/// each token.
const MOST_TOKENS: usize = 8;

/// A word and the text before it, as tokens.
#[derive(Debug)]
pub(super) struct WordTokens<'a> {
    engine: &'a Engine,
    cpu: &'a Cpu,
    /// Tokens of the text before the word, then tokens of the word.
    all: Vec<u32>,
    /// Number of tokens before the word.
    before: usize,
    /// The pictures of the text before the word.
    pictures: Vec<PlacedPicture<'a>>,
}

impl<'a> WordTokens<'a> {
    /// The tokens of `word` after those of `context`, whose pictures are computed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a word without tokens.
    pub fn new(engine: &'a Engine, cpu: &'a Cpu, context: &'a PromptInputs, word: &[u32]) -> Result<Self> {
        if word.is_empty() {
            return Err(Error::invalid("word", "at least one token", "none"));
        }
        let (tokens, pictures) = (context.tokens(), context.placed()?);
        let all = [tokens, &word[..word.len().min(MOST_TOKENS)]].concat();
        Ok(WordTokens { engine, cpu, all, before: tokens.len(), pictures })
    }

    /// Number of explained tokens of the word.
    pub fn len(&self) -> usize {
        self.all.len() - self.before
    }

    /// Each token of the word, with all tokens before it.
    fn each(&self) -> impl Iterator<Item = (CallInputs<'_>, u32)> {
        let inputs = |at| CallInputs::with_pictures(&self.all[..at], &self.pictures);
        (self.before..self.all.len()).map(move |at| (inputs(at), self.all[at]))
    }

    /// The parts of the word's logits, with the `top` neurons of the largest effects on each token.
    /// The probability is the product over all tokens. `proceed` is called between layers.
    ///
    /// # Errors
    /// The errors of [`attribution`].
    pub fn attribution(&self, top: usize, proceed: &mut dyn FnMut() -> ControlFlow<()>) -> Result<Attribution> {
        let mut parts = Vec::new();
        for (context, token) in self.each() {
            parts.push(attribution(self.engine.model(), self.cpu, context, token, top, proceed)?);
        }
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Error::invalid("word", "at least one token", "none"))?;
        Ok(parts.fold(first, sum))
    }

    /// Decreases of the word's logits as `neurons` are switched off one after the other, for the
    /// token before each token of the word.
    ///
    /// # Errors
    /// The errors of [`switching_off`].
    pub fn switching_off(
        &self,
        neurons: &[NeuronIndex],
        proceed: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<SwitchingOff> {
        let mut all = SwitchingOff { falls: vec![0.0; neurons.len()], whole: 0.0, without: 0.0 };
        for (context, token) in self.each() {
            let part = switching_off(self.engine.model(), self.cpu, context, token, neurons, proceed)?;
            all.falls.iter_mut().zip(part.falls).for_each(|(all, fall)| *all += fall);
            all.whole += part.whole;
            all.without += part.without;
        }
        Ok(all)
    }
}

/// Adds the parts of two tokens. A neuron keeps the activation of its larger effect.
fn sum(one: Attribution, other: Attribution) -> Attribution {
    let mut neurons: BTreeMap<NeuronIndex, NeuronEffect> = one.neurons.into_iter().map(|it| (it.place, it)).collect();
    for effect in other.neurons {
        let both = neurons.entry(effect.place).or_insert(NeuronEffect { logit: 0.0, ..effect });
        if effect.logit.abs() > both.logit.abs() {
            both.activation = effect.activation;
        }
        both.logit += effect.logit;
    }
    let mut neurons: Vec<NeuronEffect> = neurons.into_values().collect();
    neurons.sort_by(|a, b| b.logit.abs().total_cmp(&a.logit.abs()).then(a.place.cmp(&b.place)));
    Attribution {
        token: one.token,
        logit: one.logit + other.logit,
        probability: one.probability * other.probability,
        neurons,
        layers: one.layers.iter().zip(&other.layers).map(|(one, other)| one + other).collect(),
        residual: one.residual + other.residual,
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        cpu::CpuOptions,
        session::{ChatOptions, EngineOptions, Prompt},
        tokenizer::EncodeOptions,
    };

    use super::*;
    use thermocline_host::library::ModelId;

    #[test]
    fn parts_of_a_word_are_those_of_all_its_tokens() {
        let model = ModelId::Builtin.open(&Default::default()).unwrap();
        let engine = Engine::from_model(model, EngineOptions::default()).unwrap();
        let cpu = Cpu::new(&CpuOptions::default()).unwrap();
        let encode = |text| engine.tokenizer().encode(text, EncodeOptions::PLAIN).unwrap();
        let context = encode("Once upon a time there was a train at the");
        let tokens = encode(" xylophone");
        assert!(tokens.len() > 1, "{tokens:?}");
        let go = &mut || ControlFlow::Continue(());
        let inputs = engine.prompt_inputs(Prompt::Tokens(context.clone()), &ChatOptions::default()).unwrap();
        let word = WordTokens::new(&engine, &cpu, &inputs, &tokens).unwrap();
        let of = word.attribution(50, go).unwrap();
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-3 * (1.0 + b.abs()), "{a} is not {b}");
        near(of.layers.iter().sum::<f32>() + of.residual, of.logit);
        let (mut logit, mut probability, mut before) = (0.0, 1.0, context.clone());
        for token in &tokens {
            let part = attribution(engine.model(), &cpu, &before, *token, 50, go).unwrap();
            (logit, probability) = (logit + part.logit, probability * part.probability);
            before.push(*token);
        }
        near(of.logit, logit);
        near(of.probability, probability);
        assert!(of.neurons.windows(2).all(|two| two[0].logit.abs() >= two[1].logit.abs()));

        let places: Vec<NeuronIndex> = of.neurons.iter().take(2).map(|neuron| neuron.place).collect();
        let off = word.switching_off(&places, go).unwrap();
        near(off.whole, of.logit);
        near(off.falls.iter().sum(), off.whole - off.without);

        // The parts of a one-token word are the parts of its token.
        let one = WordTokens::new(&engine, &cpu, &inputs, &tokens[..1]).unwrap();
        let same = attribution(engine.model(), &cpu, &context, tokens[0], 50, go).unwrap();
        assert_eq!((one.attribution(50, go).unwrap(), one.len()), (same, 1));
        assert!(WordTokens::new(&engine, &cpu, &inputs, &[]).is_err());
    }
}

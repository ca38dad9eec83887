//! Explanations of words: which neurons make one word of an answer, and how the answer goes on with them switched off. Computed on the
//! CPU by a thread of its own, from the model that is open; nothing here waits for it.

use std::{
    ops::ControlFlow,
    ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::Mutex;
use thermocline_engine::{
    Error, Result,
    cpu::{Cpu, CpuOptions},
    eval::{Attribution, NeuronEffect, SwitchingOff, attribution, switching_off},
    model::{Model, NeuronIndex},
    session::{ChatOptions, ContextPolicy, Engine, Event, Prompt, Request, Sampling},
    tokenizer::EncodeOptions,
};

use super::{
    neuron_words::{NeuronWords, token_text},
    side_answer::{SideModel, write_side},
};
use crate::engine_handle::{EngineHandle, error_message};

/// Neurons listed.
pub const LISTED: usize = 8;
/// Neurons switched off together.
pub const SWITCHED_OFF: usize = 5;
/// Tokens of either continuation.
const CONTINUED: usize = 32;
/// Neurons searched for those that add most.
const SEARCHED: usize = 1000;

/// A neuron and the words it speaks for and against.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedNeuron {
    /// Its part of the logit.
    pub effect: NeuronEffect,
    /// Words that it raises and lowers with the activation it has.
    pub words: NeuronWords,
}

/// The parts of one word's logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The word's first token, as text.
    pub token: String,
    /// All parts.
    pub attribution: Attribution,
    /// The neurons with the largest effects.
    pub neurons: Vec<ExplainedNeuron>,
}

/// The answer's greedy continuations with and without the neurons that add most.
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchedOff {
    /// The neurons.
    pub neurons: Vec<NeuronIndex>,
    /// Falls of the word's logit as they are switched off one after the other, for this word alone.
    pub logit: SwitchingOff,
    /// Text from the word on by the whole model.
    pub with: String,
    /// The same without the neurons, from the chat's first token on.
    pub without: String,
}

/// State of an explanation.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ExplanationProgress {
    /// The model reads the text before the word.
    #[default]
    Reading,
    /// The parts are known.
    Explained(Arc<Explained>),
    /// It failed; a sentence.
    Failed(String),
}

#[derive(Debug, Default)]
struct Shared {
    progress: ExplanationProgress,
    switched_off: Option<Arc<SwitchedOff>>,
}

/// An explanation being computed, or its result. Dropping it stops the computation.
#[derive(Debug)]
pub struct Explanation {
    /// The model whose neurons these are.
    model: Weak<Model>,
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
}

impl Explanation {
    /// Begins to explain the word that `text` begins with and that follows `prompt` in a chat with the model of `engine`.
    pub fn start(handle: &EngineHandle, engine: Engine, prompt: Prompt, text: String) -> Self {
        let model = Arc::downgrade(engine.model());
        let explanation = Explanation { model, shared: Arc::default(), stop: Arc::default() };
        let (shared, stop, handle) = (Arc::clone(&explanation.shared), Arc::clone(&explanation.stop), handle.clone());
        let work = move || {
            let mut proceed = || if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let mut publish = |change: &dyn Fn(&mut Shared)| {
                change(&mut shared.lock());
                handle.notify();
            };
            if let Err(error) = explain(&engine, prompt, &text, &mut proceed, &mut publish) {
                let sentence = error_message(&error);
                publish(&|shared| shared.progress = ExplanationProgress::Failed(sentence.clone()));
            }
        };
        if let Err(error) = thread::Builder::new().name("explain-word".to_owned()).spawn(work) {
            explanation.shared.lock().progress =
                ExplanationProgress::Failed(format!("No thread to compute it: {error}"));
        }
        explanation
    }

    /// True if its neurons are those of `engine`.
    pub fn is_of(&self, engine: &Engine) -> bool {
        ptr::eq(self.model.as_ptr(), Arc::as_ptr(engine.model()))
    }

    /// State now.
    pub fn progress(&self) -> ExplanationProgress {
        self.shared.lock().progress.clone()
    }

    /// The continuations, once they are computed.
    pub fn switched_off(&self) -> Option<Arc<SwitchedOff>> {
        self.shared.lock().switched_off.clone()
    }
}

impl Drop for Explanation {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Changes what the window sees.
type Publish<'a> = dyn FnMut(&dyn Fn(&mut Shared)) + 'a;

fn explain(
    engine: &Engine,
    prompt: Prompt,
    text: &str,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
    publish: &mut Publish<'_>,
) -> Result<()> {
    let (model, tokenizer) = (engine.model(), engine.tokenizer());
    let context = engine.prompt_tokens(prompt, &ChatOptions::default())?;
    let Some(token) = tokenizer.encode(text, EncodeOptions::PLAIN)?.first().copied() else {
        return Err(Error::invalid("word", "at least one token", "none"));
    };
    let cpu = Cpu::new(&CpuOptions::default())?;
    let of = attribution(model, &cpu, &context, token, SEARCHED, proceed)?;
    let mut neurons = Vec::new();
    for effect in of.neurons.iter().take(LISTED) {
        let words = NeuronWords::of(engine, &cpu, effect.place)?;
        let words = if effect.activation < 0.0 { words.reversed() } else { words };
        neurons.push(ExplainedNeuron { effect: *effect, words });
    }
    let adding = of.neurons.iter().filter(|neuron| neuron.logit > 0.0).take(SWITCHED_OFF);
    let places: Vec<NeuronIndex> = adding.map(|neuron| neuron.place).collect();
    let explained = Arc::new(Explained { token: token_text(tokenizer, token), attribution: of, neurons });
    publish(&|shared| shared.progress = ExplanationProgress::Explained(Arc::clone(&explained)));

    let logit = switching_off(model, &cpu, &context, token, &places, proceed)?;
    let mut greedy = |neurons: &[NeuronIndex]| {
        let request = Request {
            sampling: Sampling::greedy(),
            max_tokens: Some(CONTINUED),
            on_full: ContextPolicy::Shift { keep: 1 },
            ..Request::new(Prompt::Tokens(context.clone()))
        };
        let mut written = String::new();
        write_side(engine, &SideModel::Without(neurons.to_vec()), request, &mut |event| {
            if let Some(Event::Token { text, .. }) = event {
                written.push_str(text);
            }
            proceed()
        })?;
        Ok::<_, Error>(written)
    };
    let (with, without) = (greedy(&[])?, greedy(&places)?);
    let switched_off = Arc::new(SwitchedOff { neurons: places, logit, with, without });
    publish(&|shared| shared.switched_off = Some(Arc::clone(&switched_off)));
    Ok(())
}

//! Explanations of words: which neurons produce a word of an answer, and how the answer continues
//! with them switched off. A separate thread computes an explanation on the open model, in turns
//! lent by the engine. Nothing here waits for it.

use std::{
    ops::ControlFlow,
    ptr,
    sync::{Arc, Weak},
};

use thermocline_engine::{
    Error, Result,
    eval::{Attribution, NeuronEffect, SwitchingOff, Until},
    model::{Model, NeuronIndex},
    session::{ChatOptions, ContextPolicy, Engine, Event, Prompt, Request, Sampling},
    tokenizer::EncodeOptions,
};

use super::{
    neuron_words::NeuronWords,
    side_answer::{SideModel, write_side},
    side_thread::{SideThread, SideWork, ThreadState},
    word_parts::WordTokens,
};
use thermocline_host::engine_handle::EngineHandle;

/// Number of listed neurons.
pub const LISTED: usize = 8;
/// Number of neurons switched off together.
pub const SWITCHED_OFF: usize = 5;
/// Length of each continuation in tokens.
const CONTINUED: usize = 32;
/// Number of neurons searched for those that raise the logit most.
const SEARCHED: usize = 1000;

/// A neuron and the words it raises and lowers.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedNeuron {
    /// Its part of the word's logit.
    pub effect: NeuronEffect,
    /// Words that it raises and lowers, for the sign of its activation.
    pub words: NeuronWords,
}

/// The parts of a word's logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The word.
    pub word: String,
    /// Number of the word's tokens.
    pub tokens: usize,
    /// All parts of the logit.
    pub attribution: Attribution,
    /// The neurons with the largest effects.
    pub neurons: Vec<ExplainedNeuron>,
}

/// How the answer changes without the neurons that raise the word's logit most.
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchedOff {
    /// The neurons that are switched off.
    pub neurons: Vec<NeuronIndex>,
    /// Decrease of the word's logit as the neurons are switched off one after the other, for this
    /// word alone.
    pub logit: SwitchingOff,
    /// The continuation from the word on. The neurons are switched off from the first token of the
    /// chat.
    pub without: String,
}

/// A word of an answer, and the prompt before it.
#[derive(Debug, Clone)]
pub struct AnsweredWord {
    /// The chat up to the word.
    pub prompt: Prompt,
    /// Tools and variables given to the chat template.
    pub chat: ChatOptions,
    /// The word, with the white space before it.
    pub text: String,
}

/// State of an explanation.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ExplanationProgress {
    /// The model is reading the text before the word.
    #[default]
    Reading,
    /// The parts of the logit are computed.
    Explained(Arc<Explained>),
    /// It failed. Holds the reason as a sentence.
    Failed(String),
}

#[derive(Debug, Default)]
struct ExplanationState {
    progress: ExplanationProgress,
    switched_off: Option<Arc<SwitchedOff>>,
}

impl ThreadState for ExplanationState {
    fn fail(&mut self, why: String) {
        self.progress = ExplanationProgress::Failed(why);
    }
}

/// A running or finished explanation. Dropping it stops the computation.
#[derive(Debug)]
pub struct Explanation {
    /// The model that the neurons belong to.
    model: Weak<Model>,
    thread: SideThread<ExplanationState>,
}

impl Explanation {
    /// Starts to explain a word of an answer by the model of `engine`.
    pub fn start(handle: &EngineHandle, engine: Engine, word: AnsweredWord) -> Self {
        let model = Arc::downgrade(engine.model());
        // The error of an engine that stopped meanwhile comes first.
        let work = move |work: &SideWork<ExplanationState>| {
            explain(&engine, word, work).map_err(|error| engine.stopped().unwrap_or(error))
        };
        Explanation { model, thread: SideThread::start(handle, "explain-word", ExplanationState::default(), work) }
    }

    /// True if its neurons belong to the model of `engine`.
    pub fn is_of(&self, engine: &Engine) -> bool {
        ptr::eq(self.model.as_ptr(), Arc::as_ptr(engine.model()))
    }

    /// Current state.
    pub fn progress(&self) -> ExplanationProgress {
        self.thread.lock().progress.clone()
    }

    /// The continuation without the neurons, once it is computed.
    pub fn switched_off(&self) -> Option<Arc<SwitchedOff>> {
        self.thread.lock().switched_off.clone()
    }
}

/// Computes an explanation in turns lent by the engine, on its workers, with its instruction set
/// and precision. It passes the turn on between layers, so that answers continue.
fn explain(engine: &Engine, word: AnsweredWord, work: &SideWork<ExplanationState>) -> Result<()> {
    let context = engine.prompt_inputs(word.prompt.clone(), &word.chat)?;
    let tokens = engine.tokenizer().encode(&word.text, EncodeOptions::PLAIN)?;
    let cpu = engine.cpu()?;
    let mut turn = engine.borrow_turn()?;
    let mut between_layers = || match turn.pass_on() {
        Ok(()) => work.proceed(),
        Err(_) => ControlFlow::Break(()),
    };
    context.embed(engine.cpu()?, &mut Until(&mut between_layers))?;
    let parts = WordTokens::new(engine, &cpu, &context, &tokens)?;
    let of = parts.attribution(SEARCHED, &mut between_layers)?;
    let mut neurons = Vec::new();
    for effect in of.neurons.iter().take(LISTED) {
        let words = NeuronWords::of(engine, &cpu, effect.place)?;
        let words = if effect.activation < 0.0 { words.reversed() } else { words };
        neurons.push(ExplainedNeuron { effect: *effect, words });
        if between_layers().is_break() {
            return Err(Error::Cancelled);
        }
    }
    // Show nothing that was read from a file lost meanwhile.
    engine.stopped().map_or(Ok(()), Err)?;
    let adding = of.neurons.iter().filter(|neuron| neuron.logit > 0.0).take(SWITCHED_OFF);
    let places: Vec<NeuronIndex> = adding.map(|neuron| neuron.place).collect();
    let explained =
        Arc::new(Explained { word: word.text.trim().to_owned(), tokens: parts.len(), attribution: of, neurons });
    work.publish(|shared| shared.progress = ExplanationProgress::Explained(explained));
    let logit = parts.switching_off(&places, &mut between_layers)?;
    // Release the turn, because the continuation is an answer of its own.
    drop(turn);
    let without = continued(engine, word, &places, &mut || work.proceed())?;
    let switched_off = Arc::new(SwitchedOff { neurons: places, logit, without });
    work.publish(|shared| shared.switched_off = Some(switched_off));
    Ok(())
}

/// The greedy continuation before `word` without `neurons`.
fn continued(
    engine: &Engine,
    word: AnsweredWord,
    neurons: &[NeuronIndex],
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<String> {
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(CONTINUED),
        on_full: ContextPolicy::Shift { keep: 1 },
        chat: word.chat,
        ..Request::new(word.prompt)
    };
    let mut written = String::new();
    write_side(engine, &SideModel::Without(neurons.to_vec()), request, &mut |event| {
        if let Some(Event::Token { text, .. }) = event {
            written.push_str(text);
        }
        proceed()
    })?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::json;
    use thermocline_engine::{
        cpu::{Cpu, CpuOptions, InputPrecision, Isa},
        eval::attribution,
        session::{EngineOptions, Message, Role, SessionOptions},
    };

    use super::*;
    use thermocline_host::testing::until;

    /// A small model whose chat template prints its tools and a variable.
    fn model(folder: &Path) -> Engine {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama-relu");
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(source.join(file), folder.join(file)).unwrap();
        }
        let template = "{{ mood }}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}\
            {% for message in messages %}{{ message.content }}{% endfor %}";
        fs::write(folder.join("tokenizer_config.json"), json!({ "chat_template": template }).to_string()).unwrap();
        let cpu = CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Int8 };
        Engine::open(folder, EngineOptions { cpu, context: Some(128), ..EngineOptions::default() }).unwrap()
    }

    fn word(chat: &ChatOptions) -> AnsweredWord {
        let prompt = Prompt::Chat(vec![Message::new(Role::User, "a cat")]);
        AnsweredWord { prompt, chat: chat.clone(), text: "b".to_owned() }
    }

    /// Explains a word after the prompt of its answer, on the engine's CPU, while another answer
    /// continues.
    #[test]
    fn explanation_has_the_answers_tools_variables_and_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let engine = model(folder.path());
        let running = engine.session(SessionOptions::default()).unwrap();
        let endless = Request {
            ignore_eos: true,
            on_full: ContextPolicy::Shift { keep: 1 },
            ..Request::new(Prompt::Text("a".to_owned()))
        };
        let events = running.generate(endless);
        let tool = json!({ "type": "function", "function": { "name": "look", "parameters": {} } });
        let plain = ChatOptions::default();
        let chat = ChatOptions {
            tools: vec![tool],
            variables: json!({ "mood": "glad" }).as_object().cloned().unwrap(),
            call_format: None,
        };
        let explained = |chat: &ChatOptions| {
            let explanation = Explanation::start(&EngineHandle::new(|| ()), engine.clone(), word(chat));
            until("an explanation", || match explanation.progress() {
                ExplanationProgress::Reading => None,
                ExplanationProgress::Explained(explained) => Some(explained.attribution.clone()),
                ExplanationProgress::Failed(why) => panic!("{why}"),
            })
        };
        let (with_tools, without) = (explained(&chat), explained(&plain));
        assert_ne!(with_tools.logit, without.logit);
        let cpu = Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), ..CpuOptions::default() }).unwrap();
        let token = with_tools.token;
        for (got, chat) in [(with_tools, &chat), (without, &plain)] {
            let context = engine.prompt_tokens(word(chat).prompt, chat).unwrap();
            let text = engine.tokenizer().decode(&context, false);
            assert_eq!(text.contains("gladlook"), !chat.tools.is_empty(), "{text}");
            let go = &mut || ControlFlow::Continue(());
            assert_eq!(got, attribution(engine.model(), &cpu, &context, token, SEARCHED, go).unwrap());
        }
        let went_on = events.try_iter().filter(|event| matches!(event, Event::Token { .. })).count();
        assert!(went_on > 0, "the answer waited");
    }
}

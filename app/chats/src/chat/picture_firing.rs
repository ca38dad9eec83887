//! The neurons that fire at the patches of a picture. A separate thread computes all patches of the
//! picture in one pass of the open model over the chat, in turns lent by the engine.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    ptr,
    sync::{Arc, Weak},
};

use thermocline_engine::{
    Error, Result,
    eval::{TokenFiring, Until, token_firing},
    model::{Model, NeuronIndex},
    pictures::PictureHash,
    runtime::CallInputs,
    session::{ChatOptions, Engine, Prompt},
};

use super::{
    explanation::LISTED,
    neuron_words::NeuronWords,
    side_thread::{SideThread, SideWork, ThreadState},
};
use thermocline_host::engine_handle::EngineHandle;

/// A picture of a chat.
#[derive(Debug, Clone)]
pub struct AskedPicture {
    /// The chat up to the message with the picture.
    pub prompt: Prompt,
    /// Tools and variables given to the chat template.
    pub chat: ChatOptions,
    /// The picture.
    pub picture: PictureHash,
}

/// State of the computation of a picture's firings.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum FiringProgress {
    /// The model is reading the chat up to the picture.
    #[default]
    Reading,
    /// The neurons at each patch, row by row.
    Known(Arc<Vec<TokenFiring>>),
    /// It failed. Holds the reason as a sentence.
    Failed(String),
}

impl ThreadState for FiringProgress {
    fn fail(&mut self, why: String) {
        *self = FiringProgress::Failed(why);
    }
}

/// The words of some neurons, as far as they are computed.
#[derive(Debug, Default)]
struct KnownWords {
    words: HashMap<NeuronIndex, Arc<NeuronWords>>,
    failure: Option<String>,
}

impl ThreadState for KnownWords {
    fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }
}

/// The firings of a picture, computed or being computed. Dropping it stops the computation.
#[derive(Debug)]
pub struct PictureFiring {
    model: Weak<Model>,
    firing: SideThread<FiringProgress>,
    /// The words of a patch's neurons.
    words: Option<SideThread<KnownWords>>,
}

impl PictureFiring {
    /// Starts to compute the firings of a picture in the model of `engine`.
    pub fn start(handle: &EngineHandle, engine: Engine, asked: AskedPicture) -> Self {
        let model = Arc::downgrade(engine.model());
        let work = move |work: &SideWork<FiringProgress>| {
            let known = firings(&engine, asked, work).map_err(|error| engine.stopped().unwrap_or(error))?;
            work.publish(|progress| *progress = FiringProgress::Known(Arc::new(known)));
            Ok(())
        };
        let firing = SideThread::start(handle, "picture-firing", FiringProgress::Reading, work);
        PictureFiring { model, firing, words: None }
    }

    /// True if its neurons belong to the model of `engine`.
    pub fn is_of(&self, engine: &Engine) -> bool {
        ptr::eq(self.model.as_ptr(), Arc::as_ptr(engine.model()))
    }

    /// Current state.
    pub fn progress(&self) -> FiringProgress {
        self.firing.lock().clone()
    }

    /// Starts to compute the words that the neurons of a patch raise and lower. The words of
    /// another patch are no longer computed.
    pub fn ask_words(&mut self, handle: &EngineHandle, engine: Engine, patch: usize) {
        let FiringProgress::Known(known) = self.progress() else { return };
        let Some(of_patch) = known.get(patch) else { return };
        let state = KnownWords {
            words: self.words.take().map(|before| std::mem::take(&mut before.lock().words)).unwrap_or_default(),
            failure: None,
        };
        let unknown = of_patch.neurons.iter().filter(|it| !state.words.contains_key(&it.place));
        let unknown: Vec<_> = unknown.copied().collect();
        let work = move |work: &SideWork<KnownWords>| {
            let cpu = engine.cpu()?;
            let mut turn = engine.borrow_turn()?;
            for neuron in unknown {
                let words = Arc::new(NeuronWords::of(&engine, &cpu, neuron.place)?);
                work.publish(|known| _ = known.words.insert(neuron.place, words));
                if work.proceed().is_break() {
                    break;
                }
                turn.pass_on()?;
            }
            Ok(())
        };
        self.words = Some(SideThread::start(handle, "patch-words", state, work));
    }

    /// The words of a neuron for a positive activation, once they are computed.
    pub fn words(&self, place: NeuronIndex) -> Option<Arc<NeuronWords>> {
        self.words.as_ref()?.lock().words.get(&place).cloned()
    }

    /// Why no words could be computed, as a sentence.
    pub fn failure(&self) -> Option<String> {
        self.words.as_ref()?.lock().failure.clone()
    }
}

/// The neurons at each patch of a picture, row by row.
fn firings(engine: &Engine, asked: AskedPicture, work: &SideWork<FiringProgress>) -> Result<Vec<TokenFiring>> {
    let inputs = engine.prompt_inputs(asked.prompt, &asked.chat)?;
    let places = inputs.patches(asked.picture);
    let [Some(first), Some(last)] = [places.first(), places.last()] else {
        return Err(Error::invalid("picture", "a picture that the open model is given with this chat", "another one"));
    };
    let mut turn = engine.borrow_turn()?;
    let mut between_layers = || match turn.pass_on() {
        Ok(()) => work.proceed(),
        Err(_) => ControlFlow::Break(()),
    };
    inputs.embed(engine.cpu()?, &mut Until(&mut between_layers))?;
    let cpu = engine.cpu()?;
    let pictures = inputs.placed()?;
    let context = CallInputs::with_pictures(inputs.tokens(), &pictures);
    let board = engine.neurons();
    let all = token_firing(engine.model(), &cpu, context, *first..*last + 1, board, LISTED, &mut between_layers)?;
    // Tokens of the text end the rows of some pictures.
    let of_patches = places.iter().filter_map(|place| all.get(place - first).cloned());
    // Show nothing that was read from a file lost meanwhile.
    engine.stopped().map_or(Ok(()), Err)?;
    Ok(of_patches.collect())
}

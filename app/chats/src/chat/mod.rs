//! Generation of answers in chats. Nothing here depends on a window, and nothing blocks.
//!
//! - [`ChatController`] starts answers on the engine's sessions or on a server, and moves their
//!   text into the store.
//! - `AnswerStats` are the statistics stored with an answer, [`SamplingOverrides`] the user's
//!   sampling settings.
//! - [`given`] chooses which parts of attached files the model reads. [`MeaningSearch`] ranks their
//!   passages by meaning.
//! - [`remembered`] saves the neurons of a chat's last tokens, and [`word_keeper`] saves the words
//!   at which neurons fire.
//! - [`Explanation`] shows which neurons produced a word, from the [parts](word_parts) of its
//!   logits. [`NeuronWords`] are the words that a neuron raises and lowers.
//! - [`PictureFiring`] shows which neurons fire at each patch of a picture. Like an explanation, it
//!   is a [computation beside the answers](side_thread).
//! - [`FoundNeuron`] is a neuron found by a word and by how it [fires at the word](word_firing).
//! - [`AnswerComparison`] lets two models answer the same request, one after the other.
//! - [`tool_round`] runs the tools that an answer calls, with the user's consent, and starts the
//!   next answer.
//! - [`titles`] writes titles of chats when nothing else is computed.

mod active_answer;
mod call_reader;
mod comparison;
mod controller;
mod explanation;
mod found_neuron;
pub mod given;
mod meaning;
mod neuron_words;
mod picture_firing;
mod prompt;
pub mod remembered;
mod sampling_overrides;
mod side_answer;
mod side_thread;
mod titles;
mod tool_round;
mod word_firing;
mod word_keeper;
mod word_parts;

pub use active_answer::{AnswerProgress, StopCause};
pub use comparison::{AnswerComparison, Side, SideState, SideText};
pub use controller::ChatController;
pub use explanation::{AnsweredWord, Explained, ExplainedNeuron, Explanation, ExplanationProgress, SwitchedOff};
pub use found_neuron::{FoundNeuron, NeuronQuery};
pub use meaning::{MeaningSearch, QuestionMeaning};
pub use neuron_words::NeuronWords;
pub use picture_firing::{AskedPicture, FiringProgress, PictureFiring};
pub use prompt::{chat_turns, prompt_before, prompt_through};
pub use sampling_overrides::SamplingOverrides;
pub use side_answer::SideModel;
pub use tool_round::{PendingCall, ToolDecision};

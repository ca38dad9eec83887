//! Generation of answers in chats. The [`ChatController`] starts answers on the engine's sessions, or on a server, and moves
//! their text into the store; [`AnswerStats`] are the statistics stored with an answer, [`SamplingOverrides`] the user's sampling
//! settings; [`given`] decides what of attached files the model reads, [`remembered`] keeps the neurons of a chat's last tokens,
//! and the [`word_keeper`] the words of neurons across chats. An [`Explanation`] says which neurons made a word, from the
//! [parts](word_parts) of its logits, [`NeuronWords`] which words a neuron raises, a [`FoundNeuron`] was found by a word and
//! by how it [fires at it](word_firing), and a [`AnswerComparison`] has an answer written once more by two models, one after the other.
//! Tools that an answer calls are run by a [`tool_round`], with the user's consent, and the chat goes on with another answer.
//! [`titles`] are written when there is nothing else to do. Nothing here depends on a window, and nothing blocks.

mod active_answer;
mod call_reader;
mod comparison;
mod controller;
mod explanation;
mod found_neuron;
pub mod given;
mod neuron_words;
mod prompt;
pub mod remembered;
mod sampling_overrides;
mod side_answer;
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
pub use neuron_words::NeuronWords;
pub use prompt::{chat_turns, prompt_before};
pub use sampling_overrides::SamplingOverrides;
pub use side_answer::SideModel;
pub use tool_round::{PendingCall, ToolDecision};

//! An [`Engine`] owns a model and one thread; a [`Session`] is one conversation with its own KV
//! cache. A session takes a [`Request`] and returns [`Event`]s on a channel. Any request can be
//! cancelled within one token.
//!
//! The thread ([`worker`]) works in [`turns`]. A turn computes the next token of every session in
//! one pass, a [`batch`], which reads the weights once. It then computes a chunk of one prompt. A
//! step of a [`generation`] computes a chunk of tokens in a [`context`], which is a KV cache with
//! its tokens. The [`prompt_pictures`] of a prompt have tokens with ids of their own
//! ([`picture_ids`]). [`prompt_inputs`] are for passes beside those of the thread. [`sampling`]
//! then chooses a token from the logits. [`text`] turns tokens into whole characters without stop
//! strings, for the caller. An [`embedding`] is a generation of no tokens. [`companions`] opens the
//! draft model and the vision tower of a model.
//!
//! The forward pass may run on a GPU that has passed its test ([`tested_device`]). The
//! [`device_manager`] has a [`loader`] upload as much of the model as the [`live_planner`] finds
//! best for the budget. If the [`device`] is lost, it moves back to the CPU and later tries the
//! device again. Contexts move with their keys and values or recompute their tokens, and
//! generations continue from their last token.
//!
//! [`speculation`] decides about drafts of the next tokens. A [`drafter`] makes them: it runs the
//! draft head of the model, or a small [`draft_model`]. A [`weight_reader`] reads its weights
//! before the first draft.
//!
//! [`settings`] holds what callers change on a running engine (VRAM budget, sparsity mode,
//! adaptation). The engine applies changes between two tokens. A [`budget_forecast`] predicts the
//! effect of a budget, corrected by measured decoding rates. A [`breakdown`] compares the planned
//! parts of a token's time with the measured [`step_times`]. [`idle_calibration`] measures the
//! machine while the engine is idle, and a [`lent_turn`] lets another thread compute between two
//! turns. [`neurons`] records firings and adapts the hot set to them. [`neuron_norms`] weighs
//! neurons that are never zero, and [`ffn_reads`] reports what skipping saved.

mod batch;
mod breakdown;
mod budget_forecast;
mod chat_history;
mod common_tokens;
mod companions;
mod context;
mod device;
mod device_drafter;
mod device_manager;
mod draft_context;
mod draft_model;
mod drafter;
mod embedding;
mod encoded_prompt;
mod engine;
mod engine_session;
mod engine_state;
mod ffn_reads;
mod generation;
mod generation_progress;
mod idle_calibration;
mod lent_turn;
mod live_planner;
mod loader;
mod logprobs;
mod neuron_norms;
mod neurons;
mod picture_ids;
mod prompt_inputs;
mod prompt_pictures;
mod request;
pub mod sampling;
mod settings;
mod sparsity;
mod speculation;
mod step_times;
mod stop_strings;
mod streamed_chunk;
mod tested_device;
mod text;
mod thought_calls;
mod turns;
mod weight_reader;
mod weight_room;
mod worker;

pub use breakdown::{Breakdown, MeasuredTime};
pub use budget_forecast::unopened_planner;
pub use device::{DeviceChoice, DeviceEvent, DeviceMemory, DeviceStatus, LoadStage};
pub use draft_model::open_draft_model;
pub use embedding::{EmbeddingPrompts, StateReading};
pub use engine::{Engine, MemoryReport};
pub use engine_session::Session;
pub use idle_calibration::CalibrationOptions;
pub use lent_turn::LentTurn;
pub use live_planner::{LivePlanner, planner};
pub use loader::{DeviceLoadOptions, load_on_device};
pub use logprobs::{LogprobsRequest, TokenLogprobs};
pub use neuron_norms::USUAL_MASS;
pub use neurons::{FrequencySource, NeuronFrequencies};
pub use prompt_inputs::PromptInputs;
pub use request::{
    AnswerText, ChatOptions, ContextPolicy, Event, FfnReads, GenerationStats, Message, Prompt, Request, Role, Sampling,
    SpeculationMode, StopReason,
};
pub use settings::{EngineOptions, SessionOptions};
pub use sparsity::{SparsityChoice, SparsityReport, WORTH_PREDICTING};
pub use speculation::{DraftCounts, DraftSource, DraftsBySource};
pub use streamed_chunk::streamed_chunk;
pub use thermocline_model::Pooling;
pub use turns::Priority;
pub use weight_room::WeightRoom;

pub use sampling::Grammar;

/// Devices and their memory, as a user of the engine sees them.
pub use thermocline_gpu::{
    AdapterChoice, AdapterId, AdapterKind, AdapterReport, AwaitedFrame, CrashSentinel, CreationLock, Fallback,
    FallbackPart, Fallbacks, GpuOptions, Purpose, VramReading, VramSource, adapters,
};

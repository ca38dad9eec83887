//! An [`Engine`] owns a model and one thread; a [`Session`] is one conversation with its own KV cache. A [`Request`] goes in,
//! [`Event`]s come out of a channel, and any request can be cancelled within one token.
//!
//! Inside, the thread ([`worker`]) takes [`turns`]: a pass that computes the next token of every session, a [`batch`] that reads the
//! weights once, then a chunk of one prompt. A step of a [`generation`] computes a chunk of tokens in a [`context`] (a KV cache and the
//! tokens it holds), has [`sampling`] choose one from the logits, and passes it through [`text`] (whole characters, no stop strings) to
//! the caller. An [`embedding`] is a generation of no tokens.
//!
//! The forward pass may live on a GPU that has passed its test ([`tested_device`]): the [`device_manager`] has a [`loader`] bring there
//! as much of the model as the [`live_planner`] finds the budget best used for, moves back to the CPU when the [`device`] is lost, and
//! tries it again. Contexts follow with their keys and values, or by computing their tokens anew, and generations go on from the token
//! they were at. What callers change on a running engine (VRAM budget, sparsity mode, adaptation) is requested in [`settings`] and
//! applied between two tokens. A [`budget_forecast`] says what a budget would give, corrected by the rates that were measured while decoding; a
//! [`breakdown`] sets the parts of a token's time as planned beside those of [`step_times`];
//! [`idle_calibration`] measures the machine while the engine is idle; a [`lent_turn`] has another thread compute between two turns; [`neurons`] records firings and lets the hot set follow them,
//! [`neuron_norms`] weighs neurons that are never zero, and [`ffn_reads`] says what skipping saved.

mod batch;
mod breakdown;
mod budget_forecast;
mod chat_history;
mod context;
mod device;
mod device_manager;
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
mod request;
pub mod sampling;
mod settings;
mod sparsity;
mod speculation;
mod step_times;
mod stop_strings;
mod tested_device;
mod text;
mod thought_calls;
mod turns;
mod worker;

pub use breakdown::{Breakdown, MeasuredTime};
pub use budget_forecast::unopened_planner;
pub use device::{DeviceChoice, DeviceEvent, DeviceMemory, DeviceStatus, LoadStage};
pub use embedding::Pooling;
pub use engine::{Engine, MemoryReport};
pub use engine_session::Session;
pub use idle_calibration::CalibrationOptions;
pub use lent_turn::LentTurn;
pub use live_planner::{LivePlanner, planner};
pub use loader::{DeviceLoadOptions, load_on_device};
pub use logprobs::{LogprobsRequest, TokenLogprobs};
pub use neuron_norms::USUAL_MASS;
pub use neurons::{FrequencySource, NeuronFrequencies};
pub use request::{
    AnswerText, ChatOptions, ContextPolicy, Event, FfnReads, GenerationStats, Message, Prompt, Request, Role, Sampling,
    SpeculationMode, StopReason,
};
pub use settings::{EngineOptions, SessionOptions};
pub use sparsity::{SparsityChoice, SparsityReport, WORTH_PREDICTING};
pub use turns::Priority;

pub use sampling::Grammar;

/// Devices and their memory, as a user of the engine sees them.
pub use thermocline_gpu::{
    AdapterChoice, AdapterId, AdapterKind, AdapterReport, AwaitedFrame, CrashSentinel, CreationLock, Fallback,
    FallbackPart, Fallbacks, GpuOptions, Purpose, VramReading, VramSource, adapters,
};

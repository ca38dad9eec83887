//! Chat templates: convert messages to the text format that a model was trained on.
//!
//! A template is a program from a downloaded file: Jinja as Hugging Face runs it, executed by the
//! `minijinja` library. [`scan`] inspects its source. [`sandbox`] compiles it so that every
//! operation that makes data grow or walks through it asks the [`budget`] first. No template can
//! therefore take more than bounded time and memory.
//!
//! Templates may call [`operations`] and [`filters`]. [`json`] and [`text_methods`] replace what
//! differs in the library. [`jinja_extras`], [`text_filters`], [`bound_method`] and
//! [`macro_arguments`] add what it lacks. [`fallback`] has templates for models with none, or a
//! broken one. [`rendering`] changes a [`conversation`] until a template writes all of it. If a
//! template lacks system messages, they move into the user's messages. If it lacks tools,
//! [`tool_text`] writes them as text.

mod arguments;
mod bound_method;
mod budget;
mod conversation;
mod fallback;
mod filters;
mod jinja_extras;
mod json;
mod macro_arguments;
mod mending;
mod operations;
mod rendering;
mod sandbox;
mod scan;
mod strftime;
mod template;
#[cfg(test)]
mod tests;
mod text_filters;
mod text_methods;
mod tool_text;

pub(crate) use template::configured_template;
#[cfg(test)]
pub(super) use template::tests::checkpoint;
pub use template::{ChatMessage, ChatTemplate, RenderOptions, TemplateOrigin};

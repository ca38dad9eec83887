//! Chat templates: messages to the text a model was trained on.
//!
//! A template is a program that came with a downloaded file. It is Jinja, as Hugging Face runs it,
//! on the `minijinja` library; [`scan`] looks at its text and [`sandbox`] compiles it with every
//! operation that can make data grow or walks through it replaced by one that asks the [`budget`]
//! first, so that no template can take more than bounded time and memory. [`operations`] and
//! [`filters`] are what a template may call, [`json`] and [`text_methods`] what differs from the
//! library there, [`jinja_extras`], [`text_filters`], [`bound_method`] and [`macro_arguments`] what
//! it lacks, [`fallback`] the templates for models that bring none, or a broken one; [`rendering`]
//! gives a template a [`conversation`] in a form in which it writes all of it: system messages
//! within the user's, and tools as text by [`tool_text`], where it knows none.

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

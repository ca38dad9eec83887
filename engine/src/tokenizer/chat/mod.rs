//! Chat templates: messages to the text a model was trained on.
//!
//! A template is a program that came with a downloaded file. It is Jinja, as Hugging Face runs it, on the `minijinja`
//! library; [`scan`] looks at
//! its text and [`sandbox`] compiles it with every operation that can make data grow replaced by one that asks the
//! [`budget`] first, so that no template can take more than bounded time and memory. [`operations`] and [`filters`] are
//! what a template may call, [`json`] and [`text_methods`] what differs from the library there, [`fallback`] the templates for models that bring none, or a broken one;
//! [`tool_text`] writes tools as text for templates that know none.

mod budget;
mod fallback;
mod filters;
mod json;
mod operations;
mod sandbox;
mod scan;
mod strftime;
mod template;
#[cfg(test)]
mod tests;
mod text_methods;
mod tool_text;

pub use template::{ChatMessage, ChatTemplate, RenderOptions, TemplateOrigin};

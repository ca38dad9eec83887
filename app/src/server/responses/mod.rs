//! OpenAI's `/v1/responses`: [`response_body`] makes a body of a chat's of a request's items, so that there is one parser and one way to
//! generate; [`ResponseFormat`] writes answers as items, whole or as events; the [`ResponseStore`] keeps the latest ones, which requests
//! may continue by `previous_response_id`.

mod format;
mod input;
mod items;
mod request;
mod store;
mod tools;

pub use format::ResponseFormat;
pub use request::{ResponseBody, response_body};
pub use store::ResponseStore;

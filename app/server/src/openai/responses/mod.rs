//! OpenAI's `/v1/responses`. [`read_response_request`] reads requests of items. [`ResponseFormat`]
//! writes answers as items, whole or as events. The [`ResponseStore`] keeps the latest responses,
//! which requests continue with `previous_response_id`.

mod format;
mod input;
mod items;
mod request;
mod store;
mod tools;

pub use format::ResponseFormat;
pub use request::{ResponseBody, read_response_request};
pub use store::ResponseStore;

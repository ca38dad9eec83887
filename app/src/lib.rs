//! The Thermocline application: everything of the program that is not the engine. [`cli`] is the terminal; [`builtin`]
//! is the model inside the binary; [`store`] keeps the chats.

pub mod builtin;
pub mod cli;
pub mod store;

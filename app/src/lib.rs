//! The Thermocline application: everything of the program that is not the engine. [`cli`] is the terminal; [`builtin`]
//! is the model inside the binary; [`folders`] are the places for files and [`settings`] what the user chose; [`store`]
//! keeps the chats, [`library`] knows the models on disk, [`download`] brings more of them; [`units`] are sizes as people
//! write them.

pub mod builtin;
pub mod cli;
pub mod download;
pub mod folders;
pub mod library;
pub mod settings;
pub mod store;
pub mod units;

//! The Thermocline application: everything of the program that is not the engine. [`cli`] is the terminal; [`builtin`]
//! is the model inside the binary; [`folders`] are the places for files, [`files`] writes them and [`settings`] is what the user chose; [`store`]
//! keeps the chats, [`fence`] tells code from other text, [`library`] knows the models on disk, [`download`] brings more of them; [`host`] is the engine as a
//! window sees it, [`talk`] what is being said and [`ui`] the window; [`server`] lets other programs use the model; [`units`] are
//! sizes as people write them.

// Whether a thread may have an engine is asked through all that wgpu is made of.
#![recursion_limit = "256"]

pub mod builtin;
pub mod cli;
pub mod download;
pub mod fence;
pub mod files;
pub mod folders;
pub mod host;
pub mod library;
pub mod server;
pub mod settings;
pub mod store;
pub mod talk;
pub mod ui;
pub mod units;

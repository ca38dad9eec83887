//! Tests of the whole window:
//!
//! - [`keyboard`]: everything by keyboard alone; [`names`]: the controls' names for screen readers
//! - [`frames`]: when frames are drawn; [`timing`]: how long they take; [`looks`]: how panels look
//! - [`chat_files`]: chats that leave and enter the window; [`attachments`]: files of messages
//! - [`lost_device`]: lost graphics devices; [`editors`]: each text keeps its own undo history
//! - [`broken_off`]: reports of ended answers; [`leaving`]: questions before answers are lost
//! - [`signs`]: notices of what was done; [`first_minute`]: what a new user sees
//! - [`context`]: a full context; [`scrolling`]: long chats; [`narrow`]: small windows
//! - [`speeds`]: measured speeds of other settings; [`neurons`]: neurons and the chat's words
//! - [`chat_maps`]: the map of each chat; [`pictures`]: neurons at the patches of pictures
//! - [`tools`]: tool calls
//! - [`other_instances`]: two windows; [`locked_chats`]: chats locked by another program

mod attachments;
mod broken_off;
mod chat_files;
mod chat_maps;
mod context;
mod editors;
mod first_minute;
mod frames;
mod keyboard;
mod leaving;
mod locked_chats;
mod looks;
#[cfg(target_os = "linux")]
mod lost_device;
mod names;
mod narrow;
mod neurons;
mod other_instances;
mod pictures;
mod scrolling;
mod signs;
mod speeds;
mod timing;
mod tools;

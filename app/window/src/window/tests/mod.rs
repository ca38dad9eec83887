//! The whole window: by the keyboard alone ([`keyboard`]), as a screen reader finds it ([`names`]), when it draws frames
//! ([`frames`]) and what they cost ([`timing`]), what its panels look like ([`looks`]), what leaves and enters it
//! ([`chat_files`]), what it does when its graphics device is lost ([`lost_device`]), files that go with messages
//! ([`attachments`]), that what is typed belongs to what it is typed into ([`editors`]), that the end of an answer is said
//! ([`broken_off`]) and asked about ([`leaving`]), signs of what was done ([`signs`]), what a new user sees ([`first_minute`]), what happens where the context is full ([`context`]), chats longer
//! than the window ([`scrolling`]), windows too small for all columns ([`narrow`]), measured speeds of other settings
//! ([`speeds`]), neurons and the words of the chat ([`neurons`]), the map of each chat ([`chat_maps`]), tools that a model calls
//! ([`tools`]), that it gets on with another one ([`other_instances`]), and
//! that frames do not wait while another program writes to the chats ([`locked_chats`]).

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
mod scrolling;
mod signs;
mod speeds;
mod timing;
mod tools;

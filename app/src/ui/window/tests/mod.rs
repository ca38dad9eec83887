//! The whole window: by the keyboard alone ([`keyboard`]), as a screen reader finds it ([`names`]), what its frames
//! cost ([`frames`]), what its panels look like ([`looks`]), what leaves and enters it ([`chat_files`]), and that it gets on with another one ([`other_instances`]).

mod chat_files;
mod frames;
mod keyboard;
mod looks;
mod names;
mod other_instances;

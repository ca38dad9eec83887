//! The whole window: by the keyboard alone ([`keyboard`]), as a screen reader finds it ([`names`]), what its frames
//! cost ([`frames`]), and what its panels look like ([`looks`]).

mod frames;
mod keyboard;
mod looks;
mod names;

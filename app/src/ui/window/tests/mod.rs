//! The whole window: by the keyboard alone ([`keyboard`]), as a screen reader finds it ([`names`]), and what its
//! frames cost ([`frames`]).

mod frames;
mod keyboard;
mod names;

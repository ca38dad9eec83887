//! Pictures, without models. [`Picture`] holds the pixels of a file in any common format.
//! [`Picture::resized`] has the filters with which vision towers are trained. Files come from
//! strangers, so every limit is checked before pixels are decoded.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod data_url;
mod decode;
mod encode;
mod foreign_format;
mod hash;
mod picture;
mod resize;
#[cfg(test)]
mod tests;

pub use decode::{MOST_FILE, MOST_PIXELS, MOST_SIDE};
pub use hash::PictureHash;
pub use picture::{Picture, PictureFile};
pub use resize::ResizeFilter;

//! What is resident in VRAM, and what that costs and saves. Pure: sizes, frequencies and measured rates go in, a
//! [`Placement`] comes out.

mod place;

pub use place::Placement;

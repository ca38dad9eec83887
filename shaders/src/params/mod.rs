//! Parameters of a dispatch, in the layout of a kernel's `var<immediate>`. Every field has four
//! bytes, so that Rust and WGSL use the same layout. A test compares names, offsets and sizes with
//! the kernels' own structs.

use bytemuck::Pod;

/// Immediates of a kernel.
pub trait Params: Pod {
    /// Names and byte offsets of the fields.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Defines parameter structs and the list of their fields.
macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl Params for $name {
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    )* };
}

mod attention;
mod elements;
mod experts;
mod neurons;
mod products;
mod recurrent;

pub use attention::*;
pub use elements::*;
pub use experts::*;
pub use neurons::*;
pub use products::*;
pub use recurrent::*;

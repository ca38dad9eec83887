//! Vision towers on a device: the layers, joins of patches between layers, and the heads that merge
//! patches. The CPU embeds the patches, because this is little work. It also computes heads that
//! average patches, and heads that read them with queries. A tower without layers therefore never
//! uses a device.
//!
//! One layer after another is uploaded, computed and released. While the device computes a layer,
//! the next one is uploaded, so that two layers need room at a time. `part` loads them, and
//! `picture` computes a picture.
//!
//! The patches of a picture are computed in chunks. Products, norms and FFNs work on `buffers` of
//! one chunk. Only the residual stream, queries, keys, values and rotations of all patches are
//! kept. Attention of a chunk sees the keys of all patches, or of a window.
//!
//! Rows are as long as their width, without padding: the rows of a token's patches then follow each
//! other, and a merger reads them as one row.

mod added;
mod attention;
mod buffers;
mod join;
mod layer;
mod merger;
mod part;
mod picture;
mod products;

pub(crate) use part::has_device_form;
pub use part::tower_bytes;
pub(crate) use picture::{TowerOutputs, compute_tower};

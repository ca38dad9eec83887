//! Models larger than the memory that they may use. Their weights stay slices of a mapped file,
//! and a page that is absent is read at its first access, as in every map. A [`Pager`] decides
//! which pages are in memory, because the system's own choice is poor: weights are read in a
//! cycle, and the system drops each page shortly before it is needed again.
//!
//! On Linux, the program reads the pages past the system's cache ([`paged_file`]), because the
//! cache takes more processor time for each page. Elsewhere, or without the permission, the pager
//! gives the system hints.
//!
//! A matrix is divided into pieces, whole pages of the file ([`tensor_pages`]). The pieces with the
//! most decayed uses per byte are kept ([`kept_pieces`]). All others pass through a window, in
//! which pieces that were used repeatedly stay longer ([`pager_state`]). Products announce what
//! they are about to read, and [`page_readers`] start many reads at once. Whole matrices are
//! announced in the order of the previous pass, so that they are read while others are multiplied.
//! On Linux, [`fault_reader`] serves accesses without an announcement.
//!
//! If an announcement is late, wrong or missing, the access waits for the disk, and its result is
//! the same.

#[cfg(target_os = "linux")]
mod fault_reader;
mod kept_pieces;
mod page_readers;
mod paged_file;
mod pager;
mod pager_state;
mod read_ahead;
mod tensor_pages;

pub use kept_pieces::REQUEST_BYTES;
pub use pager::{PagedAccess, PagedTensor, Pager, PagerFigures, ReadRows};
pub use tensor_pages::{EXPERT_PIECE, WHOLE_PIECE};

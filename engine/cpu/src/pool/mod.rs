//! Worker threads with cheap joins.
//!
//! A matrix product of one token takes tens of microseconds, and a token needs a few hundred
//! products. Workers therefore spin between joins, and park only after a while without work, so
//! that an idle program uses no CPU time. The caller is worker 0. This module also makes parallel
//! writes safe. [`ThreadPool::for_each`] hands every item of a slice to exactly one worker.
//! [`split_columns`] splits a row-major buffer into column ranges that do not overlap.
//!
//! [`threads`] has the workers and their joins, [`work_ranges`] the distribution of items.
//! [`prefetch`] has the prefetching of waiting workers, [`columns`] the column ranges.
#![allow(unsafe_code)]

mod columns;
mod prefetch;
mod threads;
#[cfg(test)]
mod timing;
mod work_ranges;

pub use columns::{ColumnsMut, split_columns};
pub use threads::ThreadPool;

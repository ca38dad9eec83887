//! Worker threads with cheap joins.
//!
//! A matrix product of one token takes tens of microseconds and a token needs a few hundred of them, so workers spin
//! between joins and only park once nothing has come for a while: an idle program burns no CPU. The caller is
//! worker 0. What makes parallel writes safe is here too: [`ThreadPool::for_each`] hands every item of a slice to
//! exactly one worker, and [`split_columns`] splits a row-major buffer into column ranges that do not overlap.
//!
//! [`threads`] has the workers and their joins, [`work_ranges`] the distribution of items, [`prefetch`] what waiting workers prefetch,
//! [`columns`] the buffers split by columns.
#![allow(unsafe_code)]

mod columns;
mod prefetch;
mod threads;
#[cfg(test)]
mod timing;
mod work_ranges;

pub use columns::{ColumnsMut, split_columns};
pub use threads::ThreadPool;

//! The repository itself: which module imports which ([`imports`]), which words it uses ([`words`]), whether the pages' links lead
//! somewhere ([`pages`]).

#![allow(clippy::unwrap_used)]

mod graph;
mod imports;
mod pages;
mod sources;
mod words;

//! The repository itself: which module imports which ([`imports`]), which words it uses ([`words`]), what its functions
//! take ([`signatures`]), whether the pages' links lead somewhere ([`pages`]) and whether their figures are the program's ([`figures`]).

#![allow(clippy::unwrap_used)]

mod figures;
mod graph;
mod imports;
mod pages;
mod signatures;
mod sources;
mod words;

//! The repository itself: which module imports which ([`imports`]), whether a name means one type ([`names`]), which words it uses
//! ([`words`]), what its functions take ([`signatures`]), whether the pages' links lead somewhere ([`pages`]) and whether their figures
//! are the program's ([`figures`]).

#![allow(clippy::unwrap_used)]

mod figures;
mod graph;
mod imports;
mod names;
mod pages;
mod signatures;
mod sources;
mod words;

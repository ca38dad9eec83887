//! The repository itself: whether a name means one type ([`names`]), what functions take ([`signatures`]), whether the pages' links
//! lead somewhere ([`pages`]) and whether their figures are the program's ([`figures`]).

#![allow(clippy::unwrap_used)]

mod figures;
mod names;
mod pages;
mod signatures;
mod sources;

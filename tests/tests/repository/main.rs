//! The repository itself: whether a name means one type ([`names`]), what functions take
//! ([`signatures`]), how wide comments are ([`comments`]), whether the links of the pages lead
//! somewhere ([`pages`]), and whether the figures on the pages are those of the program
//! ([`figures`]).

#![allow(clippy::unwrap_used)]

mod comments;
mod figures;
mod names;
mod pages;
mod signatures;
mod sources;

//! Rules of the repository. A name means one type ([`names`]). Functions take few arguments
//! ([`signatures`]). Comments are narrow ([`comments`]). Links of the pages lead somewhere
//! ([`pages`]). Figures on the pages come from the program ([`figures`]).

#![allow(clippy::unwrap_used)]

mod comments;
mod figures;
mod names;
mod pages;
mod signatures;
mod sources;

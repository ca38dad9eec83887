//! The `thermocline` program.

fn main() {}

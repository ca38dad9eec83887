//! Timed loops that return structs.

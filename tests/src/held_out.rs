//! Stories that test the built-in model, with figures from the reference implementation. Only tests
//! call this module, so it panics on every failure.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use serde_json::Value;

use crate::golden::Expected;

/// Mark between two stories.
pub const SEPARATOR: &str = "<|endoftext|>";

/// Held-out stories with the figures of the reference.
#[derive(Debug)]
pub struct HeldOut {
    /// The stories with [`SEPARATOR`] between them.
    pub text: String,
    /// Figures of these stories in `fixtures/storyteller/expected.json`.
    pub figures: Value,
    /// How often each neuron fires, `[layers, n_ff]`.
    pub firings: Vec<i32>,
}

impl HeldOut {
    /// Reads all held-out stories.
    pub fn all() -> Self {
        let (text, figures, expected) = read();
        HeldOut { text, figures, firings: expected.i32("firings").unwrap() }
    }

    /// Reads the first eighth of the held-out stories.
    pub fn first() -> Self {
        let (text, mut figures, expected) = read();
        let figures = figures["first"].take();
        let stories = figures["stories"].as_u64().unwrap() as usize;
        let text: Vec<&str> = text.split(SEPARATOR).take(stories).collect();
        HeldOut { text: text.join(SEPARATOR), figures, firings: expected.i32("first.firings").unwrap() }
    }
}

fn read() -> (String, Value, Expected) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let text = |path: &str| fs::read_to_string(fixtures.join(path)).unwrap();
    let figures = serde_json::from_str(&text("storyteller/expected.json")).unwrap();
    (text("text/held-out.txt"), figures, Expected::read(&fixtures.join("storyteller/expected.safetensors")))
}

//! Stories that the built-in model is measured on, and what its reference makes of them. Only tests call this, so whatever fails here
//! fails a test.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use serde_json::Value;

use crate::golden::Expected;

/// The mark between two stories.
pub const SEPARATOR: &str = "<|endoftext|>";

/// Stories with the reference's figures.
#[derive(Debug)]
pub struct HeldOut {
    /// The stories with [`SEPARATOR`] between them.
    pub text: String,
    /// Their record in `fixtures/storyteller/expected.json`.
    pub figures: Value,
    /// How often each neuron fires, `[layers, n_ff]`.
    pub firings: Vec<i32>,
}

impl HeldOut {
    /// All there are.
    pub fn all() -> Self {
        let (text, figures, expected) = read();
        HeldOut { text, figures, firings: expected.i32("firings").unwrap() }
    }

    /// The first of them, an eighth.
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

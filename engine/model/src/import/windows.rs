//! Windows of a folder's layers: the keys that determine which layers read only the last tokens.

use serde_json::Value as Json;

use super::{Draft, HfConfig};
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Value};

/// Layers of a family that have the window if `layer_types` does not say.
#[derive(Debug, Clone)]
pub(crate) enum SlidingLayers {
    /// All layers.
    All,
    /// No layer.
    None,
    /// All layers but the last of every so many. A folder may give another number, or a pattern of
    /// letters, as `sliding_window_pattern`.
    AllButEvery(usize),
    /// Marked layers, one mark per layer.
    Marked(Vec<bool>),
}

impl HfConfig {
    /// Returns, per layer, whether it has the window; `None` if the folder names no window or turns
    /// it off.
    pub fn sliding_layers(&self, n_layer: usize, usual: SlidingLayers) -> Result<Option<Vec<bool>>> {
        let window = self.usize(&["sliding_window"])?.filter(|window| *window > 0);
        if window.is_none() || self.bool(&["use_sliding_window"])? == Some(false) {
            return Ok(None);
        }
        if let Some(slides) = self.layers_of_type("sliding_attention", &["full_attention"], n_layer)? {
            return Ok(Some(slides));
        }
        Ok(Some(match usual {
            SlidingLayers::All => vec![true; n_layer],
            SlidingLayers::None => vec![false; n_layer],
            SlidingLayers::Marked(slides) => slides,
            SlidingLayers::AllButEvery(usual) => self.pattern(n_layer, usual)?,
        }))
    }

    /// Reads `sliding_window_pattern`. A number is an interval whose last layer has no window.
    /// Letters (`L` for a window) repeat over the layers.
    fn pattern(&self, n_layer: usize, usual: usize) -> Result<Vec<bool>> {
        let name = "sliding_window_pattern";
        let letters = match self.value(name) {
            Some(Json::String(letters)) => letters.chars().map(|letter| letter == 'L').collect(),
            Some(_) => {
                let every = self.size(&[name])?;
                (1..=every.min(n_layer)).map(|n| n < every).collect()
            }
            None => (1..=usual).map(|n| n < usual).collect::<Vec<bool>>(),
        };
        if letters.is_empty() {
            return Err(self.error(name, "one letter per layer, or a number", "an empty string"));
        }
        Ok(letters.iter().copied().cycle().take(n_layer).collect())
    }
}

impl Draft {
    /// Sets the window and which layers have it, if the folder names a window. Returns, per layer,
    /// whether it has the window.
    pub fn windows(&mut self, hf: &HfConfig, n_layer: usize, usual: SlidingLayers) -> Result<Option<Vec<bool>>> {
        let slides = hf.sliding_layers(n_layer, usual)?;
        if let Some(slides) = &slides {
            self.window(hf.size(&["sliding_window"])?, Some(slides.clone()))?;
        }
        Ok(slides)
    }

    /// Sets the window and, if layers differ, which of them have it.
    pub fn window(&mut self, window: usize, slides: Option<Vec<bool>>) -> Result<()> {
        self.set_size("attention.sliding_window", window)?;
        if let Some(slides) = slides {
            self.set("attention.sliding_window_pattern", Value::Array(Array::Bool(slides)));
        }
        Ok(())
    }
}

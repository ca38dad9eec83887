//! A copy of the map that can be drawn without a window, at another size.

use std::sync::Arc;

use egui::ColorImage;
use thermocline_engine::telemetry::neurons::TokenTrace;

use super::{
    atlas::{Atlas, MapLayout},
    colours::{self, ColourTable},
    grid::Grid,
    layer_values::Fold,
    map::MapOptions,
    mode::Mode,
};

/// Maximum number of dots along a side of a picture.
const MOST_DOTS: usize = 4096;

/// The dots of all layers, and their display options.
#[derive(Debug)]
pub struct MapSnapshot {
    /// The data of the dots.
    pub atlas: Atlas,
    /// The display options.
    pub options: MapOptions,
    /// True if two tokens are compared.
    pub comparing: bool,
}

impl MapSnapshot {
    /// The colours of the dots' levels.
    pub fn table(&self) -> ColourTable {
        let MapOptions { mode, colours, .. } = self.options;
        colours::table(mode, colours, self.comparing, &self.options.palette())
    }

    /// Switches to single tokens: a mode of all tokens so far becomes the mode of firings.
    pub fn show_tokens(&mut self) {
        self.comparing = false;
        if !self.options.mode.is_of_token() {
            self.options.mode = Mode::Fired;
        }
    }

    /// True if every dot is one neuron in a picture of `size` pixels.
    pub fn is_by_neuron(&self, size: [usize; 2]) -> bool {
        self.grid(size).is_by_neuron(self.atlas.layout.view, &self.atlas.shape)
    }

    fn grid(&self, [width, height]: [usize; 2]) -> Grid {
        let view = self.atlas.layout.view;
        Grid::of_view(view, &self.atlas.shape, egui::vec2(width as f32, height as f32), MOST_DOTS)
    }

    /// Draws a token.
    pub fn draw_token(&mut self, token: &TokenTrace) {
        let shape = Arc::clone(&self.atlas.shape);
        self.atlas.draw_token(&shape, self.options.mode, token, None);
    }

    /// Draws the dots into a picture of `size` pixels.
    pub fn image(&mut self, size: [usize; 2]) -> ColorImage {
        let (layout, grid) = (self.atlas.layout, self.grid(size));
        self.atlas.lay_out(MapLayout { grid, ..layout });
        let levels = self.atlas.levels(Fold::of(self.options.mode, self.comparing));
        colours::image(&levels, grid.columns, &self.table())
    }
}

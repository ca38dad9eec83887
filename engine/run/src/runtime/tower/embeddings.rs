//! The result of a tower.

use thermocline_model::PictureGrid;
use thermocline_pictures::PictureHash;

/// A picture as embeddings of a text model.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureEmbeddings {
    /// Rows and columns of the picture's tokens.
    pub grid: PictureGrid,
    /// `[grid.tokens(), d_model]`, row by row of the grid.
    pub embeddings: Vec<f32>,
    /// For each of the text model's first layers, `[grid.tokens(), d_model]`: added to the residual
    /// stream after the layer. Empty for towers without deepstack.
    pub deepstack: Vec<Vec<f32>>,
    /// Identity of the picture.
    pub hash: PictureHash,
}

//! `--image FILE`: pictures of a message, and pictures in place of tokens.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use thermocline_engine::{
    cpu::Cpu,
    model::{Model, PictureGrid, PicturePart, Tower},
    pictures::Picture,
    runtime::{PictureEmbeddings, PlacedPicture, TowerProcessor},
    session::Engine,
    tokenizer::Tokenizer,
};

use thermocline_terminal::{
    failure::{Failure, Outcome},
    model_options::ModelOptions,
};

/// The pictures of the first message.
#[derive(Debug, Clone, Default, Args)]
pub struct PictureOptions {
    /// Picture to put before the text of the message: PNG, JPEG, WebP, GIF, BMP or TIFF; may be
    /// repeated. The model needs a vision tower
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
}

impl PictureOptions {
    /// Reads the files.
    pub fn open(&self) -> Outcome<Vec<Picture>> {
        self.image.iter().map(|path| open(path)).collect()
    }
}

/// Reads a picture.
pub fn open(path: &Path) -> Outcome<Picture> {
    let said = |error| Failure::usage(format!("{}: {error}", path.display()));
    Picture::open(path).map_err(said)
}

/// Checks that the model of `engine` reads `pictures`.
pub fn check(engine: &Engine, pictures: &[Picture]) -> Outcome {
    pictures.iter().try_for_each(|picture| Ok(engine.picture_tokens(picture).map(drop)?))
}

/// A part of a picture in place of some of a prompt's tokens.
#[derive(Debug)]
pub struct PictureAt {
    start: usize,
    grid: PictureGrid,
    /// Index of its first token among those of the picture.
    first: usize,
    embeddings: Arc<PictureEmbeddings>,
    text_positions: bool,
}

impl PictureAt {
    /// The picture as the forward pass reads it.
    pub fn placed(&self) -> PlacedPicture<'_> {
        let PictureEmbeddings { grid: whole, embeddings, deepstack } = &*self.embeddings;
        let d_model = embeddings.len() / whole.tokens().max(1);
        let embeddings = &embeddings[self.first * d_model..][..self.grid.tokens() * d_model];
        let PictureAt { start, grid, text_positions, .. } = *self;
        // No tower whose pictures have parts has additions.
        PlacedPicture { start, grid, embeddings, deepstack, text_positions }
    }
}

/// Computes the pictures in `paths` with the vision tower of `model`, which is in `mmproj` or
/// beside the model. They fill the runs of the model's image token in `tokens`, in order.
///
/// # Errors
/// [`Failure::Usage`] if the model has no tower or image token, or if the runs and the pictures
/// have different lengths.
pub fn in_tokens(
    model: &Model,
    options: &ModelOptions,
    mmproj: Option<&Path>,
    paths: &[PathBuf],
    tokens: &[u32],
    cpu: Cpu,
) -> Outcome<Vec<PictureAt>> {
    let path = model.checkpoint.path.display();
    let Some(tower) = Tower::of_model(model, mmproj, options.read_mode())? else {
        return Err(Failure::usage(format!("--image: expected a model with a vision tower, got {path}")));
    };
    let marks = Tokenizer::from_checkpoint(&model.checkpoint)?.picture_marks(&model.checkpoint.metadata)?;
    let Some(token) = marks.map(|marks| marks.token) else {
        return Err(Failure::usage(format!("--image: expected a model with an image token, got {path}")));
    };
    let tower = Arc::new(tower);
    let text_positions = tower.has_text_positions();
    let mut processor = TowerProcessor::new(Arc::clone(&tower), cpu);
    let is_image = |at: usize| tokens.get(at) == Some(&token);
    let (mut pictures, mut at) = (Vec::new(), 0);
    for path in paths {
        let picture = open(path)?;
        let embeddings = Arc::new(processor.embed(&picture, &mut ())?);
        let mut first = 0;
        // Tokens of the text follow each part.
        for PicturePart { grid, .. } in tower.parts(picture.width(), picture.height())? {
            let wanted = grid.tokens();
            at = (at..tokens.len()).find(|at| is_image(*at)).unwrap_or(tokens.len());
            let free = (at..tokens.len()).take_while(|at| is_image(*at)).count();
            if free < wanted {
                let path = path.display();
                let message = format!("--image {path}: expected {wanted} image tokens {token}, got {free}");
                return Err(Failure::usage(message));
            }
            pictures.push(PictureAt { start: at, grid, first, embeddings: Arc::clone(&embeddings), text_positions });
            at += wanted;
            first += wanted;
        }
    }
    let left = (at..tokens.len()).filter(|at| is_image(*at)).count();
    if left > 0 {
        let filled = tokens.iter().filter(|id| **id == token).count() - left;
        let message = format!("--tokens: expected {filled} image tokens {token} for the pictures, got {left} more");
        return Err(Failure::usage(message));
    }
    Ok(pictures)
}

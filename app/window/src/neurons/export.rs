//! Saves the map as a picture, an animation or a table. The system's dialog asks for the path and
//! before it overwrites a file. On desktops without dialogs, the window asks.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use egui::{ColorImage, Context, FontDefinitions};
use parking_lot::Mutex;
use thermocline_engine::{
    files::{self, Form},
    model::mask,
    telemetry::neurons::{NeuronBoard, TokenTrace},
};

use super::{
    animation::{Animation, MOST_BYTES},
    picture_card::PictureCard,
};
use crate::file_dialog::{self, DialogAnswer};
use thermocline_rich_text::{fonts, waker::Waker};

/// The data to save.
pub enum Export {
    /// A card with the map.
    Picture(Box<PictureCard>),
    /// The last tokens on a card, one after the other.
    Animation(Box<Animation>),
    /// A table of the neurons.
    Table(String),
}

/// The result of saving.
pub enum Saved {
    /// The file was written.
    Written(PathBuf),
    /// Saving failed for this reason.
    Failed(String),
    /// The desktop has no file dialog, so the user must type a path. This one is the suggestion.
    NoDialog(Export, PathBuf),
}

/// Results that the panel has not reported yet.
pub type SavedFiles = Arc<Mutex<Vec<Saved>>>;

impl Export {
    /// Title of the path field.
    pub fn title(&self) -> &'static str {
        match self {
            Export::Picture(_) => "Save the picture",
            Export::Animation(_) => "Save the animation",
            Export::Table(_) => "Save the table",
        }
    }

    /// The suggested file name and the extension.
    fn name(&self) -> [&'static str; 2] {
        match self {
            Export::Picture(_) => ["neurons", "png"],
            Export::Animation(_) => ["neurons-animated", "png"],
            Export::Table(_) => ["neurons", "csv"],
        }
    }

    /// Writes the file, with the window's fonts.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn write(self, path: &Path, fonts: FontDefinitions) -> Result<(), String> {
        let made = match self {
            Export::Picture(mut card) => png(&card.draw(1.0, fonts)),
            Export::Animation(mut animation) => animation.encode(&fonts, MOST_BYTES),
            Export::Table(table) => Ok(table.into_bytes()),
        };
        let bytes = made.map_err(|error| format!("creating {}: {error}", path.display()))?;
        files::write(path, Form::Stream, &bytes).map_err(|error| error.to_string())
    }
}

/// Asks for a path and saves `export` there, on a thread of its own. Sends no result if the user
/// cancels.
pub fn save(ctx: &Context, export: Export, result: SavedFiles) {
    beside(ctx, result, move |fonts| {
        let [stem, extension] = export.name();
        let (filter, file) = (extension.to_uppercase(), format!("{stem}.{extension}"));
        match file_dialog::ask(|it| it.add_filter(filter, &[extension]).set_file_name(file).save_file()) {
            DialogAnswer::Chosen(path) => Some(written(export, path, fonts)),
            DialogAnswer::Closed => None,
            DialogAnswer::NoDialog => Some(Saved::NoDialog(export, free_name(stem, extension))),
        }
    });
}

/// Saves `export` at `path`, on a thread of its own.
pub fn save_at(ctx: &Context, export: Export, path: PathBuf, result: SavedFiles) {
    beside(ctx, result, move |fonts| Some(written(export, path, fonts)));
}

fn beside(ctx: &Context, result: SavedFiles, work: impl FnOnce(FontDefinitions) -> Option<Saved> + Send + 'static) {
    let (waker, failed) = (Waker::of(ctx), result.clone());
    let work = move || {
        if let Some(saved) = work(fonts::loaded(&waker.context())) {
            result.lock().push(saved);
            waker.now();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("save-neurons".to_owned()).spawn(work) {
        failed.lock().push(Saved::Failed(format!("saving could not start: {error}")));
    }
}

fn written(export: Export, path: PathBuf, fonts: FontDefinitions) -> Saved {
    match export.write(&path, fonts) {
        Ok(()) => Saved::Written(path),
        Err(error) => Saved::Failed(error),
    }
}

/// An unused path in the user's downloads folder, or in the home folder.
fn free_name(stem: &str, extension: &str) -> PathBuf {
    let dirs = directories::UserDirs::new();
    let downloads = dirs.as_ref().and_then(|dirs| dirs.download_dir()).filter(|folder| folder.is_dir());
    let folder = downloads.or(dirs.as_ref().map(|dirs| dirs.home_dir())).unwrap_or(Path::new("")).to_owned();
    let name = |n: u32| match n {
        0 => format!("{stem}.{extension}"),
        n => format!("{stem}-{n}.{extension}"),
    };
    (0..1000).map(|n| folder.join(name(n))).find(|path| !path.exists()).unwrap_or_else(|| folder.join(name(0)))
}

fn png(image: &ColorImage) -> Result<Vec<u8>, String> {
    let [width, height] = image.size.map(|side| u32::try_from(side).unwrap_or(0));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let pixels: Vec<u8> = image.pixels.iter().flat_map(|pixel| [pixel.r(), pixel.g(), pixel.b()]).collect();
    let mut writer = encoder.write_header().map_err(|error| error.to_string())?;
    writer.write_image_data(&pixels).map_err(|error| error.to_string())?;
    writer.finish().map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// A table with a row per neuron: layer, expert (in MoE layers; `shared` for the shared one), index
/// in the layer or the expert, fired at `token`, predicted, hot, number of firings, and number of
/// counted tokens. Unknown values are empty.
pub fn table(board: &NeuronBoard, token: Option<&TokenTrace>, is_hot: impl Fn(usize, usize) -> bool) -> String {
    let mut table = "layer,expert,neuron,fired,predicted,hot,firings,tokens\n".to_owned();
    let shape = board.shape();
    for layer in 0..shape.layers() {
        let tally = board.tally(layer);
        let fired = token.and_then(|token| token.fired(shape, layer));
        let predicted = token.and_then(|token| token.masks.as_ref()?.predicted.get(shape.words(layer)));
        let bit = |mask: Option<&[u32]>, neuron| match mask.map(|mask| mask::contains(mask, neuron)) {
            Some(true) => "1",
            Some(false) => "0",
            None => "",
        };
        for (neuron, firings) in tally.counts.iter().enumerate() {
            let (fired, predicted) = (bit(fired, neuron), bit(predicted, neuron));
            let (hot, tokens) = (u8::from(is_hot(layer, neuron)), tally.tokens);
            // Writing to a string does not fail.
            let _ = match shape.member(layer, neuron) {
                Some((expert, at)) if expert < shape.experts(layer) => write!(table, "{layer},{expert},{at}"),
                Some((_, at)) => write!(table, "{layer},shared,{at}"),
                None => write!(table, "{layer},,{neuron}"),
            };
            let _ = writeln!(table, ",{fired},{predicted},{hot},{firings},{tokens}");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use egui::Color32;
    use thermocline_engine::telemetry::neurons::{LayerFiring, LayerNeurons, NeuronShape};

    use super::*;

    #[test]
    fn csv_table_has_a_line_per_neuron() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([2, 0, 1]));
        recorder.begin(0, 0, &[1], true);
        for layer in [0, 2] {
            recorder.layer(&LayerFiring { layer, tokens: 1, fired: &[1], ..LayerFiring::default() });
        }
        recorder.end();
        let token = board.latest();
        let table = table(&board, token.as_ref(), |layer, _| layer == 2);
        let lines: Vec<_> = table.lines().skip(1).collect();
        assert_eq!(lines, ["0,,0,1,,0,1,1", "0,,1,0,,0,0,1", "2,,0,1,,1,1,1"]);
    }

    #[test]
    fn csv_table_names_experts() {
        let moe = LayerNeurons::Experts { experts: 2, width: 1, shared: 1 };
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::of([moe]));
        recorder.begin(0, 0, &[1], true);
        recorder.layer(&LayerFiring { tokens: 1, fired: &[0b110], chosen: Some(&[0b10]), ..LayerFiring::default() });
        recorder.end();
        let table = table(&board, board.latest().as_ref(), |_, _| false);
        let lines: Vec<_> = table.lines().skip(1).collect();
        assert_eq!(lines, ["0,0,0,0,,0,0,1", "0,1,0,1,,0,1,1", "0,shared,0,1,,0,1,1"]);
    }

    #[test]
    fn export_writes_png_pixels_and_errors_name_the_path() {
        let image = ColorImage::new([2, 1], vec![Color32::RED, Color32::from_rgb(1, 2, 3)]);
        let decoder = png::Decoder::new(std::io::Cursor::new(png(&image).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; 6];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, [255, 0, 0, 1, 2, 3]);
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("no/where.csv");
        let error = Export::Table(String::new()).write(&nowhere, FontDefinitions::default()).unwrap_err();
        assert!(error.contains("where.csv"), "{error}");
    }
}

//! Records the inputs of FFNs on disk.

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use half::{f16, slice::HalfFloatSliceExt};

use thermocline_base::error::{Error, FileAction, Result};
use thermocline_model::{Ffn, LayerWeights, Model, PredictorInput};
use thermocline_run::runtime::Probe;

/// Bytes of each file's write buffer.
const BUFFER: usize = 1 << 16;

/// A [`Probe`] that appends each FFN's inputs to a file of its layer, `[tokens, d_model]` in F16.
/// If the layer's own predictor or router reads the residual stream, it is recorded in another
/// file. A text's rows are final when they are [committed](InputRecorder::commit).
#[derive(Debug)]
pub struct InputRecorder {
    width: usize,
    /// Files per layer. MoE layers of the ReLU family have none, because their inputs are not
    /// needed.
    layers: Vec<Vec<(PredictorInput, InputFile)>>,
    /// Number of committed tokens.
    tokens: u64,
    /// True while inputs are recorded.
    on: bool,
    halves: Vec<f16>,
    failed: Option<Error>,
}

#[derive(Debug)]
struct InputFile {
    path: PathBuf,
    out: BufWriter<File>,
}

impl InputRecorder {
    /// Opens the files of `model` in `folder` and truncates them to their first `tokens` rows.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] if a file has fewer rows.
    pub fn open(folder: &Path, model: &Model, tokens: u64) -> Result<Self> {
        let width = model.config.d_model;
        let mut layers = Vec::new();
        for (n, layer) in model.weights.layers.iter().enumerate() {
            let open = |input| Ok((input, InputFile::open(&path(folder, n, input), tokens, width)?));
            layers.push(inputs(model, layer).map(open).collect::<Result<_>>()?);
        }
        Ok(InputRecorder { width, layers, tokens, on: true, halves: Vec::new(), failed: None })
    }

    /// True if the files of `model` in `folder` have at least `tokens` rows.
    pub fn has(folder: &Path, model: &Model, tokens: u64) -> bool {
        let wanted = tokens * (model.config.d_model * size_of::<f16>()) as u64;
        let whole = |layer, input| path(folder, layer, input).metadata().is_ok_and(|file| file.len() >= wanted);
        tokens == 0
            || model
                .weights
                .layers
                .iter()
                .enumerate()
                .all(|(n, layer)| inputs(model, layer).all(|input| whole(n, input)))
    }

    /// Returns the bytes per token on disk.
    pub fn bytes_per_token(model: &Model) -> u64 {
        let rows: usize = model.weights.layers.iter().map(|layer| inputs(model, layer).count()).sum();
        (rows * model.config.d_model * size_of::<f16>()) as u64
    }

    /// Returns the number of committed tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Turns recording on or off.
    pub fn set_on(&mut self, on: bool) {
        self.on = on;
    }

    /// Commits the `tokens` rows recorded since the last commit and flushes the files.
    ///
    /// # Errors
    /// The first error since the last commit.
    pub fn commit(&mut self, tokens: u64) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.tokens += tokens;
        self.files()
            .try_for_each(|file| file.out.flush().map_err(|source| Error::io(FileAction::Write, &file.path, source)))
    }

    /// Truncates the files to the committed rows.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn roll_back(&mut self) -> Result<()> {
        self.failed = None;
        let bytes = self.tokens * (self.width * size_of::<f16>()) as u64;
        self.files().try_for_each(|file| file.truncate(bytes))
    }

    /// True if an error is pending, which the next [`InputRecorder::commit`] returns. A probe
    /// cannot return errors.
    pub fn failed(&self) -> bool {
        self.failed.is_some()
    }

    fn files(&mut self) -> impl Iterator<Item = &mut InputFile> {
        self.layers.iter_mut().flatten().map(|(_, file)| file)
    }

    /// Reads the recorded rows of `layer` in `folder`, `[tokens, width]` in F16. `None` if the
    /// input was not recorded.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] if there are fewer rows.
    pub fn read(
        folder: &Path,
        layer: usize,
        input: PredictorInput,
        tokens: u64,
        width: usize,
    ) -> Result<Option<Vec<u8>>> {
        let path = path(folder, layer, input);
        let mut bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(FileAction::Read, path, error)),
        };
        let wanted = tokens * (width * size_of::<f16>()) as u64;
        if (bytes.len() as u64) < wanted {
            return Err(short(wanted, bytes.len() as u64));
        }
        bytes.truncate(wanted as usize);
        Ok(Some(bytes))
    }
}

impl InputFile {
    fn open(path: &Path, tokens: u64, width: usize) -> Result<Self> {
        let failed = |source| Error::io(FileAction::Open, path, source);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed)?;
        let (wanted, length) = (tokens * (width * size_of::<f16>()) as u64, file.metadata().map_err(failed)?.len());
        if length < wanted {
            return Err(short(wanted, length));
        }
        let mut file = InputFile { path: path.to_path_buf(), out: BufWriter::with_capacity(BUFFER, file) };
        file.truncate(wanted)?;
        Ok(file)
    }

    /// Truncates the file to `bytes`. Later rows are appended there.
    fn truncate(&mut self, bytes: u64) -> Result<()> {
        let failed = |source| Error::io(FileAction::Write, &self.path, source);
        // Seeking flushes the buffer, so its rows are truncated as well.
        self.out.seek(SeekFrom::Start(bytes)).map_err(failed)?;
        self.out.get_ref().set_len(bytes).map_err(failed)
    }

    fn append(&mut self, rows: &[f16]) -> Result<()> {
        let failed = |source| Error::io(FileAction::Write, &self.path, source);
        rows.iter().try_for_each(|number| self.out.write_all(&number.to_le_bytes())).map_err(failed)
    }
}

/// Returns the inputs to record for a layer.
fn inputs(model: &Model, layer: &LayerWeights) -> impl Iterator<Item = PredictorInput> + use<> {
    let asks = layer.predictor.as_ref().is_some_and(|own| own.input == PredictorInput::Residual);
    let (normed, residual) = match &layer.ffn {
        Ffn::None => (false, false),
        Ffn::Dense(_) => (true, asks),
        // A router with its own norm reads the residual stream.
        Ffn::Experts(moe) => {
            let of_gates = !model.config.activation.is_sparse();
            (of_gates, of_gates && moe.router_norm.is_some())
        }
    };
    let residual = residual.then_some(PredictorInput::Residual);
    normed.then_some(PredictorInput::Normed).into_iter().chain(residual)
}

fn path(folder: &Path, layer: usize, input: PredictorInput) -> PathBuf {
    let name = match input {
        PredictorInput::Normed => "normed",
        PredictorInput::Residual => "residual",
    };
    folder.join(format!("{name}-{layer}.f16"))
}

fn short(wanted: u64, got: u64) -> Error {
    Error::invalid("recorded inputs", format!("{wanted} bytes"), got)
}

impl Probe for InputRecorder {
    fn wants_ffn_input(&mut self) -> bool {
        self.on && self.failed.is_none()
    }

    fn ffn_input(&mut self, layer: usize, _: usize, normed: &[f32], residual: &[f32]) {
        for (input, file) in &mut self.layers[layer] {
            let rows = match input {
                PredictorInput::Normed => normed,
                PredictorInput::Residual => residual,
            };
            self.halves.resize(rows.len(), f16::ZERO);
            self.halves.convert_from_f32_slice(rows);
            // Values beyond F16's range become its largest number, not infinity.
            self.halves.iter_mut().for_each(|half| *half = half.max(f16::MIN).min(f16::MAX));
            if let Err(error) = file.append(&self.halves) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

//! Counts of firings that are kept between runs, for models without a profile: without them a plan takes every neuron and every
//! expert for equally active.
//!
//! A [`KeptCounts`] belongs to one model. Its file is a [`Sidecar`] with nothing but frequencies, in a folder of the program's own,
//! named by the model's fingerprint; it holds no text. A file of another model, or a malformed one, is ignored and replaced.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::sidecar::{Identity, PreparedLayer, Provenance, Sidecar};
use thermocline_base::{
    error::{Error, FileAction, Result},
    telemetry::neurons::NeuronBoard,
};
use thermocline_formats::format::ReadMode;
use thermocline_model::{Activation, Ffn, LayerWeights, Model};

/// Tokens of earlier runs that count as such; more of them weigh no more.
const MOST_TOKENS: u64 = 100_000;
/// New tokens that are worth writing a file.
const LEAST_TOKENS: u64 = 64;
/// Tokens that the assumption for a layer without counts weighs as much as.
const PRIOR_TOKENS: f32 = 32.0;
/// Frequency of a neuron before anything is counted.
const PRIOR_FREQUENCY: f32 = 0.3;
/// Files in the folder; the oldest go first.
const MOST_FILES: usize = 64;

/// Firings of a model in earlier runs, and where those of this run are added to them.
#[derive(Debug)]
pub struct KeptCounts {
    path: PathBuf,
    identity: Identity,
    activation: Activation,
    /// Tokens of earlier runs.
    tokens: u64,
    /// Per layer, frequencies in earlier runs, `[n_ff]` or `[experts]`; `None` for layers that are not counted.
    earlier: Vec<Option<Vec<f32>>>,
    /// Tokens of this run that are in the file.
    saved: Mutex<u64>,
}

impl KeptCounts {
    /// The counts of `model` in `folder`. `None` if plans gain nothing by counts: see [`lacks_profile`].
    pub fn open(folder: &Path, model: &Model) -> Option<Self> {
        if !lacks_profile(model) {
            return None;
        }
        let identity = Identity::of_model(model);
        let path = folder.join(format!("{}.thermocline.gguf", identity.fingerprint()));
        let layers = model.weights.layers.iter();
        let sizes: Vec<Option<usize>> = layers.map(|layer| is_counted(model, layer).then(|| members(layer))).collect();
        let mut counts = KeptCounts {
            path,
            identity,
            activation: model.config.activation,
            tokens: 0,
            earlier: sizes.iter().map(|size| size.map(|size| vec![0.0; size])).collect(),
            saved: Mutex::new(0),
        };
        match counts.read(&sizes, model) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(path = %counts.path.display(), %error, "kept counts are not used; new ones replace them");
            }
        }
        Some(counts)
    }

    fn read(&mut self, sizes: &[Option<usize>], model: &Model) -> Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        let file = Sidecar::open(&self.path, ReadMode::Read)?;
        if let Some(reason) = file.foreign(model) {
            return Err(Error::invalid("kept counts", "those of this model", reason));
        }
        let lengths = file.layers.iter().map(|layer| layer.frequency.as_ref().map(Vec::len));
        if !lengths.clone().eq(sizes.iter().copied()) {
            let got = format!("{:?}", lengths.collect::<Vec<_>>());
            return Err(Error::invalid("kept counts", format!("frequencies per layer: {sizes:?}"), got));
        }
        self.tokens = file.provenance.tokens_profiled.min(MOST_TOKENS);
        self.earlier = file.layers.into_iter().map(|layer| layer.frequency).collect();
        Ok(())
    }

    /// Tokens of earlier runs.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Sets [`LayerWeights::counted_frequency`] of the layers that were counted. Few tokens change little: the assumption without
    /// counts weighs as much as some tokens.
    pub fn attach(&self, model: &mut Model) {
        if self.tokens == 0 {
            return;
        }
        let used = model.config.experts.map(|experts| experts.used as f32 / experts.count.max(1) as f32);
        let tokens = self.tokens as f32;
        for (layer, earlier) in model.weights.layers.iter_mut().zip(&self.earlier) {
            let Some(earlier) = earlier else { continue };
            let prior = match layer.ffn {
                Ffn::Experts(_) => used.unwrap_or(PRIOR_FREQUENCY),
                _ => PRIOR_FREQUENCY,
            };
            let smooth = |frequency: &f32| (frequency * tokens + prior * PRIOR_TOKENS) / (tokens + PRIOR_TOKENS);
            layer.counted_frequency = Some(earlier.iter().map(smooth).collect());
        }
    }

    /// Writes the frequencies of earlier runs and of this one, which `board` counted; nothing if there is little new.
    ///
    /// # Errors
    /// [`Error::Io`] where the folder refuses; the old file is unchanged.
    pub fn save(&self, board: &NeuronBoard) -> Result<()> {
        let mut saved = self.saved.lock();
        let tallies: Vec<_> = (0..self.earlier.len()).map(|layer| board.tally(layer)).collect();
        let new = tallies.iter().map(|tally| tally.tokens).max().unwrap_or(0);
        if new < *saved + LEAST_TOKENS {
            return Ok(());
        }
        let layers = self.earlier.iter().zip(&tallies).map(|(earlier, tally)| {
            let frequency = earlier.as_ref().map(|earlier| {
                let counts = if tally.chosen.is_empty() { &tally.counts } else { &tally.chosen };
                let tokens = (self.tokens + tally.tokens).max(1) as f64;
                let mean = |(earlier, count): (&f32, &u32)| {
                    ((f64::from(*earlier) * self.tokens as f64 + f64::from(*count)) / tokens) as f32
                };
                earlier.iter().zip(counts).map(mean).collect()
            });
            PreparedLayer { frequency, ..PreparedLayer::default() }
        });
        let file = Sidecar {
            path: self.path.clone(),
            identity: self.identity.clone(),
            provenance: Provenance {
                activation: self.activation,
                corpus: "counted while it was used".to_owned(),
                tokens_profiled: self.tokens + new,
                tokens_held_out: 0,
                target_recall: 0.0,
                target_mass_recall: 0.0,
            },
            layers: layers.collect(),
            input_figures: Vec::new(),
        };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| Error::io(FileAction::Create, folder, error))?;
            remove_oldest(folder, &self.path);
        }
        file.write(&self.path)?;
        *saved = new;
        Ok(())
    }
}

/// True if the model has layers that counts would tell something about and no profile does: experts, or neurons with an activation
/// that is zero where they are silent.
pub fn lacks_profile(model: &Model) -> bool {
    model.weights.layers.iter().any(|layer| is_counted(model, layer))
}

fn is_counted(model: &Model, layer: &LayerWeights) -> bool {
    layer.frequency.is_none()
        && match &layer.ffn {
            Ffn::Dense(_) => model.config.activation.is_sparse(),
            Ffn::Experts(_) => true,
            Ffn::None => false,
        }
}

/// Neurons of a dense layer, experts of another.
fn members(layer: &LayerWeights) -> usize {
    match &layer.ffn {
        Ffn::Dense(ffn) => ffn.up.weight.rows(),
        Ffn::Experts(experts) => experts.experts.len(),
        Ffn::None => 0,
    }
}

/// Makes room for one more file. What cannot be removed stays.
fn remove_oldest(folder: &Path, except: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let files = entries.flatten().filter(|entry| entry.path() != except);
    let mut files: Vec<_> =
        files.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort();
    for (_, path) in files.iter().take((files.len() + 1).saturating_sub(MOST_FILES)) {
        // Another instance may have been faster.
        let _ = std::fs::remove_file(path);
    }
}

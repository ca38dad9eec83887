//! Firing counts that are kept between runs, for models without a profile. Without them, a plan
//! assumes that all neurons and all experts are equally active.
//!
//! A [`KeptCounts`] belongs to one model. Its file is a [`Sidecar`] that holds only frequencies and
//! no text. The file is in a folder of the program, and its name is the model's fingerprint. A file
//! that is malformed or of another model is ignored and replaced.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::sidecar::{Identity, PreparedLayer, Provenance, Sidecar};
use thermocline_base::{
    error::{Error, FileAction, Result},
    telemetry::neurons::NeuronBoard,
};
use thermocline_formats::format::ReadMode;
use thermocline_model::{Activation, Ffn, LayerWeights, Model};

/// Most tokens of earlier runs that count. More tokens do not increase their weight.
const MOST_TOKENS: u64 = 100_000;
/// Fewest new tokens for which the file is written.
const LEAST_TOKENS: u64 = 64;
/// Weight of the prior frequency, in tokens.
const PRIOR_TOKENS: f32 = 32.0;
/// Prior frequency of a neuron.
const PRIOR_FREQUENCY: f32 = 0.3;
/// Most files in the folder. The oldest files are deleted first.
const MOST_FILES: usize = 64;

/// Firing counts of a model in earlier runs, to which this run's counts are added.
#[derive(Debug)]
pub struct KeptCounts {
    path: PathBuf,
    identity: Identity,
    activation: Activation,
    /// Tokens of earlier runs.
    tokens: u64,
    /// Frequencies in earlier runs per layer, `[n_ff]` or `[experts]`. `None` for layers that are
    /// not counted.
    earlier: Vec<Option<Vec<f32>>>,
    /// Tokens of this run that the file includes.
    saved: Mutex<u64>,
}

impl KeptCounts {
    /// Opens the counts of `model` in `folder`. `None` if counts do not improve plans
    /// ([`lacks_profile`]).
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
                tracing::warn!(path = %counts.path.display(), %error, "new counts replace the stored firing counts");
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
            return Err(Error::invalid("stored firing counts", "counts of this model", reason));
        }
        let lengths = file.layers.iter().map(|layer| layer.frequency.as_ref().map(Vec::len));
        if !lengths.clone().eq(sizes.iter().copied()) {
            let got = format!("{:?}", lengths.collect::<Vec<_>>());
            return Err(Error::invalid("stored firing counts", format!("frequencies per layer: {sizes:?}"), got));
        }
        self.tokens = file.provenance.tokens_profiled.min(MOST_TOKENS);
        self.earlier = file.layers.into_iter().map(|layer| layer.frequency).collect();
        Ok(())
    }

    /// Returns the tokens of earlier runs.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Sets [`LayerWeights::counted_frequency`] of the counted layers. With few tokens, the
    /// frequencies stay near the prior.
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

    /// Writes the frequencies of earlier runs and of this run, which `board` counted. Does nothing
    /// if there are few new tokens.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be written. The old file is then unchanged.
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

/// True if a layer without a profile has experts, or neurons whose activations are exactly zero
/// when silent. Plans of such a model improve with counts.
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

/// Returns the number of neurons of a dense layer, or of experts of an MoE layer.
fn members(layer: &LayerWeights) -> usize {
    match &layer.ffn {
        Ffn::Dense(ffn) => ffn.up.weight.rows(),
        Ffn::Experts(experts) => experts.experts.len(),
        Ffn::None => 0,
    }
}

/// Deletes the oldest files to make room for one more. Ignores failures.
fn remove_oldest(folder: &Path, except: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let files = entries.flatten().filter(|entry| entry.path() != except);
    let mut files: Vec<_> =
        files.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort();
    for (_, path) in files.iter().take((files.len() + 1).saturating_sub(MOST_FILES)) {
        // Another instance may already have removed the file.
        let _ = std::fs::remove_file(path);
    }
}

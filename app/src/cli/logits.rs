//! `thermocline logits`: writes the model's logits, for comparison with other implementations.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use safetensors::{Dtype, tensor::TensorView};
use thermocline_engine::{
    files::{self, Form},
    model::Model,
    runtime::{KvType, LayerFiring, Outputs, Probe, Sparsity},
    session::{EngineOptions, SparsityChoice, SparsityReport},
    tokenizer::{EncodeOptions, Tokenizer},
};

use crate::cli::text_input::TokenIds;
use thermocline_host::units;
use thermocline_terminal::{
    engine_options::{CpuArgs, DeviceArgs, kv_types, open_forward, sparsity_choices},
    failure::{Failure, Outcome},
    level::LevelArgs,
    model_options::ModelOptions,
    progress::{ProgressUnit, TerminalProgress},
};

const DETAILS: &str = "\
FILE holds `logits` f32 [T, vocabulary], with one row for each of the T tokens. With --greedy, it
also holds `greedy_ids` i32 [N], the most likely continuation (an end token does not end it). In a
sparse mode, the T tokens are computed one by one, and FILE also holds `ffn_active` u8
[layers, T, neurons], which is 1 for each neuron that fired. Token ids are used unchanged: no BOS is
added.

Example:
  thermocline logits -m model.gguf --tokens 1,450,6593 --greedy 16 --out logits.safetensors";

/// Writes a model's logits to a safetensors file.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct LogitsArgs {
    /// Token ids to compute
    #[arg(long, value_name = "1,2,3", required_unless_present = "text", value_parser = units::parse_ids)]
    tokens: Option<TokenIds>,
    /// Text to compute (BOS is added if the model asks for it)
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    text: Option<String>,
    /// Continue with N tokens by greedy decoding
    #[arg(long, value_name = "N", default_value_t = 0)]
    greedy: usize,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Element type of the KV cache; for q8_0, the part in GPU memory is f16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = kv_types())]
    kv_type: KvType,
    /// Sparsity mode
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = sparsity_choices())]
    sparsity: SparsityChoice,
    #[command(flatten)]
    level: LevelArgs,
}

/// Runs the command.
pub fn logits(args: &LogitsArgs) -> Outcome {
    files::check(&args.out, Form::Stream)?;
    let mut model = args.model.open_model()?;
    let mode = SparsityReport::new(args.sparsity, &model, EngineOptions::default().recall).mode;
    args.level.choose(&mut model, mode)?;
    let model = Arc::new(model);
    let vocabulary = model.config.n_vocab;
    let tokens = match (&args.tokens, &args.text) {
        (Some(tokens), _) => tokens.clone(),
        (None, text) => {
            let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
            tokenizer.encode(text.as_deref().unwrap_or_default(), EncodeOptions::CHAT)?
        }
    };
    if tokens.is_empty() {
        return Err(Failure::usage("--tokens: expected at least one token"));
    }
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
        return Err(Failure::usage(format!("--tokens: expected ids from 0 to {}, got {id}", vocabulary - 1)));
    }

    let capacity = tokens.len().checked_add(args.greedy).ok_or_else(|| Failure::usage("--greedy: too many tokens"))?;
    let mut forward = open_forward(&model, mode, &args.cpu, &args.device)?;
    let mut kv = forward.kv_cache(capacity, args.kv_type)?;
    let (logits, firing) = if mode == Sparsity::Dense {
        (forward.run(&tokens, &mut kv, Outputs::All, &mut ())?.to_vec(), None)
    } else {
        let mut firing = FiringRecord::new(&model, tokens.len());
        let mut logits = Vec::with_capacity(tokens.len() * vocabulary);
        for token in &tokens {
            logits.extend_from_slice(forward.run(&[*token], &mut kv, Outputs::Last, &mut firing)?);
            firing.token += 1;
        }
        (logits, Some(firing))
    };
    let mut next = argmax(&logits[logits.len() - vocabulary..]);
    let mut greedy_ids = Vec::new();
    let mut progress = TerminalProgress::new("continuing", ProgressUnit::Tokens);
    for _ in 0..args.greedy {
        greedy_ids.push(next);
        progress.set(greedy_ids.len() as u64, args.greedy as u64);
        next = argmax(forward.run(&[next], &mut kv, Outputs::Last, &mut ())?);
    }
    write(&args.out, [tokens.len(), vocabulary], &logits, &greedy_ids, firing.as_ref())
}

/// Records the neurons that fire.
struct FiringRecord {
    /// Shape: layers, tokens, neurons.
    shape: [usize; 3],
    /// `[layers, tokens, neurons]`: 1 if the neuron fired, else 0.
    active: Vec<u8>,
    /// Index of the token being computed.
    token: usize,
}

impl FiringRecord {
    fn new(model: &Model, tokens: usize) -> Self {
        let shape = [model.config.n_layer(), tokens, model.config.n_ff];
        FiringRecord { shape, active: vec![0; shape.iter().product()], token: 0 }
    }
}

impl Probe for FiringRecord {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let [_, tokens, neurons] = self.shape;
        let row = &mut self.active[(firing.layer * tokens + self.token) * neurons..][..neurons];
        for (neuron, active) in row.iter_mut().enumerate() {
            let word = firing.fired.get(neuron / 32).copied().unwrap_or(0);
            *active = (word >> (neuron % 32) & 1) as u8;
        }
    }
}

/// Index of the largest logit, the first of equal ones.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Writes the tensors to `path`.
fn write(path: &Path, shape: [usize; 2], logits: &[f32], greedy: &[u32], firing: Option<&FiringRecord>) -> Outcome {
    let failed = |error: std::io::Error| Failure::write(path, error);
    let invalid = |error: safetensors::SafeTensorError| failed(std::io::Error::other(error));
    let logits: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let ids: Vec<u8> = greedy.iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut tensors = vec![("logits", TensorView::new(Dtype::F32, shape.to_vec(), &logits).map_err(invalid)?)];
    if !greedy.is_empty() {
        tensors.push(("greedy_ids", TensorView::new(Dtype::I32, vec![greedy.len()], &ids).map_err(invalid)?));
    }
    if let Some(FiringRecord { shape, active, .. }) = firing {
        tensors.push(("ffn_active", TensorView::new(Dtype::U8, shape.to_vec(), active).map_err(invalid)?));
    }
    let bytes = safetensors::serialize(tensors, None).map_err(invalid)?;

    // This format is written from front to back.
    Ok(files::write(path, Form::Stream, &bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_of_equals_is_the_first() {
        assert_eq!(argmax(&[0.0, 2.0, 2.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NAN]), 0);
    }
}

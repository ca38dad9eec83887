//! `thermocline logits`: writes the model's logits, for comparison with other implementations.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use safetensors::{Dtype, tensor::TensorView};
use thermocline_engine::{
    cpu::Cpu,
    files::{self, Form},
    model::Model,
    runtime::{CallInputs, KvType, LayerFiring, Outputs, PlacedPicture, Probe, Sparsity},
    session::{EngineOptions, SparsityChoice, SparsityReport},
    tokenizer::{EncodeOptions, Tokenizer},
};

use crate::cli::{
    picture_files::{self, PictureAt},
    text_input::TokenIds,
};
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
also holds `greedy_ids` i32 [N], the most likely continuation (an end token does not end it). With
--nextn 1, it also holds `nextn_logits` f32 [T, vocabulary] of the draft head: row p is computed from
position p and token p+1, and the last row is 0. In a sparse mode, the T tokens are computed one by one, and FILE also holds `ffn_active` u8
[layers, T, neurons], which is 1 for each neuron that fired. Token ids are used unchanged: no BOS is
added.

Examples:
  thermocline logits -m model.gguf --tokens 1,450,6593 --greedy 16 --out logits.safetensors
  thermocline logits -m ./Qwen3-VL --tokens 9,5,5,5,5,8 --image a.png --out logits.safetensors";

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
    /// Picture in place of image tokens among --tokens; may be repeated. Pictures fill the runs of
    /// image tokens in order, with as many tokens as each has
    #[arg(long, value_name = "FILE", requires = "tokens")]
    image: Vec<PathBuf>,
    /// Vision tower of the model [default: the tower in the model's folder, or a file with `mmproj`
    /// in its name beside the model]
    #[arg(long, value_name = "FILE", requires = "image")]
    mmproj: Option<PathBuf>,
    /// Continue with N tokens by greedy decoding
    #[arg(long, value_name = "N", default_value_t = 0)]
    greedy: usize,
    /// Also write the logits of the model's draft head (multi-token prediction)
    #[arg(long, value_name = "HEADS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    nextn: u8,
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

    let images = match &args.image[..] {
        [] => Vec::new(),
        paths => {
            let (cpu, mmproj) = (Cpu::new(&args.cpu.options())?, args.mmproj.as_deref());
            picture_files::in_tokens(&model, &args.model, mmproj, paths, &tokens, cpu)?
        }
    };
    let pictures: Vec<PlacedPicture<'_>> = images.iter().map(PictureAt::placed).collect();
    let capacity = tokens.len().checked_add(args.greedy).ok_or_else(|| Failure::usage("--greedy: too many tokens"))?;
    let head = (args.nextn > 0).then(|| model.draft_head.clone().ok_or_else(|| no_head(&model))).transpose()?;
    let mut forward = open_forward(&model, mode, &args.cpu, &args.device)?;
    let mut kv = forward.kv_cache(capacity, args.kv_type)?;
    let mut record = PassRecord { states: head.is_some().then(Vec::new), firing: None };
    let logits = if mode == Sparsity::Dense {
        let inputs = CallInputs::with_pictures(&tokens, &pictures);
        forward.run(inputs, &mut kv, Outputs::All, &mut record)?.to_vec()
    } else {
        record.firing = Some(FiringRecord::new(&model, tokens.len()));
        let mut logits = Vec::with_capacity(tokens.len() * vocabulary);
        for token in &tokens {
            let inputs = CallInputs::with_pictures(std::slice::from_ref(token), &pictures);
            logits.extend_from_slice(forward.run(inputs, &mut kv, Outputs::Last, &mut record)?);
            record.firing.iter_mut().for_each(|firing| firing.token += 1);
        }
        logits
    };
    let nextn = match (&head, &record.states) {
        (Some(head), Some(states)) => nextn_logits(args, head, &tokens, states)?,
        _ => Vec::new(),
    };
    let mut next = argmax(&logits[logits.len() - vocabulary..]);
    let mut greedy_ids = Vec::new();
    let mut progress = TerminalProgress::new("continuing", ProgressUnit::Tokens);
    for _ in 0..args.greedy {
        greedy_ids.push(next);
        progress.set(greedy_ids.len() as u64, args.greedy as u64);
        next = argmax(forward.run(&[next], &mut kv, Outputs::Last, &mut ())?);
    }
    let written =
        WrittenTensors { logits: &logits, nextn: &nextn, greedy: &greedy_ids, firing: record.firing.as_ref() };
    written.write(&args.out, [tokens.len(), vocabulary])
}

/// The error for a model without a draft head.
fn no_head(model: &Model) -> Failure {
    let path = model.checkpoint.path.display();
    Failure::usage(format!("--nextn 1: expected a model with a draft head, got {path}, which has none"))
}

/// Computes the logits of the draft head `head` after every token, `[tokens, vocabulary]`. `states`
/// are the model's hidden states of `tokens`.
fn nextn_logits(args: &LogitsArgs, head: &Arc<Model>, tokens: &[u32], states: &[f32]) -> Result<Vec<f32>, Failure> {
    let (config, known) = (&head.config, tokens.len() - 1);
    let mut logits = vec![0.0; tokens.len() * config.n_vocab];
    if known > 0 {
        let mut forward = open_forward(head, Sparsity::Dense, &args.cpu, &args.device)?;
        let mut kv = forward.kv_cache(known, args.kv_type)?;
        let states = &states[..known * config.d_model];
        let computed = forward.run_head(&tokens[1..], states, &mut kv, Outputs::All, &mut ())?;
        logits[..computed.len()].copy_from_slice(computed);
    }
    Ok(logits)
}

/// Records what the pass reports.
struct PassRecord {
    /// Hidden states, `[tokens, d_model]`, if a draft head reads them.
    states: Option<Vec<f32>>,
    firing: Option<FiringRecord>,
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

impl Probe for PassRecord {
    fn wants_states(&mut self) -> bool {
        self.states.is_some()
    }

    fn states(&mut self, states: &[f32]) {
        self.states.iter_mut().for_each(|all| all.extend_from_slice(states));
    }

    fn wants_firing(&mut self) -> bool {
        self.firing.is_some()
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let Some(FiringRecord { shape: [_, tokens, neurons], active, token }) = &mut self.firing else { return };
        let row = &mut active[(firing.layer * *tokens + *token) * *neurons..][..*neurons];
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

/// The tensors of the file. Empty ones are left out.
struct WrittenTensors<'a> {
    logits: &'a [f32],
    nextn: &'a [f32],
    greedy: &'a [u32],
    firing: Option<&'a FiringRecord>,
}

impl WrittenTensors<'_> {
    /// Writes the tensors to `path`. Logits have the shape `[tokens, vocabulary]`.
    fn write(&self, path: &Path, shape: [usize; 2]) -> Outcome {
        let failed = |error: std::io::Error| Failure::write(path, error);
        let invalid = |error: safetensors::SafeTensorError| failed(std::io::Error::other(error));
        let bytes_of = |logits: &[f32]| logits.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let [logits, nextn] = [self.logits, self.nextn].map(bytes_of);
        let ids: Vec<u8> = self.greedy.iter().flat_map(|id| id.to_le_bytes()).collect();
        let view = |ty, shape: &[usize], bytes| TensorView::new(ty, shape.to_vec(), bytes).map_err(invalid);
        let mut tensors = vec![("logits", view(Dtype::F32, &shape, &logits)?)];
        if !nextn.is_empty() {
            tensors.push(("nextn_logits", view(Dtype::F32, &shape, &nextn)?));
        }
        if !ids.is_empty() {
            tensors.push(("greedy_ids", view(Dtype::I32, &[self.greedy.len()], &ids)?));
        }
        if let Some(FiringRecord { shape, active, .. }) = self.firing {
            tensors.push(("ffn_active", view(Dtype::U8, shape, active)?));
        }
        let bytes = safetensors::serialize(tensors, None).map_err(invalid)?;
        // This format is written from front to back.
        Ok(files::write(path, Form::Stream, &bytes)?)
    }
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

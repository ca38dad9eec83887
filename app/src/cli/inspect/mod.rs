//! `thermocline inspect`: shows the contents of a model file. [`summary`] counts tensors.
//! [`kv_bytes`] computes the size of KV caches, and [`picture_bytes`] the memory of pictures.
//! [`unused`] finds tensors that no token needs. [`text_side`] describes the tokenizer and the chat
//! template. This file prints, and [`values`] formats metadata.

mod kv_bytes;
mod picture_bytes;
mod summary;
mod text_side;
mod unused;
mod values;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use kv_bytes::KvBytes;
use picture_bytes::PictureBytes;
use serde_json::{Map, Value as Json, json};
use summary::{Summary, TensorGroup};
use text_side::TextSide;
use thermocline_engine::{
    Error,
    cpu::ops::HeadSizes,
    format::{Checkpoint, Container},
    model::{AttentionConfig, Model, ModelConfig, Tower, expected_sparsity, traits},
    runtime::KvType,
    sparsity::{
        sidecar,
        sidecar::{Sidecar, SidecarAttachment},
    },
};
use unused::Unused;
use values::{clipped, shown, value_json};

use thermocline_host::units;
use thermocline_terminal::{
    failure::{Failure, Outcome, one_line},
    model_options::ModelOptions,
    standard_error::say,
};

use super::prepared;

const EXAMPLES: &str = "\
Examples:
  thermocline inspect model.gguf
  thermocline inspect ./Llama-3.2-1B --tensors
  thermocline inspect model.gguf --json | jq .kv_cache";

/// Shows the contents of a model file.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// GGUF file, PowerInfer file or Hugging Face folder [default: the built-in storyteller]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command. If a file can be read but not run, it is shown with the reason. If the reason
/// is a defect of the file, not an unsupported feature, the command also fails.
pub fn inspect(args: &InspectArgs) -> Outcome {
    let options = ModelOptions { model: args.file.clone(), ..ModelOptions::default() };
    let checkpoint = options.open_checkpoint()?;
    let vocabulary_only = checkpoint.tensors().is_empty() && !Sidecar::is_one(&checkpoint);
    let mut problem = None;
    let (look, attachment) = if vocabulary_only {
        (None, SidecarAttachment::None)
    } else {
        look_inside(&options, &checkpoint).unwrap_or_else(|error| {
            problem = Some(error);
            (None, SidecarAttachment::None)
        })
    };

    let of_model = look.as_ref().map_or(&checkpoint, |look| &look.model);
    let tower = look.as_ref().and_then(|look| look.tower.as_ref());
    let sees = tower.is_some_and(|tower| tower.checkpoint.path == checkpoint.path);
    let contents = FileContents {
        checkpoint: &checkpoint,
        summary: Summary::new(of_model),
        unused: Unused::new(of_model, look.as_ref().map(|look| &look.config), sees),
        text: TextSide::of(&checkpoint),
        look: look.as_ref(),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let mut report = to_json(&contents, problem.as_ref(), args.tensors);
        report["prepared"] = match &attachment {
            SidecarAttachment::None => Json::Null,
            SidecarAttachment::Attached(sidecar) => prepared::to_json(sidecar),
            SidecarAttachment::Ignored { path, reason } => json!({ "file": path, "ignored": reason }),
        };
        writeln!(out, "{report:#}")?;
    } else {
        print(&mut out, &contents, args.tensors)?;
        match &attachment {
            SidecarAttachment::None => {}
            SidecarAttachment::Attached(sidecar) => {
                writeln!(out, "\nprepared      {}", one_line(&sidecar.path.display().to_string()))?;
                writeln!(out, "{}\n", one_line(&prepared::origin(sidecar)))?;
                out.write_all(prepared::layers(sidecar).as_bytes())?;
                prepared::bundles(sidecar).map_or(Ok(()), |bundles| writeln!(out, "\n{bundles}"))?;
            }
            SidecarAttachment::Ignored { path, reason } => {
                writeln!(out, "\n{} is not used: {}", one_line(&path.display().to_string()), one_line(reason))?;
            }
        }
        if vocabulary_only {
            writeln!(out, "\nThis file holds a vocabulary and no weights: it can tokenize text, but it cannot run.")?;
        }
    }
    out.flush()?;
    match problem {
        None => Ok(()),
        Some(error @ (Error::Unsupported { .. } | Error::UnknownArchitecture { .. } | Error::Companion { .. })) => {
            say(format_args!("note: this version cannot run the model: {}", one_line(&error.to_string())));
            Ok(())
        }
        Some(error) => Err(Failure::Engine(error)),
    }
}

/// The shown contents of a file.
struct FileContents<'a> {
    checkpoint: &'a Checkpoint,
    summary: Summary,
    unused: Unused,
    /// Tokenizer and chat template; `None` for a file without a vocabulary.
    text: Option<TextSide>,
    look: Option<&'a Look>,
}

/// A model that this version can run.
struct Look {
    config: ModelConfig,
    /// Tensors of the model, without unused ones.
    model: Checkpoint,
    /// Traits of the model, one line each.
    traits: Vec<String>,
    /// Expected sparsity of the neurons.
    sparsity: String,
    /// True if silent neurons are exactly zero, so that skipping them loses nothing.
    exact_zeros: bool,
    /// Bytes of the draft head's own weights, if the model has a draft head.
    draft_head: Option<u64>,
    /// The vision tower, in the model's folder or beside its file.
    tower: Option<Tower>,
}

impl Look {
    /// Describes the sparsity modes that skip silent neurons, and the experts that a token reads.
    fn skipping(&self) -> String {
        let modes = match self.exact_zeros {
            true => "`exact` skips silent neurons; `predicted` skips more of them after `thermocline prepare`",
            false => {
                "no mode skips neurons yet; `threshold` or `predicted` does after `thermocline prepare`, which measures the loss"
            }
        };
        match &self.config.experts {
            Some(experts) => format!("{modes}; a token reads {} of {} experts", experts.used, experts.count),
            None => modes.to_owned(),
        }
    }
}

/// Reads the model and its sidecar. If the file is a sidecar, there is no model.
fn look_inside(options: &ModelOptions, checkpoint: &Checkpoint) -> Result<(Option<Look>, SidecarAttachment), Error> {
    if Sidecar::is_one(checkpoint) {
        return Ok((None, SidecarAttachment::Attached(Box::new(Sidecar::from_checkpoint(checkpoint)?))));
    }
    let mut model = Model::from_checkpoint(checkpoint.clone(), &options.load_options())?;
    let attachment = sidecar::attach(&mut model, &options.sidecar_choice(), options.read_mode())?;
    let (traits, sparsity) = (traits(&model), expected_sparsity(&model));
    let below_threshold = model.weights.layers.iter().any(|layer| layer.gate_deviations.is_some());
    let exact_zeros = model.config.activation.is_sparse() || below_threshold;
    let draft_head = model.draft_head_bytes();
    let tower = Tower::of_model(&model, None, options.read_mode())?;
    let look = Look { config: model.config, model: model.checkpoint, traits, sparsity, exact_zeros, draft_head, tower };
    Ok((Some(look), attachment))
}

fn print(out: &mut impl Write, contents: &FileContents<'_>, tensors: bool) -> io::Result<()> {
    let FileContents { checkpoint, summary, unused, text, look } = contents;
    let name = |text: &str| clipped(text);
    writeln!(out, "file          {}", name(&checkpoint.path.display().to_string()))?;
    let (keys, count) = (checkpoint.metadata.len(), checkpoint.tensors().len() + checkpoint.unused().len());
    writeln!(out, "container     {}, {keys} keys, {count} tensors", container(checkpoint.container))?;
    if !checkpoint.weights.is_empty() {
        writeln!(out, "read from     {}", name(&checkpoint.weights.join(", ")))?;
    }
    let size = units::bytes(summary.total.bytes);
    writeln!(out, "weights       {} parameters, {size}", units::parameters(summary.total.parameters))?;
    unused.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    if let Some(look) = look {
        print_look(out, look)?;
    } else if let Ok(Some(architecture)) = checkpoint.metadata.str("general.architecture") {
        writeln!(out, "architecture  {}", name(architecture))?;
    }
    if let Some(text) = text {
        text.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    groups(out, "by role", &summary.roles)?;
    groups(out, "by type", &summary.types)?;
    writeln!(out, "\nmetadata")?;
    for (key, value) in checkpoint.metadata.iter() {
        writeln!(out, "  {:<42} {}", name(key), shown(value))?;
    }
    if tensors && count > 0 {
        writeln!(out, "\n{:<42} {:<7} {:>20} {:>12}", "tensor", "type", "shape", "size")?;
        for tensor in checkpoint.tensors().iter().chain(checkpoint.unused()) {
            let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            let size = units::bytes(tensor.data.len() as u64);
            writeln!(out, "{:<42} {:<7} {shape:>20} {size:>12}", name(&tensor.name), tensor.ty)?;
        }
    }
    Ok(())
}

fn print_look(out: &mut impl Write, look: &Look) -> io::Result<()> {
    let name = |text: &str| clipped(text);
    let config = &look.config;
    writeln!(out, "name          {}", name(&config.name))?;
    writeln!(out, "architecture  {}", name(&config.architecture))?;
    writeln!(out, "layers        {}, {} wide", config.n_layer(), config.d_model)?;
    for (attention, layers) in attentions(config) {
        let HeadSizes { n_head, n_kv_head, head_dim, value_dim } = attention.heads;
        let values = if value_dim == head_dim { String::new() } else { format!(", values {value_dim}") };
        let which = if layers == config.n_layer() { String::new() } else { format!(", in {layers} layers") };
        writeln!(
            out,
            "attention     {n_head} query heads on {n_kv_head} key/value heads, {head_dim} wide{values}{which}"
        )?;
    }
    if config.state_bytes() > 0 {
        writeln!(out, "states        {} per conversation", units::bytes(config.state_bytes()))?;
    }
    writeln!(out, "FFN           {}, {}", ffn(config), config.activation)?;
    if let Some(bytes) = look.draft_head {
        writeln!(out, "draft head    {} (multi-token prediction)", units::bytes(bytes))?;
    }
    if let Some(tower) = &look.tower {
        let (file, bytes) = (&tower.checkpoint, units::bytes(tower.checkpoint.tensor_bytes()));
        let (path, most) = (file.path.display().to_string(), tower.most_tokens());
        writeln!(out, "vision tower  {bytes}, up to {most} tokens for a picture ({})", name(&path))?;
        writeln!(out, "              {}", PictureBytes::of(tower))?;
    }
    for line in &look.traits {
        writeln!(out, "special       {line}")?;
    }
    writeln!(out, "sparsity      {}", look.sparsity)?;
    writeln!(out, "              {}", look.skipping())?;
    writeln!(out, "vocabulary    {} tokens", config.n_vocab)?;
    writeln!(out, "context       {} tokens", config.context_length)?;
    for ty in KV_TYPES {
        let on_gpu = if ty.on_gpu() == ty { String::new() } else { format!("; {} on a GPU", ty.on_gpu()) };
        writeln!(out, "KV cache      {} ({ty}{on_gpu})", KvBytes::of(config, ty))?;
    }
    Ok(())
}

fn groups(out: &mut impl Write, title: &str, groups: &[(&'static str, TensorGroup)]) -> io::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title:<13} {:>7} {:>12} {:>12}", "tensors", "parameters", "size")?;
    for (name, group) in groups {
        let (count, size) = (units::parameters(group.parameters), units::bytes(group.bytes));
        writeln!(out, "  {name:<11} {:>7} {count:>12} {size:>12}", group.tensors)?;
    }
    Ok(())
}

fn to_json(contents: &FileContents<'_>, problem: Option<&Error>, tensors: bool) -> Json {
    let FileContents { checkpoint, summary, unused, text, look } = contents;
    let (kind, version) = match checkpoint.container {
        Container::Gguf(version) => ("gguf", Some(version)),
        Container::PowerInfer(version) => ("powerinfer", Some(version)),
        Container::HuggingFace => ("huggingface", None),
    };
    let table = |groups: &[(&'static str, TensorGroup)]| -> Map<String, Json> {
        groups.iter().map(|(name, entry)| ((*name).to_owned(), json!(entry))).collect()
    };
    let architecture = look.map(model_json);
    let kv_cache = look.map(|Look { config, .. }| -> Map<String, Json> {
        let entry = |ty: KvType| {
            let KvBytes { token, behind_windows, whole, snapshots } = KvBytes::of(config, ty);
            let of = json!({
                "bytes_per_token": token,
                "bytes_per_token_behind_windows": behind_windows,
                "bytes": whole,
                "snapshot_bytes": snapshots,
            });
            (ty.name().to_lowercase(), of)
        };
        KV_TYPES.into_iter().map(entry).collect()
    });
    let metadata: Map<String, Json> =
        checkpoint.metadata.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
    let mut report = json!({
        "file": checkpoint.path,
        "container": { "kind": kind, "version": version },
        "weight_files": checkpoint.weights,
        "problem": problem.map(Error::to_string),
        "model": architecture,
        "kv_cache": kv_cache,
        "draft_head": look.and_then(|look| look.draft_head).map(|bytes| json!({ "bytes": bytes })),
        "vision_tower": look.and_then(|look| look.tower.as_ref()).map(|tower| json!({
            "file": tower.checkpoint.path,
            "projector": tower.config.projector,
            "bytes": tower.checkpoint.tensor_bytes(),
            "most_tokens": tower.most_tokens(),
            "picture_bytes": PictureBytes::of(tower).ram,
            "picture_gpu_bytes": PictureBytes::of(tower).gpu,
        })),
        "tokenizer": text.as_ref().map(TextSide::tokenizer_json),
        "chat_template": text.as_ref().map(|text| &text.template),
        "unused": unused.to_json(),
        "total": summary.total,
        "roles": table(&summary.roles),
        "types": table(&summary.types),
        "metadata": metadata,
    });
    if tensors {
        let list = checkpoint.tensors().iter().chain(checkpoint.unused()).map(|tensor| {
            let (name, ty) = (&tensor.name, tensor.ty.name());
            json!({ "name": name, "type": ty, "shape": tensor.shape, "bytes": tensor.data.len() })
        });
        report["tensors"] = list.collect();
    }
    report
}

/// Formats as JSON a model that this version can run.
fn model_json(look: &Look) -> Json {
    let config = &look.config;
    let attention = config.attentions().next();
    json!({
        "architecture": config.architecture,
        "name": config.name,
        "layers": config.n_layer(),
        "d_model": config.d_model,
        "heads": attention.map(|attention| attention.heads.n_head),
        "kv_heads": attention.map(|attention| attention.heads.n_kv_head),
        "head_dim": attention.map(|attention| attention.heads.head_dim),
        "attention_layers": config.attentions().count(),
        "recurrent": recurrent(config),
        "state_bytes": config.state_bytes(),
        "n_ff": config.n_ff,
        "experts": config.experts.map(|experts| {
            json!({ "count": experts.count, "used": experts.used, "router": experts.router.to_string() })
        }),
        "activation": config.activation.to_string(),
        "traits": look.traits,
        "sparsity": look.sparsity,
        "skipping": look.skipping(),
        "vocabulary": config.n_vocab,
        "context_length": config.context_length,
    })
}

const KV_TYPES: [KvType; 3] = [KvType::F16, KvType::F32, KvType::Q8_0];

fn container(container: Container) -> String {
    match container {
        Container::Gguf(version) => format!("GGUF {version}"),
        Container::PowerInfer(version) => format!("PowerInfer GGUF {version}"),
        Container::HuggingFace => "Hugging Face folder".to_owned(),
    }
}

/// Lists the attention shapes of the model, and the number of layers with each.
fn attentions(config: &ModelConfig) -> Vec<(&AttentionConfig, usize)> {
    let mut shapes: Vec<(&AttentionConfig, usize)> = Vec::new();
    let shape = |of: &AttentionConfig| (of.heads, of.output_cols());
    for attention in config.attentions() {
        match shapes.iter_mut().find(|(known, _)| shape(known) == shape(attention)) {
            Some((_, layers)) => *layers += 1,
            None => shapes.push((attention, 1)),
        }
    }
    shapes
}

/// Lists the kinds of recurrent mixers in the model.
fn recurrent(config: &ModelConfig) -> Vec<&'static str> {
    let mut kinds: Vec<&str> =
        config.layers.iter().filter_map(|layer| Some(layer.recurrent.as_ref()?.name())).collect();
    kinds.dedup();
    kinds
}

fn ffn(config: &ModelConfig) -> String {
    match &config.experts {
        Some(experts) => {
            format!("{} experts of {} neurons, {} per token", experts.count, experts.n_ff, experts.used)
        }
        None => format!("{} neurons", config.n_ff),
    }
}

//! Generation of a synthetic model, tensor by tensor.

use std::{ops::Range, time::Instant};

use super::{
    content::Content,
    draft_head,
    metadata::metadata,
    neurons::{Neurons, quantised},
    options::SynthOptions,
    parallel::in_order,
    plan::{SynthPlan, SynthTensor},
    random::RowSource,
    report::{Firing, SynthProgress, SynthReport},
    sample::{Counts, SampledTokens, embedding_row, position_row},
};
use thermocline_base::error::Result;
use thermocline_formats::{
    format::{
        Container,
        gguf::{TensorInfo, Writer},
    },
    quant,
    quant::TensorType,
};

/// Elements that a thread generates at a time.
const CHUNK: usize = 1 << 18;

/// Generates the model of `options` and writes it to [`SynthOptions::out`]. It writes to a
/// temporary file in the same folder and renames it at the end. `progress` is called after every
/// few hundred kilobytes. It needs about 50 MB of memory at 7B shapes and 200 MB at 175B. Memory
/// grows with the width, not with the file.
///
/// # Errors
/// [`thermocline_base::error::Error::Invalid`], [`thermocline_base::error::Error::Unsupported`] or
/// [`thermocline_base::error::Error::UnknownArchitecture`] for options out of range, before
/// anything is written; [`thermocline_base::error::Error::Io`] if the file cannot be written.
///
/// ```no_run
/// # fn main() -> thermocline_base::Result<()> {
/// use thermocline_model::synth::{SynthShape, SynthOptions, generate};
/// let mut options = SynthOptions::new(SynthShape::named("relu-llama-7b")?, "M.gguf");
/// options.layers = Some(4);
/// let report = generate(&options, &mut |at| eprintln!("{} of {} bytes", at.done, at.total))?;
/// assert!(report.deviation() < 0.1);
/// # Ok(())
/// # }
/// ```
pub fn generate(options: &SynthOptions, progress: &mut dyn FnMut(SynthProgress<'_>)) -> Result<SynthReport> {
    let start = Instant::now();
    let plan = SynthPlan::new(options)?;
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let container = match plan.predictor_rank {
        Some(_) => Container::PowerInfer(3),
        None => Container::Gguf(3),
    };
    let infos: Vec<TensorInfo> = plan.tensors.iter().map(|tensor| tensor.info.clone()).collect();
    let writer = Writer::create(&options.out, container, &metadata(&plan, options), &infos)?;
    let total = infos.iter().map(|info| info.ty.row_bytes(elements(info)).unwrap_or(0) as u64).sum();
    let mut maker = Maker {
        plan: &plan,
        threads: threads.max(1),
        output: Output { writer, progress, done: 0, total },
        sample: if plan.shape.relu() { Some(SampledTokens::new(&plan)?) } else { None },
        hot_firings: options.hot_firings,
        measured: Vec::new(),
        frequencies: Vec::new(),
        chosen: Vec::new(),
    };
    let mut layer: Option<SynthLayer<'_>> = None;
    for tensor in &plan.tensors {
        if !tensor.content.belongs_to_ffn() {
            maker.other(tensor)?;
            continue;
        }
        let current = match layer.take() {
            Some(layer) if layer.index == tensor.layer => layer,
            _ => SynthLayer::new(&plan, tensor.layer, maker.threads)?,
        };
        maker.ffn(tensor, layer.insert(current))?;
    }
    let Maker { output, measured, frequencies, chosen, .. } = maker;
    output.writer.finish()?;

    Ok(SynthReport {
        path: options.out.clone(),
        shape: plan.shape.name,
        tensor_type: plan.ty.name(),
        layers: plan.shape.n_layer,
        parameters: infos.iter().map(|info| elements(info) as u64).sum(),
        bytes: total,
        seconds: start.elapsed().as_secs_f64(),
        hot_firings: options.hot_firings,
        asked: plan.shape.relu().then(|| Firing {
            active: options.active,
            hot_fraction: options.hot_fraction,
            recall: plan.predictor_rank.map(|_| options.recall),
            predicted: None,
        }),
        measured: mean(&measured),
        measured_layers: measured,
        frequencies,
        moe: plan.shape.moe,
        chosen,
    })
}

fn elements(info: &TensorInfo) -> usize {
    info.shape.iter().product()
}

fn mean(layers: &[Firing]) -> Option<Firing> {
    let first = layers.first()?;
    let mean = |value: &dyn Fn(&Firing) -> f64| layers.iter().map(value).sum::<f64>() / layers.len() as f64;
    Some(Firing {
        active: mean(&|layer| layer.active),
        hot_fraction: mean(&|layer| layer.hot_fraction),
        recall: first.recall.map(|_| mean(&|layer| layer.recall.unwrap_or(0.0))),
        predicted: first.predicted.map(|_| mean(&|layer| layer.predicted.unwrap_or(0.0))),
    })
}

/// The output file and its progress.
struct Output<'a> {
    writer: Writer,
    progress: &'a mut dyn FnMut(SynthProgress<'_>),
    done: u64,
    total: u64,
}

impl Output<'_> {
    fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<()> {
        self.writer.tensor_data(bytes)?;
        self.done += bytes.len() as u64;
        (self.progress)(SynthProgress { done: self.done, total: self.total, tensor });
        Ok(())
    }
}

/// Generator of one layer.
struct SynthLayer<'a> {
    index: usize,
    neurons: Neurons<'a>,
    /// Biases of the predictor, `[n_ff]`, set when the firing rows are generated.
    score_biases: Vec<f32>,
}

impl<'a> SynthLayer<'a> {
    fn new(plan: &'a SynthPlan, index: usize, threads: usize) -> Result<Self> {
        Ok(SynthLayer { index, neurons: Neurons::new(plan, index, threads)?, score_biases: Vec::new() })
    }
}

struct Maker<'a, 'p> {
    plan: &'a SynthPlan,
    threads: usize,
    output: Output<'p>,
    sample: Option<SampledTokens>,
    hot_firings: f64,
    measured: Vec<Firing>,
    frequencies: Vec<Vec<f32>>,
    chosen: Vec<Vec<f32>>,
}

impl Maker<'_, '_> {
    /// Writes a tensor outside the FFN.
    fn other(&mut self, tensor: &SynthTensor) -> Result<()> {
        let plan = self.plan;
        let source = RowSource { seed: plan.seed, layer: tensor.layer };
        match &tensor.content {
            Content::Vector(values) => {
                let mut bytes = Vec::new();
                quant::quantise(tensor.info.ty, values, &mut bytes)?;
                self.output.write(&tensor.info.name, &bytes)
            }
            &Content::Normal { stream, std, quiet } => self.rows(tensor, |row, out| match row < quiet {
                true => out.fill(0.0),
                false => source.normal(stream, row, std, out),
            }),
            Content::Successors => self.rows(tensor, |token, out| draft_head::output_row(plan, token, out)),
            Content::DraftProjection => {
                self.rows(tensor, |output, out| draft_head::projection_row(plan, source, output, out))
            }
            Content::Positions => self.rows(tensor, |position, out| position_row(plan, position, out)),
            _ => self.rows(tensor, |token, out| embedding_row(plan, token, out)),
        }
    }

    /// Writes a tensor of a layer's FFN or predictor.
    fn ffn(&mut self, tensor: &SynthTensor, layer: &mut SynthLayer<'_>) -> Result<()> {
        let SynthLayer { index, neurons, score_biases } = layer;
        match tensor.content {
            Content::Router => {
                self.chosen.push(neurons.chosen());
                self.rows(tensor, |expert, out| neurons.router_row(expert, out))
            }
            Content::SharedFiring => self.rows(tensor, |i, out| neurons.shared_firing_row(i, out)),
            Content::Gate => self.rows(tensor, |i, out| neurons.gate_row(i, out)),
            Content::Up => self.rows(tensor, |i, out| neurons.up_row(i, out)),
            Content::DownOutputs => self.rows(tensor, |output, out| neurons.down_output(output, out)),
            Content::DownNeurons => self.rows(tensor, |i, out| neurons.down_neuron(i, out)),
            Content::Features => self.rows(tensor, |unit, out| neurons.feature_row(unit, out)),
            Content::Scores => self.rows(tensor, |i, out| neurons.score_row(i, score_biases[i], out)),
            _ => {
                *score_biases = self.firing_rows(tensor, *index, neurons)?;
                Ok(())
            }
        }
    }

    /// Generates, quantises and writes the rows of a matrix.
    fn rows(&mut self, tensor: &SynthTensor, make: impl Fn(usize, &mut [f32]) + Sync) -> Result<()> {
        let (ty, cols, chunks) = chunks(&tensor.info);
        in_order(
            self.threads,
            chunks.len(),
            |chunk| {
                let mut row = vec![0.0; cols];
                let mut bytes = Vec::new();
                for at in chunks[chunk].clone() {
                    make(at, &mut row);
                    quant::quantise(ty, &row, &mut bytes)?;
                }
                Ok(bytes)
            },
            |bytes| self.output.write(&tensor.info.name, &bytes),
        )
    }

    /// Generates, quantises and writes firing rows. Counts the firings of sampled neurons, and
    /// returns the predictor's bias of each neuron.
    fn firing_rows(&mut self, tensor: &SynthTensor, index: usize, neurons: &Neurons<'_>) -> Result<Vec<f32>> {
        let plan = self.plan;
        let (ty, cols, chunks) = chunks(&tensor.info);
        if let Some(sample) = &mut self.sample {
            sample.enter(plan, index, neurons, self.threads)?;
        }
        let sample = self.sample.as_ref();
        let (mut score_biases, mut counts) = (Vec::new(), Vec::new());
        in_order(
            self.threads,
            chunks.len(),
            |chunk| {
                let (mut known, mut row, mut back) = (vec![0.0; cols], vec![0.0; cols], vec![0.0; cols]);
                let (mut bytes, mut biases, mut counts) = (Vec::new(), Vec::new(), Vec::new());
                for i in chunks[chunk].clone() {
                    neurons.known(i, &mut known);
                    neurons.firing_row(i, &known, &mut row);
                    let start = bytes.len();
                    quant::quantise(ty, &row, &mut bytes)?;
                    quant::dequantise(ty, &bytes[start..], &mut back);
                    let bias = if plan.predictor_rank.is_some() { neurons.score_bias(&known, &back) } else { 0.0 };
                    biases.push(bias);
                    if let Some(sample) = sample.filter(|sample| sample.includes(&plan.shape, i, neurons.rank[i])) {
                        counts.push(count(plan, sample, neurons, i, &back, bias)?);
                    }
                }
                Ok((bytes, biases, counts))
            },
            |(bytes, biases, sampled)| {
                score_biases.extend(biases);
                counts.extend(sampled);
                self.output.write(&tensor.info.name, &bytes)
            },
        )?;
        if let Some(sample) = sample {
            self.measured.push(sample.summarise(plan, self.hot_firings, &counts));
        }
        self.frequencies.push(neurons.frequencies());
        Ok(score_biases)
    }
}

/// Runs the sampled tokens through neuron `i`, whose quantised firing row is `firing`.
fn count(
    plan: &SynthPlan,
    sample: &SampledTokens,
    neurons: &Neurons<'_>,
    i: usize,
    firing: &[f32],
    bias: f32,
) -> Result<Counts> {
    let up = match plan.up_bias > 0.0 {
        false => None,
        true => {
            let mut row = vec![0.0; plan.shape.d_model];
            neurons.up_row(i, &mut row);
            Some(quantised(plan.matrix_type(row.len()), &row)?)
        }
    };
    let score = match plan.predictor_rank {
        None => None,
        Some(rank) => {
            let mut row = vec![0.0; rank];
            neurons.score_row(i, bias, &mut row);
            Some(quantised(plan.predictor_type(), &row)?)
        }
    };
    Ok(sample.count(plan, firing, up.as_deref(), score.as_deref()))
}

/// Returns type and width of a matrix, and its rows in chunks.
fn chunks(info: &TensorInfo) -> (TensorType, usize, Vec<Range<usize>>) {
    let cols = info.shape.last().copied().unwrap_or(1);
    let rows = elements(info) / cols;
    let step = (CHUNK / cols).max(1);
    (info.ty, cols, (0..rows).step_by(step).map(|start| start..(start + step).min(rows)).collect())
}

//! Reading phase: the model computes text while firings are counted and FFN inputs are recorded.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    PrepareCorpus, PrepareOptions, PreparePhase, PrepareProgress,
    corpus::TextFiles,
    generate::Author,
    options::ProgressMeter,
    workspace::{ReadingProgress, Workspace},
};
use crate::sparsity::profile::{InputRecorder, Profile, Profiler};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::Model;
use thermocline_run::runtime::{ExpertHidden, Forward, KvCache, KvType, Outputs, Probe};
use thermocline_text::Tokenizer;

/// Time between two saves, which is the most work that a crash can lose.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Tokens to keep from the beginnings of texts, in total and per text, for calibration layer by
/// layer.
const SAMPLES: usize = 1024;
const SAMPLE: usize = 128;

/// Result of reading.
#[derive(Debug)]
pub(super) struct Reading {
    /// Firing counts.
    pub profile: Profile,
    /// Number of tokens whose inputs are in the workspace.
    pub recorded: u64,
    /// Beginnings of the first texts, for calibration.
    pub samples: Vec<Vec<u32>>,
    /// Description of the corpus.
    pub corpus: String,
}

/// Source of texts by index.
enum TextSource {
    Author(Box<Author>),
    Files(TextFiles, Box<Tokenizer>),
    Tokens(Vec<Vec<u32>>),
}

impl TextSource {
    fn open(model: &Model, options: &PrepareOptions, length: usize) -> Result<Self> {
        let checkpoint = &model.checkpoint;
        Ok(match &options.corpus {
            PrepareCorpus::Generated => TextSource::Author(Box::new(Author::new(checkpoint, length, options.seed)?)),
            PrepareCorpus::Files(paths) => {
                let files = TextFiles::open(paths, length, options.seed)?;
                TextSource::Files(files, Box::new(Tokenizer::from_checkpoint(checkpoint)?))
            }
            PrepareCorpus::Tokens(texts) => TextSource::Tokens(texts.clone()),
        })
    }

    /// Computes text `n` from an empty cache of `length` tokens. Returns its tokens, or `None` if
    /// there is no such text.
    fn run(
        &self,
        n: usize,
        length: usize,
        forward: &mut Forward,
        kv: &mut KvCache,
        probe: &mut dyn Probe,
    ) -> Result<Option<Vec<u32>>> {
        let text = match self {
            TextSource::Author(author) => return author.write(n, forward, kv, probe).map(Some),
            TextSource::Files(files, tokenizer) => files.text(n, tokenizer, length)?,
            TextSource::Tokens(texts) => texts.get(n).map(|text| text[..text.len().min(length)].to_vec()),
        };
        let Some(text) = text else { return Ok(None) };
        if !text.is_empty() {
            forward.run(&text, kv, Outputs::None, probe)?;
        }
        Ok(Some(text))
    }
}

/// Reads the text, continues reading it, or returns the result if reading is complete.
pub(super) fn read(
    model: &Arc<Model>,
    cpu: &Cpu,
    options: &PrepareOptions,
    workspace: &mut Workspace,
    progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
) -> Result<Reading> {
    let mut state = workspace.reading(model);
    if !state.complete {
        continue_reading(model, cpu, options, workspace, &mut state, progress)?;
    }
    if state.profile.tokens == 0 || state.recorded == 0 {
        return Err(Error::invalid("text to prepare from", "at least one token", 0));
    }
    let ReadingProgress { profile, recorded, samples, .. } = state;
    Ok(Reading { profile, recorded, samples, corpus: options.corpus.to_string() })
}

fn continue_reading(
    model: &Arc<Model>,
    cpu: &Cpu,
    options: &PrepareOptions,
    workspace: &mut Workspace,
    state: &mut ReadingProgress,
    progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
) -> Result<()> {
    let length = options.length.min(model.config.context_length);
    let source = TextSource::open(model, options, length)?;
    let mut forward = Forward::new(Arc::clone(model), Cpu::new(&options.cpu)?);
    let mut kv = forward.kv_cache(length, KvType::F16)?;
    let room = options.disk / InputRecorder::bytes_per_token(model).max(1);
    let mut meter = ProgressMeter::new(PreparePhase::Reading);
    meter.skip(state.profile.tokens as f64 / options.tokens as f64);
    let mut observer = ReadingProbe {
        profiler: Profiler::new(cpu, model),
        recorder: InputRecorder::open(workspace.folder(), model, state.recorded)?,
        before: state.profile.tokens,
        wanted: options.tokens,
        meter,
        progress,
    };
    let mut saved = Instant::now();
    while state.profile.tokens < options.tokens {
        // If there is no room for all texts, evenly spread texts are recorded.
        let due = state.profile.tokens as f64 * (room as f64 / options.tokens as f64).min(1.0);
        let keep = state.recorded + length as u64 <= room && state.recorded as f64 <= due;
        observer.recorder.set_on(keep);
        observer.profiler.clear();
        kv.truncate(0);
        let more = match source.run(state.texts, length, &mut forward, &mut kv, &mut observer) {
            Ok(more) => more,
            Err(error) => {
                // Complete texts are kept. The unfinished text is read again.
                let fault = observer.recorder.commit(0).err();
                observer.recorder.roll_back()?;
                workspace.save_reading(state)?;
                return Err(fault.unwrap_or(error));
            }
        };
        let Some(mut text) = more else { break };
        if state.samples.iter().map(Vec::len).sum::<usize>() < SAMPLES {
            text.truncate(SAMPLE);
            state.samples.push(text);
        }
        let read = observer.profiler.profile();
        let kept = if keep { read.tokens } else { 0 };
        state.profile.add(read);
        state.texts += 1;
        state.recorded += kept;
        observer.before = state.profile.tokens;
        observer.recorder.commit(kept)?;
        if saved.elapsed() > SAVE_EVERY {
            workspace.save_reading(state)?;
            saved = Instant::now();
        }
    }
    state.complete = true;
    workspace.save_reading(state)
}

/// Combines profiler, recorder and progress into one probe.
struct ReadingProbe<'a, 'p> {
    profiler: Profiler<'a>,
    recorder: InputRecorder,
    /// Tokens of the texts before this text.
    before: u64,
    wanted: u64,
    meter: ProgressMeter,
    progress: &'p mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
}

impl Probe for ReadingProbe<'_, '_> {
    fn cancelled(&mut self) -> bool {
        let done = (self.before + self.profiler.profile().tokens) as f64 / self.wanted as f64;
        self.recorder.failed() || (self.progress)(&self.meter.progress(done, None)).is_break()
    }

    fn wants_ffn_input(&mut self) -> bool {
        self.recorder.wants_ffn_input()
    }

    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        self.recorder.ffn_input(layer, tokens, normed, residual);
    }

    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        self.profiler.ffn_hidden(layer, tokens, gate, up);
    }

    fn expert_hidden(&mut self, hidden: &ExpertHidden<'_>) {
        self.profiler.expert_hidden(hidden);
    }

    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.profiler.router(layer, chosen);
    }
}

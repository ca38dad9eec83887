//! `thermocline bench`: measures speed, and reports it in the rows and columns of llama.cpp's
//! `llama-bench`.

use std::{io::Write, path::PathBuf};

use clap::{Args, ValueEnum, builder::TypedValueParser};
use serde_json::Value;
use thermocline_engine::{
    bench::{self, BenchOptions, GpuEffort, Test},
    placement::Granularity,
    runtime::{KvType, RoutePreference, Sparsity},
    sparsity::sidecar::SidecarAttachment,
};

use crate::cli::{
    bench_kernels,
    bench_rows::{BenchRow, beside_layers, csv, longest_submissions, markdown},
    bench_streams,
};
use thermocline_host::folders::Folders;
use thermocline_terminal::{
    companion_options::CompanionOptions,
    engine_options::{CpuArgs, DeviceArgs, StreamPrompts, kv_types, stream_prompts},
    failure::{Failure, Outcome, one_line},
    level::LevelArgs,
    model_options::ModelOptions,
    named::named,
    progress::{ProgressUnit, TerminalProgress},
    standard_error::say,
};

const DETAILS: &str = "\
Every length of -p is a prompt test (pp), and every length of -n is a generation test (tg); 0 runs
no tests of this kind. The times include neither tokenizing nor sampling. With --peer, the two
programs take turns on the same file with the same threads. The table shows the median ratio of
their speeds over the turns, with the minimum and the maximum; above 1, Thermocline is faster. If
the peer cannot read the model, --peer-model gives it a model of the same shape and types.

With --sparsity, tokens are generated in each of these modes, one after the other. The table shows
how much RAM a token had to read, and the lines below it show the read bandwidths. Reading single
rows of neurons is slower than reading rows in order. Both bandwidths are measured before and after
each run, because other machines on the same host change them within seconds.

With --placement, a model may be larger than the GPU's memory. `neurons` places the hot neurons of
many layers there, by the plan that `thermocline plan` prints. Run this command first: it measures
the machine once. `layers` places whole layers, like programs that do not place single neurons. The
hit rate is the fraction of the firing neurons that were in GPU memory. `waiting` is the fraction of
the time that the CPU waited for the GPU in layers that both compute. An untimed run measures both.
Several placements and modes are measured one after the other with the same budget. `ratio to
layers` is the speed divided by the speed of the first mode with whole layers.

With --streams, this number of clients send requests at the same time. The table shows the tokens
per second of all clients together, the ratio to the first number of clients, and the time to the
first tokens. The streams of a pass share one read of the weights. With --draft, a small model
proposes tokens. Without it, there are no drafts.

With --longest, a line below the table shows the longest submission of every test. The measured
speed of the GPU determines the size of a submission, which takes about 0.1 s at most on the slowest
GPUs.

With --kernels, every dispatch of a GPU is timed. The table compares each kernel's speed with the
bandwidth of the GPU's memory. Without a model, only products of weights of every type are measured.

Examples:
  thermocline bench -m model.gguf
  thermocline bench -m model.gguf -p 512 -n 0 -r 10 -o json
  thermocline bench -m model.gguf --peer llama.cpp/build/bin/llama-bench
  thermocline bench -m relu.gguf -p 0 --sparsity predicted --peer llama-bench --peer-model dense.gguf
  thermocline bench -m model.gguf --streams 1,2,4,8,16 -p 128 -n 64
  thermocline bench -m model.gguf --device 0 --kernels
  thermocline bench -m relu.gguf -p 0 --device gpu --vram 8GiB --placement layers,neurons --sparsity dense,predicted";

/// Effort for a quick look, or for a software driver.
const QUICK: GpuEffort = GpuEffort { bytes: 16 << 20, seconds: 0.01, hand_overs: 50 };

/// Measures the speed of a model on this machine.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct BenchArgs {
    /// Lengths of prompts
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    pub(super) n_prompt: Vec<usize>,
    /// Numbers of generated tokens
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', default_value = "128")]
    pub(super) n_gen: Vec<usize>,
    /// A prompt and the tokens generated after it, timed together; may be repeated
    #[arg(long, value_name = "P,N", value_parser = pair)]
    pg: Vec<(usize, usize)>,
    /// Tokens that are in the context before the test begins
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Timed runs of every test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) repetitions: u16,
    /// Skip the untimed run before each test
    #[arg(long)]
    no_warmup: bool,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t)]
    pub(super) output: BenchForm,
    /// llama-bench program to compare with: the two programs take turns, and the table shows the
    /// ratio of their speeds
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
    /// Model for the llama-bench program if it cannot run the same file: a model of the same shape
    /// and types
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_model: Option<PathBuf>,
    /// Sparsity modes in which tokens are generated
    #[arg(long, value_name = "MODE,..", value_delimiter = ',', default_value = "dense",
          value_parser = named::<Sparsity>(Sparsity::ALL.map(Sparsity::name)))]
    pub(super) sparsity: Vec<Sparsity>,
    /// Prefer experts that are in GPU memory while generating tokens, as in run
    #[arg(long, value_name = "near=L,drop=F", default_value = "exact")]
    routes: RoutePreference,
    /// Put as much of the model into GPU memory as --vram allows, in these pieces; the CPU computes
    /// the rest [default: the whole model]
    #[arg(long, value_name = "PIECES,..", value_delimiter = ',', value_parser = granularities(),
          conflicts_with_all = ["peer", "kernels"])]
    placement: Vec<Granularity>,
    /// Place the neurons that PowerInfer's split (a .gpuidx file) puts on the GPU, instead of the
    /// neurons that save the most time there
    #[arg(long, value_name = "FILE", requires = "placement")]
    split: Option<PathBuf>,
    /// For prompts of placed models, send the neurons that are not in GPU memory to the GPU in
    /// pieces; auto: if this is faster than the CPU at the measured speeds of this machine
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = stream_prompts(), requires = "placement")]
    stream_prompts: StreamPrompts,
    /// Number of requests to answer at the same time, each with a prompt of the first -p tokens and
    /// an answer of the first -n tokens
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with_all = ["peer", "kernels", "placement"])]
    pub(super) streams: Vec<usize>,
    /// Time each kernel of a GPU
    #[arg(long, conflicts_with = "peer")]
    kernels: bool,
    /// Show each test's longest submission to the GPU. The desktop freezes during a submission, and
    /// a driver aborts submissions that take seconds
    #[arg(long, conflicts_with_all = ["streams", "kernels"])]
    longest: bool,
    /// Spend less time on measuring a GPU's memory and, with --kernels, products of weights
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    pub(super) model: ModelOptions,
    #[command(flatten)]
    pub(super) companions: CompanionOptions,
    /// Element type of the KV cache; for q8_0, the part in GPU memory is f16
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types(), help_heading = "Context")]
    pub(super) kv_type: KvType,
    /// Prompt tokens computed at once
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Context",
          value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    #[command(flatten)]
    pub(super) cpu: CpuArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

// Format of the results. (Doc comments on the values would make --help long.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchForm {
    #[default]
    Md,
    Json,
    Jsonl,
    Csv,
}

/// Refuses companions of the model that no test uses.
fn check_companions(args: &BenchArgs) -> Outcome {
    if args.companions.mmproj.is_some() {
        return Err(Failure::usage("--mmproj: expected no vision tower, because bench computes no pictures"));
    }
    if args.companions.draft.is_some() && args.streams.is_empty() {
        return Err(Failure::usage("--draft: expected --streams, because the other tests compute tokens one by one"));
    }
    Ok(())
}

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Outcome {
    check_companions(args)?;
    if !args.streams.is_empty() {
        return bench_streams::streams(args);
    }
    let options = BenchOptions {
        tests: tests(args)?,
        repetitions: usize::from(args.repetitions),
        warm_up: !args.no_warmup,
        cpu: args.cpu.options(),
        gpu: args.device.gpu(&args.cpu)?,
        effort: if args.quick { QUICK } else { GpuEffort::default() },
        speeds: Folders::detect().map(|folders| folders.cache),
        stream_prompts: args.stream_prompts,
        routes: args.routes,
        kv_type: args.kv_type,
        chunk: args.chunk as usize,
        load: args.model.load_options(),
        sidecar: args.model.sidecar_choice(),
        level: args.level.level,
        ..BenchOptions::default()
    };
    match &options.gpu {
        Some(gpu) => args.device.say_if_cut_on(gpu),
        None => check_without_gpu(args)?,
    }
    if args.split.is_some() && !args.placement.contains(&Granularity::Neurons) {
        return Err(Failure::usage("--split: expected --placement neurons, because a split places neurons"));
    }
    let ways = ways(args);
    args.level.check(&args.sparsity)?;
    if args.kernels {
        let [(_, sparsity)] = ways[..] else { return Err(Failure::usage("--kernels: expected one --sparsity")) };
        return bench_kernels::kernels(&args.model, &BenchOptions { sparsity, ..options }, args.output);
    }
    let file = args.model.file()?;
    let runs = options.tests.len() * options.repetitions * ways.len();
    let (mut done, mut progress, mut ignored) = (0, TerminalProgress::new("measuring", ProgressUnit::Runs), Vec::new());
    let mut count = |at: bench::Progress<'_>| match at {
        bench::Progress::Repetition { .. } => {
            progress.set(done, runs as u64);
            done += 1;
        }
        bench::Progress::Opened(SidecarAttachment::Ignored { path, reason }) => {
            ignored.push((path.clone(), reason.clone()))
        }
        _ => {}
    };
    let mut rows: Vec<BenchRow> = Vec::new();
    for (placement, sparsity) in ways {
        let split = args.split.clone().filter(|_| placement == Some(Granularity::Neurons));
        let options = BenchOptions { placement, sparsity, split, ..options.clone() };
        match &args.peer {
            Some(program) => {
                let peer = bench::Peer { program: program.clone(), model: args.peer_model.clone() };
                rows.extend(bench::compare(&file.path, &options, &peer, &mut count)?.into_iter().map(BenchRow::from));
            }
            None => rows.extend(bench::run(&file.path, &options, &mut count)?.into_iter().map(BenchRow::from)),
        }
    }
    drop(progress);
    if let Some((path, reason)) = ignored.first() {
        say(format_args!("[{} is not used: {}]", one_line(&path.display().to_string()), one_line(reason)));
    }
    beside_layers(&mut rows);

    let mut out = std::io::stdout().lock();
    match args.output {
        BenchForm::Md => {
            out.write_all(markdown(&rows).as_bytes())?;
            if args.longest {
                out.write_all(longest_submissions(&rows).as_bytes())?;
            }
        }
        BenchForm::Json => writeln!(out, "{:#}", rows.iter().map(BenchRow::json).collect::<Value>())?,
        BenchForm::Jsonl => rows.iter().try_for_each(|row| writeln!(out, "{}", row.json()))?,
        BenchForm::Csv => out.write_all(csv(&rows).as_bytes())?,
    }
    Ok(())
}

/// Refuses options that need a GPU.
fn check_without_gpu(args: &BenchArgs) -> Outcome {
    let message = match () {
        () if !args.placement.is_empty() => "--placement: expected a GPU to place a part of the model on",
        () if args.longest => "--longest: expected a GPU, because only a GPU has submissions",
        () if args.kernels && args.model.model.is_some() => {
            "--kernels: expected a GPU, because a model's kernels are timed only there"
        }
        () => return Ok(()),
    };
    let hint = Some("--device chooses a GPU; `thermocline devices` lists the GPUs".to_owned());
    Err(Failure::Usage { message: message.to_owned(), hint })
}

fn tests(args: &BenchArgs) -> Outcome<Vec<Test>> {
    let prompts = args.n_prompt.iter().map(|&prompt| (prompt, 0));
    let generations = args.n_gen.iter().map(|&generate| (0, generate));
    let kinds: Vec<(usize, usize)> = prompts.chain(generations).chain(args.pg.iter().copied()).collect();
    let at_depth = |&depth: &usize| {
        let wanted = kinds.iter().filter(|(prompt, generate)| prompt + generate > 0);
        wanted.map(move |&(prompt, generate)| Test { prompt, generate, depth })
    };
    match args.n_depth.iter().flat_map(at_depth).collect::<Vec<_>>() {
        none if none.is_empty() => Err(Failure::usage("expected at least one test: -p, -n or --pg above 0")),
        tests => Ok(tests),
    }
}

/// Combines placements and modes, in the order given.
fn ways(args: &BenchArgs) -> Vec<(Option<Granularity>, Sparsity)> {
    let placements: Vec<Option<Granularity>> = match args.placement.is_empty() {
        true => vec![None],
        false => args.placement.iter().copied().map(Some).collect(),
    };
    placements.into_iter().flat_map(|placement| args.sparsity.iter().map(move |mode| (placement, *mode))).collect()
}

pub(super) fn granularities() -> impl TypedValueParser<Value = Granularity> {
    named(Granularity::ALL.map(Granularity::name))
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let parts =
        text.split_once(',').and_then(|(prompt, generate)| Some((prompt.parse().ok()?, generate.parse().ok()?)));
    parts.ok_or_else(|| "expected a prompt and a number of tokens, like 512,128".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_is_two_numbers_with_a_comma() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("a,b").is_err());
    }
}

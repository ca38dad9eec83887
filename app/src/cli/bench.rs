//! `thermocline bench`: speed, in the rows and columns of llama.cpp's `llama-bench`.

use std::{io::Write, path::PathBuf};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::{Value, json};
use thermocline_engine::{
    bench::{self, BenchOptions, Comparison, GpuEffort, Record, Test},
    model::{KvType, Sparsity},
};

use super::{
    bench_kernels,
    engine_options::{CpuArgs, DeviceArgs, kv_types},
    failure::{Failure, Outcome},
    model_options::ModelOptions,
    progress::{Progress, Unit},
    table::table,
    units,
};

const DETAILS: &str = "\
Every length of -p is a prompt test (pp), every length of -n a generation test (tg); 0 leaves the kind out. Neither
tokenizing nor sampling is timed. With --peer the two programs take turns on the same file with the same threads, and
the ratio is the median over the turns, with the least and the most: above 1, Thermocline is faster. A model it cannot
read is compared with one of the same shape and types, --peer-model.

With --sparsity tokens are generated in that mode, on the CPU. What a token had to read stands in the table, and how long
that takes at least: rows of single neurons come more slowly from memory than rows in order. Both are measured before and
after each run, because other machines on the same host change them by the second.

With --kernels every dispatch of a GPU is timed, and each kernel's speed stands beside what the GPU's memory moves.
Without a model, products of weights of every type are measured alone.

Examples:
  thermocline bench -m model.gguf
  thermocline bench -m model.gguf -p 512 -n 0 -r 10 -o json
  thermocline bench -m model.gguf --peer llama.cpp/build/bin/llama-bench
  thermocline bench -m relu.gguf -p 0 --sparsity predicted --peer llama-bench --peer-model dense.gguf
  thermocline bench -m model.gguf --device 0 --kernels";

/// For a look at how things stand, or a driver in software.
const QUICK: GpuEffort = GpuEffort { bytes: 16 << 20, seconds: 0.01, hand_overs: 50 };

/// Columns of llama-bench's CSV that have a meaning here, in its order.
const COLUMNS: [&str; 25] = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "flash_attn",
    "use_mmap",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
];

/// Measures the speed of a model on this machine.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct BenchArgs {
    /// Lengths of prompts
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// A prompt and the tokens generated after it, timed together; may be repeated
    #[arg(long, value_name = "P,N", value_parser = pair)]
    pg: Vec<(usize, usize)>,
    /// Tokens that are in the context before the test begins
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Timed runs of every test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Skip the run before each test that is not timed
    #[arg(long)]
    no_warmup: bool,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t)]
    output: Form,
    /// Run this llama-bench in turns and show the ratio
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
    /// What that program runs, where it cannot run the model: one of the same shape and types
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_model: Option<PathBuf>,
    /// What is skipped when tokens are generated
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = sparsity_modes())]
    sparsity: Sparsity,
    /// Time each of a GPU's kernels
    #[arg(long, conflicts_with = "peer")]
    kernels: bool,
    /// Spend less on measuring a GPU's memory and, with --kernels, on products of weights
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    model: ModelOptions,
    /// Element type of the KV cache
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types(), help_heading = "Context")]
    kv_type: KvType,
    /// Prompt tokens computed at once
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Context",
          value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

// Form of the results. (Doc comments on the values would make --help long.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    #[default]
    Md,
    Json,
    Jsonl,
    Csv,
}

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Outcome {
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("expected at least one test: -p, -n or --pg above 0"));
    }
    let options = BenchOptions {
        tests,
        repetitions: usize::from(args.repetitions),
        warm_up: !args.no_warmup,
        cpu: args.cpu.options(),
        gpu: args.device.gpu()?,
        effort: if args.quick { QUICK } else { GpuEffort::default() },
        sparsity: args.sparsity,
        kv_type: args.kv_type,
        chunk: args.chunk as usize,
        load: args.model.load_options(),
    };
    if args.kernels {
        return bench_kernels::kernels(&args.model, &options, args.output);
    }
    let file = args.model.file()?;
    let runs = options.tests.len() * options.repetitions;
    let (mut done, mut progress) = (0, Progress::new("measuring", Unit::Runs));
    let mut count = |at: bench::Progress<'_>| {
        if matches!(at, bench::Progress::Repetition { .. }) {
            progress.set(done, runs as u64);
            done += 1;
        }
    };
    let rows: Vec<Row> = match &args.peer {
        Some(program) => {
            let peer = bench::Peer { program: program.clone(), model: args.peer_model.clone() };
            bench::compare(file.path(), &options, &peer, &mut count)?.into_iter().map(Row::from).collect()
        }
        None => bench::run(file.path(), &options, &mut count)?.into_iter().map(Row::from).collect(),
    };
    drop(progress);

    let mut out = std::io::stdout().lock();
    match args.output {
        Form::Md => out.write_all(markdown(&rows).as_bytes())?,
        Form::Json => writeln!(out, "{:#}", rows.iter().map(Row::json).collect::<Value>())?,
        Form::Jsonl => rows.iter().try_for_each(|row| writeln!(out, "{}", row.json()))?,
        Form::Csv => out.write_all(csv(&rows).as_bytes())?,
    }
    Ok(())
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let prompts = args.n_prompt.iter().map(|&prompt| (prompt, 0));
    let generations = args.n_gen.iter().map(|&generate| (0, generate));
    let kinds: Vec<(usize, usize)> = prompts.chain(generations).chain(args.pg.iter().copied()).collect();
    let at_depth = |&depth: &usize| {
        let wanted = kinds.iter().filter(|(prompt, generate)| prompt + generate > 0);
        wanted.map(move |&(prompt, generate)| Test { prompt, generate, depth })
    };
    args.n_depth.iter().flat_map(at_depth).collect()
}

/// A test's result, with the peer's if there was one.
struct Row {
    record: Record,
    peer: Option<Peer>,
}

struct Peer {
    samples: Vec<f64>,
    mean: f64,
    deviation: f64,
    ratios: Vec<f64>,
    ratio: f64,
}

impl From<Record> for Row {
    fn from(record: Record) -> Self {
        Row { record, peer: None }
    }
}

impl From<Comparison> for Row {
    fn from(of: Comparison) -> Self {
        let (mean, deviation) = (of.peer_avg_ts, of.peer_stddev_ts);
        let peer = Peer { samples: of.peer_samples_ts, mean, deviation, ratios: of.ratios, ratio: of.ratio };
        Row { record: of.ours, peer: Some(peer) }
    }
}

impl Row {
    /// llama-bench's object; the peer's speeds stand in its `thermocline` part.
    fn json(&self) -> Value {
        let mut object = json!(self.record);
        if let Some(peer) = &self.peer {
            object["thermocline"]["peer"] = json!({
                "avg_ts": peer.mean,
                "stddev_ts": peer.deviation,
                "samples_ts": peer.samples,
                "ratios": peer.ratios,
                "ratio": peer.ratio,
            });
        }
        object
    }
}

fn markdown(rows: &[Row]) -> String {
    let peer = rows.iter().any(|row| row.peer.is_some());
    let copies = rows.iter().any(|row| row.record.thermocline.copy_bandwidth.is_some());
    // A GPU has layers where the CPU has threads.
    let (workers, limit) = if copies { ("ngl", "of copy bandwidth") } else { ("threads", "of read bandwidth") };
    let sparse = rows.iter().any(|row| row.record.thermocline.sparsity != Sparsity::Dense.name());
    let mut heads = vec!["model", "size", "params", "backend", workers, "test", "t/s", "GB/s", limit];
    if sparse {
        heads.extend(["mode", "active", "read per token", "of it rows"]);
    }
    if peer {
        heads.extend(["llama.cpp t/s", "ratio"]);
    }
    let mut lines = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for Row { record, peer } in rows {
        let extra = &record.thermocline;
        let mut cells = vec![
            record.model_type.clone(),
            units::bytes(record.model_size),
            units::parameters(record.model_n_params),
            record.backends.clone(),
            if copies { record.n_gpu_layers.to_string() } else { record.n_threads.to_string() },
            record.test_name(),
            format!("{:.2} ± {:.2}", record.avg_ts, record.stddev_ts),
            extra.bytes_per_second.map_or(String::new(), |rate| format!("{:.1}", rate / 1e9)),
            extra.bandwidth_share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0)),
        ];
        if sparse {
            cells.extend([
                extra.sparsity.clone(),
                extra.active_neurons.map_or(String::new(), |share| format!("{:.1} %", share * 100.0)),
                units::bytes(extra.bytes_per_token),
                units::bytes(extra.scattered_bytes_per_token),
            ]);
        }
        if let Some(peer) = peer {
            let (least, most) = peer.ratios.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
            cells.extend([
                format!("{:.2} ± {:.2}", peer.mean, peer.deviation),
                format!("{:.2} ({least:.2} to {most:.2})", peer.ratio),
            ]);
        }
        lines.push(cells);
    }
    let mut text = table(&lines);
    if let Some(Row { record, .. }) = rows.first() {
        let extra = &record.thermocline;
        if let Some(copies) = extra.copy_bandwidth {
            text += &format!("\ncopy bandwidth {:.1} GB/s, ", copies / 1e9);
            text += &format!("read bandwidth {:.1} GB/s, ", extra.read_bandwidth / 1e9);
            text += &format!("kernels {}, {} used, {}\n", extra.isa, units::bytes(extra.vram_used), record.gpu_info);
        } else {
            text += &format!("\nread bandwidth, measured around each run: {:.1} GB/s", extra.read_bandwidth / 1e9);
            if let Some(rows) = extra.scattered_bandwidth {
                text += &format!(", of rows here and there {:.1} GB/s", rows / 1e9);
            }
            text += &format!(", kernels {}, {}\n", extra.isa, record.cpu_info);
        }
    }
    text
}

fn csv(rows: &[Row]) -> String {
    let peer = rows.iter().any(|row| row.peer.is_some());
    let mut text = COLUMNS.join(",");
    text += if peer { ",peer_avg_ts,peer_stddev_ts,ratio\n" } else { "\n" };
    for row in rows {
        let object = row.json();
        let mut cells: Vec<String> = COLUMNS.iter().map(|column| quoted(&object[column])).collect();
        if let Some(peer) = &row.peer {
            cells.extend([peer.mean, peer.deviation, peer.ratio].map(|number| quoted(&json!(number))));
        }
        text += &(cells.join(",") + "\n");
    }
    text
}

/// As llama-bench does: every cell in quotes.
fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn sparsity_modes() -> impl TypedValueParser<Value = Sparsity> {
    PossibleValuesParser::new(Sparsity::ALL.map(Sparsity::name)).try_map(|name| name.parse::<Sparsity>())
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
    fn cells_are_quoted() {
        assert_eq!(quoted(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(quoted(&json!(1.5)), "\"1.5\"");
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("a,b").is_err());
    }
}

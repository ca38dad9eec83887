//! Alternates our tests with llama.cpp's `llama-bench` on the same file, so that both see the same
//! machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde::Serialize;
use serde_json::Value;

use super::{
    BenchOptions, Progress, Test,
    limit::{BandwidthLimit, median},
    record::{Extra, Record, mean_and_deviation},
    run::Bench,
};
use thermocline_base::error::{Error, FileAction, Result};

/// The program to compare with.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Path of the llama-bench binary.
    pub program: PathBuf,
    /// A model of the same shape and types for the program, if it cannot run our file.
    pub model: Option<PathBuf>,
}

/// One test, with our results and the peer's.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Our record, over all rounds.
    pub ours: Record,
    /// The peer's tokens per second, one per round.
    pub peer_samples_ts: Vec<f64>,
    /// Mean of the peer's samples.
    pub peer_avg_ts: f64,
    /// Sample standard deviation of the peer's samples.
    pub peer_stddev_ts: f64,
    /// Our speed divided by the peer's, for each round.
    pub ratios: Vec<f64>,
    /// Median of `ratios`.
    pub ratio: f64,
}

/// Runs every test `options.repetitions` times here and in `peer`, alternately, with the same
/// number of threads.
///
/// # Errors
/// As [`run`](super::run); [`Error::Io`] if the program cannot be started, [`Error::Invalid`] if it
/// fails or its output is not llama-bench's.
pub fn compare(
    path: &Path,
    options: &BenchOptions,
    peer: &Peer,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Comparison>> {
    let once = BenchOptions { repetitions: 1, ..options.clone() };
    let mut bench = Bench::open(path, &once, progress)?;
    let theirs_model = peer.model.as_deref().unwrap_or(path);
    let mut comparisons = Vec::new();
    for test in &options.tests {
        let (mut records, mut theirs) = (Vec::new(), Vec::new());
        let of = options.repetitions.max(1);
        for number in 1..=of {
            progress(Progress::Repetition { test: *test, number, of });
            records.push(bench.test(*test, &mut |_| {})?);
            let threads = records[0].n_threads;
            theirs.push(peer_speed(&peer.program, theirs_model, *test, threads, options)?);
        }
        let Some(comparison) = join(records, theirs) else { continue };
        progress(Progress::Done(&comparison.ours));
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

/// Runs one round of the peer and returns its tokens per second.
fn peer_speed(program: &Path, model: &Path, test: Test, threads: usize, options: &BenchOptions) -> Result<f64> {
    let kv = options.kv_type.name().to_lowercase();
    let mut command = Command::new(program);
    let layers = if options.gpu.is_some() { "99" } else { "0" };
    command.arg("-m").arg(model).args(["-o", "json", "-r", "1", "-ngl", layers]);
    command.args(["-t", &threads.to_string(), "-d", &test.depth.to_string(), "-ctk", &kv, "-ctv", &kv]);
    command.args(["-ub", &options.chunk.to_string()]);
    match (test.prompt, test.generate) {
        (p, 0) => command.args(["-p", &p.to_string(), "-n", "0"]),
        (0, n) => command.args(["-p", "0", "-n", &n.to_string()]),
        (p, n) => command.args(["-p", "0", "-n", "0", "-pg", &format!("{p},{n}")]),
    };
    if let Some(folder) = program.parent() {
        // The program's shared libraries are in its folder.
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = command.output().map_err(|source| Error::io(FileAction::Start, program, source))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().last().unwrap_or("no message").to_owned();
        return Err(Error::invalid("llama-bench", "success", format!("{}: {last}", output.status)));
    }
    let rows: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::invalid("llama-bench", "JSON on its output", error))?;
    rows.as_array()
        .and_then(|rows| rows.last())
        .and_then(|row| row.get("avg_ts"))
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::invalid("llama-bench", "`avg_ts` in its JSON", "no `avg_ts`"))
}

/// Joins the rounds into one comparison; `None` without rounds.
fn join(records: Vec<Record>, theirs: Vec<f64>) -> Option<Comparison> {
    let ratios: Vec<f64> = records.iter().zip(&theirs).map(|(ours, theirs)| ours.avg_ts / theirs).collect();
    let ratio = median(ratios.iter().copied())?;
    let limits: Vec<BandwidthLimit> =
        records.iter().flat_map(|record| record.thermocline.limits.iter().copied()).collect();
    let samples_ts: Vec<f64> = records.iter().map(|record| record.avg_ts).collect();
    let samples_ns: Vec<u64> = records.iter().map(|record| record.avg_ns).collect();
    let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
    let (avg_ns, stddev_ns) = mean_and_deviation(&samples_ns.iter().map(|ns| *ns as f64).collect::<Vec<_>>());
    let extras: Vec<Extra> = records.iter().map(|record| record.thermocline.clone()).collect();
    let mut ours = records.into_iter().next()?;
    let extra = &mut ours.thermocline;
    let middle = |of: fn(&Extra) -> Option<f64>| median(extras.iter().filter_map(of));
    extra.read_bandwidth = middle(|extra| Some(extra.read_bandwidth)).unwrap_or(extra.read_bandwidth);
    extra.scattered_bandwidth = middle(|extra| extra.scattered_bandwidth);
    extra.bandwidth_fraction = middle(|extra| extra.bandwidth_fraction);
    extra.limits = limits;
    if let Some(rate) = &mut extra.bytes_per_second {
        *rate *= avg_ts / ours.avg_ts;
    }
    let ours = Record {
        avg_ts,
        stddev_ts,
        avg_ns: avg_ns as u64,
        stddev_ns: stddev_ns as u64,
        samples_ts,
        samples_ns,
        ..ours
    };
    let (peer_avg_ts, peer_stddev_ts) = mean_and_deviation(&theirs);
    Some(Comparison { ours, peer_samples_ts: theirs, peer_avg_ts, peer_stddev_ts, ratios, ratio })
}

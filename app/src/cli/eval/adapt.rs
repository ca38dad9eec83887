//! `thermocline eval adapt`

use std::{fmt::Write as _, fs, io::Write as _, path::PathBuf, sync::Arc};

use clap::Args;
use thermocline_engine::{
    cpu::Cpu,
    eval::plot::{Axis, Curve, Figure, Panel, svg},
    runtime::Forward,
    sparsity::migration::{FollowOptions, FollowTrace, follow},
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::report::{self, percent, write};
use crate::cli::table::TextTable;
use thermocline_host::units::{parse_bytes, parse_tokens};
use thermocline_terminal::{
    engine_options::CpuArgs,
    failure::{Failure, Outcome},
    model_options::ModelOptions,
    progress::{ProgressUnit, TerminalProgress},
};

/// Measure how often firings hit hot neurons, with a static and an adaptive hot set
///
/// At first, the fraction --hot of each layer's neurons that fires most often in the profile text
/// is hot. Then the model reads the texts one after the other. Each text is a topic.
#[derive(Debug, Args)]
pub struct AdaptArgs {
    /// Text that the first hot set is chosen from
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// The texts to read, in order
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    text: Vec<PathBuf>,
    /// Most tokens to read of each text
    #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_tokens)]
    tokens: usize,
    /// Fraction of the neurons that is hot
    #[arg(long, value_name = "FRACTION", default_value_t = 0.2)]
    hot: f32,
    /// Half-life of a firing's weight, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = FollowOptions::default().half_life)]
    half_life: f32,
    /// Most bytes that may move per token, on average [default: 1MiB; 8MiB with experts]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Write every token's hits
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the hit rates
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cpu: CpuArgs,
}

/// Tokens per point of the curve.
const WINDOW: usize = 64;

/// Runs the experiment.
pub fn adapt(args: &AdaptArgs) -> Outcome {
    report::check(args.csv.iter().chain(&args.svg))?;
    let model = Arc::new(args.model.open_model()?);
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
    let read = |path: &PathBuf| -> Outcome<Vec<u32>> {
        let text = fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        // Enough characters to yield that many tokens.
        let end = text.char_indices().nth(args.tokens.saturating_mul(32)).map_or(text.len(), |(end, _)| end);
        let mut tokens = tokenizer.encode(&text[..end], EncodeOptions::PLAIN)?;
        tokens.truncate(args.tokens);
        Ok(tokens)
    };
    let profile = read(&args.profile)?;
    let texts = args.text.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    let mut forward = Forward::new(Arc::clone(&model), Cpu::new(&args.cpu.options())?);
    let default = FollowOptions::default();
    let bytes_per_token = args.bytes.unwrap_or(default.bytes_per_token);
    let expert_bytes_per_token = args.bytes.unwrap_or(default.expert_bytes_per_token);
    let options = FollowOptions { half_life: args.half_life, bytes_per_token, expert_bytes_per_token, ..default };
    let mut progress = TerminalProgress::new("reading", ProgressUnit::Tokens);
    let mut show = |done, all| progress.set(done as u64, all as u64);
    let parts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let trace = follow(&mut forward, &profile, &parts, args.hot, options, &mut show)?;
    drop(progress);

    std::io::stdout().write_all(rows(args, &trace).text().as_bytes())?;
    write(args.csv.as_ref(), || csv(&trace))?;
    // File names only, because the subtitle has no room for folders.
    let name = |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let subtitle = format!(
        "{}: {} of the neurons are hot; the model read {} in turn",
        model.config.name,
        percent(Some(f64::from(args.hot)), 0) + " %",
        args.text.iter().map(name).collect::<Vec<_>>().join(", ")
    );
    write(args.svg.as_ref(), || svg(&figure(subtitle, &trace)))
}

/// Token range of each text.
fn texts(trace: &FollowTrace) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let ends = trace.begins.iter().copied().skip(1).chain([trace.tokens.len()]);
    trace.begins.iter().copied().zip(ends).map(|(begin, end)| begin..end)
}

fn rows(args: &AdaptArgs, trace: &FollowTrace) -> TextTable {
    let heads =
        ["text", "tokens", "static [%]", "adaptive [%]", "static, 2nd half [%]", "adaptive, 2nd half [%]", "MB moved"];
    let mut rows = TextTable::new(&heads);
    for (range, path) in texts(trace).zip(&args.text) {
        let (all, late) = (trace.hit_rates(range.clone()), trace.hit_rates(range.start.midpoint(range.end)..range.end));
        let moved: u64 = trace.tokens[range.clone()].iter().map(|token| token.moved).sum();
        let mut row = vec![path.display().to_string(), range.len().to_string()];
        row.extend([all.0, all.1, late.0, late.1].map(|rate| percent(Some(rate), 2)));
        row.push(format!("{:.2}", moved as f64 / 1e6));
        rows.row(row);
    }
    rows
}

fn csv(trace: &FollowTrace) -> String {
    let mut text = "token,text,fired,static_hits,adaptive_hits,bytes_moved\r\n".to_owned();
    for (number, range) in texts(trace).enumerate() {
        for at in range {
            let token = trace.tokens[at];
            // Writing to a string cannot fail.
            let _ =
                write!(text, "{at},{number},{},{},{},{}\r\n", token.fired, token.fixed, token.adaptive, token.moved);
        }
    }
    text
}

fn figure(subtitle: String, trace: &FollowTrace) -> Figure {
    let starts = || (0..trace.tokens.len()).step_by(WINDOW / 4);
    let range = |start: usize| start..(start + WINDOW).min(trace.tokens.len());
    let middle = |start: usize| range(start).start.midpoint(range(start).end) as f64;
    let rates: Vec<(f64, (f64, f64))> = starts().map(|start| (middle(start), trace.hit_rates(range(start)))).collect();
    let curve = |name: &str, of: fn(&(f64, f64)) -> f64| {
        Curve::from_points(name, rates.iter().map(|(x, y)| (*x, 100.0 * of(y))))
    };
    let moved = starts().map(|start| {
        let bytes: u64 = trace.tokens[range(start)].iter().map(|token| token.moved).sum();
        (middle(start), bytes as f64 / range(start).len() as f64 / 1e3)
    });
    let hits = vec![curve("static hot set", |rates| rates.0), curve("adaptive hot set", |rates| rates.1)];
    let moves = vec![Curve::from_points("adaptive hot set", moved)];
    let panel = |y: Axis, curves: Vec<Curve>| Panel { y, curves, marks: Vec::new() };
    Figure {
        title: "How often a firing neuron is hot".to_owned(),
        subtitle,
        x: Axis::new("tokens read", ""),
        panels: vec![panel(Axis::new("hits", "%"), hits), panel(Axis::new("moved per token", "kB").from_zero(), moves)],
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::sparsity::migration::TokenHits;

    use super::*;

    #[test]
    fn csv_has_a_line_per_token_with_its_text() {
        let token = TokenHits { fired: 4, fixed: 1, adaptive: 3, moved: 7 };
        let trace = FollowTrace { tokens: vec![token; 3], begins: vec![0, 2] };
        let lines: Vec<String> = csv(&trace).lines().map(str::to_owned).collect();
        assert_eq!(lines[1..], ["0,0,4,1,3,7", "1,0,4,1,3,7", "2,1,4,1,3,7"]);
        let figure = figure(String::new(), &trace);
        assert!(figure.panels[0].curves.iter().all(|curve| curve.points.iter().all(|point| point.y <= 100.0)));
    }
}

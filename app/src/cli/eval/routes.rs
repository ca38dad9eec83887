//! `thermocline eval routes`

use std::{fmt::Write as _, fs, io::Write as _, path::PathBuf, sync::Arc};

use clap::Args;
use thermocline_engine::{
    cpu::Cpu,
    eval::{
        RoutePrice,
        plot::{Axis, Curve, Figure, Panel, svg},
        priced_preferences, route_prices,
    },
    model::Model,
    placement::{Machine, WORTHWHILE_EXPERTS},
    runtime::Forward,
    sparsity::routes::{
        ExpertSpeeds, HotSetVerdict, Locality, Policy, Replay, RouteLayer, Routes, record, replay, synthetic,
    },
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::report::{self, percent, write};
use crate::cli::table::TextTable;
use thermocline_host::units::{self, parse_tokens};
use thermocline_terminal::{
    engine_options::CpuArgs,
    failure::{Failure, Outcome},
    model_options::ModelOptions,
    progress::{ProgressUnit, TerminalProgress},
};

/// Record which experts tokens choose, and replay the choices through places of any number and
/// policy
///
/// The routes are recorded while the model reads a text, read from a file of an earlier run, or
/// generated with the locality of published models. Every layer has the same number of places on
/// the GPU.
///
/// static keeps the most frequent experts of the warm-up. lru and lfu fetch a missing expert or
/// have the CPU compute it, whichever is faster at the speeds below. engine is the policy of this
/// program, which moves experts between tokens. bound knows the future, so no policy hits more
/// often. The first quarter of the tokens is the warm-up.
#[derive(Debug, Args)]
pub struct RoutesArgs {
    /// Text whose routes are recorded
    #[arg(long, value_name = "FILE", group = "source")]
    text: Vec<PathBuf>,
    /// Recorded routes
    #[arg(long = "in", value_name = "FILE", group = "source")]
    recorded: Option<PathBuf>,
    /// Generate routes: experts, experts per token, layers, MB of an expert, MB of other weights
    /// that every token reads
    #[arg(long, value_name = "E,USED,LAYERS,MB,MB", value_delimiter = ',', num_args = 1, group = "source")]
    synthetic: Vec<f64>,
    /// Most tokens to record of each text, or to generate
    #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_tokens)]
    tokens: usize,
    /// Write the routes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Places in each layer [default: 5 to 50 % of the experts]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    places: Vec<usize>,
    /// GB per second of products in GPU memory
    #[arg(long, value_name = "GB/s")]
    gpu_speed: Option<f64>,
    /// GB per second of products by the CPU
    #[arg(long, value_name = "GB/s")]
    cpu_speed: Option<f64>,
    /// GB per second of transfers to the GPU
    #[arg(long, value_name = "GB/s")]
    bus_speed: Option<f64>,
    /// Decode --text with routes that prefer resident experts (--routes near=L,drop=F of run and
    /// others), and show what each preference costs and saves
    #[arg(long, requires = "text")]
    price: bool,
    /// Write the table to a CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw hit rate and speed against GPU memory
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cpu: CpuArgs,
}

/// Runs the command.
pub fn routes(args: &RoutesArgs) -> Outcome {
    report::check(args.csv.iter().chain(&args.svg).chain(&args.out))?;
    if args.price {
        return price(args);
    }
    let routes = source(args)?;
    if let Some(path) = &args.out {
        routes.write(path)?;
    }
    let speeds = speeds(args);
    let most = routes.layers.iter().map(|layer| layer.experts).max().unwrap_or(0);
    let used = routes.layers.iter().map(|layer| layer.used).max().unwrap_or(1);
    let slots = if args.places.is_empty() { fractions(most) } else { args.places.clone() };
    let mut progress = TerminalProgress::new("replaying", ProgressUnit::Runs);
    let (mut replays, all) = (Vec::new(), (slots.len() * Policy::ALL.len()) as u64);
    for slots in slots {
        for policy in Policy::ALL {
            replays.push(replay(&routes, slots, policy, &speeds)?);
            progress.set(replays.len() as u64, all);
        }
    }
    drop(progress);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} tokens, {} layers with experts; GPU {:.0} GB/s, CPU {:.0} GB/s, bus {:.0} GB/s\n",
        routes.source,
        routes.tokens(),
        routes.layers.len(),
        speeds.device / 1e9,
        speeds.cpu / 1e9,
        speeds.bus / 1e9
    )?;
    out.write_all(rows(&replays).text().as_bytes())?;
    if let Some(small) = replays.iter().filter(|of| of.too_small).map(|of| of.slots).max() {
        writeln!(
            out,
            "\nup to {small} places: fewer than {WORTHWHILE_EXPERTS} times the experts per token ({used}), which is not worthwhile"
        )?;
    }
    if let Some(verdict) = HotSetVerdict::of(&replays) {
        writeln!(out, "\n{}", told(verdict))?;
    }
    write(args.csv.as_ref(), || csv(&replays))?;
    write(args.svg.as_ref(), || svg(&figure(&routes.source, &replays)))
}

fn source(args: &RoutesArgs) -> Outcome<Routes> {
    if let Some(path) = &args.recorded {
        return Ok(Routes::read(path)?);
    }
    match args.synthetic[..] {
        [] => {}
        [experts, used, layers, expert, other] => {
            let layer =
                RouteLayer { layer: 0, experts: experts as usize, used: used as usize, bytes: (expert * 1e6) as u64 };
            let other = (other * 1e6) as u64;
            return Ok(synthetic(layer, layers as usize, other, args.tokens, Locality::default(), 0)?);
        }
        _ => return Err(Failure::usage("--synthetic: expected five numbers, like 512,10,48,1.7,900")),
    }
    if args.text.is_empty() {
        return Err(Failure::usage("expected routes: --text FILE, --in FILE or --synthetic NUMBERS"));
    }
    let model = Arc::new(args.model.open_model()?);
    let texts = texts(args, &model)?;
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let all: usize = texts.iter().map(|text| text.len()).sum();
    let mut forward = Forward::new(model, Cpu::new(&args.cpu.options())?);
    let mut progress = TerminalProgress::new("reading", ProgressUnit::Tokens);
    Ok(record(&mut forward, &texts, &mut |done| progress.set(done as u64, all as u64))?)
}

/// The tokens of the texts.
fn texts(args: &RoutesArgs, model: &Model) -> Outcome<Vec<Vec<u32>>> {
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
    let mut texts = Vec::new();
    for path in &args.text {
        let text = fs::read_to_string(path).map_err(|error| Failure::read(path, error))?;
        let mut tokens = tokenizer.encode(&text, EncodeOptions::TEXT)?;
        tokens.truncate(args.tokens);
        texts.push(tokens);
    }
    Ok(texts)
}

/// Shows the price of every preference, with the fewest of --places or a fifth of the experts on
/// the GPU.
fn price(args: &RoutesArgs) -> Outcome {
    let model = Arc::new(args.model.open_model()?);
    let texts = texts(args, &model)?;
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let fifth = model.config.experts.map_or(0, |experts| experts.count.div_ceil(5));
    let slots = args.places.iter().copied().min().unwrap_or(fifth);
    let preferences = priced_preferences();
    let tokens: usize = texts.iter().map(|text| text.len()).sum();
    let mut progress = TerminalProgress::new("decoding", ProgressUnit::Tokens);
    let mut show = |done: usize| progress.set(done as u64, tokens as u64);
    let prices = route_prices(&model, &args.cpu.options(), &texts, slots, &preferences, &mut show)?;
    drop(progress);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {tokens} tokens, {slots} experts of each layer on the GPU\n", model.config.name)?;
    out.write_all(price_rows(&prices).text().as_bytes())?;
    write(args.csv.as_ref(), || price_csv(&prices))
}

fn price_rows(prices: &[RoutePrice]) -> TextTable {
    let heads = ["near", "drop", "perplexity", "KL [nats]", "misses/token", "left out/token", "MB moved/token"];
    let mut rows = TextTable::new(&heads);
    for of in prices {
        rows.row([
            of.near.to_string(),
            of.drop.to_string(),
            format!("{:.4}", of.perplexity),
            format!("{:.5}", of.kld.max(0.0)),
            format!("{:.2}", of.misses),
            format!("{:.2}", of.dropped),
            format!("{:.3}", of.moved / 1e6),
        ]);
    }
    rows
}

fn price_csv(prices: &[RoutePrice]) -> String {
    let mut text = "near,drop,perplexity,kld,misses_per_token,dropped_per_token,bytes_per_token\r\n".to_owned();
    for RoutePrice { near, drop, perplexity, kld, misses, dropped, moved } in prices {
        // Writing to a string cannot fail.
        let _ = write!(text, "{near},{drop},{perplexity:.5},{kld:.6},{misses:.4},{dropped:.4},{moved:.1}\r\n");
    }
    text
}

/// Returns the given speeds, and those of a typical machine for the others.
fn speeds(args: &RoutesArgs) -> ExpertSpeeds {
    let typical = Machine::typical();
    let rate = |rates: &thermocline_engine::placement::Rates| rates.values().next().map_or(0.0, |rate| rate.sequential);
    let gpu = typical.gpu.as_ref();
    let or = |given: Option<f64>, typical: f64| given.map_or(typical, |speed| speed * 1e9);
    ExpertSpeeds {
        device: or(args.gpu_speed, gpu.map_or(0.0, |gpu| rate(&gpu.rates))),
        cpu: or(args.cpu_speed, rate(&typical.cpu.rates)),
        bus: or(args.bus_speed, gpu.map_or(0.0, |gpu| gpu.upload)),
        hand_over: gpu.map_or(0.0, |gpu| gpu.hand_over),
    }
}

/// 5 to 50 % of `experts`, without repetitions.
fn fractions(experts: usize) -> Vec<usize> {
    let sizes = [5, 10, 15, 20, 30, 40, 50].map(|percent| (experts * percent).div_ceil(100));
    let mut sizes: Vec<usize> = sizes.into_iter().filter(|size| *size > 0).collect();
    sizes.dedup();
    sizes
}

/// Tells which hot set suits the model.
fn told(HotSetVerdict { follows, ratio }: HotSetVerdict) -> String {
    let choice = if follows { "a hot set that follows the text" } else { "a static hot set (--static)" };
    format!("this model: {choice}; following the text gives {ratio:.2} times the speed of a static hot set")
}

fn rows(replays: &[Replay]) -> TextTable {
    let heads = ["places", "GPU memory", "policy", "hits [%]", "fetched/token", "tokens/s", "of the best [%]"];
    let mut rows = TextTable::new(&heads);
    for of in replays {
        let same = replays.iter().filter(|other| other.slots == of.slots);
        let best = same.map(|other| other.tokens_per_second).fold(0.0, f64::max);
        rows.row([
            of.slots.to_string(),
            units::bytes(of.bytes),
            of.policy.to_string(),
            percent(Some(of.hit_rate), 1),
            format!("{:.1}", of.fetched),
            format!("{:.2}", of.tokens_per_second),
            percent(Some(of.tokens_per_second / best), 1),
        ]);
    }
    rows
}

fn csv(replays: &[Replay]) -> String {
    let mut text = "places,bytes,policy,hit_rate,fetched_per_token,tokens_per_second,too_small\r\n".to_owned();
    for of in replays {
        let Replay { slots, bytes, policy, hit_rate, fetched, tokens_per_second, too_small } = of;
        // Writing to a string cannot fail.
        let _ =
            write!(text, "{slots},{bytes},{policy},{hit_rate:.5},{fetched:.4},{tokens_per_second:.4},{too_small}\r\n");
    }
    text
}

fn figure(source: &str, replays: &[Replay]) -> Figure {
    let curves = |of: fn(&Replay) -> f64| {
        let curve = |policy: Policy| {
            let points = replays.iter().filter(|replay| replay.policy == policy);
            Curve::from_points(&policy.to_string(), points.map(|replay| (replay.bytes as f64 / 1e9, of(replay))))
        };
        Vec::from(Policy::ALL.map(curve))
    };
    let panel = |y: Axis, curves: Vec<Curve>| Panel { y, curves, marks: Vec::new() };
    Figure {
        title: "Experts in GPU memory".to_owned(),
        subtitle: source.to_owned(),
        x: Axis::new("GPU memory of experts", "GB"),
        panels: vec![
            panel(Axis::new("hits", "%"), curves(|replay| 100.0 * replay.hit_rate)),
            panel(Axis::new("speed", "tokens/s").from_zero(), curves(|replay| replay.tokens_per_second)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_five_to_fifty_percent_of_the_experts() {
        assert_eq!(fractions(512), [26, 52, 77, 103, 154, 205, 256]);
        assert_eq!(fractions(8), [1, 2, 3, 4]);
        assert_eq!(fractions(0), [0; 0]);
        let verdict = |follows| told(HotSetVerdict { follows, ratio: 1.25 });
        assert!(verdict(true).contains("follows the text;") && verdict(false).contains("--static"));
    }

    #[test]
    fn tables_compare_policies_of_the_same_size() {
        let replay = |slots, policy, tokens_per_second| Replay {
            slots,
            policy,
            bytes: 1 << 30,
            hit_rate: 0.5,
            fetched: 1.0,
            tokens_per_second,
            too_small: false,
        };
        let replays = [replay(8, Policy::Lru, 10.0), replay(8, Policy::Static, 5.0), replay(16, Policy::Static, 20.0)];
        let of_best: Vec<String> = rows(&replays).rows[1..].iter().map(|row| row[6].clone()).collect();
        assert_eq!(of_best, ["100.0", "50.0", "100.0"]);
        assert_eq!(csv(&replays).lines().count(), 4);
        assert_eq!(figure("some", &replays).panels.len(), 2);
    }
}

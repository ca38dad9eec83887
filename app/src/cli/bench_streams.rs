//! `thermocline bench --streams`: measures several requests at once.

use std::io::Write;

use serde_json::json;
use thermocline_engine::{
    bench::{StreamsOptions, StreamsRecord, run_streams},
    session::{SparsityChoice, SpeculationMode},
};

use crate::cli::{
    bench::{BenchArgs, BenchForm},
    table::TextTable,
};
use thermocline_terminal::{
    engine_options::{ContextOptions, SparsityArgs, open_engine},
    failure::{Failure, Outcome},
    progress::{ProgressUnit, TerminalProgress},
};

/// Runs the command.
pub fn streams(args: &BenchArgs) -> Outcome {
    let (prompt, generate) = (args.n_prompt.first().copied().unwrap_or(0), args.n_gen.first().copied().unwrap_or(0));
    if prompt == 0 || generate < 2 || args.streams.contains(&0) {
        return Err(Failure::usage("--streams: expected numbers above 0, a prompt (-p) and at least two tokens (-n)"));
    }
    let [sparsity] = args.sparsity[..] else {
        return Err(Failure::usage("--streams: expected one --sparsity"));
    };
    let context =
        ContextOptions { context: Some(prompt + generate), kv_type: Some(args.kv_type), ..ContextOptions::default() };
    let sparsity = SparsityArgs { sparsity: Some(SparsityChoice::Mode(sparsity)), ..SparsityArgs::default() };
    let engine = open_engine(&args.model, &args.companions, &context, &args.cpu, &args.device, &sparsity, false)?;
    let repetitions = usize::from(args.repetitions);
    let speculation = match args.companions.draft {
        Some(_) => SpeculationMode::default(),
        None => SpeculationMode::Off,
    };
    let options = StreamsOptions { streams: args.streams.clone(), prompt, generate, repetitions, speculation };
    let runs = (args.streams.len() * repetitions) as u64;
    let (mut done, mut progress) = (0, TerminalProgress::new("measuring", ProgressUnit::Runs));
    let records = run_streams(&engine, &options, &mut |_| {
        progress.set(done, runs);
        done += 1;
    })?;
    drop(progress);
    let mut out = std::io::stdout().lock();
    match args.output {
        BenchForm::Md => out.write_all(markdown(&records).as_bytes())?,
        BenchForm::Json => writeln!(out, "{:#}", json!(records))?,
        BenchForm::Jsonl => records.iter().try_for_each(|record| writeln!(out, "{}", json!(record)))?,
        BenchForm::Csv => out.write_all(csv(&records).as_bytes())?,
    }
    Ok(())
}

fn markdown(records: &[StreamsRecord]) -> String {
    let heads = [
        "streams",
        "test",
        "t/s of all",
        "ratio",
        "t/s with prompts",
        "first token, ms",
        "last first token, ms",
        "batch",
    ];
    let mut lines = TextTable::new(&heads);
    for it in records {
        lines.row([
            it.streams.to_string(),
            format!("pp{}+tg{}", it.n_prompt, it.n_gen),
            format!("{:.2}", it.decode_ts),
            format!("{:.2}", it.ratio),
            format!("{:.2}", it.total_ts),
            format!("{:.0}", it.first_ms),
            format!("{:.0}", it.last_first_ms),
            format!("{:.1}", it.batch),
        ]);
    }
    lines.text()
}

fn csv(records: &[StreamsRecord]) -> String {
    let mut lines = vec!["streams,n_prompt,n_gen,decode_ts,ratio,total_ts,first_ms,last_first_ms,batch".to_owned()];
    lines.extend(records.iter().map(|it| {
        let StreamsRecord { streams, n_prompt, n_gen, decode_ts, ratio, total_ts, first_ms, last_first_ms, batch } = it;
        format!("{streams},{n_prompt},{n_gen},{decode_ts},{ratio},{total_ts},{first_ms},{last_first_ms},{batch}")
    }));
    lines.join("\n") + "\n"
}

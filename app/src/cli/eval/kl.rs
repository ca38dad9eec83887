//! `thermocline eval kl`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    eval::{self, Base, BaseFile, BaseWriter, Corpus, Divergence},
    files::{Form, NewFile},
    session::SparsityChoice,
};

use super::{
    report::{MeasuredTable, megabytes, number, percent},
    setup::{CommonArgs, Setup, Watcher, measured},
};
use thermocline_terminal::{engine_options::sparsity_choices, failure::Outcome};

/// Measure the KL divergence from the dense model, or from another model
#[derive(Debug, Args)]
pub struct KlArgs {
    /// Sparsity mode
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = sparsity_choices())]
    sparsity: SparsityChoice,
    /// Base of the comparison: dense, which computes the dense model as well, or a file of
    /// llama.cpp's llama-perplexity --kl-divergence-base. Without --text, the text in the file is
    /// used
    #[arg(long, value_name = "dense|FILE", default_value = "dense")]
    base: PathBuf,
    /// Write the model's probabilities to a file of the same format, without comparing them
    #[arg(long, value_name = "FILE")]
    write_base: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the measurement.
pub fn kl(args: &KlArgs) -> Outcome {
    let mut setup = args.common.open(args.sparsity)?;
    if let Some(path) = &args.write_base {
        return write_base(args, &mut setup, path);
    }
    if args.base == Path::new("dense") {
        let corpus = args.common.text.corpus(&setup)?;
        return compare(args, &mut setup, &corpus, Base::Dense, 2 * corpus.computed());
    }
    let mut file = BaseFile::open(&args.base)?;
    let corpus = match &args.common.text.text {
        Some(_) => args.common.text.corpus(&setup)?,
        None => {
            let bos = setup.tokenizer.bos().filter(|_| setup.tokenizer.adds_bos());
            let name = format!("the text of {}", args.base.display());
            Corpus::from_tokens(&name, file.raw.clone(), bos, file.context, None)?
        }
    };
    let total = corpus.computed();
    compare(args, &mut setup, &corpus, Base::File(&mut file), total)
}

fn compare(args: &KlArgs, setup: &mut Setup, corpus: &Corpus, base: Base<'_>, total: usize) -> Outcome {
    let mut watcher = Watcher::new("comparing", total);
    let of = measured(eval::divergence(&mut setup.forward, corpus, setup.method, base, &setup.device, &mut watcher))?;
    drop(watcher);
    let report = report(&of);
    let figures = json!({ "divergence": of, "active": of.activity.active(), "layers": of.activity.layers() });
    report.finish(&of.conditions, &args.common.output, figures)
}

fn report(of: &Divergence) -> MeasuredTable {
    let percentages =
        |figure: eval::Estimate| eval::Estimate { value: 100.0 * figure.value, stderr: 100.0 * figure.stderr };
    let mut report = MeasuredTable::figures(&[
        ("perplexity", of.perplexity, 4),
        ("perplexity of the base", of.base_perplexity, 4),
        ("ln(perplexity / base)", of.ln_ratio, 6),
        ("perplexity / base", of.ratio, 6),
        ("perplexity - base", of.difference, 5),
        ("KL divergence [nats]", of.kld, 6),
        ("same most likely token [%]", percentages(of.same_top), 3),
        ("mean change of p [%]", percentages(of.dp), 4),
        ("RMS change of p [%]", percentages(of.dp_rms), 4),
    ]);
    let (kld, dp) = (&of.kld_percentiles, &of.dp_percentiles);
    let points = |name: &str, values: [f64; 11], scale: f64, decimals: usize| {
        let labels = ["min", "0.1 %", "1 %", "5 %", "10 %", "median", "90 %", "95 %", "99 %", "99.9 %", "max"];
        let line =
            |(label, value): (&str, f64)| [format!("{name}, {label}"), number(scale * value, decimals), String::new()];
        labels.into_iter().zip(values).map(line).collect::<Vec<_>>()
    };
    let all = |p: &eval::Percentiles| [p.min, p.p0_1, p.p1, p.p5, p.p10, p.median, p.p90, p.p95, p.p99, p.p99_9, p.max];
    let rows =
        points("KL divergence", all(kld), 1.0, 6).into_iter().chain(points("change of p [%]", all(dp), 100.0, 3));
    rows.for_each(|row| report.row(row));
    report.values([
        ("correlation of ln p", number(of.correlation, 5)),
        ("compared with", of.base.clone()),
        ("active neurons [%]", percent(of.activity.active(), 2)),
        ("predicted neurons [%]", percent(of.activity.predicted(), 2)),
        ("read per token [MB]", megabytes(of.bytes_per_token)),
        ("tokens per second", format!("{:.1}", of.tokens_per_second)),
        (
            "tokens per second of the base",
            of.base_tokens_per_second.map_or("-".to_owned(), |speed| format!("{speed:.1}")),
        ),
    ]);
    report
}

/// Writes the model's token probabilities to `path`.
fn write_base(args: &KlArgs, setup: &mut Setup, path: &Path) -> Outcome {
    let corpus = args.common.text.corpus(setup)?;
    let (file, vocabulary) = (NewFile::create(path, Form::Stream)?, setup.model.config.n_vocab);
    let mut writer = BaseWriter::new(file, path, corpus.context, vocabulary, &corpus.raw)?;
    let mut watcher = Watcher::new("computing", corpus.computed());
    measured(eval::write_base(&mut setup.forward, &corpus, setup.method, &mut writer, &mut watcher))?;
    Ok(writer.finish()?.finish()?)
}

//! `thermocline eval plot`

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use thermocline_engine::eval::plot::{Axis, BarChart, Curve, Figure, Panel, Series, bar_svg, svg};

use super::{report::write, result_table::ResultTable};
use crate::cli::text_input;
use thermocline_terminal::failure::{Failure, Outcome};

/// Draw a table of results as an SVG chart
///
/// The table is CSV with a header line, as --csv writes it, or a JSON array of flat objects.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// Table to read [default: standard input]
    #[arg(long = "in", value_name = "FILE")]
    table: Option<PathBuf>,
    /// SVG file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Kind of chart [default: lines if the first column has numbers, otherwise bars]
    #[arg(long, value_name = "KIND", value_enum)]
    kind: Option<ChartKind>,
    /// Column of the labels of bars, or of the horizontal axis of lines [default: the first column]
    #[arg(long, value_name = "COLUMN")]
    x: Option<String>,
    /// Column of the values of a series; may be repeated [default: every other column of numbers]
    #[arg(long, value_name = "COLUMN")]
    y: Vec<String>,
    /// Title of the chart [default: the table's file name]
    #[arg(long)]
    title: Option<String>,
    /// Second line of the title
    #[arg(long, default_value = "", hide_default_value = true)]
    subtitle: String,
    /// Label of the values' axis [default: the name of the column, if there is only one]
    #[arg(long)]
    label: Option<String>,
    /// Unit of the values
    #[arg(long, default_value = "", hide_default_value = true)]
    unit: String,
    /// Make the values' axis logarithmic
    #[arg(long)]
    log: bool,
}

// (Doc comments on the values would make --help long.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ChartKind {
    Bars,
    Lines,
}

/// Draws the chart.
pub fn plot(args: &PlotArgs) -> Outcome {
    let rows = ResultTable::parse(&text_input::read(None, args.table.as_deref(), "--in FILE or a pipe")?)?;
    let chart = chart(args, &rows)?;
    write(Some(&args.out), || chart)
}

/// Draws the chart as SVG text.
fn chart(args: &PlotArgs, rows: &ResultTable) -> Outcome<String> {
    let x = args.x.as_ref().map_or(Ok(0), |name| rows.column(name, "--x"))?;
    let columns: Vec<usize> = match &args.y[..] {
        [] => (0..rows.heads.len()).filter(|column| *column != x && rows.is_numeric(*column)).collect(),
        names => names.iter().map(|name| rows.column(name, "--y")).collect::<Outcome<_>>()?,
    };
    if columns.is_empty() {
        return Err(Failure::usage(format!(
            "--y: expected a column of numbers, got none of {}",
            rows.heads.join(", ")
        )));
    }
    if let Some(column) = columns.iter().find(|column| !rows.is_numeric(**column)) {
        return Err(Failure::usage(format!("--y {}: expected numbers, got text", rows.heads[*column])));
    }
    let kind = args.kind.unwrap_or(if rows.is_numeric(x) { ChartKind::Lines } else { ChartKind::Bars });
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let title = args.title.clone().or_else(|| args.table.as_deref().map(name)).unwrap_or_default();
    let (label, unit) = match columns[..] {
        [only] => labelled(&rows.heads[only]),
        _ => (String::new(), String::new()),
    };
    let unit = if args.unit.is_empty() { unit } else { args.unit.clone() };
    let axis = Axis::new(args.label.as_ref().unwrap_or(&label), &unit);
    let axis = if args.log { axis.log() } else { axis };
    let subtitle = args.subtitle.clone();
    Ok(match kind {
        ChartKind::Bars => {
            let series = |column: &usize| Series { name: rows.heads[*column].clone(), values: rows.numbers(*column) };
            let labels = rows.texts(x).map(str::to_owned).collect();
            bar_svg(&BarChart { title, subtitle, axis, labels, series: columns.iter().map(series).collect() })
        }
        ChartKind::Lines => {
            let curve = |column: &usize| {
                let points = rows.numbers(x).into_iter().zip(rows.numbers(*column));
                Curve::from_points(&rows.heads[*column], points.filter_map(|(x, y)| Some((x?, y?))))
            };
            let (label, unit) = labelled(&rows.heads[x]);
            let panel = Panel { y: axis, curves: columns.iter().map(curve).collect(), marks: Vec::new() };
            svg(&Figure { title, subtitle, x: Axis::new(&label, &unit), panels: vec![panel] })
        }
    })
}

/// Splits a column name `label [unit]` into label and unit.
fn labelled(head: &str) -> (String, String) {
    match head.strip_suffix(']').and_then(|head| head.rsplit_once(" [")) {
        Some((label, unit)) => (label.to_owned(), unit.to_owned()),
        None => (head.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        plot: PlotArgs,
    }

    fn draw(table: &str, flags: &[&str]) -> Outcome<String> {
        let flags = ["plot", "--out", "chart.svg"].iter().chain(flags);
        chart(&Command::try_parse_from(flags).unwrap().plot, &ResultTable::parse(table)?)
    }

    const SPEEDS: &str = "mode,prompt,decoding [tokens/s],note\ndense,40,10.5,a\nexact,40,21,b\npredicted,-,31.5,c\n";

    #[test]
    fn tables_with_labels_become_bars_of_all_columns_of_numbers() {
        let text = draw(SPEEDS, &["--title", "speed"]).unwrap();
        assert_eq!(text.matches("<rect").count(), 2 + 3, "{text}");
        for part in ["<title>speed</title>", "dense", "exact", "predicted", "prompt", "decoding [tokens/s]", "31.5"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("note"));
        let one = draw(SPEEDS, &["--y", "decoding [tokens/s]", "--label", "speed"]).unwrap();
        assert!(one.matches("<rect").count() == 3 && one.contains("speed [tokens/s]"), "{one}");
    }

    #[test]
    fn tables_with_numbers_first_become_lines() {
        let table = r#"[{"budget [GB]": 1, "speed": 3.5}, {"budget [GB]": 2, "speed": 7}, {"budget [GB]": 4}]"#;
        let text = draw(table, &[]).unwrap();
        assert_eq!((text.matches("<polyline").count(), text.matches("<circle").count()), (1, 2), "{text}");
        assert!(text.contains("budget [GB]") && text.contains("speed"), "{text}");
        assert_eq!(draw(table, &["--kind", "bars"]).unwrap().matches("<polyline").count(), 0);
    }

    #[test]
    fn missing_columns_and_columns_of_text_are_refused() {
        let refused = |flags: &[&str]| draw(SPEEDS, flags).unwrap_err().message().unwrap();
        assert!(refused(&["--y", "speed"]).contains("expected a column of the table (mode, prompt"));
        assert!(refused(&["--y", "note"]).contains("expected numbers, got text"));
        assert!(refused(&["--x", "absent"]).starts_with("--x"));
        assert!(matches!(draw("a,b\nx,y\n", &[]), Err(Failure::Usage { .. })));
    }
}

//! Printing and writing measurements.

use std::{io::Write, path::PathBuf};

use serde_json::{Value, json};
use thermocline_engine::{
    eval::{Conditions, Estimate},
    files::{self, Form},
};

use super::setup::OutputArgs;
use crate::cli::table::TextTable;
use thermocline_terminal::failure::Outcome;

/// The table of a measurement.
pub struct MeasuredTable(pub TextTable);

impl MeasuredTable {
    /// A table with these heads and no rows.
    pub fn new(heads: &[&str]) -> Self {
        MeasuredTable(TextTable::new(heads))
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.row(cells);
    }

    /// A table of figures with their standard errors and decimals.
    pub fn figures(figures: &[(&str, Estimate, usize)]) -> Self {
        let mut report = MeasuredTable::new(&["figure", "value", "standard error"]);
        for (name, Estimate { value, stderr }, decimals) in figures {
            report.row([(*name).to_owned(), number(*value, *decimals), number(*stderr, *decimals)]);
        }
        report
    }

    /// Adds rows of values without a standard error.
    pub fn values<const N: usize>(&mut self, values: [(&str, String); N]) {
        values.into_iter().for_each(|(name, value)| self.row([name.to_owned(), value, String::new()]));
    }

    /// Prints the table below its conditions, and writes the files that were asked for.
    pub fn finish(&self, conditions: &Conditions, output: &OutputArgs, figures: Value) -> Outcome {
        let mut out = std::io::stdout().lock();
        write!(out, "{}\n\n{}", sentence(conditions), self.0.text())?;
        if conditions.is_dense_after_all() {
            let mode = &conditions.sparsity;
            writeln!(
                out,
                "\nChunks of a text are computed densely: these figures are the dense model's, not those of {mode}."
            )?;
        }
        out.flush()?;
        write(output.csv.as_ref(), || self.csv(conditions))?;
        let build = json!({ "name": "thermocline", "version": env!("CARGO_PKG_VERSION") });
        write(output.json.as_ref(), || format!("{:#}\n", json!({ "build": build, "result": figures })))
    }

    /// The table with the conditions in every row, so that tables of several runs can be combined.
    fn csv(&self, conditions: &Conditions) -> String {
        let (heads, cells): (Vec<&str>, Vec<String>) = conditions_of(conditions).into_iter().unzip();
        let mut text = String::new();
        for (number, row) in self.0.rows.iter().enumerate() {
            let line: Vec<String> = match number {
                0 => row.iter().cloned().chain(heads.iter().map(|head| (*head).to_owned())).collect(),
                _ => row.iter().chain(&cells).cloned().collect(),
            };
            let line: Vec<String> = line.iter().map(|cell| quoted(cell)).collect();
            text += &(line.join(",") + "\r\n");
        }
        text
    }
}

/// A cell in RFC 4180 form.
fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// Names and values of the conditions.
fn conditions_of(of: &Conditions) -> Vec<(&'static str, String)> {
    vec![
        ("model", of.model.clone()),
        ("sparsity", of.sparsity.clone()),
        ("predictor", of.predictor.clone().unwrap_or_else(|| "none".to_owned())),
        ("phase", of.phase.name().to_owned()),
        ("kv_type", of.kv_type.clone()),
        ("device", of.device.clone()),
        ("text", of.text.clone()),
        ("context", of.context.to_string()),
        ("chunks", of.chunks.to_string()),
        ("tokens", of.tokens.to_string()),
    ]
}

/// The conditions in a line.
pub fn sentence(of: &Conditions) -> String {
    let predictor = of.predictor.as_ref().map_or(String::new(), |kind| format!(" ({kind})"));
    format!(
        "{}: {}{predictor}, {}, {} KV cache, {}; {}: {} tokens scored in {} contexts of {}",
        of.model,
        of.sparsity,
        of.phase.name(),
        of.kv_type,
        of.device,
        of.text,
        of.tokens,
        of.chunks,
        of.context
    )
}

/// A number with `decimals`, or in scientific notation if it would lose its digits.
pub fn number(value: f64, decimals: usize) -> String {
    let least = 10f64.powi(-(decimals as i32) + 1);
    if value != 0.0 && value.abs() < least { format!("{value:.2e}") } else { format!("{value:.decimals$}") }
}

/// A fraction in percent; `-` without one.
pub fn percent(fraction: Option<f64>, decimals: usize) -> String {
    fraction.map_or("-".to_owned(), |fraction| format!("{:.decimals$}", 100.0 * fraction))
}

/// Bytes in units of 10^6; `-` without a figure.
pub fn megabytes(bytes: Option<f64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.2}", bytes / 1e6))
}

/// Refuses files that could not be written, before anything is measured.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Outcome {
    Ok(paths.into_iter().try_for_each(|path| files::check(path, Form::Stream))?)
}

/// Writes a text to a file, if one is named.
pub fn write(path: Option<&PathBuf>, text: impl FnOnce() -> String) -> Outcome {
    Ok(path.map_or(Ok(()), |path| files::write(path, Form::Stream, text().as_bytes()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        assert_eq!(
            [number(0.0, 3), number(12.3456, 3), number(0.0123, 3), number(0.00123, 3)],
            ["0.000", "12.346", "0.012", "1.23e-3"]
        );
        assert_eq!((percent(Some(0.1234), 1), percent(None, 1)), ("12.3".to_owned(), "-".to_owned()));
    }
}

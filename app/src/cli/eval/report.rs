//! Prints and writes measurements.

use std::{io::Write, path::PathBuf};

use serde_json::{Value, json};
use thermocline_engine::{
    eval::{Conditions, Estimate},
    files::{self, Form},
};

use super::setup::OutputArgs;
use crate::cli::table::TextTable;
use thermocline_terminal::failure::Outcome;

/// Table of a measurement.
pub struct MeasuredTable(pub TextTable);

impl MeasuredTable {
    /// Creates a table with these column names and no rows.
    pub fn new(heads: &[&str]) -> Self {
        MeasuredTable(TextTable::new(heads))
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.row(cells);
    }

    /// Creates a table of figures with their standard errors, each with its number of decimals.
    pub fn figures(figures: &[(&str, Estimate, usize)]) -> Self {
        let mut report = MeasuredTable::new(&["figure", "value", "standard error"]);
        for (name, Estimate { value, stderr }, decimals) in figures {
            report.row([(*name).to_owned(), number(*value, *decimals), number(*stderr, *decimals)]);
        }
        report
    }

    /// Adds rows of values that have no standard error.
    pub fn values<const N: usize>(&mut self, values: [(&str, String); N]) {
        values.into_iter().for_each(|(name, value)| self.row([name.to_owned(), value, String::new()]));
    }

    /// Prints the conditions and the table, and writes the requested files.
    pub fn finish(&self, conditions: &Conditions, output: &OutputArgs, figures: Value) -> Outcome {
        let mut out = std::io::stdout().lock();
        write!(out, "{}\n\n{}", sentence(conditions), self.0.text())?;
        if conditions.is_dense_after_all() {
            let mode = &conditions.sparsity;
            writeln!(
                out,
                "\nChunks of a text are computed densely, so these figures describe the dense model, not {mode}."
            )?;
        }
        out.flush()?;
        write(output.csv.as_ref(), || self.csv(conditions))?;
        let build = json!({ "name": "thermocline", "version": env!("CARGO_PKG_VERSION") });
        write(output.json.as_ref(), || format!("{:#}\n", json!({ "build": build, "result": figures })))
    }

    /// Formats the table as CSV. Every row has the conditions, so that tables of several runs can
    /// be combined.
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

/// Quotes a CSV cell as RFC 4180 requires.
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

/// Describes the conditions in a line.
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

/// Formats a number with `decimals`, or in scientific notation if it would lose its digits.
pub fn number(value: f64, decimals: usize) -> String {
    let least = 10f64.powi(-(decimals as i32) + 1);
    if value != 0.0 && value.abs() < least { format!("{value:.2e}") } else { format!("{value:.decimals$}") }
}

/// Formats a fraction in percent; `-` if there is none.
pub fn percent(fraction: Option<f64>, decimals: usize) -> String {
    fraction.map_or("-".to_owned(), |fraction| format!("{:.decimals$}", 100.0 * fraction))
}

/// Formats bytes in units of 10^6; `-` if there is no figure.
pub fn megabytes(bytes: Option<f64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.2}", bytes / 1e6))
}

/// Checks before the measurement that the files can be written.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Outcome {
    Ok(paths.into_iter().try_for_each(|path| files::check(path, Form::Stream))?)
}

/// Writes a text to `path`, if there is one.
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

//! Result tables from files: CSV with a header line (RFC 4180), or a JSON array of flat objects.

use serde_json::Value;

use thermocline_terminal::failure::{Failure, Outcome};

/// A table of text cells.
#[derive(Debug, PartialEq)]
pub struct ResultTable {
    /// Names of the columns.
    pub heads: Vec<String>,
    /// Cells by row. Rows may be shorter than `heads`.
    pub cells: Vec<Vec<String>>,
}

impl ResultTable {
    /// Parses a table. JSON begins with a bracket.
    pub fn parse(text: &str) -> Outcome<Self> {
        match text.trim_start().starts_with(['[', '{']) {
            true => Self::from_json(text),
            false => Self::from_csv(text),
        }
    }

    fn from_csv(text: &str) -> Outcome<Self> {
        let mut records = records(text)?.into_iter().filter(|record| record.iter().any(|cell| !cell.is_empty()));
        let heads = records.next().ok_or_else(|| Failure::usage("table: expected a header line, got nothing"))?;
        Ok(ResultTable { heads, cells: records.collect() })
    }

    fn from_json(text: &str) -> Outcome<Self> {
        let wanted = "a JSON array of objects";
        let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_str(text)
            .map_err(|error| Failure::usage(format!("table: expected {wanted}, got {error}")))?;
        let mut heads: Vec<String> = Vec::new();
        for name in rows.iter().flat_map(|row| row.keys()) {
            if !heads.contains(name) {
                heads.push(name.clone());
            }
        }
        let cell = |row: &serde_json::Map<String, Value>, name: &String| match row.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let cells = rows.iter().map(|row| heads.iter().map(|name| cell(row, name)).collect()).collect();
        Ok(ResultTable { heads, cells })
    }

    /// Index of the column `name`. An error names `option`.
    pub fn column(&self, name: &str, option: &str) -> Outcome<usize> {
        self.heads.iter().position(|head| head == name).ok_or_else(|| {
            let heads = self.heads.join(", ");
            Failure::usage(format!("{option}: expected a column of the table ({heads}), got {name}"))
        })
    }

    /// Texts of a column.
    pub fn texts(&self, column: usize) -> impl Iterator<Item = &str> {
        self.cells.iter().map(move |row| row.get(column).map_or("", |cell| cell.trim()))
    }

    /// Numbers of a column; `None` for cells without a finite number.
    pub fn numbers(&self, column: usize) -> Vec<Option<f64>> {
        self.texts(column).map(|cell| cell.parse().ok().filter(|value: &f64| value.is_finite())).collect()
    }

    /// True if a column has a number, and all cells except empty ones and `-` are numbers.
    pub fn is_numeric(&self, column: usize) -> bool {
        let mut cells = self.texts(column).filter(|cell| !matches!(*cell, "" | "-")).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.parse::<f64>().is_ok())
    }
}

/// Parses the records of a CSV text. Quoted cells may contain commas, doubled quotes and line
/// breaks.
fn records(text: &str) -> Outcome<Vec<Vec<String>>> {
    let (mut records, mut record, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut chars = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' if quoted => quoted = false,
            _ if quoted => cell.push(c),
            '"' if cell.is_empty() => quoted = true,
            ',' => record.push(std::mem::take(&mut cell)),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\n' => {
                record.push(std::mem::take(&mut cell));
                records.push(std::mem::take(&mut record));
            }
            _ => cell.push(c),
        }
    }
    if quoted {
        return Err(Failure::usage("table: expected a closing quote, got the end of the file"));
    }
    record.push(cell);
    records.push(record);
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(heads: &[&str], cells: &[&[&str]]) -> ResultTable {
        let texts = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        ResultTable { heads: texts(heads), cells: cells.iter().map(|row| texts(row)).collect() }
    }

    #[test]
    fn csv_cells_may_be_quoted_and_lines_end_either_way() {
        let parsed = ResultTable::parse("\u{feff}mode,\"a, \"\"b\"\"\"\r\ndense,1.5\r\n\n\"two\nlines\",-").unwrap();
        assert_eq!(parsed, rows(&["mode", "a, \"b\""], &[&["dense", "1.5"], &["two\nlines", "-"]]));
        assert_eq!((parsed.is_numeric(0), parsed.is_numeric(1)), (false, true));
        assert_eq!(parsed.numbers(1), [Some(1.5), None]);
        for damaged in ["", "\n\n", "a,\"b\n1"] {
            assert!(matches!(ResultTable::parse(damaged), Err(Failure::Usage { .. })), "{damaged:?}");
        }
    }

    #[test]
    fn json_rows_have_the_union_of_their_keys_as_columns() {
        let parsed = ResultTable::parse(r#" [{"a": "x", "b": 2}, {"b": null, "c": true}] "#).unwrap();
        assert_eq!(parsed, rows(&["a", "b", "c"], &[&["x", "2", ""], &["", "", "true"]]));
        assert_eq!(parsed.column("b", "--y").unwrap(), 1);
        let refused = parsed.column("d", "--y").unwrap_err();
        assert!(refused.message().unwrap().contains("(a, b, c), got d"));
        assert!(matches!(ResultTable::parse("[1, 2]"), Err(Failure::Usage { .. })));
    }
}

//! Tables in Markdown that also line up on a terminal.

/// A table. The first column is left-aligned, all others right-aligned.
#[derive(Debug)]
pub struct TextTable {
    /// The rows. The first row is the header.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates a table with these column names and no rows.
    pub fn new(heads: &[&str]) -> Self {
        TextTable { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Formats the table as text.
    pub fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, line) in self.rows.iter().enumerate() {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            });
            text += &format!("|{}\n", cells.collect::<String>());
            if number == 0 {
                let rules = widths.iter().enumerate().map(|(column, width)| match column {
                    0 => format!(" {} |", "-".repeat(*width)),
                    _ => format!(" {}: |", "-".repeat(width.saturating_sub(1))),
                });
                text += &format!("|{}\n", rules.collect::<String>());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = TextTable::new(&["kernel", "GB/s"]);
        table.row(["gemv", "1234.5"].map(str::to_owned));
        table.row(["\u{b5}", "1"].map(str::to_owned));
        let expected = "| kernel |   GB/s |\n| ------ | -----: |\n| gemv   | 1234.5 |\n| \u{b5}      |      1 |\n";
        assert_eq!(table.text(), expected);
        assert_eq!(TextTable { rows: Vec::new() }.text(), "");
    }
}

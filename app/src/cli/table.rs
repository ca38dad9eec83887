//! Tables that are Markdown and also line up on a terminal.

/// Formats `lines`, whose first one is the header: the first column is aligned left, all others right.
pub fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let lines =
            [["kernel", "GB/s"], ["gemv", "1234.5"], ["\u{b5}", "1"]].map(|line| line.map(str::to_owned).to_vec());
        let expected = "| kernel |   GB/s |\n| ------ | -----: |\n| gemv   | 1234.5 |\n| \u{b5}      |      1 |\n";
        assert_eq!(table(&lines), expected);
        assert_eq!(table(&[]), "");
    }
}

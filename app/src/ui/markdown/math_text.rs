//! LaTeX in the delimiters that models write, `\(..\)` and `\[..\]`, in those that Markdown has: `$..$` and `$$..$$`.

use std::borrow::Cow;

/// `text` with dollars in place of brackets, except in code.
pub fn dollars(text: &str) -> Cow<'_, str> {
    if !text.contains("\\(") && !text.contains("\\[") {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(['`', '\\']) {
        let (before, here) = rest.split_at(at);
        out.push_str(before);
        let taken = if here.starts_with('`') { code(here) } else { formula(here, &mut out) };
        match taken {
            Taken::Copied(bytes) => {
                out.push_str(&here[..bytes]);
                rest = &here[bytes..];
            }
            Taken::Changed(bytes) => rest = &here[bytes..],
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

enum Taken {
    /// So many bytes stay as they are.
    Copied(usize),
    /// So many bytes were replaced.
    Changed(usize),
}

/// A code span, or the backticks of one that does not end.
fn code(text: &str) -> Taken {
    let marks = text.len() - text.trim_start_matches('`').len();
    let mut from = marks;
    while let Some(at) = text[from..].find('`') {
        let start = from + at;
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        if run == marks {
            return Taken::Copied(start + run);
        }
        from = start + run;
    }
    Taken::Copied(marks)
}

/// A formula that begins here, or the escaped letter that does.
fn formula(text: &str, out: &mut String) -> Taken {
    let letter = text[1..].chars().next();
    let (end, mark) = match letter {
        Some('(') => ("\\)", "$"),
        Some('[') => ("\\]", "$$"),
        _ => return Taken::Copied(1 + letter.map_or(0, char::len_utf8)),
    };
    let Some(length) = text[2..].find(end) else { return Taken::Copied(2) };
    let source = &text[2..2 + length];
    if source.contains("\n\n") || source.contains('$') || source.trim().is_empty() {
        return Taken::Copied(2);
    }
    out.extend([mark, source.trim(), mark]);
    Taken::Changed(length + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_become_dollars_outside_of_code() {
        for (text, want) in [
            ("So \\( a + b \\) and \\[ c \\].", "So $a + b$ and $$c$$."),
            ("`\\(a\\)` and ``x ` \\(b\\)`` but \\(c\\)", "`\\(a\\)` and ``x ` \\(b\\)`` but $c$"),
            ("\\(open", "\\(open"),
            ("\\\\(a\\\\)", "\\\\(a\\\\)"),
            ("\\(a\n\nb\\)", "\\(a\n\nb\\)"),
            ("a ` b \\(c\\)", "a ` b $c$"),
            ("\\", "\\"),
            ("plain (text) [x]", "plain (text) [x]"),
        ] {
            assert_eq!(dollars(text), want, "{text}");
        }
    }
}

//! Converts LaTeX in the delimiters that models write, `\(..\)`, `\[..\]` and bare environments, to
//! Markdown's `$..$` and `$$..$$`. Dollar signs of amounts of money are kept apart, so that text
//! between two amounts stays Markdown.

use std::borrow::Cow;

use super::stand_in::DOLLAR;

/// Environments that are formulas without delimiters.
const ENVIRONMENTS: &str = "\
    align align* aligned alignat alignat* array bmatrix cases equation equation* gather gather* matrix pmatrix split \
    vmatrix";

/// Rewrites `text` so that dollar signs mark formulas and nothing else, except in code.
pub fn dollars(text: &str) -> Cow<'_, str> {
    if !text.contains(['$', '\\', DOLLAR]) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(['`', '\\', '$', DOLLAR]) {
        let (before, here) = rest.split_at(at);
        out.push_str(before);
        let taken = match here.chars().next() {
            Some('`') => code(here, out.rsplit('\n').next().is_none_or(|line| line.trim().is_empty())),
            Some('$') => dollar(here, &mut out),
            // Drop the stand-in from the original text.
            Some(DOLLAR) => Consumed::Changed(DOLLAR.len_utf8()),
            _ => formula(here, &mut out),
        };
        match taken {
            Consumed::Copied(bytes) => {
                out.push_str(&here[..bytes]);
                rest = &here[bytes..];
            }
            Consumed::Changed(bytes) => rest = &here[bytes..],
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The bytes at the beginning of a text that a function has consumed.
enum Consumed {
    /// This many bytes stay unchanged.
    Copied(usize),
    /// This many bytes were replaced.
    Changed(usize),
}

/// Takes a code span, or the backticks of an unclosed one. An unclosed code block extends to the
/// end.
fn code(text: &str, begins_line: bool) -> Consumed {
    let marks = text.len() - text.trim_start_matches('`').len();
    let mut from = marks;
    while let Some(at) = text[from..].find('`') {
        let start = from + at;
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        if run == marks {
            return Consumed::Copied(start + run);
        }
        from = start + run;
    }
    Consumed::Copied(if begins_line && marks >= 3 { text.len() } else { marks })
}

/// Takes a dollar sign of a formula or of an amount of money.
fn dollar(text: &str, out: &mut String) -> Consumed {
    let marks = text.len() - text.trim_start_matches('$').len();
    if marks > 1 {
        let end = text[marks..].find("$$").filter(|end| !text[marks..marks + end].contains("\n\n"));
        return Consumed::Copied(end.map_or(marks, |end| marks + end + 2));
    }
    if let Some(end) = inline_end(text) {
        return Consumed::Copied(end);
    }
    out.push(DOLLAR);
    Consumed::Changed(1)
}

/// Length of the formula opened by the first dollar sign, in bytes. As in Pandoc, there is no space
/// just inside either dollar sign. No digit follows the formula, because that dollar sign would
/// belong to another amount.
fn inline_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    let end = 1 + text[1..].find(|c| {
        let closes = c == '$' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    })?;
    let (source, after) = (&text[1..end], &text[end + 1..]);
    let tight = !source.starts_with(char::is_whitespace) && !source.ends_with(char::is_whitespace);
    let closes = tight && !source.is_empty() && !after.starts_with(|c: char| c.is_ascii_digit());
    (closes && !source.contains("\n\n") && !is_money(source)).then_some(end + 1)
}

/// True for an amount followed by words or Markdown: `5 for **two** and 6`.
fn is_money(source: &str) -> bool {
    let word = |word: &str| {
        let letters = word.trim_end_matches([',', '.', ';', ':', ')']);
        letters.len() > 1 && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    let is_markdown = ["**", "`", "]("].iter().any(|mark| source.contains(mark));
    source.starts_with(|c: char| c.is_ascii_digit())
        && (is_markdown || (!source.contains('\\') && source.split_whitespace().any(word)))
}

/// Takes a formula, or an escaped letter.
fn formula(text: &str, out: &mut String) -> Consumed {
    let letter = text[1..].chars().next();
    let (end, mark) = match letter {
        Some('(') => ("\\)", "$"),
        Some('[') => ("\\]", "$$"),
        Some('b') => return environment(text, out),
        _ => return Consumed::Copied(1 + letter.map_or(0, char::len_utf8)),
    };
    let Some(length) = text[2..].find(end) else { return Consumed::Copied(2) };
    let source = &text[2..2 + length];
    if source.contains("\n\n") || source.contains('$') || source.trim().is_empty() {
        return Consumed::Copied(2);
    }
    out.extend([mark, &one_line(source.trim()), mark]);
    Consumed::Changed(length + 4)
}

/// Takes an environment without delimiters, or the backslash of another command.
fn environment(text: &str, out: &mut String) -> Consumed {
    let name = text.strip_prefix("\\begin{").and_then(|rest| rest.split_once('}')).map(|(name, _)| name);
    let Some(name) = name.filter(|name| ENVIRONMENTS.split(' ').any(|it| it == *name)) else {
        return Consumed::Copied(1);
    };
    let end = format!("\\end{{{name}}}");
    let Some(length) = text.find(&end).map(|at| at + end.len()) else { return Consumed::Copied(1) };
    let source = &text[..length];
    if source.contains("\n\n") || source.contains('$') {
        return Consumed::Copied(1);
    }
    out.extend(["$$", &one_line(source), "$$"]);
    Consumed::Changed(length)
}

/// Puts LaTeX on one line, so that a line that begins with `+` or `=` does not become a list or
/// heading. LaTeX with comments or quotation marks of Markdown (`>`) stays unchanged.
fn one_line(source: &str) -> Cow<'_, str> {
    if !source.contains('\n') || source.contains('%') || source.lines().any(|line| line.trim_start().starts_with('>')) {
        return Cow::Borrowed(source);
    }
    Cow::Owned(source.lines().map(str::trim).collect::<Vec<_>>().join(" "))
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
            ("```\n\\(a\\) is not closed", "```\n\\(a\\) is not closed"),
            ("\\[\na\n+ b\n= c\n\\]", "$$a + b = c$$"),
        ] {
            assert_eq!(dollars(text), want, "{text}");
        }
    }

    #[test]
    fn bare_environments_are_formulas() {
        let align = "\\begin{align}\na &= b \\\\\n&= c\n\\end{align}";
        assert_eq!(dollars(align), "$$\\begin{align} a &= b \\\\ &= c \\end{align}$$");
        for text in [
            "$$\\begin{align} a &= b \\end{align}$$",
            "$\\begin{cases} 1 \\\\ 2 \\end{cases}$",
            "\\begin{align} a",
            "\\begin{itemize} a \\end{itemize}",
            "`\\begin{align} a \\end{align}`",
        ] {
            assert_eq!(dollars(text), text);
        }
    }

    /// `^` represents the dollar sign of an amount.
    #[test]
    fn money_is_no_formula() {
        for (text, want) in [
            ("so both are $9.50; **$3** off", "so both are ^9.50; **^3** off"),
            ("$5 and $10, or $5", "^5 and ^10, or ^5"),
            ("from $5 for **two** to 6$ at $x$", "from ^5 for **two** to 6^ at $x$"),
            ("$5 in `a$b` and $3x + 1$", "^5 in `a$b` and $3x + 1$"),
            ("US$ 5, $x$, $ y $, \\$7, $2\\,\\text{kg}$", "US^ 5, $x$, ^ y ^, \\$7, $2\\,\\text{kg}$"),
            ("a [$5 page](x) costs [$6](y)", "a [^5 page](x) costs [^6](y)"),
            ("$$x$$ and $a\n\nb$", "$$x$$ and ^a\n\nb^"),
            ("$a\\$b$", "$a\\$b$"),
        ] {
            assert_eq!(dollars(text).replace(DOLLAR, "^"), want, "{text}");
        }
    }
}

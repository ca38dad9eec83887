//! Checks regular expressions, with errors that name the faulty expression and position.

use std::fmt::Display;

use llguidance::{derivre::RegexBuilder, regex_to_lark};

use thermocline_base::error::{Error, Result};

/// Number of characters of an expression that an error quotes.
const QUOTED: usize = 200;

/// Heading of the library's message about a malformed expression.
const HEADING: &str = "regex parse error:";

/// Checks an expression. `place` is appended to the expectation in the error, such as
/// ` at #/pattern`.
pub(super) fn check(pattern: &str, place: &str) -> Result<()> {
    let parse = |text: &str| RegexBuilder::new().mk_regex_for_serach(text).err();
    let Some(error) = parse(&regex_to_lark(pattern, "dw")) else { return Ok(()) };
    // The position refers to the client's own text.
    let why = parse(pattern).unwrap_or(error).to_string();
    let what = format!("a supported regular expression{place}");
    let mut quoted: String = pattern.chars().take(QUOTED).collect();
    if quoted.len() < pattern.len() {
        quoted.push('…');
    }
    let (at, reason) = (marked(&why), reason(&why));
    let at = at.map(|at| format!(", character {at}")).unwrap_or_default();
    Err(Error::invalid("grammar", what, format!("`{quoted}`{at}: {reason}")))
}

/// The library's message as one line. For a malformed expression it holds the expression and the
/// reason.
pub(super) fn summary(message: impl Display) -> String {
    let text = message.to_string();
    let first = text.lines().next().unwrap_or_default();
    let Some((_, behind)) = text.split_once(HEADING) else { return first.to_owned() };
    let expression = behind.trim_start_matches('\n').lines().next().unwrap_or_default().trim();
    let at = marked(&text).map(|at| format!(", character {at}")).unwrap_or_default();
    format!("the regular expression `{expression}`{at}: {}", reason(&text))
}

/// Number, from 1, of the character that a message marks.
fn marked(message: &str) -> Option<usize> {
    let is_mark = |line: &&str| line.contains('^') && line.chars().all(|c| c == ' ' || c == '^');
    let line = message.lines().skip_while(|line| !line.ends_with(HEADING)).skip(2).find(is_mark)?;
    // The expression is indented by four columns.
    line.find('^')?.checked_sub(3)
}

fn reason(message: &str) -> &str {
    let error = message.lines().find_map(|line| line.strip_prefix("error: "));
    error.or_else(|| message.lines().next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_expression_the_place_and_the_reason() {
        for (pattern, at) in [("^(?!\\s)[a-z]+$", 2), ("a(?<=b)", 2), ("(a)\\1", 4), ("ab\\0", 3), ("ä[b", 2), ("(", 1)]
        {
            let error = check(pattern, " at #/x").unwrap_err().to_string();
            let says =
                format!("grammar: expected a supported regular expression at #/x, got `{pattern}`, character {at}: ");
            assert!(error.starts_with(&says) && error.len() > says.len() + 10, "{error}");
        }
        for pattern in ["", "^a$", "\\d{3}-[\\w/]+", "a/b", "é|ü", "^[^\\s@]+@[^\\s@]+$"] {
            assert!(check(pattern, "").is_ok(), "{pattern}");
        }
        assert!(check(&"(".repeat(1000), "").unwrap_err().to_string().len() < 600);
    }

    #[test]
    fn summaries_are_one_line_and_keep_the_reason() {
        let error = "at 1: regex parse error:\n    a(\n     ^\nerror: unclosed group\n<state>";
        assert_eq!(summary(error), "the regular expression `a(`, character 2: unclosed group");
        assert_eq!(summary("unknown name\nmore"), "unknown name");
    }
}

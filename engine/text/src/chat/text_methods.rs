//! Python's string methods that the template library lacks, or whose results could grow without
//! bound there.

use minijinja::{
    Error, Value,
    formatting::{FormatStyle, format},
    value::Tuple,
};

use super::budget::{Budget, refused};

/// Largest number of digits of a width or a precision.
const DIGITS: usize = 3;

/// Result of `text.method(operands)`; `None` if this module lacks the method.
pub fn call(budget: &Budget, text: &str, method: &str, operands: &[Value]) -> Option<Result<Value, Error>> {
    let argument = |at: usize| operands.get(at).and_then(Value::as_str);
    let first = argument(0);
    Some(match (method, first) {
        ("removeprefix", Some(prefix)) => Ok(text.strip_prefix(prefix).unwrap_or(text).into()),
        ("removesuffix", Some(suffix)) => Ok(text.strip_suffix(suffix).unwrap_or(text).into()),
        ("partition", Some(by)) if !by.is_empty() => Ok(match text.split_once(by) {
            Some((before, after)) => tuple([before, by, after]),
            None => tuple([text, "", ""]),
        }),
        ("rpartition", Some(by)) if !by.is_empty() => Ok(match text.rsplit_once(by) {
            Some((before, after)) => tuple([before, by, after]),
            None => tuple(["", "", text]),
        }),
        ("rsplit", Some(by)) if !by.is_empty() => rsplit(budget, text, by, operands.get(1)),
        ("ljust" | "rjust" | "center" | "zfill", _) => {
            pad(budget, text, method, operands.first(), argument(1).unwrap_or(" "))
        }
        ("swapcase", _) => budget.charge(2 * text.len()).map(|()| swapped(text).into()),
        ("encode", _) => budget.charge(text.len()).map(|()| Value::from_bytes(text.as_bytes().to_vec())),
        ("index", Some(wanted)) => index(text, wanted, operands.get(1).and_then(Value::as_usize).unwrap_or(0)),
        ("format", _) => formatted(budget, FormatStyle::StrFormat, text, operands),
        _ => return None,
    })
}

/// Fills in the placeholders of `text`. The operands are few and their widths are small.
pub fn formatted(budget: &Budget, style: FormatStyle, text: &str, operands: &[Value]) -> Result<Value, Error> {
    let (mut digits, mut open, mut fields) = (0, false, 0usize);
    let mark = if style == FormatStyle::Printf { '%' } else { '{' };
    let mut before = None;
    for character in text.chars() {
        digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
        if character == mark {
            fields += 1;
            // A doubled mark is a literal one. A mark within a field would take its width from an
            // operand.
            if open && before != Some(mark) {
                return Err(refused("a width is not a number"));
            }
            open = !open;
        }
        if open && (digits > DIGITS || character == '*') {
            return Err(refused("a width is too large"));
        }
        open &= match style {
            FormatStyle::Printf => !character.is_alphabetic(),
            FormatStyle::StrFormat => character != '}',
        };
        before = Some(character);
    }
    let mut longest = 10_usize.pow(DIGITS as u32);
    for operand in operands {
        longest = longest.max(budget.text(operand)?.len());
    }
    budget.charge(text.len().saturating_add(fields.saturating_mul(longest)))?;
    format(style, text, operands).map(Value::from)
}

fn tuple(parts: [&str; 3]) -> Value {
    Tuple::from(parts.map(Value::from).to_vec()).into()
}

fn rsplit(budget: &Budget, text: &str, by: &str, most: Option<&Value>) -> Result<Value, Error> {
    budget.charge_elements(text.matches(by).count())?;
    // A negative number means no limit.
    let most = most.and_then(Value::as_usize).unwrap_or(usize::MAX).saturating_add(1);
    let mut parts: Vec<&str> = text.rsplitn(most, by).collect();
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn swapped(text: &str) -> String {
    let swap = |letter: char| match letter.is_uppercase() {
        true => letter.to_lowercase().collect::<String>(),
        false => letter.to_uppercase().collect(),
    };
    text.chars().map(swap).collect()
}

/// Index of the character at which `wanted` starts in `text`, at character `from` or later.
fn index(text: &str, wanted: &str, from: usize) -> Result<Value, Error> {
    let start = text.char_indices().nth(from).map_or(text.len(), |(at, _)| at);
    let found = text[start..].find(wanted).map(|at| text[..start + at].chars().count());
    found.map(Value::from).ok_or_else(|| refused("the text does not contain the substring"))
}

/// Pads `text` with `fill` on one or both sides to a width in characters.
pub fn pad(budget: &Budget, text: &str, method: &str, width: Option<&Value>, fill: &str) -> Result<Value, Error> {
    let width = width.and_then(Value::as_usize).ok_or_else(|| refused("a width must be a number"))?;
    let missing = width.saturating_sub(text.chars().count());
    budget.charge(missing.saturating_mul(fill.len()).saturating_add(text.len()))?;
    let fill = |count: usize| fill.repeat(count);
    Ok(match method {
        "ljust" => format!("{text}{}", fill(missing)),
        "rjust" => format!("{}{text}", fill(missing)),
        // Python puts the extra character on the left if the width is odd.
        "center" => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
        _ => {
            let digits = text.trim_start_matches(['+', '-']);
            format!("{}{}{digits}", &text[..text.len() - digits.len()], "0".repeat(missing))
        }
    }
    .into())
}

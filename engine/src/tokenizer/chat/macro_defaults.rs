//! Defaults of macros that name an earlier argument. The template library computes the last default first, so that these go into the
//! macro's body, behind its arguments.

use std::{borrow::Cow, ops::Range};

use minijinja::{
    Error,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

/// A variable that no template has.
const MISSING: &str = "_argument_left_out";

/// A token and its place in the source.
struct Placed<'a> {
    token: Token<'a>,
    place: Range<usize>,
}

/// A text in place of a part of the source.
struct Edit {
    place: Range<usize>,
    text: String,
}

/// A default value.
struct DefaultValue<'a> {
    argument: &'a str,
    place: Option<Range<usize>>,
    /// It has the name of an earlier argument.
    depends: bool,
}

/// `source` with such defaults in the bodies of its macros.
pub fn with_moved_defaults<'a>(source: &'a str, syntax: &SyntaxConfig) -> Result<Cow<'a, str>, Error> {
    if !source.contains("macro") {
        return Ok(source.into());
    }
    let placed = tokenize(source, false, syntax.clone()).map(|token| {
        let (token, span) = token?;
        Ok(Placed { token, place: span.start_offset as usize..span.end_offset as usize })
    });
    let tokens: Vec<Placed<'_>> = placed.collect::<Result<_, Error>>()?;
    let mut edits = Vec::new();
    for (at, window) in tokens.windows(4).enumerate() {
        let tags = [&window[0].token, &window[1].token, &window[3].token];
        if let [Token::BlockStart, Token::Ident("macro"), Token::ParenOpen] = tags {
            edits.extend(edits_of(source, &tokens[at + 4..]));
        }
    }
    let (mut out, mut done) = (String::new(), 0);
    for Edit { place, text } in edits {
        out.push_str(source.get(done..place.start).unwrap_or_default());
        out.push_str(&text);
        done = place.end;
    }
    out.push_str(source.get(done..).unwrap_or_default());
    Ok(out.into())
}

/// The edits of one macro; `tokens` begin with its first argument.
fn edits_of(source: &str, tokens: &[Placed<'_>]) -> Vec<Edit> {
    let (mut arguments, mut defaults): (Vec<&str>, Vec<DefaultValue<'_>>) = (Vec::new(), Vec::new());
    let (mut depth, mut in_default) = (0, false);
    let mut end = None;
    for Placed { token, place } in tokens {
        match token {
            Token::BlockEnd => {
                end = Some(place.clone());
                break;
            }
            Token::Comma if depth == 0 => {
                in_default = false;
                continue;
            }
            Token::Assign if depth == 0 => {
                in_default = true;
                let argument = arguments.last().copied().unwrap_or_default();
                defaults.push(DefaultValue { argument, place: None, depends: false });
                continue;
            }
            Token::Ident(name) if depth == 0 && !in_default => arguments.push(name),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose if depth == 0 => in_default = false,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
            _ => {}
        }
        if let Some(default) = defaults.last_mut().filter(|_| in_default) {
            let start = default.place.as_ref().map_or(place.start, |place| place.start);
            default.place = Some(start..place.end);
            let earlier = &arguments[..arguments.len().saturating_sub(1)];
            default.depends |= matches!(token, Token::Ident(name) if earlier.contains(name));
        }
    }
    let (Some(end), true) = (end, defaults.iter().any(|default| default.depends)) else { return Vec::new() };
    let (mut edits, mut body) = (Vec::new(), String::new());
    for DefaultValue { argument, place, .. } in defaults.into_iter().filter(|default| default.depends) {
        let Some(place) = place else { continue };
        let value = source.get(place.clone()).unwrap_or_default();
        body.push_str(&format!("{{% if {argument} is undefined %}}{{% set {argument} = ({value}) %}}{{% endif %}}"));
        edits.push(Edit { place, text: MISSING.to_owned() });
    }
    // What the end of the tag says of the white space behind it, the last tag says.
    let before = source.get(..end.start).unwrap_or_default();
    let start = if before.ends_with(['-', '+']) { end.start - 1 } else { end.start };
    let close = source.get(start..end.end).unwrap_or("%}");
    let body = body.strip_suffix("%}").unwrap_or(&body);
    edits.push(Edit { place: start..end.end, text: format!("%}}{body}{}", close) });
    edits
}

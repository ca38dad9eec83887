//! Scans a template's source before it is compiled. The template library recurses without limit on
//! long expressions and `elif` chains. It also computes with constants while it compiles, again
//! without limit.

use std::borrow::Cow;

use minijinja::{
    Error,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

use super::budget::refused;

/// Largest number of tokens in one tag.
const TAG: usize = 4096;
/// Largest number of branches over all conditions.
const BRANCHES: usize = 500;

/// Refuses sources that are nested too deeply, and returns the source to compile. In
/// multiplications it writes numbers as calls, so that the product is computed, and charged, when
/// the template runs.
pub fn scan<'a>(source: &'a str, syntax: &SyntaxConfig) -> Result<Cow<'a, str>, Error> {
    let mut numbers = Vec::new();
    let (mut tag, mut branches, mut multiplies, mut after_dot) = (0, 0, false, false);
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        tag += 1;
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tag = 0,
            Token::Ident("elif") => branches += 1,
            Token::Mul => multiplies = true,
            Token::Int(_) | Token::Int128(_) if !after_dot => numbers.push((span, "int")),
            Token::Float(_) => numbers.push((span, "float")),
            _ => {}
        }
        if tag > TAG {
            return Err(refused("an expression of the template is too long"));
        }
        if branches > BRANCHES {
            return Err(refused("the template has too many branches"));
        }
        after_dot = matches!(token, Token::Dot);
    }
    if !multiplies {
        return Ok(Cow::Borrowed(source));
    }
    let mut result = String::with_capacity(source.len() + 8 * numbers.len());
    let mut done = 0;
    for (span, filter) in numbers {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let (Some(before), Some(number)) = (source.get(done..start), source.get(start..end)) else {
            return Err(refused("the numbers of the template cannot be found"));
        };
        result.push_str(before);
        result.extend(["(", number, "|", filter, ")"]);
        done = end;
    }
    result.push_str(&source[done..]);
    Ok(Cow::Owned(result))
}

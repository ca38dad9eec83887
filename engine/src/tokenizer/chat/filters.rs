//! Filters, tests, functions and methods that templates may call: the template library's, each asking the budget
//! before and after, and a few of our own where the library's could grow without bound or differs from Hugging Face's.

use std::{io, sync::Arc};

use minijinja::{
    Environment, Error, ErrorKind, State, Value, filters, functions, tests,
    value::{Kwargs, Rest, ValueKind},
};
use serde::Serialize;

use super::{
    budget::{Budget, refused},
    sandbox::bounded,
    strftime,
};

/// The widest range.
const RANGE: usize = 10_000;

/// Adds everything a template may call.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    for (name, function) in library_filters() {
        let budget = Arc::clone(budget);
        environment.add_filter(name, move |state: &mut State, operands: Rest<Value>, options: Kwargs| {
            let operands = with_options(operands, options);
            bounded(&budget, state, &operands, |state| function.call(state, &operands))
        });
    }
    for (name, function) in library_tests() {
        let budget = Arc::clone(budget);
        environment.add_test(name, move |state: &mut State, operands: Rest<Value>, options: Kwargs| {
            let operands = with_options(operands, options);
            bounded(&budget, state, &operands, |state| function.call(state, &operands)).map(|result| result.is_true())
        });
    }
    for (name, function) in
        [("dict", Value::from_function(functions::dict)), ("namespace", Value::from_function(functions::namespace))]
    {
        let budget = Arc::clone(budget);
        environment.add_function(name, move |state: &mut State, operands: Rest<Value>, options: Kwargs| {
            let operands = with_options(operands, options);
            bounded(&budget, state, &operands, |state| function.call(state, &operands))
        });
    }
    let own = Arc::clone(budget);
    environment.add_filter("replace", move |text: Value, from: Value, to: Value| {
        let (text, from, to) = (own.text(&text)?, own.text(&from)?, own.text(&to)?);
        replace(&own, &text, &from, &to).map(Value::from)
    });
    let own = Arc::clone(budget);
    environment.add_filter("join", move |list: Value, separator: Option<Value>, options: Kwargs| {
        let separator = separator.or(options.get("d")?).unwrap_or_default();
        let attribute: Option<Value> = options.get("attribute")?;
        options.assert_all_used()?;
        let items = list.try_iter()?.map(|item| match &attribute {
            Some(attribute) => item.get_item(attribute),
            None => Ok(item),
        });
        own.admit(std::slice::from_ref(&list))?;
        join(&own, items, &own.text(&separator)?)
    });
    let own = Arc::clone(budget);
    environment.add_filter("indent", move |text: Value, width: Option<Value>, options: Kwargs| {
        let width = width.or(options.get("width")?).and_then(|width| width.as_usize()).unwrap_or(4);
        let (first, blank): (Option<bool>, Option<bool>) = (options.get("first")?, options.get("blank")?);
        options.assert_all_used()?;
        indent(&own, &own.text(&text)?, width, first.unwrap_or(false), blank.unwrap_or(false))
    });
    let own = Arc::clone(budget);
    environment.add_filter("string", move |value: Value| own.text(&value));
    let own = Arc::clone(budget);
    environment.add_filter("tojson", move |value: Value, indent: Option<Value>, options: Kwargs| {
        let indent = indent.or(options.get("indent")?).filter(|indent| !indent.is_none());
        for accepted in ["ensure_ascii", "separators", "sort_keys"] {
            let _: Option<Value> = options.get(accepted)?;
        }
        options.assert_all_used()?;
        to_json(&own, &value, indent.map(|indent| indent.as_usize().unwrap_or(2)))
    });
    let own = Arc::clone(budget);
    environment.add_function("range", move |first: isize, end: Option<isize>, step: Option<isize>| {
        range(&own, first, end, step)
    });
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.as_str().unwrap_or("raise_exception").to_owned()))
    });
    environment.add_function("strftime_now", |format: String| strftime::now(&format));
    let own = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, operands| {
        own.admit(std::slice::from_ref(value))?;
        bounded(&own, state, operands, |state| call_method(&own, state, value, method, operands))
    });
}

/// The operands as the library's functions take them: options, if any, come last.
fn with_options(operands: Rest<Value>, options: Kwargs) -> Vec<Value> {
    let mut operands = operands.0;
    if options.args().next().is_some() {
        operands.push(options.into());
    }
    operands
}

fn library_filters() -> Vec<(&'static str, Value)> {
    vec![
        ("abs", Value::from_function(filters::abs)),
        ("attr", Value::from_function(filters::attr)),
        ("bool", Value::from_function(filters::bool)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("count", Value::from_function(filters::length)),
        ("d", Value::from_function(filters::default)),
        ("default", Value::from_function(filters::default)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("first", Value::from_function(filters::first)),
        ("float", Value::from_function(filters::float)),
        ("groupby", Value::from_function(filters::groupby)),
        ("int", Value::from_function(filters::int)),
        ("items", Value::from_function(filters::items)),
        ("last", Value::from_function(filters::last)),
        ("length", Value::from_function(filters::length)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ]
}

fn library_tests() -> Vec<(&'static str, Value)> {
    vec![
        ("!=", Value::from_function(tests::is_ne)),
        ("<", Value::from_function(tests::is_lt)),
        ("<=", Value::from_function(tests::is_le)),
        ("==", Value::from_function(tests::is_eq)),
        (">", Value::from_function(tests::is_gt)),
        (">=", Value::from_function(tests::is_ge)),
        ("boolean", Value::from_function(tests::is_boolean)),
        ("defined", Value::from_function(tests::is_defined)),
        ("divisibleby", Value::from_function(tests::is_divisibleby)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
        ("eq", Value::from_function(tests::is_eq)),
        ("equalto", Value::from_function(tests::is_eq)),
        ("even", Value::from_function(tests::is_even)),
        ("false", Value::from_function(tests::is_false)),
        ("float", Value::from_function(tests::is_float)),
        ("ge", Value::from_function(tests::is_ge)),
        ("greaterthan", Value::from_function(tests::is_gt)),
        ("gt", Value::from_function(tests::is_gt)),
        ("in", Value::from_function(tests::is_in)),
        ("integer", Value::from_function(tests::is_integer)),
        ("iterable", Value::from_function(tests::is_iterable)),
        ("le", Value::from_function(tests::is_le)),
        ("lessthan", Value::from_function(tests::is_lt)),
        ("lower", Value::from_function(tests::is_lower)),
        ("lt", Value::from_function(tests::is_lt)),
        ("mapping", Value::from_function(tests::is_mapping)),
        ("ne", Value::from_function(tests::is_ne)),
        ("none", Value::from_function(tests::is_none)),
        ("number", Value::from_function(tests::is_number)),
        ("odd", Value::from_function(tests::is_odd)),
        ("sameas", Value::from_function(tests::is_sameas)),
        ("sequence", Value::from_function(tests::is_sequence)),
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("string", Value::from_function(tests::is_string)),
        ("true", Value::from_function(tests::is_true)),
        ("undefined", Value::from_function(tests::is_undefined)),
        ("upper", Value::from_function(tests::is_upper)),
    ]
}

/// Python's methods of strings, lists and maps.
fn call_method(
    budget: &Budget,
    state: &mut State,
    value: &Value,
    method: &str,
    operands: &[Value],
) -> Result<Value, Error> {
    let argument = |at: usize| operands.get(at).and_then(Value::as_str);
    match (value.as_str(), method) {
        (Some(text), "replace") if operands.len() == 2 => match (argument(0), argument(1)) {
            (Some(from), Some(to)) => return replace(budget, text, from, to).map(Value::from),
            _ => return Err(refused("replace takes two strings")),
        },
        (Some(separator), "join") if operands.len() == 1 => {
            return join(budget, operands[0].try_iter()?.map(Ok), separator).map(Value::from);
        }
        (Some(_), "format") => return Err(refused("format is not available")),
        (Some(text), "split" | "splitlines") => {
            budget.charge_elements(match argument(0).filter(|by| !by.is_empty()) {
                Some(separator) => text.matches(separator).count(),
                None => text.split_whitespace().count().max(text.lines().count()),
            })?
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, operands)
}

fn replace(budget: &Budget, text: &str, from: &str, to: &str) -> Result<String, Error> {
    budget.charge(text.len().saturating_add(text.matches(from).count().saturating_mul(to.len())))?;
    Ok(text.replace(from, to))
}

fn join(budget: &Budget, items: impl Iterator<Item = Result<Value, Error>>, separator: &str) -> Result<String, Error> {
    let mut text = String::new();
    for (at, item) in items.enumerate() {
        if at > 0 {
            budget.charge(separator.len())?;
            text.push_str(separator);
        }
        text.push_str(&budget.text(&item?)?);
    }
    Ok(text)
}

fn indent(budget: &Budget, text: &str, width: usize, first: bool, blank: bool) -> Result<String, Error> {
    let lines = text.split('\n');
    budget.charge(text.len().saturating_add(lines.clone().count().saturating_mul(width)))?;
    let margin = " ".repeat(width);
    let mut result = String::new();
    for (at, line) in lines.enumerate() {
        if at > 0 {
            result.push('\n');
        }
        if (at > 0 || first) && (blank || !line.is_empty()) {
            result.push_str(&margin);
        }
        result.push_str(line);
    }
    Ok(result)
}

fn range(budget: &Budget, first: isize, end: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    let (start, end) = end.map_or((0, first), |end| (first, end));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(refused("a range with step 0"));
    }
    let span = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
    let len = usize::try_from(span).map_or(0, |span| span.div_ceil(step.unsigned_abs()));
    if len > RANGE {
        return Err(refused("a range is too long"));
    }
    budget.charge_elements(len)?;
    Ok((0..len).map(|at| start + at as isize * step).collect())
}

/// JSON as Python's `json.dumps` writes it: a space after commas and colons, nothing escaped that need not be.
fn to_json(budget: &Budget, value: &Value, indent: Option<usize>) -> Result<Value, Error> {
    budget.admit(std::slice::from_ref(value))?;
    if value.kind() == ValueKind::Undefined {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of an undefined value"));
    }
    let mut bytes = ChargedBytes { budget, bytes: Vec::new() };
    let margin = " ".repeat(indent.unwrap_or(0).min(16));
    let written = match indent {
        Some(_) => {
            let formatter = serde_json::ser::PrettyFormatter::with_indent(margin.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Spaced)),
    };
    match written {
        Ok(()) => Ok(Value::from(String::from_utf8_lossy(&bytes.bytes).into_owned())),
        Err(error) => Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"))),
    }
}

/// Python's separators.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Bytes that are charged as they grow.
struct ChargedBytes<'a> {
    budget: &'a Budget,
    bytes: Vec<u8>,
}

impl io::Write for ChargedBytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.budget.charge(bytes.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

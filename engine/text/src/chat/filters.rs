//! Filters, tests, functions and methods that templates may call. Most are the template library's,
//! wrapped in checks of the budget before and after. A few are our own, because the library's could
//! grow without bound or differ from Hugging Face's.

use std::sync::Arc;

use minijinja::{
    Environment, Error, ErrorKind, State, Value, filters,
    formatting::FormatStyle,
    functions, tests,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args},
};

use super::{
    arguments::Arguments,
    bound_method,
    budget::{Budget, refused},
    jinja_extras,
    json::JsonStyle,
    macro_arguments,
    sandbox::bounded,
    strftime, text_methods,
};

/// Longest range.
const RANGE: usize = 10_000;
/// Longest date format, in bytes.
const FORMAT: usize = 1000;

/// Wraps functions of a library module, each under its own name.
macro_rules! library {
    ($module:ident: $($name:literal $function:ident),*) => { vec![$(($name, Value::from_function($module::$function))),*] };
}

/// Adds everything that a template may call.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    add_library(environment, budget);
    add_filters_of_texts(environment, budget);
    add_filters_of_values(environment, budget);
    add_functions(environment, budget);
    jinja_extras::install(environment, budget);
    bound_method::install(environment, budget);
    macro_arguments::install(environment, budget);
}

/// Adds the template library's functions. Each call checks the budget before and after.
fn add_library(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let guarded = |function: Value| {
        let budget = Arc::clone(budget);
        move |state: &mut State, operands: Rest<ValueOrKwargs>| {
            let operands = operands.into_values();
            bounded(&budget, state, &operands, |state| function.call(state, &operands))
        }
    };
    let all = library![filters:
        "abs" abs, "bool" bool, "capitalize" capitalize, "dictsort" dictsort, "first" first, "groupby" groupby, "items" items,
        "last" last, "list" list, "lower" lower, "map" map, "max" max, "min" min, "reject" reject, "rejectattr" rejectattr,
        "reverse" reverse, "round" round, "safe" safe, "select" select, "selectattr" selectattr, "sort" sort, "sum" sum,
        "title" title, "trim" trim, "unique" unique, "upper" upper
    ];
    for (name, function) in all {
        environment.add_filter(name, guarded(function));
    }
    let all = library![tests:
        "!=" is_ne, "<" is_lt, "<=" is_le, "==" is_eq, ">" is_gt, ">=" is_ge, "boolean" is_boolean, "defined" is_defined,
        "divisibleby" is_divisibleby, "endingwith" is_endingwith, "eq" is_eq, "equalto" is_eq, "even" is_even,
        "false" is_false, "float" is_float, "ge" is_ge, "greaterthan" is_gt, "gt" is_gt, "in" is_in, "integer" is_integer,
        "le" is_le, "lessthan" is_lt, "lower" is_lower, "lt" is_lt, "mapping" is_mapping, "ne" is_ne, "none" is_none,
        "number" is_number, "odd" is_odd, "sameas" is_sameas, "startingwith" is_startingwith, "string" is_string,
        "true" is_true, "undefined" is_undefined, "upper" is_upper
    ];
    for (name, function) in all {
        let function = guarded(function);
        environment.add_test(name, move |state: &mut State, operands: Rest<ValueOrKwargs>| {
            function(state, operands).map(|result| result.is_true())
        });
    }
    for (name, function) in library![functions: "dict" dict, "namespace" namespace] {
        environment.add_function(name, guarded(function));
    }
}

/// Adds filters that turn texts into a text.
fn add_filters_of_texts(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter(
        "replace",
        move |text: Value, from: Value, to: Value, operands: Rest<Value>, options: Kwargs| {
            let (text, from, to) = (own.text(&text)?, own.text(&from)?, own.text(&to)?);
            let mut options = Arguments::new(operands, options);
            let count = options.number("count", -1)?;
            options.end()?;
            replace(&own, &text, &from, &to, count).map(Value::from)
        },
    );
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
    environment.add_filter("indent", move |text: Value, operands: Rest<Value>, options: Kwargs| {
        let option = |at: usize, name: &str| match operands.get(at) {
            Some(operand) => Ok(operand.clone()),
            None => options.get::<Option<Value>>(name).map(Option::unwrap_or_default),
        };
        let (width, first, blank): (Value, Value, Value) =
            (option(0, "width")?, option(1, "first")?, option(2, "blank")?);
        options.assert_all_used()?;
        let margin = match width.as_str() {
            Some(margin) => margin.to_owned(),
            None => {
                let width = width.as_usize().unwrap_or(4);
                own.charge(width)?;
                " ".repeat(width)
            }
        };
        indent(&own, &own.text(&text)?, &margin, first.is_true(), blank.is_true())
    });
    let own = Arc::clone(budget);
    environment.add_filter("string", move |value: Value| own.text(&value));
}

/// Adds filters for any value.
fn add_filters_of_values(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter("tojson", move |value: Value, ascii: Option<Value>, options: Kwargs| {
        let option = |name: &str| options.get::<Option<Value>>(name).map(Option::unwrap_or_default);
        let ascii = ascii.map_or_else(|| option("ensure_ascii"), Ok)?;
        let (indent, separators, sorted) = (option("indent")?, option("separators")?, option("sort_keys")?);
        options.assert_all_used()?;
        JsonStyle::new(&indent, &separators, ascii.is_true(), sorted.is_true())?.write(&own, &value)
    });
    for (name, function) in
        [("int", Value::from_function(filters::int)), ("float", Value::from_function(filters::float))]
    {
        let own = Arc::clone(budget);
        environment.add_filter(name, move |state: &mut State, operands: Rest<ValueOrKwargs>| {
            let operands = operands.into_values();
            own.admit(&operands)?;
            let (given, options): (Rest<Value>, Kwargs) = from_args(&operands)?;
            let default = given.get(1).cloned().or(options.get("default")?);
            let zero = if name == "int" { Value::from(0) } else { Value::from(0.0) };
            Ok::<_, Error>(function.call(state, &operands).unwrap_or_else(|_| default.unwrap_or(zero)))
        });
    }
    for name in ["default", "d"] {
        environment.add_filter(name, |value: Value, other: Option<Value>, all: Option<Value>, options: Kwargs| {
            let all = all.or(options.get("boolean")?).is_some_and(|all| all.is_true());
            let other = other.or(options.get("default_value")?);
            options.assert_all_used()?;
            let missing = value.is_undefined() || (all && !value.is_true());
            Ok::<_, Error>(if missing { other.unwrap_or_else(|| "".into()) } else { value })
        });
    }
    let own = Arc::clone(budget);
    environment.add_filter("wordcount", move |text: Value| own.text(&text).map(|text| text.split_whitespace().count()));
    let own = Arc::clone(budget);
    environment.add_filter("format", move |text: Value, operands: Rest<ValueOrKwargs>| {
        text_methods::formatted(&own, FormatStyle::Printf, &own.text(&text)?, &operands.into_values())
    });
    for name in ["escape", "e", "forceescape"] {
        let own = Arc::clone(budget);
        environment.add_filter(name, move |text: Value| escape(&own, &own.text(&text)?));
    }
    for name in ["length", "count"] {
        let own = Arc::clone(budget);
        environment.add_filter(name, move |value: Value| {
            own.check_time()?;
            if value.is_undefined() { Ok(0) } else { filters::length(&value) }
        });
    }
}

/// Adds tests, functions and methods.
fn add_functions(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    environment.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    environment.add_test("sequence", |value: Value| {
        value.as_str().is_some() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
    });
    let own = Arc::clone(budget);
    environment.add_function("range", move |first: isize, end: Option<isize>, step: Option<isize>| {
        range(&own, first, end, step)
    });
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.as_str().unwrap_or("raise_exception").to_owned()))
    });
    let own = Arc::clone(budget);
    environment.add_function("strftime_now", move |format: String| {
        if format.len() > FORMAT {
            return Err(refused("a date format is too long"));
        }
        // No directive expands its letters more than this.
        own.charge(16 * format.len()).map(|()| strftime::now(&format))
    });
    let own = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, operands| {
        own.admit(std::slice::from_ref(value))?;
        bounded(&own, state, operands, |state| call_method(&own, state, value, method, operands))
    });
}

/// Calls Python's methods of strings, lists and maps.
fn call_method(
    budget: &Budget,
    state: &mut State,
    value: &Value,
    method: &str,
    operands: &[Value],
) -> Result<Value, Error> {
    let argument = |at: usize| operands.get(at).and_then(Value::as_str);
    match (value.as_str(), method) {
        (Some(text), "replace") if (2..=3).contains(&operands.len()) => {
            let count = operands.get(2).map_or(Some(-1), |count| i64::try_from(count.clone()).ok());
            return match (argument(0), argument(1), count) {
                (Some(from), Some(to), Some(count)) => replace(budget, text, from, to, count).map(Value::from),
                _ => Err(refused("`replace` takes two strings and a number")),
            };
        }
        (Some(separator), "join") if operands.len() == 1 => {
            return join(budget, operands[0].try_iter()?.map(Ok), separator).map(Value::from);
        }
        (Some(text), "split" | "splitlines") => {
            budget.charge_elements(match argument(0).filter(|by| !by.is_empty()) {
                Some(separator) => text.matches(separator).count(),
                None => text.split_whitespace().count().max(text.lines().count()),
            })?
        }
        (Some(text), _) => {
            if let Some(result) = text_methods::call(budget, text, method, operands) {
                return result;
            }
        }
        (None, "index") if value.kind() == ValueKind::Seq => return index(value, operands),
        (None, "copy") if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) && operands.is_empty() => {
            return Ok(value.clone());
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, operands)
}

/// Index in a list of the first operand, starting at the second operand.
fn index(list: &Value, operands: &[Value]) -> Result<Value, Error> {
    let from = operands.get(1).and_then(Value::as_usize).unwrap_or(0);
    let mut items = list.try_iter()?.enumerate().skip(from);
    let found = operands.first().and_then(|wanted| items.find(|(_, item)| item == wanted));
    found.map(|(at, _)| at.into()).ok_or_else(|| refused("the list does not contain the value"))
}

/// `text` with the first `count` occurrences of `from` replaced by `to`; a negative count replaces
/// all.
fn replace(budget: &Budget, text: &str, from: &str, to: &str, count: i64) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    budget.charge(text.len().saturating_add(text.matches(from).take(count).count().saturating_mul(to.len())))?;
    Ok(text.replacen(from, to, count))
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

fn indent(budget: &Budget, text: &str, margin: &str, first: bool, blank: bool) -> Result<String, Error> {
    let lines = text.split('\n');
    budget.charge(text.len().saturating_add(lines.clone().count().saturating_mul(margin.len())))?;
    let mut result = String::new();
    for (at, line) in lines.enumerate() {
        if at > 0 {
            result.push('\n');
        }
        if (at > 0 || first) && (blank || at == 0 || !line.is_empty()) {
            result.push_str(margin);
        }
        result.push_str(line);
    }
    Ok(result)
}

/// Escapes HTML's five special characters as markupsafe does.
fn escape(budget: &Budget, text: &str) -> Result<String, Error> {
    let mut result = text.to_owned();
    for (from, to) in [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")] {
        result = replace(budget, &result, from, to, -1)?;
    }
    Ok(result)
}

fn range(budget: &Budget, first: isize, end: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    let (start, end) = end.map_or((0, first), |end| (first, end));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(refused("the step of a range is 0"));
    }
    let span = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
    let len = usize::try_from(span).map_or(0, |span| span.div_ceil(step.unsigned_abs()));
    if len > RANGE {
        return Err(refused("a range is too long"));
    }
    budget.charge_elements(len)?;
    Ok((0..len).map(|at| start + at as isize * step).collect())
}

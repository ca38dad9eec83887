//! Methods returned by the `attr` filter: objects that templates can call later, each bound to its
//! value.

use std::{fmt, sync::Arc};

use minijinja::{
    Environment, Error, State, Value, filters,
    value::{Object, ObjectRepr, ValueKind},
};

use super::{budget::Budget, sandbox::bounded};

/// Python's public string methods.
const OF_TEXTS: &str = "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii \
    isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip maketrans partition \
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title \
    translate upper zfill";
/// List methods that do not modify the list.
const OF_LISTS: &str = "copy count index";
/// Map methods that do not modify the map.
const OF_MAPS: &str = "copy fromkeys get items keys values";

/// Adds the filter to the environment.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter("attr", move |state: &mut State, value: Value, name: Value| {
        bounded(&own, state, &[value.clone(), name.clone()], |_| attribute(value, &name))
    });
}

/// The attribute `name` of `value`. A method of its type takes precedence over its contents.
fn attribute(value: Value, name: &Value) -> Result<Value, Error> {
    let methods = match value.kind() {
        ValueKind::String => OF_TEXTS,
        ValueKind::Seq => OF_LISTS,
        ValueKind::Map => OF_MAPS,
        _ => "",
    };
    match name.as_str().and_then(|name| methods.split_whitespace().find(|method| *method == name)) {
        Some(name) => Ok(Value::from_object(BoundMethod { value, name })),
        None => filters::attr(&value, name),
    }
}

/// A method bound to its value.
#[derive(Debug)]
struct BoundMethod {
    value: Value,
    name: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {}>", self.name)
    }
}

//! Adds filters, tests and functions that Jinja has and the template library lacks.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use minijinja::{
    Environment, Error, State, Value, tests,
    value::{Kwargs, Object, ObjectRepr, Rest, ValueKind},
};

use super::{
    arguments::Arguments,
    budget::{Budget, refused},
    text_filters, text_methods,
};

/// Largest number of lists that a list may be divided into.
const LISTS: i64 = 10_000;

/// Adds all of them to the environment.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    add_filters_of_texts(environment, budget);
    add_filters_of_lists(environment, budget);
    environment.add_test("callable", |value: Value| {
        // The library reports macros as maps.
        let is_macro = |kind: &str| kind.ends_with("::Macro") || kind.ends_with("::AllArguments");
        value.kind() == ValueKind::Plain || value.as_object().is_some_and(|object| is_macro(object.type_name()))
    });
    environment.add_test("filter", |state: &State, name: Value| {
        name.as_str().is_some_and(|name| tests::is_filter(state, name))
    });
    environment
        .add_test("test", |state: &State, name: Value| name.as_str().is_some_and(|name| tests::is_test(state, name)));
    let own = Arc::clone(budget);
    environment.add_function("cycler", move |items: Rest<Value>| {
        own.charge_elements(items.len())?;
        if items.is_empty() {
            return Err(refused("`cycler` needs at least one item"));
        }
        Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
}

fn add_filters_of_texts(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter("center", move |text: Value, operands: Rest<Value>, options: Kwargs| {
        let mut options = Arguments::new(operands, options);
        let width = options.number("width", 80)?.max(0);
        options.end()?;
        text_methods::pad(&own, &own.text(&text)?, "center", Some(&width.into()), " ")
    });
    let own = Arc::clone(budget);
    environment.add_filter("truncate", move |text: Value, operands: Rest<Value>, options: Kwargs| {
        text_filters::truncate(&own, &own.text(&text)?, Arguments::new(operands, options))
    });
    let own = Arc::clone(budget);
    environment.add_filter("wordwrap", move |text: Value, operands: Rest<Value>, options: Kwargs| {
        text_filters::wordwrap(&own, &own.text(&text)?, Arguments::new(operands, options))
    });
    let own = Arc::clone(budget);
    environment.add_filter("urlencode", move |value: Value| {
        own.admit(std::slice::from_ref(&value))?;
        text_filters::urlencode(&own, &value)
    });
    let own = Arc::clone(budget);
    environment.add_filter("striptags", move |text: Value| text_filters::striptags(&own, &own.text(&text)?));
    environment.add_filter("filesizeformat", |value: Value, operands: Rest<Value>, options: Kwargs| {
        let mut options = Arguments::new(operands, options);
        let binary = options.flag("binary", false)?;
        options.end()?;
        text_filters::filesizeformat(&value, binary)
    });
}

fn add_filters_of_lists(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    for (name, parameter) in [("slice", "slices"), ("batch", "linecount")] {
        let own = Arc::clone(budget);
        environment.add_filter(name, move |list: Value, operands: Rest<Value>, options: Kwargs| {
            let mut options = Arguments::new(operands, options);
            let (count, fill) = (options.number(parameter, 0)?, options.next("fill_with")?);
            options.end()?;
            if !(1..=LISTS).contains(&count) {
                return Err(refused("a number of slices or items is not between 1 and 10000"));
            }
            own.admit(std::slice::from_ref(&list))?;
            let (items, count) = (list.try_iter()?.collect::<Vec<Value>>(), count as usize);
            own.charge_elements(2 * (items.len() + count))?;
            Ok(if name == "slice" { slices(&items, count, fill) } else { batches(&items, count, fill) })
        });
    }
    let own = Arc::clone(budget);
    environment.add_filter("pprint", move |value: Value| {
        own.admit(std::slice::from_ref(&value))?;
        match value.as_str() {
            Some(text) => own.charge(2 * text.len()).map(|()| format!("{value:?}")),
            None => own.text(&sorted(&value)?),
        }
    });
    let own = Arc::clone(budget);
    environment.add_filter("random", move |list: Value| {
        own.admit(std::slice::from_ref(&list))?;
        let items: Vec<Value> = list.try_iter()?.collect();
        let at = (rand::random::<u64>() as usize).checked_rem(items.len());
        Ok::<_, Error>(at.map(|at| items[at].clone()).unwrap_or_default())
    });
}

/// `value` with its maps sorted by key.
fn sorted(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pairs = keys.into_iter().map(|key| Ok((key.clone(), sorted(&value.get_item(&key)?)?)));
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        ValueKind::Seq => Ok(value.try_iter()?.map(|item| sorted(&item)).collect::<Result<Vec<_>, Error>>()?.into()),
        _ => Ok(value.clone()),
    }
}

/// Divides `items` into `count` lists of nearly equal length, and fills up the shorter ones.
fn slices(mut items: &[Value], count: usize, fill: Option<Value>) -> Value {
    let (each, longer) = (items.len() / count, items.len() % count);
    let slice = |at: usize| {
        let (now, behind) = items.split_at(each + usize::from(at < longer));
        items = behind;
        now.iter().cloned().chain(fill.clone().filter(|_| at >= longer)).collect::<Value>()
    };
    (0..count).map(slice).collect()
}

/// Divides `items` into lists of `count`, and fills up the last one.
fn batches(items: &[Value], count: usize, fill: Option<Value>) -> Value {
    let batch = |now: &[Value]| {
        let missing = fill.iter().flat_map(|fill| std::iter::repeat_n(fill, count - now.len()));
        now.iter().chain(missing).cloned().collect::<Value>()
    };
    items.chunks(count).map(batch).collect()
}

/// Jinja's `cycler`, which returns its items in rotation.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = || self.items.get(self.at.load(Ordering::Relaxed) % self.items.len()).cloned();
        if key.as_str() == Some("current") { current() } else { None }
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, _: &[Value]) -> Result<Value, Error> {
        match method {
            "next" => {
                let at = self.at.fetch_add(1, Ordering::Relaxed);
                Ok(self.items[at % self.items.len()].clone())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(minijinja::ErrorKind::UnknownMethod)),
        }
    }
}

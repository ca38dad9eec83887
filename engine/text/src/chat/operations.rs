//! Operators, displays (`[..]`, `{..}`) and other template steps as filters that check the budget
//! first. Operators compute what the template library computes: each is evaluated there as an
//! expression with one operator.

use std::sync::{Arc, LazyLock};

use minijinja::{
    Environment, Error, Expression, State, Value, context,
    formatting::FormatStyle,
    value::{Rest, Tuple, ValueKind, ValueOrKwargs},
};

use super::{
    budget::{Budget, refused},
    text_methods::formatted,
};

/// Longest sequence that an operation may produce.
const ELEMENTS: usize = 10_000;

/// Operators by the names under which compiled templates call them. No template can write such
/// names.
const OPERATORS: [(&str, &str); 12] = [
    ("+", "a + b"),
    ("*", "a * b"),
    ("%", "a % b"),
    ("~", "a ~ b"),
    ("<in>", "a in b"),
    ("==", "a == b"),
    ("!=", "a != b"),
    ("<", "a < b"),
    ("<=", "a <= b"),
    (">", "a > b"),
    (">=", "a >= b"),
    ("[:]", "a[b:c:d]"),
];

/// Adds all of them to the environment.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) -> Result<(), Error> {
    static LIBRARY: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);
    for (name, expression) in OPERATORS {
        let (budget, expression) = (Arc::clone(budget), LIBRARY.compile_expression(expression)?);
        environment.add_filter(name, move |operands: Rest<Value>| {
            budget.admit(&operands)?;
            evaluate(name, &expression, &budget, &operands)
        });
    }
    let mut display = |name, make: fn(Vec<Value>) -> Value| {
        let budget = Arc::clone(budget);
        environment.add_filter(name, move |operands: Rest<ValueOrKwargs>| {
            let operands = operands.into_values();
            budget.admit(&operands)?;
            budget.charge_elements(operands.len())?;
            Ok::<_, Error>(make(operands))
        });
    };
    display("[]", Value::from);
    display("()", |operands| Tuple::from(operands).into());
    display("{}", |operands| {
        Value::from_pairs(operands.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())))
    });
    install_walks(environment, budget);
    Ok(())
}

/// Adds the steps that walk through data to find a part of it.
fn install_walks(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter("[.]", move |of: Value, key: Value| own.check_time().and_then(|()| of.get_item(&key)));
    let own = Arc::clone(budget);
    environment.add_filter("<for>", move |list: Value| own.check_time().map(|()| list));
    let own = Arc::clone(budget);
    environment.add_filter("<changed>", move |state: &mut State, of: Value, operands: Rest<ValueOrKwargs>| {
        let operands = operands.into_values();
        own.admit(&operands)?;
        of.call_method(state, "changed", &operands)
    });
    let own = Arc::clone(budget);
    environment.add_filter("[*]", move |lists: Rest<Value>| {
        let mut all = Vec::new();
        for list in lists.0 {
            for item in list.try_iter()? {
                own.charge_elements(1)?;
                all.push(item);
            }
        }
        Ok::<_, Error>(Value::from(all))
    });
    let own = Arc::clone(budget);
    environment.add_filter("{*}", move |maps: Rest<ValueOrKwargs>| {
        let mut all = Vec::new();
        for map in maps.into_values() {
            if map.kind() != ValueKind::Map {
                return Err(refused("the keyword arguments are not a map"));
            }
            for key in map.try_iter()? {
                own.charge_elements(1)?;
                all.push((key.clone(), map.get_item(&key)?));
            }
        }
        Ok(Value::from_pairs(all))
    });
}

/// The operator `name`, after the budget has admitted its operands.
fn evaluate(
    name: &str,
    expression: &Expression<'static, 'static>,
    budget: &Budget,
    operands: &[Value],
) -> Result<Value, Error> {
    let operand = |at: usize| operands.get(at).cloned().unwrap_or_default();
    let (mut a, mut b) = (operand(0), operand(1));
    let elements = |value: &Value| if value.as_str().is_some() { 0 } else { value.len().unwrap_or(0) };
    let few = |elements: usize| {
        if elements > ELEMENTS { Err(refused("the lists of the template are too long")) } else { Ok(()) }
    };
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    match name {
        "+" => {
            few(elements(&a).saturating_add(elements(&b)))?;
            budget.charge(length(&a) + length(&b))?;
        }
        "*" => {
            let times = a.as_usize().or(b.as_usize()).unwrap_or(0);
            few(elements(&a).max(elements(&b)).saturating_mul(times))?;
            budget.charge(length(&a).max(length(&b)).saturating_mul(times))?;
        }
        "%" => {
            if let Some(text) = a.as_str() {
                let operands = if b.kind() == ValueKind::Seq { b.try_iter()?.collect() } else { vec![b] };
                return formatted(budget, FormatStyle::Printf, text, &operands);
            }
        }
        "~" => {
            for operand in [&mut a, &mut b] {
                if operand.as_str().is_none() {
                    *operand = Value::from(budget.text(operand)?);
                }
            }
            budget.charge(length(&a) + length(&b))?;
        }
        _ => {}
    }
    let result = expression.eval(context! { a, b, c => operand(2), d => operand(3) })?;
    if name != "[:]" {
        return Ok(result);
    }
    // A backward slice would be collected again at every access.
    let is_reversed = result.kind() == ValueKind::Iterable && operand(3).as_i64().is_some_and(|step| step < 0);
    budget.settle(if is_reversed { result.try_iter()?.collect() } else { result })
}

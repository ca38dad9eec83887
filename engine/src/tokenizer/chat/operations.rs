//! Operators and displays (`[..]`, `{..}`) as functions that ask the budget first. What they compute is the template
//! library's own: each operator is a one-operator expression, evaluated there.

use std::sync::LazyLock;

use minijinja::{
    Environment, Error, Expression, Value, context,
    formatting::FormatStyle,
    value::{Tuple, ValueKind},
};

use super::{
    budget::{Budget, refused},
    text_methods::formatted,
};

/// An operation by the name under which compiled templates call it. No template can write such a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The operator.
    pub name: &'static str,
    expression: &'static str,
}

/// All operations that can make data grow or walk through all of it.
pub const ALL: &[Operation] = &[
    ADD,
    MULTIPLY,
    REMAINDER,
    CONCATENATE,
    IN,
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_OR_EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    SLICE,
    LIST,
    TUPLE,
    MAP,
];

/// `a + b`
pub const ADD: Operation = Operation { name: "+", expression: "a + b" };
/// `a * b`
pub const MULTIPLY: Operation = Operation { name: "*", expression: "a * b" };
/// `a % b`
pub const REMAINDER: Operation = Operation { name: "%", expression: "a % b" };
/// `a ~ b`
pub const CONCATENATE: Operation = Operation { name: "~", expression: "a ~ b" };
/// Containment.
pub const IN: Operation = Operation { name: "<in>", expression: "a in b" };
/// `a == b`
pub const EQUAL: Operation = Operation { name: "==", expression: "a == b" };
/// `a != b`
pub const NOT_EQUAL: Operation = Operation { name: "!=", expression: "a != b" };
/// `a < b`
pub const LESS: Operation = Operation { name: "<", expression: "a < b" };
/// `a <= b`
pub const LESS_OR_EQUAL: Operation = Operation { name: "<=", expression: "a <= b" };
/// `a > b`
pub const GREATER: Operation = Operation { name: ">", expression: "a > b" };
/// `a >= b`
pub const GREATER_OR_EQUAL: Operation = Operation { name: ">=", expression: "a >= b" };
/// Part of a sequence: from, to, step.
pub const SLICE: Operation = Operation { name: "[:]", expression: "a[b:c:d]" };
/// A list of the operands.
pub const LIST: Operation = Operation { name: "[]", expression: "" };
/// A tuple of the operands.
pub const TUPLE: Operation = Operation { name: "()", expression: "" };
/// A map of keys and values by turns.
pub const MAP: Operation = Operation { name: "{}", expression: "" };

/// The widest a sequence may become.
const ELEMENTS: usize = 10_000;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);

impl Operation {
    /// The operation as a function of its operands.
    pub fn function(self) -> Result<impl Fn(&Budget, &[Value]) -> Result<Value, Error> + Send + Sync + 'static, Error> {
        let expression = match self.expression {
            "" => None,
            expression => Some(ENVIRONMENT.compile_expression(expression)?),
        };
        Ok(move |budget: &Budget, operands: &[Value]| {
            budget.admit(operands)?;
            match &expression {
                Some(expression) => self.evaluate(expression, budget, operands),
                None => {
                    budget.charge_elements(operands.len())?;
                    Ok(self.display(operands))
                }
            }
        })
    }

    fn evaluate(
        self,
        expression: &Expression<'static, 'static>,
        budget: &Budget,
        operands: &[Value],
    ) -> Result<Value, Error> {
        let operand = |at: usize| operands.get(at).cloned().unwrap_or_default();
        let (mut a, mut b) = (operand(0), operand(1));
        let elements = |value: &Value| if value.as_str().is_some() { 0 } else { value.len().unwrap_or(0) };
        match self {
            ADD => {
                if elements(&a).saturating_add(elements(&b)) > ELEMENTS {
                    return Err(refused("its lists are too long"));
                }
                budget.charge(a.as_str().map_or(0, str::len) + b.as_str().map_or(0, str::len))?;
            }
            MULTIPLY => {
                let times = a.as_usize().or(b.as_usize()).unwrap_or(0);
                let text = a.as_str().or(b.as_str()).map_or(0, str::len);
                if elements(&a).max(elements(&b)).saturating_mul(times) > ELEMENTS {
                    return Err(refused("its lists are too long"));
                }
                budget.charge(text.saturating_mul(times))?;
            }
            REMAINDER => {
                if let Some(text) = a.as_str() {
                    let operands = match b.kind() {
                        ValueKind::Seq => b.try_iter()?.collect(),
                        _ => vec![b],
                    };
                    return formatted(budget, FormatStyle::Printf, text, &operands);
                }
            }
            CONCATENATE => {
                for operand in [&mut a, &mut b] {
                    if operand.as_str().is_none() {
                        *operand = Value::from(budget.text(operand)?);
                    }
                }
                budget.charge(a.as_str().map_or(0, str::len) + b.as_str().map_or(0, str::len))?;
            }
            _ => {}
        }
        let result = expression.eval(context! { a, b, c => operand(2), d => operand(3) })?;
        if self == SLICE { budget.settle(result) } else { Ok(result) }
    }

    fn display(self, operands: &[Value]) -> Value {
        match self {
            MAP => Value::from_pairs(operands.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()))),
            TUPLE => Value::from(Tuple::from(operands.to_vec())),
            _ => Value::from(operands.to_vec()),
        }
    }
}

//! The arguments of a call in a template, by position or by name.

use minijinja::{
    Error, Value,
    value::{Kwargs, Rest},
};

use super::budget::{Budget, refused};

/// The arguments after the first, read in the order of the function's parameters.
#[derive(Debug)]
pub struct Arguments {
    operands: std::vec::IntoIter<Value>,
    options: Kwargs,
}

impl Arguments {
    /// The arguments of a call.
    pub fn new(operands: Rest<Value>, options: Kwargs) -> Self {
        Arguments { operands: operands.0.into_iter(), options }
    }

    /// The next parameter, called `name`; `None` if it is missing or none.
    pub fn next(&mut self, name: &str) -> Result<Option<Value>, Error> {
        let given = match self.operands.next() {
            Some(operand) => Some(operand),
            None => self.options.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    }

    /// The next parameter as an integer.
    pub fn number(&mut self, name: &str, default: i64) -> Result<i64, Error> {
        match self.next(name)? {
            None => Ok(default),
            Some(value) => i64::try_from(value).map_err(|_| refused("an argument is not an integer")),
        }
    }

    /// The next parameter as a condition.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, Error> {
        Ok(self.next(name)?.map_or(default, |value| value.is_true()))
    }

    /// The next parameter as a text.
    pub fn text(&mut self, budget: &Budget, name: &str, default: &str) -> Result<String, Error> {
        match self.next(name)? {
            None => Ok(default.to_owned()),
            Some(value) => budget.text(&value),
        }
    }

    /// Checks that no further arguments were given.
    pub fn end(mut self) -> Result<(), Error> {
        match self.operands.next() {
            Some(_) => Err(refused("there are too many arguments")),
            None => self.options.assert_all_used(),
        }
    }
}

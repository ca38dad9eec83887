//! Built-in tools: a calculator and a clock. They read no user data and change nothing.

use serde_json::{Map, Value, json};

use super::{Tool, calculator, clock};

/// A built-in tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// Arithmetic.
    Calculator,
    /// Date and time.
    Clock,
}

impl Builtin {
    /// All built-in tools.
    pub const ALL: [Builtin; 2] = [Builtin::Calculator, Builtin::Clock];

    /// The definition of the tool.
    pub fn tool(self) -> Tool {
        let (name, description, schema) = match self {
            Builtin::Calculator => (
                "calculator",
                "Evaluates an expression with exact fractions, large numbers and units. Knows + - * / ^ mod, parentheses, sqrt, abs, \
                 floor, ceil, round, ln, log10, exp, sin, cos, tan, pi and e; converts as in 5 km to miles.",
                json!({
                    "type": "object",
                    "properties": { "expression": { "type": "string", "description": "For example (2 + 3) * 4^2" } },
                    "required": ["expression"],
                }),
            ),
            Builtin::Clock => {
                ("clock", "The present date and time, local and UTC.", json!({ "type": "object", "properties": {} }))
            }
        };
        Tool { name: name.to_owned(), description: description.to_owned(), schema }
    }

    /// Runs the tool and returns its result.
    ///
    /// # Errors
    /// A sentence for the model.
    pub fn run(self, arguments: &Map<String, Value>) -> Result<String, String> {
        match self {
            Builtin::Calculator => match arguments.get("expression") {
                Some(Value::String(expression)) => calculator::evaluate(expression),
                Some(Value::Number(number)) => Ok(number.to_string()),
                other => {
                    let got = other.map_or("nothing".to_owned(), Value::to_string);
                    Err(format!("`expression`: expected a text like \"2 + 3\", got {got}"))
                }
            },
            Builtin::Clock => Ok(clock::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_tools_answer_and_say_what_they_expect() {
        let run = |tool: Builtin, arguments: Value| tool.run(arguments.as_object().unwrap());
        assert_eq!(run(Builtin::Calculator, json!({ "expression": "6*7" })).unwrap(), "42");
        assert!(run(Builtin::Calculator, json!({})).unwrap_err().contains("expected a text"));
        assert!(run(Builtin::Clock, json!({})).unwrap().contains("UTC: 2"));
        for tool in Builtin::ALL {
            assert!(tool.tool().is_offerable(), "{tool:?}");
        }
    }
}

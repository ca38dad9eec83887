//! Arguments that no parameter of a macro takes. Jinja has them as `varargs` and `kwargs` in macros that name these; the template library
//! refuses them. In compiled templates such a macro gets both as parameters behind its own, and callers an object that fills them.

use std::{fmt, sync::Arc};

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    machinery::{Instruction, Instructions},
    value::{Enumerator, Kwargs, Object, Rest, Tuple, from_args},
};

use super::budget::{Budget, refused};

/// Arguments by position that no parameter takes.
const BY_POSITION: &str = "varargs";
/// Arguments by name that no parameter takes.
const BY_NAME: &str = "kwargs";
/// Name under which compiled templates make a macro take all arguments. No template can write it.
const FILTER: &str = "<macro>";

/// A macro of a compiled template that names arguments which no parameter takes.
#[derive(Debug)]
pub struct CatchingMacro {
    /// Instruction that loads the names of its parameters.
    pub parameters: usize,
    /// First instruction of its body.
    pub body: usize,
    /// Instruction that makes it.
    pub built: usize,
    /// Those of `varargs` and `kwargs` that it names.
    pub caught: Vec<&'static str>,
}

impl CatchingMacro {
    /// All macros of `program` that are such.
    pub fn find(program: &Instructions<'_>) -> Vec<Self> {
        let all: Vec<&Instruction<'_>> = (0..).map_while(|at| program.get(at)).collect();
        let macros = all.iter().enumerate().filter_map(|(built, instruction)| {
            let Instruction::BuildMacro(_, body, _) = instruction else { return None };
            // In front of it are the names of its parameters, its closure, and the variables that it takes into that.
            let enclosed = all[..built.saturating_sub(2)].iter().rev().map_while(|instruction| match instruction {
                Instruction::Enclose(name) => Some(*name),
                _ => None,
            });
            let enclosed: Vec<&str> = enclosed.collect();
            let caught: Vec<_> = [BY_POSITION, BY_NAME].into_iter().filter(|name| enclosed.contains(name)).collect();
            let (parameters, body) = (built.checked_sub(1)?, *body as usize);
            (!caught.is_empty()).then_some(CatchingMacro { parameters, body, built, caught })
        });
        macros.collect()
    }

    /// The names of all its parameters, `own` being those of its declaration.
    pub fn parameters_with(&self, own: &Value) -> Value {
        let own = own.try_iter().into_iter().flatten();
        own.chain(self.caught.iter().copied().map(Value::from)).collect()
    }

    /// The instructions behind the one that makes it, by which callers can give it all arguments.
    pub fn wrap<'a>(&self) -> [Instruction<'a>; 2] {
        // The last slot means that the looked-up function is not kept.
        [Instruction::LoadConst(self.caught.len().into()), Instruction::ApplyFilter(FILTER, Some(2), u8::MAX)]
    }
}

/// Adds to the environment what compiled templates make of such macros.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter(FILTER, move |of: Value, caught: usize| {
        AllArguments::new(of, caught, &own).map(Value::from_object)
    });
}

/// Such a macro, called with arguments of any number and name.
struct AllArguments {
    of: Value,
    /// Names of the parameters of its declaration.
    parameters: Vec<String>,
    /// Those of `varargs` and `kwargs` that it names.
    caught: Vec<String>,
    /// True if it asks for what a call block has.
    calls: bool,
    budget: Arc<Budget>,
}

impl AllArguments {
    /// The macro `of`, whose last `caught` parameters are these.
    fn new(of: Value, caught: usize, budget: &Arc<Budget>) -> Result<Self, Error> {
        let names = of.get_attr("arguments")?;
        let mut parameters: Vec<String> = names.try_iter()?.map(|name| name.to_string()).collect();
        let caught = parameters.split_off(parameters.len().saturating_sub(caught));
        let calls = of.get_attr("caller")?.is_true();
        Ok(AllArguments { of, parameters, caught, calls, budget: Arc::clone(budget) })
    }

    fn catches(&self, name: &str) -> bool {
        self.caught.iter().any(|caught| caught == name)
    }
}

impl fmt::Debug for AllArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)
    }
}

impl Object for AllArguments {
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&["name", "arguments", "caller", "catch_kwargs", "catch_varargs"])
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "arguments" => Some(self.parameters.iter().map(String::as_str).collect()),
            "catch_varargs" => Some(self.catches(BY_POSITION).into()),
            "catch_kwargs" => Some(self.catches(BY_NAME).into()),
            name => self.of.get_attr(name).ok().filter(|value| !value.is_undefined()),
        }
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (operands, options): (Rest<Value>, Kwargs) = from_args(args)?;
        let mut operands = operands.0;
        let rest = operands.split_off(operands.len().min(self.parameters.len()));
        let (mut named, mut others) = (Vec::new(), Vec::new());
        for name in options.args() {
            let own = self.parameters.iter().any(|parameter| parameter == name) || (name == "caller" && self.calls);
            let list = if own { &mut named } else { &mut others };
            list.push((name.to_owned(), options.get::<Value>(name)?));
        }
        self.budget.charge_elements(rest.len() + others.len())?;
        if self.catches(BY_POSITION) {
            named.push((BY_POSITION.to_owned(), Tuple::from(rest).into()));
        } else if !rest.is_empty() {
            return Err(refused("a macro is given too many arguments"));
        }
        if self.catches(BY_NAME) {
            named.push((BY_NAME.to_owned(), Value::from_pairs(others)));
        } else if let Some((name, _)) = others.first() {
            return Err(Error::new(ErrorKind::TooManyArguments, format!("a macro takes no argument `{name}`")));
        }
        operands.push(named.into_iter().collect::<Kwargs>().into());
        self.of.call(state, &operands)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)
    }
}

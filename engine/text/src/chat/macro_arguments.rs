//! Passes macro arguments as Jinja does, where the template library differs.
//!
//! The library refuses arguments that no parameter takes. In Jinja, macros that name `varargs` and
//! `kwargs` receive them there. Compiled templates therefore give such a macro both names as
//! additional last parameters, and give callers an object that fills them. The library also
//! computes the last default first, so a default that names an earlier argument is moved after all
//! others.

use std::{fmt, sync::Arc};

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    machinery::Instruction,
    value::{Enumerator, Kwargs, Object, Rest, Tuple, from_args},
};

use super::{
    budget::{Budget, refused},
    sandbox::{Guarded, call},
};

/// Positional arguments that no parameter takes.
const BY_POSITION: &str = "varargs";
/// Named arguments that no parameter takes.
const BY_NAME: &str = "kwargs";
/// Name of the filter with which compiled templates make a macro take all arguments. No template
/// can write this name.
const FILTER: &str = "<macro>";

/// The instructions that set one parameter of a macro. With a default, they compute its value if
/// the argument is missing. The last instruction stores the variable.
struct MacroParameter<'a> {
    name: &'a str,
    first: usize,
    last: usize,
}

/// Changes the macros of `program` in its guarded form.
pub fn pass_as_jinja<'a>(program: &[&Instruction<'a>], guarded: &mut Guarded<'a>) {
    for (built, instruction) in program.iter().enumerate() {
        let Instruction::BuildMacro(_, body, _) = instruction else { continue };
        // The preceding instructions load the names of its parameters, its closure, and the
        // variables that the closure captures.
        let Some(Instruction::LoadConst(own)) = built.checked_sub(1).map(|at| program[at]) else { continue };
        let enclosed = program[..built.saturating_sub(2)].iter().rev().map_while(|instruction| match instruction {
            Instruction::Enclose(name) => Some(*name),
            _ => None,
        });
        let enclosed: Vec<&str> = enclosed.collect();
        let caught: Vec<_> = [BY_POSITION, BY_NAME].into_iter().filter(|name| enclosed.contains(name)).collect();
        move_defaults(program, *body as usize, own.len().unwrap_or(0), &caught, guarded);
        if !caught.is_empty() {
            let own = own.try_iter().into_iter().flatten();
            let all: Value = own.chain(caught.iter().copied().map(Value::from)).collect();
            guarded.groups[built - 1] = vec![Instruction::LoadConst(all)];
            guarded.groups[built].extend([Instruction::LoadConst(caught.len().into()), call(FILTER, Some(2))]);
        }
    }
}

/// Reorders the macro whose instructions begin at `body`. It first stores its `caught` arguments
/// and the arguments whose defaults name an earlier one, and computes these defaults last.
fn move_defaults<'a>(
    program: &[&Instruction<'a>],
    body: usize,
    parameters: usize,
    caught: &[&'static str],
    guarded: &mut Guarded<'a>,
) {
    // Parameters are stored in reverse order.
    let (mut at, mut all) = (body, Vec::new());
    while all.len() < parameters {
        let last = match program[at..] {
            [Instruction::DupTop, Instruction::IsUndefined, Instruction::JumpIfFalse(store), ..] => *store as usize,
            _ => at,
        };
        let Instruction::StoreLocal(name) = program[last] else { return };
        all.push(MacroParameter { name, first: at, last });
        at = last + 1;
    }
    let mut stores: Vec<_> = caught.iter().rev().copied().map(Instruction::StoreLocal).collect();
    let (mut kept, mut moved) = (Vec::new(), Vec::new());
    for (number, &MacroParameter { name, first, last }) in all.iter().enumerate() {
        let is_earlier = |name: &str| all[number + 1..].iter().any(|earlier| earlier.name == name);
        let depends = program[first..last].iter().any(|instruction| match instruction {
            Instruction::Lookup(name) | Instruction::CallFunction(name, _) => is_earlier(name),
            _ => false,
        });
        if depends {
            stores.push(Instruction::StoreLocal(name));
            guarded.groups[first].insert(0, Instruction::Lookup(name));
            moved.splice(0..0, first..=last);
        } else {
            guarded.groups[first].splice(0..0, stores.drain(..));
            kept.extend(first..=last);
        }
    }
    let next = moved.first().copied().unwrap_or(at);
    guarded.groups[next].splice(0..0, stores);
    guarded.order.splice(body..at, kept.into_iter().chain(moved));
}

/// Adds the filter that turns such macros into objects.
pub fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let own = Arc::clone(budget);
    environment.add_filter(FILTER, move |of: Value, caught: usize| {
        AllArguments::new(of, caught, &own).map(Value::from_object)
    });
}

/// A macro that can be called with any number of arguments and any names.
struct AllArguments {
    of: Value,
    /// Parameter names of its declaration.
    parameters: Vec<String>,
    /// Which of the variables `varargs` and `kwargs` the macro names.
    caught: Vec<String>,
    /// True if the macro uses the body of a call block.
    calls: bool,
    budget: Arc<Budget>,
}

impl AllArguments {
    /// Wraps the macro `of`, whose last `caught` parameters are `varargs` or `kwargs`.
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

//! Runs templates within a budget.

use std::{fmt::Write, sync::Arc};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value,
    machinery::{CompiledTemplate, Instruction, Instructions, eval, get_compiled_template, make_string_output},
    syntax::SyntaxConfig,
};

use super::{
    budget::{Budget, refused},
    filters,
    macro_arguments::pass_as_jinja,
    operations,
    scan::scan,
};

/// Largest number of steps of a rendering.
const STEPS: u64 = 300_000;
/// Longest template source, in bytes.
const SOURCE: usize = 128 << 10;
/// Largest number of blocks, because a macro call inspects all of them.
const BLOCKS: usize = 100;
/// Deepest nesting of macro calls.
const RECURSION: usize = 100;
/// Stack bytes. The library recurses on nested expressions and data, and its own limits fit this
/// stack.
const STACK: usize = 16 << 20;
/// Name of a template in messages.
const NAME: &str = "template";

/// A template compiled once for all renderings, or the error of compiling it.
#[derive(Debug, Clone)]
pub struct Program(Result<Environment<'static>, String>);

impl Program {
    /// Compiles `source`.
    pub fn compile(source: &str) -> Self {
        if source.len() > SOURCE {
            return Program(Err(format!("the source has {} bytes, but at most {SOURCE} are accepted", source.len())));
        }
        Program(on_large_stack(|| {
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
            let source = scan(&without_generation_tags(source), &syntax)?.into_owned();
            let mut environment = Environment::empty();
            environment.set_syntax(syntax);
            environment.add_template_owned(NAME, source)?;
            Ok(environment)
        }))
    }

    /// Renders the template with `context`, which holds `input` bytes of text. The error says what
    /// failed, and where.
    pub fn render(&self, context: &Value, input: usize) -> Result<String, String> {
        let compiled = self.0.as_ref().map_err(String::clone)?;
        on_large_stack(|| {
            let template = compiled.get_template(NAME)?;
            let CompiledTemplate { instructions, blocks, .. } = get_compiled_template(&template);
            if blocks.len() > BLOCKS {
                return Err(refused("the template has too many blocks"));
            }
            let program = guarded(instructions)?;
            let blocks = blocks.iter().map(|(name, block)| Ok::<_, Error>((*name, guarded(block)?)));
            let blocks = blocks.collect::<Result<_, _>>()?;
            let environment = environment(&Arc::new(Budget::new(input)))?;
            let mut text = String::new();
            let mut output = make_string_output(&mut text);
            eval(&environment, &program, context.clone(), &blocks, &mut output, AutoEscape::None)?;
            drop(output);
            Ok(text)
        })
    }
}

/// Runs `work` on a thread with a stack that is large enough for the library's recursion.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
        let work = || work().map_err(|error| describe(&error));
        match thread.spawn_scoped(scope, work).map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the template library failed".to_owned()),
            Err(error) => Err(format!("the thread that renders the template did not start: {error}")),
        }
    })
}

fn environment<'a>(budget: &Arc<Budget>) -> Result<Environment<'a>, Error> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(STEPS));
    environment.set_recursion_limit(RECURSION);
    operations::install(&mut environment, budget)?;
    filters::install(&mut environment, budget);
    let emitted = Arc::clone(budget);
    environment.set_formatter(move |output, _, value| match value.as_str() {
        Some(text) => {
            emitted.charge(text.len())?;
            output.write_str(text).map_err(Error::from)
        }
        None if value.is_undefined() => Ok(()),
        None => output.write_str(&emitted.text(value)?).map_err(Error::from),
    });
    Ok(environment)
}

/// A program that is rewritten to create only bounded data.
pub struct Guarded<'a> {
    /// The instructions that replace each instruction.
    pub groups: Vec<Vec<Instruction<'a>>>,
    /// The order of the groups.
    pub order: Vec<usize>,
}

/// A call of the operation `name` with this number of operands; `None` if the stack holds the
/// number.
pub fn call(name: &str, operands: Option<u16>) -> Instruction<'_> {
    // The last slot means that the function lookup is not cached.
    Instruction::ApplyFilter(name, operands, u8::MAX)
}

/// Replaces operations of the program by calls of [`operations`]. Literal text is emitted like any
/// other value, so that all output passes the formatter.
fn guarded<'a>(program: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let all: Vec<&Instruction<'a>> = (0..).map_while(|at| program.get(at)).collect();
    let groups = all.iter().map(|instruction| guards(instruction)).collect::<Result<Vec<_>, Error>>()?;
    let mut guarded = Guarded { order: (0..groups.len()).collect(), groups };
    pass_as_jinja(&all, &mut guarded);

    let (mut position, mut next) = (vec![0; all.len()], 0);
    for &at in &guarded.order {
        position[at] = next;
        next += guarded.groups[at].len() as u32;
    }
    let moved = |target: u32| position.get(target as usize).copied().unwrap_or(next);
    let mut result = Instructions::new(program.name(), program.source());
    for at in guarded.order {
        let line = program.get_line(at as u32).and_then(|line| u16::try_from(line).ok()).unwrap_or_default();
        for instruction in std::mem::take(&mut guarded.groups[at]) {
            let instruction = match instruction {
                Instruction::Iterate(target) => Instruction::Iterate(moved(target)),
                Instruction::Jump(target) => Instruction::Jump(moved(target)),
                Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(target)),
                Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(moved(target)),
                Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(moved(target)),
                // A macro starts after a jump over it, and the jump stays in place.
                Instruction::BuildMacro(name, body, flags) => Instruction::BuildMacro(name, moved(body - 1) + 1, flags),
                other => other,
            };
            result.add_with_line(instruction, line);
        }
    }
    Ok(result)
}

/// The replacement of one instruction. Instructions that create data or walk through it check the
/// budget first.
fn guards<'a>(instruction: &Instruction<'a>) -> Result<Vec<Instruction<'a>>, Error> {
    use Instruction as Of;
    let of_elements = |name, elements: Option<usize>, each: usize| match elements.map(|count| count * each) {
        None => Ok(call(name, None)),
        Some(operands) => match u16::try_from(operands) {
            Ok(operands) => Ok(call(name, Some(operands))),
            Err(_) => Err(refused("a list of the template is too long")),
        },
    };
    Ok(match *instruction {
        Of::EmitRaw(text) => vec![Of::LoadConst(Value::from(text)), Of::Emit],
        Of::Add => vec![call("+", Some(2))],
        Of::Mul => vec![call("*", Some(2))],
        Of::Rem => vec![call("%", Some(2))],
        Of::StringConcat => vec![call("~", Some(2))],
        Of::In => vec![call("<in>", Some(2))],
        Of::Eq => vec![call("==", Some(2))],
        Of::Ne => vec![call("!=", Some(2))],
        Of::Lt => vec![call("<", Some(2))],
        Of::Lte => vec![call("<=", Some(2))],
        Of::Gt => vec![call(">", Some(2))],
        Of::Gte => vec![call(">=", Some(2))],
        Of::Slice => vec![call("[:]", Some(4))],
        Of::GetItem => vec![call("[.]", Some(2))],
        Of::BuildList(elements) => vec![of_elements("[]", elements, 1)?],
        Of::BuildTuple(elements) => vec![of_elements("()", elements, 1)?],
        Of::BuildMap(pairs) => vec![of_elements("{}", Some(pairs), 2)?],
        Of::UnpackLists(lists) => vec![of_elements("[*]", Some(lists), 1)?, Of::UnpackLists(1)],
        Of::MergeKwargs(maps) => vec![of_elements("{*}", Some(maps), 1)?, Of::MergeKwargs(1)],
        Of::PushLoop(_) | Of::FastRecurse | Of::CallFunction("loop", Some(1)) => {
            vec![call("<for>", Some(1)), instruction.clone()]
        }
        Of::CallMethod("changed", operands) => vec![call("<changed>", operands)],
        Of::CompareAndPreserve(_) => return Err(refused("chained comparisons are not supported")),
        Of::Include(_) | Of::LoadBlocks => return Err(refused("templates cannot include other templates")),
        _ if passes(instruction) => vec![instruction.clone()],
        _ => return Err(refused("the template has an unknown instruction")),
    })
}

/// True for instructions that neither create data nor walk through it, and for calls that check the
/// budget themselves.
fn passes(instruction: &Instruction<'_>) -> bool {
    use Instruction as Of;
    let variables = matches!(instruction, Of::StoreLocal(_) | Of::Lookup(_) | Of::Enclose(_) | Of::GetClosure);
    let items = matches!(instruction, Of::GetAttr(_) | Of::SetAttr(_) | Of::UnpackList(_) | Of::BuildKwargs(_));
    let numbers = matches!(instruction, Of::Sub | Of::Div | Of::IntDiv | Of::Pow | Of::Neg | Of::Not | Of::IsUndefined);
    let stack = matches!(instruction, Of::LoadConst(_) | Of::DupTop | Of::DiscardTop | Of::Swap);
    let calls = matches!(
        instruction,
        Of::ApplyFilter(..) | Of::PerformTest(..) | Of::CallFunction(..) | Of::CallMethod(..) | Of::CallObject(_)
    );
    let blocks = matches!(instruction, Of::CallBlock(_) | Of::FastSuper | Of::BuildMacro(..) | Of::Return);
    let jumps = matches!(
        instruction,
        Of::Jump(_) | Of::JumpIfFalse(_) | Of::JumpIfFalseOrPop(_) | Of::JumpIfTrueOrPop(_) | Of::Iterate(_)
    );
    let frames = matches!(instruction, Of::PushDidNotIterate | Of::PopLoopFrame | Of::PushWith | Of::PopFrame);
    let output =
        matches!(instruction, Of::Emit | Of::BeginCapture(_) | Of::EndCapture | Of::PushAutoEscape | Of::PopAutoEscape);
    variables || items || numbers || stack || calls || blocks || jumps || frames || output
}

/// Replaces `{% generation %}`, which marks the parts to train on, by a condition that is always
/// true.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        result.push_str(before);
        result.push_str("{%");
        rest = tag;
        let Some((inside, _)) = tag.split_once("%}") else { continue };
        let word = inside.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        result.push_str(&inside.replace(word, replacement));
        rest = &tag[inside.len()..];
    }
    result.push_str(rest);
    result
}

fn describe(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => format!("the template takes more than {STEPS} steps"),
        _ => error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
    };
    if let Some(line) = error.line() {
        // Writing to a string cannot fail.
        let _ = write!(text, " (line {line})");
    }
    text
}

/// Calls `call` and checks the budget before and after it.
pub fn bounded(
    budget: &Budget,
    state: &mut State,
    operands: &[Value],
    call: impl FnOnce(&mut State) -> Result<Value, Error>,
) -> Result<Value, Error> {
    budget.admit(operands)?;
    let result = call(state)?;
    budget.settle(result)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod timing;

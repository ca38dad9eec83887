//! Runs one template under a budget.

use std::{fmt::Write, sync::Arc};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value,
    machinery::{CodeGenerator, Instruction, Instructions, eval, make_string_output, parse},
    syntax::SyntaxConfig,
    value::Rest,
};

use super::{
    budget::{Budget, refused},
    filters,
    macro_arguments::CatchingMacro,
    macro_defaults::with_moved_defaults,
    operations::{self, Operation},
    scan::scan,
};

/// Steps a rendering may take.
const STEPS: u64 = 300_000;
/// Length of a template's source, in bytes.
const SOURCE: usize = 128 << 10;
/// Nesting of macro calls.
const RECURSION: usize = 100;
/// The library recurses on the nesting of expressions and of data; its own limits fit this stack.
const STACK: usize = 16 << 20;
/// The name templates have in messages.
const NAME: &str = "template";

/// Renders `source` with `context`, which holds `input` bytes of text. The error says what the template did, and where.
pub fn render(source: &str, context: &Value, input: usize) -> Result<String, String> {
    if source.len() > SOURCE {
        return Err(format!("{} bytes of source, at most {SOURCE} are accepted", source.len()));
    }
    let source = without_generation_tags(source);
    let run = || run(&source, context.clone(), input).map_err(|error| describe(&error));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
        match thread.spawn_scoped(scope, run).map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the template library failed".to_owned()),
            Err(error) => Err(format!("no thread to render on: {error}")),
        }
    })
}

fn run(source: &str, context: Value, input: usize) -> Result<String, Error> {
    let budget = Arc::new(Budget::new(input));
    let mut text = String::new();
    let environment = environment(&budget)?;
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let source = with_moved_defaults(source, &syntax)?;
    let source = scan(&source, &syntax)?;
    let tree = parse(&source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, &source);
    generator.compile_stmt(&tree);
    let (program, blocks) = generator.finish();
    let program = guarded(&program)?;
    let mut guarded_blocks = std::collections::BTreeMap::new();
    for (name, block) in &blocks {
        guarded_blocks.insert(*name, guarded(block)?);
    }
    let mut output = make_string_output(&mut text);
    eval(&environment, &program, context, &guarded_blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(text)
}

fn environment<'a>(budget: &Arc<Budget>) -> Result<Environment<'a>, Error> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(STEPS));
    environment.set_recursion_limit(RECURSION);
    for &operation in operations::ALL {
        let (function, budget) = (operation.function()?, Arc::clone(budget));
        environment.add_filter(operation.name, move |operands: Rest<Value>| function(&budget, &operands));
    }
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

/// The program with calls in place of the operations of [`operations`], and with its literal text emitted like any
/// other value, so that all output passes the formatter.
fn guarded<'a>(program: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let instructions = || (0..).map_while(|at| program.get(at).map(|instruction| (at, instruction)));
    let macros = CatchingMacro::find(program);
    let position = positions(program, &macros);
    let moved = |target: u32| position.get(target as usize).or(position.last()).copied().unwrap_or_default();

    let mut result = Instructions::new(program.name(), program.source());
    let call = |operation: Operation, operands: Option<u16>| {
        // The last slot means that the looked-up function is not kept.
        Instruction::ApplyFilter(operation.name, operands, u8::MAX)
    };
    let count = |elements: Option<usize>, each: usize| match elements {
        None => Ok(None),
        Some(elements) => match u16::try_from(elements * each) {
            Ok(operands) => Ok(Some(operands)),
            Err(_) => Err(refused("a list in it is too long")),
        },
    };
    for (at, instruction) in instructions() {
        let line = program.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or_default();
        for of in macros.iter().filter(|of| of.body == at as usize) {
            for name in of.caught.iter().rev() {
                result.add_with_line(Instruction::StoreLocal(name), line);
            }
        }
        let replacement = match *instruction {
            Instruction::EmitRaw(text) => {
                result.add_with_line(Instruction::LoadConst(Value::from(text)), line);
                Instruction::Emit
            }
            Instruction::Add => call(operations::ADD, Some(2)),
            Instruction::Mul => call(operations::MULTIPLY, Some(2)),
            Instruction::Rem => call(operations::REMAINDER, Some(2)),
            Instruction::StringConcat => call(operations::CONCATENATE, Some(2)),
            Instruction::In => call(operations::IN, Some(2)),
            Instruction::Eq => call(operations::EQUAL, Some(2)),
            Instruction::Ne => call(operations::NOT_EQUAL, Some(2)),
            Instruction::Lt => call(operations::LESS, Some(2)),
            Instruction::Lte => call(operations::LESS_OR_EQUAL, Some(2)),
            Instruction::Gt => call(operations::GREATER, Some(2)),
            Instruction::Gte => call(operations::GREATER_OR_EQUAL, Some(2)),
            Instruction::Slice => call(operations::SLICE, Some(4)),
            Instruction::BuildList(elements) => call(operations::LIST, count(elements, 1)?),
            Instruction::BuildTuple(elements) => call(operations::TUPLE, count(elements, 1)?),
            Instruction::BuildMap(pairs) => call(operations::MAP, count(Some(pairs), 2)?),
            Instruction::CompareAndPreserve(_) => return Err(refused("chained comparisons are not available")),
            Instruction::Include(_) | Instruction::LoadBlocks => return Err(refused("there are no other templates")),
            Instruction::Iterate(target) => Instruction::Iterate(moved(target)),
            Instruction::Jump(target) => Instruction::Jump(moved(target)),
            Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(target)),
            Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(moved(target)),
            Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(moved(target)),
            Instruction::LoadConst(ref own) => match macros.iter().find(|of| of.parameters == at as usize) {
                Some(of) => Instruction::LoadConst(of.parameters_with(own)),
                None => instruction.clone(),
            },
            Instruction::BuildMacro(name, target, flags) => match macros.iter().find(|of| of.built == at as usize) {
                Some(of) => {
                    let body = moved(target) - of.caught.len() as u32;
                    let [count, wrapped] = of.wrap();
                    result.add_with_line(Instruction::BuildMacro(name, body, flags), line);
                    result.add_with_line(count, line);
                    wrapped
                }
                None => Instruction::BuildMacro(name, moved(target), flags),
            },
            ref other => other.clone(),
        };
        result.add_with_line(replacement, line);
    }
    Ok(result)
}

/// Where the instructions of `program` are in the guarded one, and the end of that. A macro that catches arguments begins with storing
/// them, in front of its own first instruction.
fn positions(program: &Instructions<'_>, macros: &[CatchingMacro]) -> Vec<u32> {
    let (mut position, mut next) = (Vec::new(), 0);
    for at in 0_usize.. {
        let Some(instruction) = u32::try_from(at).ok().and_then(|at| program.get(at)) else { break };
        next += macros.iter().filter(|of| of.body == at).map(|of| of.caught.len() as u32).sum::<u32>();
        position.push(next);
        next += match instruction {
            Instruction::BuildMacro(..) if macros.iter().any(|of| of.built == at) => 3,
            Instruction::EmitRaw(_) => 2,
            _ => 1,
        };
    }
    position.push(next);
    position
}

/// Replaces `{% generation %}`, with which templates mark the parts to train on, by a condition that always holds.
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
        ErrorKind::OutOfFuel => format!("it takes more than {STEPS} steps"),
        _ => error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
    };
    if let Some(line) = error.line() {
        // Writing to a string cannot fail.
        let _ = write!(text, " (line {line})");
    }
    text
}

/// Result of `call`, checked against the budget before and after.
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
mod timing;

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    pub(super) fn rendered(source: &str) -> Result<String, String> {
        let messages = [("user", "Hello"), ("assistant", " Hi! "), ("user", "Bye, now")]
            .map(|(role, content)| context! { role, content });
        render(source, &context! { messages, bos_token => "<s>", eos_token => "</s>", tools => () }, 100)
    }

    /// Each line is a construct of published templates and what Jinja makes of it.
    #[test]
    fn templates_render_as_in_jinja() {
        let cases = [
            ("{{ ' a '.strip() }}|{{ 'xax'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}", "a|a|a | a"),
            ("{{ 'a</think>b'.split('</think>')[-1] }}|{{ 'a b'.split() | length }}", "b|2"),
            ("{% for m in messages[1:] %}{{ m['content'] | trim }},{% endfor %}", "Hi!,Bye, now,"),
            ("{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[0] }}{% endfor %}", "0u1a2u"),
            (
                "{% for m in messages %}{{ loop.index }}{{ '!' if loop.last }}{{ '^' if loop.first }}{% endfor %}",
                "1^23!",
            ),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "3",
            ),
            ("{% if tools is defined and tools is not none %}t{% else %}n{% endif %}{{ x is defined }}", "nFalse"),
            ("{% if not x is defined %}u{% endif %}{{ x | default('d') }}{{ '' | default('e', true) }}", "ude"),
            ("{{ bos_token + 'a' + eos_token }}{{ 'a' ~ 1 ~ none }}", "<s>a</s>a1None"),
            ("{{ (messages | length) % 2 == 1 }}{{ 7 // 2 }}{{ 2 * 3 }}{{ 2 ** 3 }}{{ 'ab' * 2 }}", "True368abab"),
            ("{% if messages[0]['role'] == 'system' %}s{% elif 'user' in ['user', 'x'] %}u{% endif %}", "u"),
            (
                "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(';') }}",
                "Hello;Bye, now",
            ),
            ("{{ messages | rejectattr('role', '==', 'user') | list | length }}", "1"),
            (
                "{{ {'a': [1, 2.5, true, none], 'b': 'é<\\'\"'} | tojson }}",
                "{\"a\": [1, 2.5, true, null], \"b\": \"é<'\\\"\"}",
            ),
            ("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"),
            ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 5) }}", "a1b25"),
            ("{% macro f(x, y='z') %}[{{ x }}{{ y }}]{% endmacro %}{{ f('a') }}{{ f('b', y=1) }}", "[az][b1]"),
            (
                "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                "02",
            ),
            ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
            ("a\n{%- for m in messages -%}\n {{- m.role }} {% endfor %}", "auser assistant user "),
            ("{% generation %}x{% endgeneration %} {%- generation -%} y {%- endgeneration -%} z", "xyz"),
            ("{% set x %}a{{ 1 }}b{% endset %}{{ x | upper | replace('A', 'c') }}", "c1B"),
            ("{{ 'Hello'.startswith('He') and 'x'.endswith('x') }}{{ 'aXb'.lower().replace('x', '-') }}", "Truea-b"),
            (
                "{{ messages[-1].content }}{{ messages[0].tool_calls is defined }}{{ 'abc'[1:] }}{{ 'abc'[-1] }}",
                "Bye, nowFalsebcc",
            ),
            (
                "{{ 'a\n\nb' | indent(2) }}|{{ 'q' | string }}|{{ 3 | string }}|{{ ' x' | trim }}|{{ '5' | int + 1 }}",
                "a\n\n  b|q|3|x|6",
            ),
            ("{{ 'x' if messages is iterable and messages is not string and messages[0] is mapping }}", "x"),
            ("{{ ', '.join(['a', 'b']) }}{{ (1, 2) | length }}{{ [1] + [2, 3] }}", "a, b2[1, 2, 3]"),
            (
                "{% for a in [1, 2] %}{% for b in [3] %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{% else %}e{% endfor %}",
                "131231",
            ),
            ("{% filter upper %}a{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}{# c #}", "A1"),
        ];
        for (source, expected) in cases {
            assert_eq!(rendered(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn raised_exceptions_are_shown() {
        let error = rendered("a\n{{ raise_exception('roles must alternate') }}").expect_err("raises");
        assert_eq!(error, "roles must alternate (line 2)");
    }

    /// Templates that would take for ever, or all memory, or the stack.
    pub(super) fn hostile_templates() -> Vec<String> {
        let long = |before: &str, repeated: &str, after: &str| {
            format!("{before}{}{after}", repeated.repeat((SOURCE - 100 - before.len() - after.len()) / repeated.len()))
        };
        vec![
            "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}".to_owned(),
            "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}".to_owned(),
            "{{ 'a' * 100000000 }}".to_owned(),
            "{{ 'a' * (10 ** 8) }}{{ (('a')) * 1e8 }}".to_owned(),
            "{% set n = 100000000 %}{{ 'a' * n }}".to_owned(),
            "{{ [1] * 100000000 }}".to_owned(),
            "{{ 'aaaaaaaaaaaaaaaa' * 9999 * 9999 }}".to_owned(),
            "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned(),
            "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('aaaaaaaa') }}".to_owned(),
            "{{ ''.__class__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}".to_owned(),
            "{% include 'other' %}".to_owned(),
            "{% extends 'other' %}".to_owned(),
            "{% import 'other' as o %}".to_owned(),
            "{{ raise_exception('no') }}".to_owned(),
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}".to_owned(),
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}".to_owned(),
            "{% set ns = namespace(x=[1, 2]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}".to_owned(),
            "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}".to_owned(),
            "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".to_owned(),
            "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}".to_owned(),
            "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = {'x': ns.x} %}{% endfor %}".to_owned(),
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned(),
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}".to_owned(),
            "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('a', 'aaaaaaaaaa') %}{% endfor %}".to_owned(),
            "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('', ns.x) %}{% endfor %}".to_owned(),
            "{% set ns = namespace(x='a,b') %}{% for i in range(99) %}{% set ns.x = ns.x.join(ns.x.split(',')*99) %}{% endfor %}".to_owned(),
            "{% set x %}{% for i in range(9999) %}{% for i in range(99) %}LONG{% endfor %}{% endfor %}{% endset %}".replace("LONG", &"x".repeat(9999)),
            "{% for i in range(9999) %}{% for i in range(99) %}LONG{% endfor %}{% endfor %}".replace("LONG", &"x".repeat(9999)),
            "{% for i in range(9999) %}{% set x = range(9999) | list | sort | length %}{% endfor %}".to_owned(),
            "{% set l = range(9999) | list %}{% for i in l %}{% if -1 in l or l == l %}{% endif %}{% endfor %}".to_owned(),
            "{{ '%1000000000d' % 1 }}{{ '{:1000000000}'.format(1) }}".to_owned(),
            "{{ '%*d' % (1000000000, 1) }}".to_owned(),
            "{{ '%.1000000000f' % 1.5 }}".to_owned(),
            "{{ '%1000000000s' | format('a') }}".to_owned(),
            "{{ '{:>{}}'.format('a', 1000000000) }}".to_owned(),
            "{% set ns = namespace(x='{0}{0}{0}{0}') %}{% for i in range(99) %}{% set ns.x = ns.x.format(ns.x) %}{% endfor %}".to_owned(),
            "{{ 'a'.ljust(1000000000) }}".to_owned(),
            "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x | tojson | tojson | tojson %}{% endfor %}".to_owned(),
            "{{ 'a\n' | indent(1000000000) }}".to_owned(),
            "{{ [1, 2] | batch(1000000000, 1) | list }}".to_owned(),
            "{% set a = 2 %}{{ 1 < a < 3 }}".to_owned(),
            "{{ range(1000000000000) }}{{ range(0, 9, 0) }}".to_owned(),
            long("{{ ", "a~", "a }}"),
            long("{{ ", "'a'~", "a }}"),
            long("{{ ", "a.", "a }}"),
            long("{{ ", "not ", "a }}"),
            long("{{ ", "(", "a }}"),
            long("{{ ", "-", "1 }}"),
            long("{{ ", "a if b else ", "a }}"),
            long("{{ a", "|e", " }}"),
            long("{{ a", "[0]", " }}"),
            long("{% if a %}", "{% elif a %}", "{% endif %}"),
            long("", "{% if a %}", ""),
            long("", "{% for a in b %}", ""),
            long("", "{{ [[[[[[[[", ""),
            long("{{ [", "1,", "] }}"),
            "x".repeat(SOURCE + 1),
            "{% if %}".to_owned(),
            "{{ unknown() }}".to_owned(),
            "{{ x.y.z }}".to_owned(),
            "{{ 'a' | unknown }}".to_owned(),
        ]
    }

    #[test]
    fn hostile_templates_are_refused() {
        for source in hostile_templates() {
            let error = rendered(&source).expect_err(&source[..source.len().min(100)]);
            println!("{error}: {}", &source[..source.len().min(60)]);
        }
    }
}

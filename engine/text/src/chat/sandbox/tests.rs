use minijinja::context;

use super::*;

pub(super) fn rendered(source: &str) -> Result<String, String> {
    let messages = [("user", "Hello"), ("assistant", " Hi! "), ("user", "Bye, now")]
        .map(|(role, content)| context! { role, content });
    let context = context! { messages, bos_token => "<s>", eos_token => "</s>", tools => () };
    Program::compile(source).render(&context, 100)
}

/// Each line is a construct from published templates and Jinja's result for it.
#[test]
fn templates_render_as_in_jinja() {
    let cases = [
        ("{{ ' a '.strip() }}|{{ 'xax'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}", "a|a|a | a"),
        ("{{ 'a</think>b'.split('</think>')[-1] }}|{{ 'a b'.split() | length }}", "b|2"),
        ("{% for m in messages[1:] %}{{ m['content'] | trim }},{% endfor %}", "Hi!,Bye, now,"),
        ("{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[0] }}{% endfor %}", "0u1a2u"),
        ("{% for m in messages %}{{ loop.index }}{{ '!' if loop.last }}{{ '^' if loop.first }}{% endfor %}", "1^23!"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
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
        ("{% set m = {'a': ['a' * 1000000] * 9999} %}{{ m is callable }}", "False"),
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

/// Templates that would take endless time, all memory, or the whole stack.
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
        "{% set s = 'é' * 5000000 %}{% for i in range(9999) %}{% set x = s[4999999] %}{% endfor %}".to_owned(),
        "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{% set x = s | length %}{% endfor %}".to_owned(),
        "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{% set x = loop.cycle(*s) %}{% endfor %}".to_owned(),
        "{% set l = range(9999) %}{% for i in l %}{% for j in l %}{% set x = loop.changed(l) %}{% endfor %}{% endfor %}".to_owned(),
        "{% set l = range(9999)[::-1] %}{% for i in l %}{% for j in l %}{% if l %}{% endif %}{% endfor %}{% endfor %}".to_owned(),
        "{{ strftime_now('%c' * 99999) }}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = ns.x + [strftime_now('%c' * 99)] %}{% endfor %}".to_owned(),
        format!("{{% for i in range(9999) %}}{{% set x = loop.cycle(1{}) %}}{{% endfor %}}", ", *range(9999)".repeat(600)),
        (0..=BLOCKS).map(|at| format!("{{% block b{at} %}}{{% endblock %}}")).collect(),
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

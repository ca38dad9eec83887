//! Compares templates with the reference: tests/fixtures/chat_templates/README.md.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Deserialize;

use super::sandbox::Program;

#[derive(Deserialize)]
struct Fixture {
    contexts: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    context: String,
    expected: Option<String>,
    error: Option<String>,
}

#[test]
fn templates_render_as_the_reference_renders_them() {
    let fixture = include_str!("../../../../tests/fixtures/chat_templates/cases.json");
    let fixture: Fixture = serde_json::from_str(fixture).expect("a table");
    assert!(fixture.cases.len() > 120);
    let mut wrong = Vec::new();
    for case in fixture.cases {
        let rendered = Program::compile(&case.template).render(&fixture.contexts[&case.context], 2000);
        match (&rendered, &case.expected) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(_), None) => {}
            _ => wrong.push(format!("{}\n{rendered:?}, expected\n{:?} {:?}", case.name, case.expected, case.error)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

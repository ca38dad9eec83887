use serde_json::{Value, json};

use super::*;

/// An answer in a format, and the text and calls in it.
struct Example {
    open: &'static str,
    answer: &'static str,
    text: &'static str,
    calls: Vec<(&'static str, Value)>,
}

fn definitions() -> Vec<Value> {
    let properties = json!({
        "city": { "type": "string" }, "days": { "type": "integer" }, "units": { "enum": ["C", "F"] },
        "code": { "type": "string" }, "wet": { "type": "boolean" },
    });
    ["weather", "run"]
        .map(|name| {
            json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object", "properties": properties } } })
        })
        .to_vec()
}

fn ulm() -> (&'static str, Value) {
    ("weather", json!({ "city": "Ulm", "days": 2 }))
}

fn rome() -> (&'static str, Value) {
    ("weather", json!({ "city": "Röm \"}" }))
}

fn examples() -> Vec<Example> {
    let example = |open, answer, text, calls| Example { open, answer, text, calls };
    vec![
        example("<tool_call>", "No tools <tool here.", "No tools <tool here.", vec![]),
        example(
            "<tool_call>",
            "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"city\": \"Röm \\\"}\"}, \"name\": \"weather\"}\n</tool_call>",
            "I look.\n",
            vec![ulm(), rome()],
        ),
        example(
            "<tool_call>",
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Ulm\\\", \\\"days\\\": 2}\"}</tool_call>",
            "",
            vec![ulm()],
        ),
        example("<tool_call>", "<tool_call>{\"name\": \"run\"}</tool_call>Done.", "Done.", vec![("run", json!({}))]),
        example(
            "<tool_call>",
            "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=run>\n<parameter=code>\nif a < b:\n    print(\"</p>\")\n\n</parameter>\n<parameter=wet>\nTrue\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![ulm(), ("run", json!({ "code": "if a < b:\n    print(\"</p>\")\n", "wet": true }))],
        ),
        example("<tool_call>", "<tool_call>\n<function=run>\n</function>\n</tool_call>", "", vec![("run", json!({}))]),
        example(
            "<function=",
            "Well.\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>",
            "Well.\n",
            vec![ulm()],
        ),
        example(
            "<tool_call>",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>run</tool_call>",
            "",
            vec![ulm(), ("run", json!({}))],
        ),
        example(
            "<TOOLCALL>",
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 2}}, {\"name\": \"run\", \"arguments\": {}}]</TOOLCALL>",
            "",
            vec![ulm(), ("run", json!({}))],
        ),
        example(
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 2}, \"id\": \"abc\"}]",
            "",
            vec![ulm()],
        ),
        example(
            "[TOOL_CALLS]",
            "So.[TOOL_CALLS]weather[ARGS]{\"city\": \"Ulm\", \"days\": 2}[TOOL_CALLS]run[CALL_ID]abc[ARGS]{}",
            "So.",
            vec![ulm(), ("run", json!({}))],
        ),
        example(
            "<|python_tag|>",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 2}}; {\"name\": \"run\", \"parameters\": {}}",
            "",
            vec![ulm(), ("run", json!({}))],
        ),
        example(
            "<|python_tag|>",
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 2}}",
            "",
            vec![ulm()],
        ),
        example("<|python_tag|>", "{\"a\": [1, 2]}", "{\"a\": [1, 2]}", vec![]),
        example(
            "<start_function_call>",
            "<start_function_call>call:weather{city:<escape>Ulm<escape>,days:2}<end_function_call>",
            "",
            vec![ulm()],
        ),
        example(
            "<|tool_call>",
            "<|tool_call>call:weather{city:<|\"|>Röm \"}<|\"|>}<tool_call|><|tool_call>call:run{list:[1,true,<|\"|>a, b<|\"|>],map:{x:null}}<tool_call|>",
            "",
            vec![rome(), ("run", json!({ "list": [1, true, "a, b"], "map": { "x": null } }))],
        ),
    ]
}

/// Examples of MiniCPM's format: values that are text, in a CDATA section, and in two.
fn attribute_examples() -> Vec<Example> {
    let example = |answer, text, calls| Example { open: "<function name=", answer, text, calls };
    vec![
        example(
            "I look.\n<function name=\"weather\"><param name=\"city\">Ulm</param><param name=\"days\">2</param></function>\n<function name=\"run\">\n<param name=\"code\"><![CDATA[if a < b:\n    print(\"</param>\")\n]]></param>\n<param name=\"wet\">true</param>\n</function>",
            "I look.\n",
            vec![ulm(), ("run", json!({ "code": "if a < b:\n    print(\"</param>\")\n", "wet": true }))],
        ),
        example(
            "<function name=\"run\"><param name=\"code\">\n<![CDATA[a[b[0]]]]><![CDATA[> 1 </function>]]>\n</param></function><function name='run'></function><function name=\"run\"/>Done.",
            "Done.",
            vec![("run", json!({ "code": "a[b[0]]> 1 </function>" })), ("run", json!({})), ("run", json!({}))],
        ),
        example("A <function is <func", "A <function is <func", vec![]),
    ]
}

/// Text and calls of an answer that arrives in `pieces`.
fn parse(open: &str, pieces: &[&str]) -> (String, Vec<(String, Value)>) {
    let mut parser = ToolParser::new(ToolFormat::of_texts(open), &definitions());
    let mut events: Vec<ToolEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut text, mut calls, mut arguments) = (String::new(), Vec::new(), None::<(String, String)>);
    for event in events {
        match event {
            ToolEvent::Text(more) => text.push_str(&more),
            ToolEvent::Begin { name } => {
                assert!(arguments.replace((name, String::new())).is_none(), "a call in a call")
            }
            ToolEvent::Arguments(more) => arguments.as_mut().expect("a call").1.push_str(&more),
            ToolEvent::End => {
                let (name, text) = arguments.take().expect("a call");
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                calls.push((name, value));
            }
        }
    }
    assert!(arguments.is_none(), "a call without end");
    (text, calls)
}

#[test]
fn calls_of_every_format_are_read_wherever_the_answer_is_divided() {
    for Example { open, answer, text, calls } in examples().into_iter().chain(attribute_examples()) {
        let want: Vec<(String, Value)> =
            calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(parse(open, &[answer]), (text.to_owned(), want.clone()), "{answer}");
        let places = answer.char_indices().map(|(at, _)| at);
        for at in places {
            let (left, right) = answer.split_at(at);
            assert_eq!(parse(open, &[left, right]), (text.to_owned(), want.clone()), "{left} | {right}");
        }
        let single: Vec<&str> = answer.split_inclusive(|_| true).collect();
        assert_eq!(parse(open, &single), (text.to_owned(), want), "one by one: {answer}");
    }
}

#[test]
fn call_that_breaks_off_has_no_end_and_never_arguments_that_were_not_written() {
    for Example { open, answer, .. } in examples().into_iter().chain(attribute_examples()) {
        for (end, _) in answer.char_indices() {
            let mut parser = ToolParser::new(ToolFormat::of_texts(open), &definitions());
            let mut events = parser.push(&answer[..end]);
            events.extend(parser.finish());
            let count = |wanted: fn(&ToolEvent) -> bool| events.iter().filter(|event| wanted(event)).count();
            let begun = count(|event| matches!(event, ToolEvent::Begin { .. }));
            let ended = count(|event| *event == ToolEvent::End);
            assert!(begun == ended || begun == ended + 1, "{}", &answer[..end]);
            if begun > ended {
                let at = events.iter().rposition(|event| matches!(event, ToolEvent::Begin { .. })).expect("a call");
                let arguments: String = events[at..]
                    .iter()
                    .filter_map(|event| if let ToolEvent::Arguments(text) = event { Some(&**text) } else { None })
                    .collect();
                let written = answer[..end].contains("{}");
                assert!(arguments != "{}" || written, "{}", &answer[..end]);
            }
        }
    }
}

#[test]
fn calls_without_arguments_are_empty_objects_only_when_they_are_closed() {
    for (open, answer, arguments) in [
        ("<tool_call>", "<tool_call>{\"name\": \"run\"", ""),
        ("<tool_call>", "<tool_call>{\"name\": \"run\", \"argu", ""),
        ("<tool_call>", "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"a", "{\"code\": \"a"),
        ("<tool_call>", "<tool_call>{\"name\": \"run\"}", "{} end"),
        ("<tool_call>", "<tool_call>\n<function=run>\n", ""),
        (
            "<tool_call>",
            "<tool_call>\n<function=run>\n<parameter=wet>\ntrue\n</parameter>\n<parameter=co",
            "{\"wet\": true",
        ),
        ("<tool_call>", "<tool_call>\n<function=run>\n</tool_call>", "{} end"),
        ("<function name=", "<function name=\"run\">", ""),
        ("<function name=", "<function name=\"run\"><param name=\"code\"><![CDATA[a</param></function>", ""),
        (
            "<function name=",
            "<function name=\"run\"><param name=\"wet\">true</param><param name=\"co",
            "{\"wet\": true",
        ),
        ("<function name=", "<function name=\"run\"><param name=\"wet\">true</param>and so on", "{\"wet\": true} end"),
        ("<function name=", "<function name=\"run\">and so on", ""),
        ("<function name=", "<function name=\"run\"></function>", "{} end"),
        ("<tool_call>", "<tool_call>\n<function=run>\nand so on", ""),
        ("<tool_call>", "<tool_call>run\n<arg_key>wet</arg_key>\n<arg_va", ""),
        ("<|tool_call>", "<|tool_call>call:run{", ""),
        ("<|tool_call>", "<|tool_call>call:run{code:<|\"|>a", ""),
        ("<|tool_call>", "<|tool_call>call:run{map:{x:1}", ""),
        ("<|tool_call>", "<|tool_call>call:run{}", "{} end"),
    ] {
        let mut parser = ToolParser::new(ToolFormat::of_texts(open), &definitions());
        let mut events = parser.push(answer);
        events.extend(parser.finish());
        assert_eq!(events[0], ToolEvent::Begin { name: "run".to_owned() }, "{answer}");
        let mut found = String::new();
        for event in &events[1..] {
            match event {
                ToolEvent::Arguments(text) => found += text,
                ToolEvent::End => found += " end",
                ToolEvent::Text(text) => assert!(text == "and so on", "{text}"),
                ToolEvent::Begin { .. } => panic!("a second call in {answer}"),
            }
        }
        assert_eq!(found, arguments, "{answer}");
    }
}

#[test]
fn arguments_are_streamed_before_the_call_is_complete() {
    let mut parser = ToolParser::new(ToolFormat::of_texts("<tool_call>"), &definitions());
    let events = parser.push("<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"a");
    let want = [ToolEvent::Begin { name: "run".to_owned() }, ToolEvent::Arguments("{\"code\": \"a".to_owned())];
    assert_eq!(events, want);
    assert_eq!(parser.push("b"), [ToolEvent::Arguments("b".to_owned())]);
}

#[test]
fn forced_calls_are_bare_json() {
    let mut parser = ToolParser::new(ToolFormat::forced(), &definitions());
    let mut events = parser.push(" {\"name\": \"run\", \"arguments\": {}}");
    events.extend(parser.finish());
    let begin = ToolEvent::Begin { name: "run".to_owned() };
    assert_eq!(events, [begin, ToolEvent::Arguments("{}".to_owned()), ToolEvent::End]);
}

use serde_json::{Value, json};

use super::*;
use crate::tools::CONTROL;

mod notations;

/// An answer in a format, and the text and calls that it contains.
struct Example {
    open: &'static str,
    answer: String,
    text: &'static str,
    calls: Vec<(&'static str, Value)>,
}

fn example(open: &'static str, answer: &str, text: &'static str, calls: Vec<(&'static str, Value)>) -> Example {
    Example { open, answer: answer.to_owned(), text, calls }
}

fn definitions() -> Vec<Value> {
    let text = json!({ "type": "string" });
    let properties = json!({
        "city": text, "days": { "type": "integer" }, "units": { "enum": ["C", "F"] }, "code": text,
        "wet": { "type": "boolean" }, "list": {}, "map": {}, "path": text,
    });
    let parameters = json!({ "type": "object", "properties": properties, "required": ["city"] });
    ["weather", "run"]
        .map(|name| json!({ "type": "function", "function": { "name": name, "parameters": parameters } }))
        .to_vec()
}

fn ulm() -> (&'static str, Value) {
    ("weather", json!({ "city": "Ulm", "days": 2 }))
}

fn rome() -> (&'static str, Value) {
    ("weather", json!({ "city": "Röm \"}" }))
}

fn run_without() -> (&'static str, Value) {
    ("run", json!({}))
}

/// The text and the calls of an answer that arrives in `pieces`.
fn parse(open: &str, pieces: &[&str]) -> (String, Vec<(String, Value)>) {
    let mut parser = ToolParser::new(ToolFormat::of_texts(open), &definitions());
    let mut events: Vec<ToolEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut text, mut calls, mut arguments) = (String::new(), Vec::new(), None::<(String, String)>);
    for event in events {
        match event {
            ToolEvent::Text(more) => text.push_str(&more),
            ToolEvent::Begin { name } => {
                assert!(arguments.replace((name, String::new())).is_none(), "a call in a call: {pieces:?}")
            }
            ToolEvent::Arguments(more) => arguments.as_mut().expect("a call").1.push_str(&more),
            ToolEvent::End => {
                let (name, text) = arguments.take().expect("a call");
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                calls.push((name, value));
            }
        }
    }
    assert!(arguments.is_none(), "a call without end: {pieces:?}");
    (text, calls)
}

#[test]
fn calls_of_every_notation_are_read_wherever_the_answer_is_divided() {
    for Example { open, answer, text, calls } in notations::all() {
        let want: Vec<(String, Value)> =
            calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(parse(open, &[&answer]), (text.to_owned(), want.clone()), "{answer}");
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
    for Example { open, answer, .. } in notations::all() {
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
        ("[TOOL_CALLS]", "[TOOL_CALLS]run[ARGS]{\"code\": \"a", "{\"code\": \"a"),
        ("<tool_call>", "<tool_call>\n<function=run>\n", ""),
        (
            "<tool_call>",
            "<tool_call>\n<function=run>\n<parameter=wet>\ntrue\n</parameter>\n<parameter=co",
            "{\"wet\": true",
        ),
        ("<tool_call>", "<tool_call>\n<function=run>\n<parameter=wet>\ntrue\n</parameter>\n", "{\"wet\": true"),
        ("<tool_call>", "<tool_call>\n<function=run>\n</tool_call>", "{} end"),
        ("<function name=", "<function name=\"run\">", ""),
        ("<function name=", "<function name=\"run\"><param name=\"code\"><![CDATA[a</param></function>", ""),
        (
            "<function name=",
            "<function name=\"run\"><param name=\"wet\">true</param><param name=\"co",
            "{\"wet\": true",
        ),
        ("<function name=", "<function name=\"run\"><param name=\"wet\">true</param>and so on", "{\"wet\": true"),
        ("<function name=", "<function name=\"run\">and so on", ""),
        ("<function name=", "<function name=\"run\"></function>", "{} end"),
        ("<tool_call>", "<tool_call>\n<function=run>\nand so on", ""),
        ("<tool_call>", "<tool_call>run\n<arg_key>wet</arg_key>\n<arg_va", ""),
        ("<|tool_call>", "<|tool_call>call:run{", ""),
        ("<|tool_call>", "<|tool_call>call:run{code:<|\"|>a", ""),
        ("<|tool_call>", "<|tool_call>call:run{map:{x:1}", ""),
        ("<|tool_call>", "<|tool_call>call:run{}", "{} end"),
        ("<|tool_call_start|>", "<|tool_call_start|>[run(", ""),
        ("<|tool_call_start|>", "<|tool_call_start|>[run(code=\"a\", wet=Tr", ""),
        ("<|tool_call_start|>", "<|tool_call_start|>[run()", "{} end"),
    ] {
        let mut parser = ToolParser::new(ToolFormat::of_texts(open), &definitions());
        let mut events = parser.push(answer);
        events.extend(parser.finish());
        assert_eq!(events.first(), Some(&ToolEvent::Begin { name: "run".to_owned() }), "{answer}");
        let mut found = String::new();
        for event in &events[1..] {
            match event {
                ToolEvent::Arguments(text) => found += text,
                ToolEvent::End => found += " end",
                ToolEvent::Text(text) => assert_eq!(text.trim(), "and so on"),
                ToolEvent::Begin { .. } => panic!("a second call in {answer}"),
            }
        }
        assert_eq!(found, arguments, "{answer}");
    }
}

#[test]
fn what_is_no_call_of_a_tool_stays_as_it_is_written() {
    for (open, answer) in [
        ("<tool_call>", "A <tool_call> tag, and </tool_call>."),
        ("<tool_call>", "<tool_call>\n{\"name\": \"other\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
        ("<tool_call>", "<tool_call>\n{\"arguments\": {}}\n</tool_call> b"),
        ("<tool_call>", "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("<tool_call>", "<tool_call>other<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        ("<tool_call>", "<tool_call></tool_call>"),
        ("<tool_call>", "<tool_call><think>run</think></tool_call>"),
        ("<function=", "Write <function=NAME> first, <function=run"),
        ("<function name=", "<function name=\"NAME\"><param name=\"KEY\">VALUE</param></function>"),
        ("<|tool_call>", "<|tool_call>call:other{a:1}<tool_call|>"),
        ("<|tool_call>", "<|tool_call>run<tool_call|"),
        ("<|tool_call_start|>", "<|tool_call_start|>[other(a=1)]<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_start|>[run(a b)]<|tool_call_end|>"),
        ("[TOOL_CALLS]", "[TOOL_CALLS]other[ARGS]{}"),
        ("<|python_tag|>", "{\"a\": [1, 2]}"),
        ("<|python_tag|>", "[1, 2] and {\"name\": \"other\"}"),
        ("<|python_tag|>", "run the weather"),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        ("Action:", "Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```"),
        ("<function_calls>", "<function_calls>\nprint(\"a\")\n</function_calls>"),
    ] {
        assert_eq!(parse(open, &[answer]), (answer.to_owned(), Vec::new()));
        let single: Vec<&str> = answer.split_inclusive(|_| true).collect();
        assert_eq!(parse(open, &single), (answer.to_owned(), Vec::new()), "one by one");
    }
}

#[test]
fn arguments_are_streamed_before_the_call_is_complete() {
    let mut parser = ToolParser::new(ToolFormat::of_texts("<tool_call>"), &definitions());
    let events = parser.push("<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"a");
    let want = [ToolEvent::Begin { name: "run".to_owned() }, ToolEvent::Arguments("{\"code\": \"a".to_owned())];
    assert_eq!(events, want);
    assert_eq!(parser.push("b"), [ToolEvent::Arguments("b".to_owned())]);
    let mut parser = ToolParser::new(ToolFormat::of_texts("[TOOL_CALLS]"), &definitions());
    parser.push("[TOOL_CALLS]run[ARGS]{\"code\": \"a");
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

#[test]
fn marks_of_control_tokens_are_in_no_event() {
    let mut parser = ToolParser::new(ToolFormat::of_texts("<tool_call>"), &definitions());
    let answer = "A#<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"#<b>\"}}</tool_call>#b <tool_call>#c";
    let mut events = parser.push(&answer.replace('#', &CONTROL.to_string()));
    events.extend(parser.finish());
    assert!(events.len() == 5 && !format!("{events:?}").contains("fdd3"), "{events:?}");
}

#[test]
fn long_values_arrive_in_time() {
    let text = "a \"quoted\" word, and </parameter> more (of it)\n".repeat(800);
    let calls = [
        (
            "<tool_call>",
            format!("<tool_call><function=run><parameter=code>\n{text}\n</parameter></function></tool_call>"),
        ),
        ("<|tool_call>", format!("<|tool_call>call:run{{code:<|\"|>{text}<|\"|>}}<tool_call|>")),
        ("<|tool_call_start|>", format!("<|tool_call_start|>[run(code=\"{text}\")]<|tool_call_end|>")),
    ];
    for (open, answer) in calls {
        let pieces: Vec<&str> = answer.split_inclusive(' ').collect();
        assert_eq!(parse(open, &pieces).1, [("run".to_owned(), json!({ "code": text }))], "{open}");
    }
}

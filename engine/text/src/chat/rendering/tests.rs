use serde_json::{Map, Value as Json, json};

use crate::chat::{ChatMessage, RenderOptions, template::tests::template};

/// A template with only the user and assistant roles.
const SKIPS: &str = include_str!("../../../../../tests/fixtures/chat_templates/user-assistant.jinja");
const BODY: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// Renders messages given by role and content, up to where the assistant speaks.
fn rendered(source: &str, messages: &[(&str, &str)]) -> String {
    let messages: Vec<_> = messages.iter().map(|&(role, content)| ChatMessage::new(role, content)).collect();
    template(&["<s>", "</s>"], Some(source)).render(&messages, true).expect("renders")
}

#[test]
fn every_system_message_goes_into_the_next_message_of_the_user() {
    let render = |messages: &[(&str, &str)]| rendered(SKIPS, messages);
    assert_eq!(
        render(&[
            ("system", "Speak slowly."),
            ("system", "Never mention the moon."),
            ("user", "a"),
            ("system", "It is evening."),
            ("user", "b"),
        ]),
        "<s><|user|>Speak slowly.\n\nNever mention the moon.\n\na<|end|><|user|>It is evening.\n\nb<|end|><|assistant|>"
    );
    // If no user message follows, it becomes a message of its own.
    let own = "<s><|user|>a<|end|><|user|>mid words here<|end|><|assistant|>";
    assert_eq!(render(&[("user", "a"), ("system", "mid words here")]), own);
    assert_eq!(render(&[("system", "s")]), "<s><|user|>s<|end|><|assistant|>");
    assert_eq!(
        render(&[("user", "a"), ("system", "s"), ("assistant", "x"), ("user", "b")]),
        "<s><|user|>a<|end|><|assistant|>x<|end|><|user|>s\n\nb<|end|><|assistant|>"
    );
}

#[test]
fn short_system_messages_are_not_taken_for_written() {
    for short in ["a", "user", "end", "|", "assistant"] {
        let want = format!("<s><|user|>{short}\n\na user<|end|><|assistant|>");
        assert_eq!(rendered(SKIPS, &[("system", short), ("user", "a user")]), want);
    }
}

#[test]
fn system_messages_stay_where_the_template_writes_them() {
    let talk = [("system", "s"), ("user", "a"), ("system", "t"), ("user", "b")];
    assert_eq!(rendered(BODY, &talk), "<system>s<user>a<system>t<user>b");
    // A system message at the beginning is written, others are refused.
    let first = format!(
        "{{% for m in messages[1:] if m.role == 'system' %}}{{{{ raise_exception('at the beginning') }}}}{{% endfor %}}{BODY}"
    );
    assert_eq!(rendered(&first, &talk), "<system>s<user>a<user>t\n\nb");
    // A system message at the beginning is written, others are skipped.
    let first = "{% for m in messages %}{% if loop.first or m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(rendered(first, &talk), "<system>s<user>a<user>t\n\nb");
    // A template without roles writes it unchanged.
    assert_eq!(rendered("{% for m in messages %}{{ m.content }}.{% endfor %}", &talk), "s.a.t.b.");
}

#[test]
fn system_messages_are_not_said_by_the_assistant() {
    let source = "{% for m in messages %}{{ '<u>' if m.role == 'user' else '<a>' }}{{ m.content }}{% endfor %}";
    let talk = [("system", "s"), ("user", "a"), ("assistant", "x"), ("user", "b")];
    assert_eq!(rendered(source, &talk), "<u>s\n\na<a>x<u>b");
}

#[test]
fn roles_go_on_alternating() {
    let alternate = "{% for m in messages %}{% if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    assert_eq!(rendered(alternate, &[("user", "a"), ("system", "s")]), "<user>a\n\ns");
    let talk = [("system", "r"), ("user", "a"), ("assistant", "x"), ("system", "s"), ("user", "b")];
    assert_eq!(rendered(alternate, &talk), "<user>r\n\na<assistant>x<user>s\n\nb");
    let talk = [("user", "a"), ("assistant", "x"), ("tool", "rain"), ("user", "b")];
    let want = "<user>a<assistant>x<user><tool_response>\nrain\n</tool_response>\n\nb";
    assert_eq!(rendered(alternate, &talk), want);
}

fn call(name: &str, id: &str) -> Json {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{\"x\": 1}" } })
}

fn fields(value: Json) -> Map<String, Json> {
    value.as_object().expect("an object").clone()
}

/// Renders a conversation with calls of `f` and `g` and their results. All of these also occur as
/// words in the conversation.
fn with_tools(source: &str, tools: &[Json]) -> String {
    let (calls, first, second) = (
        fields(json!({ "tool_calls": [call("f", "1"), call("g", "2")] })),
        fields(json!({ "tool_call_id": "1", "name": "f" })),
        fields(json!({ "tool_call_id": "2", "name": "g" })),
    );
    let messages = [
        ChatMessage::new("user", "f g rain wind"),
        ChatMessage { fields: Some(&calls), ..ChatMessage::new("assistant", "") },
        ChatMessage { fields: Some(&first), ..ChatMessage::new("tool", "rain") },
        ChatMessage { fields: Some(&second), ..ChatMessage::new("tool", "wind") },
        ChatMessage::new("user", "so?"),
    ];
    let options = RenderOptions { tools, ..RenderOptions::new(true) };
    template(&["<s>", "</s>"], Some(source)).render_with(&messages, options).expect("renders").plain().into_owned()
}

const CALLS_AS_TEXT: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\":1}}\n</tool_call>";
const RESULTS_AS_TEXT: &str = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>\n\nso?";

#[test]
fn calls_and_results_are_text_where_a_template_leaves_them_out() {
    let want = format!("<user>f g rain wind<assistant>{CALLS_AS_TEXT}<user>{RESULTS_AS_TEXT}");
    let skips = "{% for m in messages if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let raises =
        format!("{{% for m in messages if m.role == 'tool' %}}{{{{ raise_exception('roles') }}}}{{% endfor %}}{BODY}");
    // These templates write results but no calls, write results only with definitions, or write
    // results as the assistant's.
    let guarded = "{% for m in messages if tools or m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% endfor %}";
    let mouth = "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'assistant' }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% endfor %}";
    for source in [skips, &raises, BODY, guarded, mouth] {
        assert_eq!(with_tools(source, &[]), want, "{source}");
    }
}

#[test]
fn templates_that_know_tools_write_them() {
    let knows = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}";
    let want = "<user>f g rain wind<assistant>[f{\"x\": 1}][g{\"x\": 1}]<tool>rain<tool>wind<user>so?";
    assert_eq!(with_tools(knows, &[]), want);
    // If it does not write the definitions, everything becomes text.
    let tools = [json!({ "type": "function", "function": { "name": "rain" } })];
    assert!(with_tools(knows, &tools).starts_with("<system># Tools\n"));
}

#[test]
fn calls_have_a_message_each_where_a_template_writes_one_of_a_message() {
    let first = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}]{% endif %}{% endfor %}";
    let want = "<user>f g rain wind<assistant>[f]<tool>rain<assistant>[g]<tool>wind<user>so?";
    assert_eq!(with_tools(first, &[]), want);
}

/// Renders a conversation in which `call` asks for the weather and the result's fields contain
/// `result`.
fn asked(source: &str, said: &str, call: &Json, result: &Json) -> String {
    let (calls, result) = (fields(json!({ "tool_calls": [call] })), fields(result.clone()));
    let messages = [
        ChatMessage::new("user", "so?"),
        ChatMessage { fields: Some(&calls), ..ChatMessage::new("assistant", said) },
        ChatMessage { fields: Some(&result), ..ChatMessage::new("tool", "rain") },
    ];
    template(&["<s>", "</s>"], Some(source)).render(&messages, true).expect("renders")
}

#[test]
fn words_beside_calls_are_thoughts_where_a_template_refuses_both() {
    let source = "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}<{{ m.role }}>{{ m.thinking or m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% endfor %}";
    let said = "<think>\nHm.\n</think>\n\nI look.";
    let text = asked(source, said, &call("f", "1"), &json!({ "tool_call_id": "1" }));
    assert_eq!(text, "<user>so?<assistant>Hm.\n\nI look.[f]<tool>rain");
}

#[test]
fn identifiers_have_nine_letters_where_a_template_wants_them() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{% if c.id is not string or c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[{{ c.function.name }} {{ c.id }}]{% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}({{ m.tool_call_id }} {{ m.content }}){% endif %}{% endfor %}";
    let long = "call_7Qm2ZkXw0pRt5VbN8sLdYhGc";
    let text = asked(source, "", &call("f", long), &json!({ "tool_call_id": long }));
    let (id, same) = (&text[6..15], &text[17..26]);
    assert_eq!(text, format!("so?[f {id}]({same} rain)"));
    assert!(id == same && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
    // Valid identifiers stay, and missing ones are created.
    let fitting = asked(source, "", &call("f", "abcde0001"), &json!({ "tool_call_id": "abcde0001" }));
    assert_eq!(fitting, "so?[f abcde0001](abcde0001 rain)");
    let mut nameless = call("f", "");
    nameless.as_object_mut().expect("an object").remove("id");
    let made = asked(source, "", &nameless, &json!({ "tool_name": "f" }));
    assert_eq!(made.len(), text.len(), "{made}");
    assert_eq!(made[6..15], made[17..26]);
}

#[test]
fn arguments_are_objects_where_a_template_wants_them() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}{% for key, value in c.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}]{% endfor %}{% endfor %}";
    for (arguments, want) in [
        (json!("{\"x\": 1}"), " x=1"),
        (json!("{\"x\": 1"), " arguments={\"x\": 1"),
        (json!("[1]"), " arguments=[1]"),
        (json!(""), ""),
        (Json::Null, ""),
    ] {
        let mut call = call("f", "1");
        call["function"]["arguments"] = arguments;
        let text = asked(source, "", &call, &json!({ "tool_call_id": "1" }));
        assert_eq!(text, format!("<user>so?<assistant>[f{want}]<tool>rain"));
    }
}

#[test]
fn calls_have_a_message_each_where_a_template_refuses_several() {
    let source = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% endfor %}";
    assert_eq!(with_tools(source, &[]), "<user>f g rain wind<assistant>[f]<tool>rain<assistant>[g]<tool>wind<user>so?");
}

#[test]
fn one_turn_is_in_words_where_a_template_refuses_it() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.function.name == 'g' %}{{ raise_exception('no g') }}{% endif %}[{{ c.function.name }}]{% endfor %}{% endfor %}";
    let (f, g) = (fields(json!({ "tool_calls": [call("f", "1")] })), fields(json!({ "tool_calls": [call("g", "2")] })));
    let messages = [
        ChatMessage::new("user", "a"),
        ChatMessage { fields: Some(&f), ..ChatMessage::new("assistant", "") },
        ChatMessage::new("tool", "rain"),
        ChatMessage { fields: Some(&g), ..ChatMessage::new("assistant", "") },
        ChatMessage::new("tool", "wind"),
        ChatMessage::new("user", "b"),
    ];
    let text = template(&["<s>", "</s>"], Some(source)).render(&messages, true).expect("renders");
    let words = "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\":1}}\n</tool_call>";
    let want =
        format!("<user>a<assistant>[f]<tool>rain<assistant>{words}<user><tool_response>\nwind\n</tool_response>\n\nb");
    assert_eq!(text, want);
}

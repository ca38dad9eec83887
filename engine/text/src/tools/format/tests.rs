//! Formats as templates define them: detects the format, reads an answer, and renders a call and
//! its result.

use serde_json::{Value, json};

use super::*;
use crate::{
    chat::{ChatMessage, ChatTemplate, RenderOptions, checkpoint},
    tools::{ToolEvent, ToolParser},
};

/// A template with MiniCPM 5's notation: ChatML, definitions as JSON, call names in attributes,
/// results within the user's turn. Values with several lines or marks of their own are in CDATA
/// sections.
const MINICPM5: &str = r#"
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- 'Functions:\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '\n</tools>\nTo call one write <function name="NAME"><param name="KEY">VALUE</param></function>.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<function name="' + call.function.name + '">' }}
            {%- for key, value in call.function.arguments | items %}
                {%- set text = value if value is string else value | tojson %}
                {{- '<param name="' + key + '">' }}
                {{- '<![CDATA[' + text + ']]>' if '<' in text or '\n' in text else text }}
                {{- '</param>' }}
            {%- endfor %}
            {{- '</function>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"#;

/// Special tokens of its vocabulary.
const SPECIAL: [&str; 8] =
    ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<function", "</function>", "<param", "</param>"];

/// A template with Hy3's notation. It adds a suffix to every token when it is rendered.
const HY3: &str = r#"
{%- set SUFFIX = 'HY3_SUFFIX' %}
{%- set user = '<｜hy_User{}｜>'.format(SUFFIX) %}
{%- set assistant = '<｜hy_Assistant{}｜>'.format(SUFFIX) %}
{%- set end = '<｜hy_eos{}｜>'.format(SUFFIX) %}
{{- '<｜hy_begin_of_sentence{}｜>'.format(SUFFIX) }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- if tools %}
    {{- '\n\n# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '\n</tools>\nFirst print ' + '<tool_calls{}>'.format(SUFFIX) }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- user + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- assistant + '<think{}>'.format(SUFFIX) + '</think{}>'.format(SUFFIX) + message.content }}
        {%- if message.tool_calls %}
            {{- '<tool_calls{}>\n'.format(SUFFIX) }}
            {%- for call in message.tool_calls %}
                {{- '<tool_call{}>'.format(SUFFIX) + call.function.name + '<tool_sep{}>\n'.format(SUFFIX) }}
                {%- for key, value in call.function.arguments | items %}
                    {{- '<arg_key{}>'.format(SUFFIX) + key + '</arg_key{}>\n'.format(SUFFIX) }}
                    {{- '<arg_value{}>'.format(SUFFIX) + (value if value is string else value | tojson) }}
                    {{- '</arg_value{}>\n'.format(SUFFIX) }}
                {%- endfor %}
                {{- '</tool_call{}>\n'.format(SUFFIX) }}
            {%- endfor %}
            {{- '</tool_calls{}>'.format(SUFFIX) }}
        {%- endif %}
        {{- end }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- assistant + '<think{}>'.format(SUFFIX) }}{%- endif %}
"#;

/// Special tokens of Hy3, without the suffix.
const HY3_TOKENS: [&str; 15] = [
    "<｜hy_begin_of_sentence｜>",
    "<｜hy_eos｜>",
    "<｜hy_User｜>",
    "<｜hy_Assistant｜>",
    "<think>",
    "</think>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_call>",
    "</tool_call>",
    "<tool_sep>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

fn template(source: &str) -> ChatTemplate {
    template_of(&SPECIAL, source)
}

fn template_of(special: &[&str], source: &str) -> ChatTemplate {
    let checkpoint = checkpoint(special, Some(source));
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a vocabulary");
    ChatTemplate::from_checkpoint(&checkpoint, &tokenizer)
}

fn definitions() -> [Value; 1] {
    let properties =
        json!({ "path": { "type": "string" }, "code": { "type": "string" }, "lines": { "type": "integer" } });
    let parameters = json!({ "type": "object", "properties": properties, "required": ["path"] });
    [
        json!({ "type": "function", "function": { "name": "write", "description": "Writes a file.", "parameters": parameters } }),
    ]
}

/// Opening texts of the brackets of a template's format, without the marks of control tokens.
fn opened(template: &ChatTemplate) -> Vec<String> {
    template.tools().brackets.iter().map(|it| crate::tools::plain(&it.open)).collect()
}

/// The answer as it is parsed for calls, with the vocabulary's tokens marked.
fn shown(template: &ChatTemplate, answer: &str) -> String {
    template.tools().tokens().iter().fold(answer.to_owned(), |text, token| text.replace(&token.text, &token.shown))
}

/// The text of an answer and its calls, each with name and arguments.
fn read(template: &ChatTemplate, answer: &str) -> (String, Vec<(String, Value)>) {
    let mut parser = ToolParser::new(template.tools().clone(), &definitions());
    let mut events = parser.push(&shown(template, answer));
    events.extend(parser.finish());
    let (mut said, mut calls, mut written) = (String::new(), Vec::new(), String::new());
    let mut name = None;
    for event in events {
        match event {
            ToolEvent::Text(text) => said.push_str(&text),
            ToolEvent::Begin { name: of } => name = Some(of),
            ToolEvent::Arguments(text) => written.push_str(&text),
            ToolEvent::End => {
                let arguments = serde_json::from_str(&std::mem::take(&mut written)).expect("JSON");
                calls.push((name.take().expect("a name"), arguments));
            }
        }
    }
    (said, calls)
}

#[test]
fn minicpm_5_is_found_by_its_template_its_calls_are_read_and_its_results_written() {
    let own = template(MINICPM5);
    assert_eq!(own.origin().failure(), None);
    assert_eq!((opened(&own), own.tools().bare), (vec!["<function name=".to_owned()], false));
    let tokens: Vec<&str> = own.tools().tokens().iter().map(|token| &*token.text).collect();
    assert_eq!(tokens, ["<function", "<param", "</function>", "</param>"]);
    // Templates without tools and other families' templates are not detected as this format.
    let others = [
        ("{{ messages[0].content }}", &["<tool_call>"][..]),
        ("{{ messages[0].content }}<function=x>", &["<function=", "<tool_call>"][..]),
        ("{{ messages[0].content }}{{ tools }}<seed:tool_call><function=x>", &["<function=", "<seed:tool_call>"][..]),
    ];
    for (source, brackets) in others {
        assert_eq!(opened(&template(source)), brackets, "{source}");
    }

    let code = "if a < b:\n    print(\"</param>\")\n";
    let answer = format!(
        "I write it.\n<function name=\"write\"><param name=\"path\">a.py</param><param name=\"code\"><![CDATA[{code}]]></param><param name=\"lines\">2</param></function>"
    );
    let arguments = json!({ "path": "a.py", "code": code, "lines": 2 });
    let wanted = ("I write it.\n".to_owned(), vec![("write".to_owned(), arguments.clone())]);
    assert_eq!(read(&own, &answer), wanted);

    let fields = |fields: Value| fields.as_object().cloned();
    let call =
        json!({ "id": "1", "type": "function", "function": { "name": "write", "arguments": arguments.to_string() } });
    let (calls, result) =
        (fields(json!({ "tool_calls": [call] })), fields(json!({ "tool_call_id": "1", "name": "write" })));
    let messages = [
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", "Go on."),
        ChatMessage { fields: calls.as_ref(), ..ChatMessage::new("assistant", "I write it.\n") },
        ChatMessage { fields: result.as_ref(), ..ChatMessage::new("tool", "2 lines") },
    ];
    let tools = definitions();
    let options = RenderOptions { tools: &tools, ..RenderOptions::new(true) };
    let prompt = own.render_with(&messages, options).expect("renders").plain().into_owned();
    let (system, rest) = prompt.split_once("<|im_end|>\n").expect("a system message");
    assert!(
        system.starts_with("<|im_start|>system\nBe brief.\n\n") && system.contains("\"Writes a file.\""),
        "{system}"
    );
    let wanted_rest = format!(
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n<tool_response>\n2 lines\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(rest, wanted_rest);
    let written = rest.split("<|im_start|>assistant\n").nth(1).and_then(|it| it.split("<|im_end|>").next());
    assert_eq!(read(&own, written.expect("an answer")), wanted, "what is rendered reads as it was written");
}

/// Hy3's preview has no suffix.
#[test]
fn hy3_is_found_by_the_suffix_of_its_tokens_and_its_thoughts_and_calls_are_read() {
    for suffix in [":opensource", ":6124c78e", ""] {
        let tokens = HY3_TOKENS.map(|token| match token.strip_suffix("｜>") {
            Some(name) => format!("{name}{suffix}｜>"),
            None => with_suffix(token, suffix),
        });
        let source = HY3.replace("HY3_SUFFIX", suffix);
        // Without a suffix, the preview's template has the texts of the tags.
        let source = if suffix.is_empty() { source.replace("{}", "") } else { source };
        let own = template_of(&tokens.each_ref().map(String::as_str), &source);
        assert_eq!(own.origin().failure(), None, "{suffix}");
        assert_eq!(opened(&own)[0], format!("<tool_calls{suffix}>"));
        assert!(tokens[6..].iter().all(|text| own.tools().tokens().iter().any(|token| token.text == *text)));

        let arguments = json!({ "path": "a.py", "code": "x = \"</arg_value>\"\n", "lines": 2 });
        let call = |arguments: &Value| json!({ "type": "function", "function": { "name": "write", "arguments": arguments.to_string() } });
        let calls = json!({ "tool_calls": [call(&arguments), call(&json!({}))] });
        let messages = [
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", "Go on."),
            ChatMessage { fields: calls.as_object(), ..ChatMessage::new("assistant", "I write it.") },
            ChatMessage::new("user", "Thanks."),
        ];
        let tools = definitions();
        let options = RenderOptions { tools: &tools, ..RenderOptions::new(true) };
        let prompt = own.render_with(&messages, options).expect("renders").plain().into_owned();
        let written = prompt.split(&format!("</think{suffix}>")).nth(1).and_then(|it| it.split("<｜hy_eos").next());
        let wanted = vec![("write".to_owned(), arguments), ("write".to_owned(), json!({}))];
        assert_eq!(read(&own, written.expect("an answer")), ("I write it.".to_owned(), wanted), "{prompt}");

        // The template has opened the thoughts.
        assert!(prompt.ends_with(&format!("<think{suffix}>")), "{prompt}");
        let mut parser = own.reasoning().parser(&prompt, None);
        // The place of the closing tag among the tokens is its id.
        let close = 5;
        assert!(parser.is_thinking() && parser.is_marker(close), "{suffix}");
        let mut parts = parser.push("Hm");
        parts.extend(parser.push_marker(close, false));
        parts.extend(parser.push("Yes"));
        use crate::reasoning::AnswerPart::{Answer, Thinking};
        assert_eq!(parts, [(Thinking, "Hm".to_owned()), (Answer, "Yes".to_owned())], "{suffix}");
    }
}

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

fn template(source: &str) -> ChatTemplate {
    let checkpoint = checkpoint(&SPECIAL, Some(source));
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

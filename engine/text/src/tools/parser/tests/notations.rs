//! Answers in every notation.

use super::*;

/// Every example.
pub(super) fn all() -> Vec<Example> {
    let all = [json(), tags(), texts_with_tags(), attributes(), braces(), python(), named(), names_between_tags()];
    all.into_iter().flatten().collect()
}

fn both() -> Vec<(&'static str, Value)> {
    vec![ulm(), run_without()]
}

/// The call `run` with `code` and a path.
fn with_code(code: &str, path: &str) -> Vec<(&'static str, Value)> {
    vec![("run", json!({ "code": code, "path": path }))]
}

/// JSON objects and lists after the opening texts of many families.
fn json() -> Vec<Example> {
    let mut all = vec![
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
        example("<tool_call>", "<tool_call>{\"name\": \"run\"}</tool_call>Done.", "Done.", vec![run_without()]),
        example(
            "<tool_call>",
            "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"</tool_call> {\"}}\n</tool_call>",
            "",
            vec![("run", json!({ "code": "</tool_call> {" }))],
        ),
        example(
            "<tool_call>",
            "<tool_call>\n```json\n{\"name\": \"run\", \"arguments\": {}}\n```\n</tool_call>\nDone.",
            "\nDone.",
            vec![run_without()],
        ),
        example(
            "<tool_call>",
            "<tool_call>{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 2}}}</tool_call>",
            "",
            vec![ulm()],
        ),
        // An object that is not a call is text, and the calls next to it are calls.
        example(
            "<tool_call>",
            "<tool_call>[{\"name\": \"run\"}, {\"name\": \"no\"}]</tool_call>",
            "{\"name\": \"no\"}",
            vec![run_without()],
        ),
        example(
            "<|python_tag|>",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 2}}; {\"name\": \"run\", \"parameters\": {}}",
            "",
            both(),
        ),
        example(
            "<|python_tag|>",
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 2}}",
            "",
            vec![ulm()],
        ),
        example("<|python_tag|>", "{\"a\": [1, 2]}", "{\"a\": [1, 2]}", vec![]),
        example(
            "Action:",
            "Plan: look.\nAction: ```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\"city\": \"Ulm\", \"days\": 2}\n    }\n]\n```",
            "Plan: look.\n",
            vec![ulm()],
        ),
        example("Action:", "Action: none.", "Action: none.", vec![]),
    ];
    for (open, close) in [
        ("<TOOLCALL>", "</TOOLCALL>"),
        ("<toolcall>", " </toolcall>"),
        ("<|tool_call|>", "<|/tool_call|>"),
        ("<|tool_call|>", ""),
        ("[TOOL_CALLS]", ""),
        ("<|START_ACTION|>", "<|END_ACTION|>"),
        ("<tool_calls>", "</tool_calls>"),
    ] {
        for arguments in ["arguments", "parameters"] {
            let key = if open == "<|START_ACTION|>" { "tool_name" } else { "name" };
            let list = format!(
                "[\n  {{\"tool_call_id\": \"0\", \"{key}\": \"weather\", \"{arguments}\": {{\"city\": \"Ulm\", \"days\": 2}}}},\n  {{\"{key}\": \"run\", \"{arguments}\": {{}}}}\n]"
            );
            all.push(example(open, &format!("So.\n{open}{list}{close}"), "So.\n", both()));
            all.push(example(open, &format!("{open}{list}{close}\nDone."), "\nDone.", both()));
        }
    }
    all
}

/// `<function=NAME>` with and without surrounding tags.
fn tags() -> Vec<Example> {
    let weather =
        "<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>";
    let code = "if a < b:\n    print(\"</p>\")\n";
    let run = format!(
        "<function=run>\n<parameter=code>\n{code}\n</parameter>\n<parameter=wet>\nTrue\n</parameter>\n</function>"
    );
    let without_end = weather.replace("</function>", "");
    let json = "<function=run>{\"code\": \"a</function>\"}</function>";
    let mut all = vec![
        example(
            "<tool_call>",
            &format!("<tool_call>\n{weather}\n</tool_call>\n<tool_call>\n{run}\n</tool_call>"),
            "",
            vec![ulm(), ("run", json!({ "code": code, "wet": true }))],
        ),
        example("<tool_call>", "<tool_call>\n<function=run>\n</function>\n</tool_call>", "", vec![run_without()]),
        example("<function=", &format!("Well.\n{weather}"), "Well.\n", vec![ulm()]),
        example("<function=", &format!("{weather}\n{weather}\nDone."), "\nDone.", vec![ulm(), ulm()]),
        example("<function=", json, "", vec![("run", json!({ "code": "a</function>" }))]),
        // The end of the function or of the calls is omitted.
        example("<tool_call>", &format!("<tool_call>{without_end}</tool_call>"), "", vec![ulm()]),
        example("<tool_call>", &format!("<tool_call>{weather}"), "", vec![ulm()]),
    ];
    let inline = "<function=weather>\n<parameter=city>Ulm</parameter>\n<parameter=days>2</parameter>\n</function>";
    for (open, close) in [("<seed:tool_call>", "</seed:tool_call>"), ("<tool_call>", "</tool_call>")] {
        all.push(example(open, &format!("So.{open}\n{inline}\n{close}"), "So.", vec![ulm()]));
        all.push(example(open, &format!("{open}\n{inline}\n<function=run>\n</function>\n{close}!"), "!", both()));
    }
    all
}

/// Values that contain tags of their notation.
fn texts_with_tags() -> Vec<Example> {
    let texts = [
        "<parameter>\n<b></parameter>\n</b>",
        "a</parameter>",
        "</parameter></parameter>",
        "</parameter>\n</function>\nb",
        "</parameter>\n</function>\n</tool b",
        "</parameter>\n<parameter=other>\n1",
        "</parameter>\n<parameter=code>\n1",
        "</parameter>\n<parameter=",
    ];
    let call = |text: &str| {
        format!(
            "<tool_call>\n<function=run>\n<parameter=code>\n{text}\n</parameter>\n<parameter=path>\nd.xml\n</parameter>\n</function>\n</tool_call>"
        )
    };
    let mut all: Vec<Example> =
        texts.iter().map(|text| example("<tool_call>", &call(text), "", with_code(text, "d.xml"))).collect();
    // A parameter that the function does not define.
    let new =
        "<tool_call><function=run><parameter=wet>true</parameter><parameter=new>1</parameter></function></tool_call>";
    all.push(example("<tool_call>", new, "", vec![("run", json!({ "wet": true, "new": 1 }))]));
    all
}

/// Names in attributes: MiniCPM's values as plain text, in one CDATA section and in two; and
/// MiniMax's, DeepSeek's and Step's calls.
fn attributes() -> Vec<Example> {
    let open = "<function name=";
    let mut all = vec![
        example(
            open,
            "I look.\n<function name=\"weather\"><param name=\"city\">Ulm</param><param name=\"days\">2</param></function>\n<function name=\"run\">\n<param name=\"code\"><![CDATA[if a < b:\n    print(\"</param>\")\n]]></param>\n<param name=\"wet\">true</param>\n</function>",
            "I look.\n",
            vec![ulm(), ("run", json!({ "code": "if a < b:\n    print(\"</param>\")\n", "wet": true }))],
        ),
        example(
            open,
            "<function name=\"run\"><param name=\"code\">\n<![CDATA[a[b[0]]]]><![CDATA[> 1 </function>]]>\n</param></function><function name='run'></function><function name=\"run\"/>Done.",
            "Done.",
            vec![("run", json!({ "code": "a[b[0]]> 1 </function>" })), run_without(), run_without()],
        ),
        example(
            open,
            "<function name=\"run\"><param name=\"code\"><![CDATA[</param></function>]]> x]]></param></function>",
            "",
            vec![("run", json!({ "code": "</param></function>]]> x" }))],
        ),
        example(open, "A <function is <func", "A <function is <func", vec![]),
    ];
    all.extend(invocations("<minimax:tool_call>", "</minimax:tool_call>", ""));
    all.extend(invocations("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜"));
    all.extend(invocations("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "steptml:"));
    all
}

fn invocations(open: &'static str, close: &str, prefix: &str) -> Vec<Example> {
    let parameter = |key: &str, value: &str| {
        let is_text = if prefix == "｜DSML｜" { format!(" string=\"{}\"", key != "days") } else { String::new() };
        format!("<{prefix}parameter name=\"{key}\"{is_text}>{value}</{prefix}parameter>\n")
    };
    let call = |name: &str, parameters: &str| {
        let call = format!("<{prefix}invoke name=\"{name}\">\n{parameters}</{prefix}invoke>\n");
        let begin = "<｜tool_call_begin｜>function<｜tool_sep｜>";
        if prefix == "steptml:" { format!("{begin}{call}<｜tool_call_end｜>") } else { call }
    };
    let weather = call("weather", &(parameter("city", "Ulm") + &parameter("days", "2")));
    let text = format!("a\n</{prefix}parameter>\n</{prefix}invoke>\nb\n");
    let run = call("run", &(parameter("code", &text) + &parameter("path", "7")));
    vec![
        example(open, &format!("So.\n{open}\n{weather}{close}"), "So.\n", vec![ulm()]),
        example(open, &format!("{open}\n{weather}{}{close}Done.", call("run", "")), "Done.", both()),
        example(open, &format!("{open}{run}{close}"), "", with_code(&text, "7")),
    ]
}

/// Gemma's calls, also with quotes and brackets in texts.
fn braces() -> Vec<Example> {
    let texts = ["say(QQQone, twoQQQ)", "Q}", "Q, code:Qx", "{a:QbQ}", "Q,", "Q, other:1", "a, b: c}", "\\n\"'"];
    let mut all = vec![example(
        "<|tool_call>",
        "<|tool_call>call:weather{city:<|\"|>Röm \"}<|\"|>}<tool_call|><|tool_call>call:run{list:[1,true,<|\"|>a, b<|\"|>],map:{x:null}}<tool_call|>",
        "",
        vec![rome(), ("run", json!({ "list": [1, true, "a, b"], "map": { "x": null } }))],
    )];
    for (open, close, quote) in
        [("<start_function_call>", "<end_function_call>", "<escape>"), ("<|tool_call>", "<tool_call|>", "<|\"|>")]
    {
        // Gemma 4 writes every quotation mark this way.
        let meaning = if quote == "<|\"|>" { "\"" } else { quote };
        let weather = format!("{open}call:weather{{city:{quote}Ulm{quote},days:2}}{close}");
        all.push(example(open, &format!("So.{weather}"), "So.", vec![ulm()]));
        all.push(example(open, &format!("{weather}{open}call:run{{}}{close}\nDone."), "\nDone.", both()));
        all.push(example(open, &format!("{open}call:weather{{city:Ulm,days:2}}{close}"), "", vec![ulm()]));
        for text in texts {
            let call = format!("call:run{{code:Q{text}Q,path:Qa.pyQ}}").replace('Q', quote);
            let answer = format!("{open}{call}{close}");
            all.push(example(open, &answer, "", with_code(&text.replace('Q', meaning), "a.py")));
        }
        let nested = "call:run{map:{k:[QaQ, bQ]Q, 1],l:{m:Q}Q}}}".replace('Q', quote);
        let value = json!({ "map": { "k": [format!("a{meaning}, b{meaning}]"), 1], "l": { "m": "}" } } });
        all.push(example(open, &format!("{open}{nested}{close}"), "", vec![("run", value)]));
    }
    all
}

/// Python calls of LFM2, OLMo, MiniCPM and Llama 4.
fn python() -> Vec<Example> {
    let list = "[run(list=[1, -2.5, 'a', (\"b\", None)], map={'k': {\"l\": [True, 0]}, \"m\": {}})]";
    let read_list = json!({ "list": [1, -2.5, "a", ["b", null]], "map": { "k": { "l": [true, 0] }, "m": {} } });
    let run = |value: Value| vec![("run", value)];
    let mut all = Vec::new();
    for (body, calls) in [
        ("[weather(city=\"Ulm\", days=2)]", vec![ulm()]),
        ("[weather(city='Ulm', days=2), run()]", both()),
        ("[\n  weather(\n    city = \"Ulm\",\n    days = 2,\n  ),\n  run(),\n]", both()),
        ("weather(city=\"Ulm\", days=2)\nrun()", both()),
        ("[weather(\"Ulm\", days=2)]", vec![ulm()]),
        ("```python\nweather(city=\"Ulm\", days=2)\n```\n", vec![ulm()]),
        ("[run(code='a \"b\" c', wet=True)]", run(json!({ "code": "a \"b\" c", "wet": true }))),
        ("[run(code=\"say(\\\"hi\\\")\\n\", wet=None)]", run(json!({ "code": "say(\"hi\")\n", "wet": null }))),
        ("[run(code=\"say(\"hi\")\")]", run(json!({ "code": "say(\"hi\")" }))),
        ("[run(code=\"\"\"a \"b\"\nc\"\"\")]", run(json!({ "code": "a \"b\"\nc" }))),
        ("[run(code=\"\", path='')]", with_code("", "")),
        (list, run(read_list)),
        ("[run(code=007, days=5)]", run(json!({ "code": "007", "days": 5 }))),
        ("[run(code=\"x)]\", path=\"<|tool_call_end|>\")]", with_code("x)]", "<|tool_call_end|>")),
        ("[run(wet=True, new=\"1\")]", run(json!({ "wet": true, "new": "1" }))),
    ] {
        let answer = format!("<|tool_call_start|>{body}<|tool_call_end|>");
        all.push(example("<|tool_call_start|>", &answer, "", calls.clone()));
        all.push(example("<|tool_call_start|>", &format!("So.\n{answer}I ask."), "So.\nI ask.", calls));
    }
    let olmo = "So.\n<function_calls>weather(city=\"Ulm\", days=2)\nrun()</function_calls>";
    all.push(example("<function_calls>", olmo, "So.\n", both()));
    all.push(example("<|python_start|>", "[weather(city=\"Ulm\", days=2), run()]", "", both()));
    let llama = "<|python_start|>[weather(city=\"Ulm\", days=2)]<|python_end|>";
    all.push(example("<|python_start|>", llama, "", vec![ulm()]));
    all
}

/// A name, a separator and JSON arguments: Mistral's, DeepSeek's, HunYuan's, Kimi's and GLM 4's
/// calls.
fn named() -> Vec<Example> {
    let json = "{\"city\": \"Ulm\", \"days\": 2}";
    let (begin, end) = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>");
    let deepseek = |body: &str| {
        let body = body.replace("{begin}", begin).replace("{end}", end).replace("{sep}", "<｜tool▁sep｜>");
        format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", body.replace("{json}", json))
    };
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{json}<|tool_call_end|><|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let hunyuan = "<tool_calls>\n<tool_call>weather\n```json\n{json}\n```\n</tool_call>\n<tool_call>function<tool_sep>run\n```json\n{}\n```</tool_call>\n</tool_calls>Done.";
    let fenced =
        "So.\n\n{begin}function{sep}weather\n```json\n{json}\n```{end}\n{begin}function{sep}run\n```json\n{}\n```{end}";
    vec![
        example(
            "[TOOL_CALLS]",
            "So.[TOOL_CALLS]weather[ARGS]{\"city\": \"Ulm\", \"days\": 2}[TOOL_CALLS]run[CALL_ID]abc[ARGS]{}",
            "So.",
            both(),
        ),
        example("[TOOL_CALLS]", &format!("[TOOL_CALLS]weather{json}"), "", vec![ulm()]),
        example(
            "<｜tool▁calls▁begin｜>",
            &deepseek("{begin}weather{sep}{json}{end}{begin}run{sep}{}{end}"),
            "",
            both(),
        ),
        example("<｜tool▁calls▁begin｜>", &format!("So.\n\n{}", deepseek(&fenced[5..])), "So.\n\n", both()),
        example("<｜tool▁call▁begin｜>", &format!("{begin}weather<｜tool▁sep｜>{json}{end}"), "", vec![ulm()]),
        example("<tool_calls>", &hunyuan.replace("{json}", json), "Done.", both()),
        example("<|tool_calls_section_begin|>", &kimi.replace("{json}", json), "", both()),
        example("<|python_tag|>", &format!("weather\n{json}"), "", vec![ulm()]),
        example("<|python_tag|>", "weather in Ulm", "weather in Ulm", vec![]),
    ]
}

/// GLM's and Hy3's calls, also with tags in texts.
fn names_between_tags() -> Vec<Example> {
    let weather =
        "<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>";
    let inline = weather.replace('\n', "");
    let mut all = vec![
        example(
            "<tool_call>",
            &format!("So.<tool_call>weather\n{weather}\n</tool_call><tool_call>run</tool_call>"),
            "So.",
            both(),
        ),
        example("<tool_call>", &format!("<tool_call>weather{inline}</tool_call>!"), "!", vec![ulm()]),
        example(
            "<tool_calls>",
            &format!(
                "So.<tool_calls>\n<tool_call>weather<tool_sep>\n{weather}\n</tool_call>\n<tool_call>run<tool_sep>\n\n</tool_call>\n</tool_calls>Done."
            ),
            "So.Done.",
            both(),
        ),
        // The end of all calls may be missing.
        example("<tool_calls>", &format!("<tool_calls><tool_call>weather{inline}</tool_call>"), "", vec![ulm()]),
    ];
    for text in [
        "</arg_value>",
        "</arg_value>\n<b>",
        "</arg_value><arg_key>no</arg_key><arg_value>1",
        "a\n",
        "</arg_value></tool_call> a",
    ] {
        let arguments = format!(
            "<arg_key>code</arg_key>\n<arg_value>{text}</arg_value>\n<arg_key>path</arg_key>\n<arg_value>b</arg_value>"
        );
        if !text.contains("</tool_call>") {
            let answer = format!("<tool_call>run\n{arguments}\n</tool_call>");
            all.push(example("<tool_call>", &answer, "", with_code(text, "b")));
        }
        let answer = format!("<tool_calls>\n<tool_call>run<tool_sep>\n{arguments}\n</tool_call>\n</tool_calls>");
        all.push(example("<tool_calls>", &answer, "", with_code(text, "b")));
    }
    all
}

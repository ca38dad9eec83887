use thermocline_engine::{
    model::LoadOptions,
    session::{Engine, EngineOptions, LogprobsRequest, Message, Prompt, Role, Sampling},
};

use super::*;
use crate::{request::CompletionRequest, served_model::ServedModel};
use thermocline_host::library::ModelId;

fn served_model() -> ServedModel {
    let built_in = ModelId::Builtin.open(&LoadOptions::default()).unwrap();
    let engine = Engine::from_model(built_in, EngineOptions::default()).unwrap();
    let defaults = Request {
        sampling: Sampling { temperature: 0.5, top_k: 7, seed: Some(3), ..Sampling::default() },
        max_tokens: Some(9),
        stop: vec!["END".to_owned()],
        ..Request::new(Prompt::Tokens(Vec::new()))
    };
    ServedModel { name: "it".to_owned(), since: 0, engine, defaults }
}

fn read(endpoint: Endpoint, body: &[u8], model: &ServedModel, strict: bool) -> Result<CompletionRequest, ApiError> {
    let rules = ReadRules { strict, ..ReadRules::default() };
    CompletionRequest::new(read_request(endpoint, body, &model.defaults, &rules)?, model, strict)
}

fn parse(endpoint: Endpoint, body: Value, model: &ServedModel) -> Result<CompletionRequest, ApiError> {
    read(endpoint, body.to_string().as_bytes(), model, true)
}

/// Builds the body of a chat request with the fields of `more`.
fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hello!" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn parse_takes_missing_fields_from_the_defaults() {
    let model = served_model();
    let completion = parse(Endpoint::Chat, chat(json!({})), &model).unwrap();
    let hello = vec![Message::new(Role::User, "Hello!")];
    let requests = vec![Request { prompt: Prompt::Chat(hello), ..model.defaults.clone() }];
    let choices = ChoiceFields { answers: 1, best_of: 1, echo: false, logprobs: None };
    assert_eq!(
        completion,
        CompletionRequest {
            requests,
            choices,
            echoes: Vec::new(),
            stream: false,
            include_usage: false,
            tools: None,
            grammar_field: None,
            may_be: None,
        }
    );
}

#[test]
fn parse_reads_every_supported_field() {
    let model = served_model();
    let body = chat(json!({
        "model": "it", "temperature": 1.5, "top_p": 0.5, "top_k": 11, "min_p": 0.25, "typical_p": 0.75,
        "repetition_penalty": 1.25, "presence_penalty": -1.5, "frequency_penalty": 2, "repeat_last_n": 5,
        "logit_bias": { "15": -100, "2": 0.5 }, "seed": -1, "max_completion_tokens": 20, "max_tokens": 20,
        "stop": ["a", "b"], "stream": true, "stream_options": { "include_usage": true, "include_obfuscation": false },
        "n": 1, "user": "me", "metadata": { "a": "b" }, "tools": [], "tool_choice": "none", "logprobs": false,
        "response_format": { "type": "text" }, "store": false, "service_tier": "auto", "functions": null,
    }));
    let CompletionRequest { requests, stream, include_usage, .. } = parse(Endpoint::Chat, body, &model).unwrap();
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert!(stream && include_usage);
    let mut bias = request.sampling.logit_bias.clone();
    bias.sort_by_key(|(id, _)| *id);
    assert_eq!(bias, [(2, 0.5), (15, -100.0)]);
    let want = Sampling {
        temperature: 1.5,
        top_p: 0.5,
        top_k: 11,
        min_p: 0.25,
        typical_p: 0.75,
        repeat_penalty: 1.25,
        presence_penalty: -1.5,
        frequency_penalty: 2.0,
        penalty_last_n: 5,
        logit_bias: request.sampling.logit_bias.clone(),
        seed: None,
        ..model.defaults.sampling.clone()
    };
    assert_eq!(request.sampling, want);
    assert_eq!((request.max_tokens, &request.stop), (Some(20), &vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn parse_names_the_field_it_refuses() {
    let model = served_model();
    for (more, param) in [
        (json!({ "model": "gpt-4o" }), "model"),
        (json!({ "n": 9 }), "n"),
        (json!({ "logprobs": 2 }), "logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "top_logprobs": 5 }), "top_logprobs"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function.name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "reasoning_effort": "low" }), "reasoning_effort"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": 1e300 }), "temperature"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "repeat_penalty": 0 }), "repeat_penalty"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "999999999": 1 } }), "logit_bias"),
        (json!({ "max_tokens": -1 }), "max_tokens"),
        (json!({ "max_tokens": 3, "max_completion_tokens": 4 }), "max_tokens"),
        (json!({ "stop": ["1", "2", "3", "4", "5"] }), "stop"),
        (json!({ "stop": "" }), "stop"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "stream": true, "stream_options": { "x": true } }), "stream_options.x"),
        (json!({ "echo": true }), "echo"),
        (json!({ "seed": 1.5 }), "seed"),
    ] {
        let error = parse(Endpoint::Chat, chat(more), &model).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{error:?}");
        assert_eq!(error.status.as_u16(), if param == "model" { 404 } else { 400 });
    }
}

#[test]
fn completion_prompts_are_strings_or_token_lists() {
    let model = served_model();
    let prompt = |value: Value| {
        let parsed = parse(Endpoint::Completion, json!({ "prompt": value }), &model)?;
        Ok::<_, ApiError>(parsed.requests.into_iter().map(|request| request.prompt).collect::<Vec<_>>())
    };
    let text = vec![Prompt::Text("Once".to_owned())];
    assert_eq!((prompt(json!("Once")).unwrap(), prompt(json!(["Once"])).unwrap()), (text.clone(), text));
    let tokens = vec![Prompt::Tokens(vec![1, 2])];
    assert_eq!((prompt(json!([1, 2])).unwrap(), prompt(json!([[1, 2]])).unwrap()), (tokens.clone(), tokens));
    for wrong in [
        json!(null),
        json!([]),
        json!(7),
        json!([[]]),
        json!([[1], [-2]]),
        json!([1, "a"]),
        json!([-1]),
        json!(vec!["a"; 65]),
    ] {
        assert_eq!(prompt(wrong.clone()).unwrap_err().json()["error"]["param"], "prompt", "{wrong}");
    }
    assert_eq!(prompt(json!(["a", [3]])).unwrap(), [Prompt::Text("a".to_owned()), Prompt::Tokens(vec![3])]);
    for (field, value) in [
        ("suffix", json!("x")),
        ("suffix", json!(7)),
        ("echo", json!(1)),
        ("best_of", json!(9)),
        ("logprobs", json!(21)),
    ] {
        let error = parse(Endpoint::Completion, json!({ "prompt": "a", field: value }), &model).unwrap_err();
        assert_eq!(error.json()["error"]["param"], field);
    }
}

#[test]
fn answers_to_one_prompt_have_seeds_one_after_the_other() {
    let model = served_model();
    let body = json!({ "prompt": ["a", "b"], "n": 2, "best_of": 3, "logprobs": 4, "echo": true, "max_tokens": 1 });
    let CompletionRequest { requests, choices, .. } = parse(Endpoint::Completion, body, &model).unwrap();
    let seeds: Vec<_> = requests.iter().map(|request| request.sampling.seed.unwrap()).collect();
    assert_eq!((seeds, choices.answers), (vec![3, 4, 5, 3, 4, 5], 2));
    let wanted = Some(LogprobsRequest { top: 4, prompt: true });
    assert!(requests.iter().all(|request| request.logprobs == wanted && request.ignore_eos));
    let stream = json!({ "prompt": "a", "best_of": 2, "stream": true });
    assert_eq!(parse(Endpoint::Completion, stream, &model).unwrap_err().json()["error"]["param"], "best_of");
}

#[test]
fn parse_lets_other_servers_fields_pass_unless_strict() {
    let model = served_model();
    let lenient = |more: Value| read(Endpoint::Chat, chat(more).to_string().as_bytes(), &model, false);
    let stops: Vec<String> = (0..20).map(|at| at.to_string()).collect();
    for more in [
        json!({ "model": "gpt-4o" }),
        json!({ "max_tokens": -1 }),
        json!({ "stop": stops }),
        json!({ "store": true, "keep_alive": "5m", "cache_prompt": true }),
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "reasoning_effort": "low" }),
    ] {
        lenient(more.clone()).unwrap();
        assert!(parse(Endpoint::Chat, chat(more.clone()), &model).is_err(), "{more}");
    }
    let none = json!({ "max_tokens": -2, "top_k": -1, "repeat_last_n": -1, "stop": ["", "a"] });
    let request = lenient(none).unwrap().requests.remove(0);
    assert_eq!((request.max_tokens, &request.stop), (None, &vec!["a".to_owned()]));
    assert_eq!((request.sampling.top_k, request.sampling.penalty_last_n), (0, usize::MAX));
    let both = lenient(json!({ "max_tokens": 7, "max_completion_tokens": -1, "stop": "" })).unwrap().requests.remove(0);
    assert_eq!((both.max_tokens, both.stop), (Some(7), Vec::new()));
    let variables = lenient(json!({ "reasoning_effort": "none" })).unwrap().requests[0].chat.variables.clone();
    assert_eq!((&variables["enable_thinking"], &variables["reasoning_effort"]), (&json!(false), &json!("low")));
    let own = json!({ "reasoning_effort": "high", "chat_template_kwargs": { "enable_thinking": false } });
    assert_eq!(lenient(own).unwrap().requests[0].chat.variables["enable_thinking"], false);
    for (more, param) in [
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": 7 }), "chat_template_kwargs"),
        (json!({ "max_tokens": -1.5 }), "max_tokens"),
        (json!({ "unknown": 1 }), "unknown"),
    ] {
        assert_eq!(lenient(more).unwrap_err().json()["error"]["param"], param);
    }
}

#[test]
fn parse_continues_a_trailing_assistant_message_unless_strict() {
    let model = served_model();
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Once" }] });
    let parse = |strict| {
        let body = body.to_string();
        read(Endpoint::Chat, body.as_bytes(), &model, strict).unwrap().requests[0].prompt.clone()
    };
    assert!(matches!(parse(false), Prompt::Continue(_)) && matches!(parse(true), Prompt::Chat(_)));
}

//! Log probabilities over the API, compared with logits of the same model. Also tests several
//! prompts and several answers in one request.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Value, json};
use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    runtime::{Forward, Outputs},
    tokenizer::EncodeOptions,
};
use thermocline_host::builtin;
use thermocline_tests::served::{CHAT, Served, TEXT, chat, text};

const PROMPT: &str = "Once upon a time, there was a bear.";

/// Returns the log softmax of the engine's logits behind each of `tokens`, `[tokens, n_vocab]`.
fn log_softmax(served: &Served, tokens: &[u32]) -> Vec<Vec<f64>> {
    let model = Arc::clone(served.engine.model());
    let vocab = model.config.n_vocab;
    let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut forward = Forward::new(model, cpu);
    forward.set_sparsity(served.engine.sparsity().mode);
    let mut kv = forward.kv_cache(tokens.len(), builtin::KV_TYPE).unwrap();
    let logits = forward.run(tokens, &mut kv, Outputs::All, &mut ()).unwrap();
    let row = |row: &[f32]| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        row.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    };
    logits.chunks_exact(vocab).map(row).collect()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
}

fn largest(map: &Value) -> f64 {
    map.as_object().unwrap().values().map(|it| it.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn echoed_logprobs_are_those_of_the_logits() {
    let served = Served::new();
    let ids = served.engine.tokenizer().encode(PROMPT, EncodeOptions::CHAT).unwrap();
    let want = log_softmax(&served, &ids);
    // lm-evaluation-harness sends such requests: lists of ids, with an answer of one token.
    let body = json!({
        "prompt": [ids, ids[..4]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
    });
    let reply = served.client.post(TEXT, &body).json(200);
    for (index, length) in [ids.len(), 4].into_iter().enumerate() {
        let choice = &reply["choices"][index];
        assert_eq!(choice["index"], index);
        let logprobs = &choice["logprobs"];
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[list].as_array().unwrap().len(), length + 1, "{list}");
        }
        assert!(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
        for at in 1..length {
            let (got, row) = (logprobs["token_logprobs"][at].as_f64().unwrap(), &want[at - 1]);
            assert!((got - row[ids[at] as usize]).abs() < 1e-4, "{at}: {got}");
            let likeliest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert!((largest(&logprobs["top_logprobs"][at]) - likeliest).abs() < 1e-4, "{at}");
        }
        // The token behind the prompt is the likeliest, and both lists have the same number to the
        // bit.
        assert_eq!(logprobs["token_logprobs"][length].as_f64().unwrap(), largest(&logprobs["top_logprobs"][length]));
        // Offsets are character positions in the text.
        let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
        let offsets = numbers(&logprobs["text_offset"]);
        assert!(offsets.is_sorted() && offsets[length] < text.len() as f64, "{offsets:?}");
        let last: String = text[offsets[length] as usize..].iter().collect();
        assert_eq!(logprobs["tokens"][length], last);
    }
    assert!(reply["choices"][0]["text"].as_str().unwrap().starts_with(PROMPT), "{reply}");
    assert_eq!(reply["usage"]["prompt_tokens"], ids.len() + 4);
    assert_eq!(reply["usage"]["completion_tokens"], 2);

    let none = json!({ "prompt": PROMPT, "max_tokens": 0, "logprobs": 2, "echo": true });
    let none = served.client.post(TEXT, &none).json(200)["choices"][0].clone();
    assert_eq!(none["text"], PROMPT);
    let whole = numbers(&json!(reply["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[1..ids.len()]));
    assert_eq!(numbers(&json!(none["logprobs"]["token_logprobs"].as_array().unwrap()[1..])), whole);
}

#[test]
fn generated_logprobs_are_those_of_the_logits_whatever_is_sampled() {
    let served = Served::new();
    let more = json!({ "max_tokens": 12, "temperature": 1.5, "seed": 7, "logprobs": true, "top_logprobs": 3 });
    let whole = served.client.post(CHAT, &chat(PROMPT, more.clone())).json(200);
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let bytes = |entry: &Value| numbers(&entry["bytes"]).into_iter().map(|byte| byte as u8).collect::<Vec<_>>();
    let said: Vec<u8> = content.iter().flat_map(bytes).collect();
    let answer = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8(said).unwrap().trim_start(), answer.trim_start());
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        let top: Vec<f64> = top.iter().map(|it| it["logprob"].as_f64().unwrap()).collect();
        assert!(top.len() == 3 && top.is_sorted_by(|a, b| a >= b) && top[0] >= entry["logprob"].as_f64().unwrap());
    }
    let mut body = chat(PROMPT, more);
    body["stream"] = json!(true);
    let events = served.client.post(CHAT, &body).events();
    let streamed: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed.len(), content.len());
    for (streamed, whole) in streamed.iter().zip(content) {
        assert_eq!((&streamed["token"], &streamed["bytes"]), (&whole["token"], &whole["bytes"]));
        // The cache had the prompt of the second request, so sums had another order.
        let logprob = |entry: &Value| entry["logprob"].as_f64().unwrap();
        assert!((logprob(streamed) - logprob(whole)).abs() < 1e-4, "{streamed} {whole}");
    }

    // The answer of one request becomes the prompt of the next, which must have the same numbers.
    let body = text(PROMPT, json!({ "max_tokens": 8, "temperature": 1.2, "seed": 3, "logprobs": 0, "echo": true }));
    let answer = served.client.post(TEXT, &body).json(200);
    let logprobs = &answer["choices"][0]["logprobs"];
    let mut ids = served.engine.tokenizer().encode(PROMPT, EncodeOptions::CHAT).unwrap();
    let length = ids.len();
    let tokenizer = served.engine.tokenizer();
    for token in &logprobs["tokens"].as_array().unwrap()[length..] {
        let named = (0..tokenizer.vocab_len() as u32)
            .find(|id| tokenizer.token_bytes(*id) == token.as_str().unwrap().as_bytes());
        ids.push(named.unwrap());
    }
    let want = log_softmax(&served, &ids);
    for at in length..ids.len() {
        let got = logprobs["token_logprobs"][at].as_f64().unwrap();
        // The answer was computed token by token, the reference at once. Activations are rounded to
        // 8 bits.
        assert!((got - want[at - 1][ids[at] as usize]).abs() < 1e-4, "{at}: {got}");
    }
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let served = Served::new();
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "One day", "max_tokens": 8, "temperature": 1.2, "seed": 5 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        served.client.post(TEXT, &body)
    };
    let texts = |reply: Value| {
        let choices = reply["choices"].as_array().unwrap().clone();
        choices.iter().map(|it| it["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let one = |seed: u64| texts(ask(json!({ "seed": seed })).json(200)).remove(0);
    let both = ask(json!({ "n": 2 })).json(200);
    assert_eq!(both["usage"]["completion_tokens"], 16);
    assert_eq!(texts(both), [one(5), one(6)]);
    // A stream sends the same texts, one after the other.
    let mut streamed = [String::new(), String::new()];
    let (mut ends, reply) = (Vec::new(), ask(json!({ "n": 2, "stream": true })));
    for event in reply.events() {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        streamed[index] += choice["text"].as_str().unwrap();
        ends.extend(choice["finish_reason"].as_str().map(|_| index));
    }
    assert_eq!((streamed, ends), ([one(5), one(6)], vec![0, 1]));
    // The best answer of three has the highest mean log probability. The test computes each answer
    // alone.
    let mean = |seed: u64| {
        let logprobs = ask(json!({ "seed": seed, "logprobs": 0 })).json(200)["choices"][0]["logprobs"].clone();
        let numbers = numbers(&logprobs["token_logprobs"]);
        numbers.iter().sum::<f64>() / numbers.len() as f64
    };
    let best = (5..8).max_by(|a, b| mean(*a).total_cmp(&mean(*b))).unwrap();
    assert_eq!(texts(ask(json!({ "best_of": 3 })).json(200)), [one(best)]);
    // One request has a prompt of text and a prompt of ids.
    let ids = served.engine.tokenizer().encode("One day", EncodeOptions::CHAT).unwrap();
    assert_eq!(texts(ask(json!({ "prompt": ["One day", ids] })).json(200)), [one(5), one(5)]);
}

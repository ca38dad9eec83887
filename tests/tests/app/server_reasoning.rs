//! Thinking budgets over real connections, in every protocol. The built-in model continues thoughts
//! that a request has begun, and never ends them itself.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_tests::served::{CHAT, Served};

/// Returns a chat in which the assistant has begun to think.
fn thinking(more: Value) -> Value {
    let messages =
        json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "<think>\nOnce upon" }]);
    let mut body = json!({ "messages": messages, "temperature": 0, "max_tokens": 60 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the thoughts, the answer, and the number of thinking tokens.
fn asked(served: &Served, more: Value) -> (String, String, u64) {
    let reply = served.client.post(CHAT, &thinking(more)).json(200);
    let message = &reply["choices"][0]["message"];
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    let counted = reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    (text("reasoning_content"), text("content"), counted)
}

#[test]
fn budget_of_a_request_ends_its_thoughts_and_the_answer_follows() {
    let served = Served::new();
    let free = asked(&served, json!({}));
    assert_eq!((&*free.1, free.2), ("", 60));
    for budget in [json!({ "reasoning": { "max_tokens": 9 } }), json!({ "reasoning_budget": 9 })] {
        let (thoughts, answer, counted) = asked(&served, budget);
        assert!(free.0.starts_with(thoughts.trim_end()) && !thoughts.is_empty(), "{thoughts:?} of {:?}", free.0);
        assert!(!answer.is_empty() && !answer.contains("think>"), "{answer:?}");
        assert!((9..30).contains(&counted), "{counted}");
    }
    let none = asked(&served, json!({ "reasoning_effort": "none" }));
    assert!(none.0.trim().is_empty() && !none.1.is_empty(), "{none:?}");
    assert_eq!(asked(&served, json!({ "reasoning_effort": "high" })), free);

    let reply = served.client.post(CHAT, &thinking(json!({ "reasoning_budget": 9, "stream": true })));
    let deltas: Vec<Value> = reply.events().into_iter().map(|mut it| it["choices"][0]["delta"].take()).collect();
    let joined = |field: &str| deltas.iter().filter_map(|it| it[field].as_str()).collect::<String>();
    let whole = asked(&served, json!({ "reasoning_budget": 9 }));
    assert_eq!((joined("reasoning_content"), joined("content")), (whole.0, whole.1));
}

#[test]
fn answer_behind_a_budget_follows_its_grammar() {
    let served = Served::new();
    let grammar = json!({ "grammar": "root ::= \"yes\" | \"no\"", "reasoning_budget": 5 });
    let (thoughts, answer, _) = asked(&served, grammar);
    assert!(!thoughts.is_empty() && ["yes", "no"].contains(&&*answer), "{thoughts:?} {answer:?}");
}

#[test]
fn anthropics_budget_ends_thoughts() {
    let served = Served::new();
    let body = json!({
        "max_tokens": 60, "temperature": 0, "thinking": { "type": "enabled", "budget_tokens": 9 },
        "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "<think>\nOnce upon" }],
    });
    let reply = served.client.post("/v1/messages", &body).json(200);
    let kinds: Vec<&str> = reply["content"].as_array().unwrap().iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text"], "{reply}");
    let wanted = asked(&served, json!({ "reasoning_budget": 9 }));
    assert_eq!((&reply["content"][0]["thinking"], &reply["content"][1]["text"]), (&json!(wanted.0), &json!(wanted.1)));
}

//! Models of servers: the program's own client, and `chat --remote`, against a real server of the
//! program.

#![allow(clippy::unwrap_used)]

use std::{fs, sync::mpsc, thread};

use serde_json::json;
use thermocline_engine::tokenizer::reasoning::AnswerPart;
use thermocline_host::remote::{
    Cancel, FinishReason, RemoteAnswer, RemoteClient, RemoteError, RemoteEvent, RemoteRequest, RemoteTimeouts,
    SecretKey,
};
use thermocline_tests::{
    served::{CHAT, Served, chat},
    terminal::{command, run, with_input},
    wait::{LONGEST, eventually},
};

const QUESTION: &str = "Tell me a story about a dog.";

const KEY: &str = "sk-not-to-be-seen";

fn client(served: &Served, key: Option<&str>) -> RemoteClient {
    let server = served.client.address.to_string().parse().unwrap();
    RemoteClient::new(server, key.and_then(SecretKey::new), RemoteTimeouts::default())
}

fn request(tokens: u32) -> RemoteRequest {
    let mut request = RemoteRequest::new("Storyteller");
    request.push("user", QUESTION);
    request.set("temperature", Some(0.0));
    request.set("max_tokens", Some(tokens));
    request
}

fn answer(client: &RemoteClient, request: &RemoteRequest) -> (String, Result<RemoteAnswer, RemoteError>) {
    let mut text = String::new();
    let ended = client.chat(request, &Cancel::default(), &mut |event| {
        if let RemoteEvent::Text(AnswerPart::Answer, piece) = event {
            text.push_str(piece);
        }
    });
    (text, ended)
}

#[test]
fn client_reads_models_answers_calls_and_refusals_of_a_server() {
    let served = Served::new();
    let client = client(&served, None);
    assert_eq!(client.models().unwrap(), ["Storyteller"]);

    let whole = served.client.post(CHAT, &chat(QUESTION, json!({ "max_tokens": 24 }))).json(200);
    let (text, ended) = answer(&client, &request(24));
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    let ended = ended.unwrap();
    let usage = ended.usage.unwrap();
    assert_eq!((ended.reason, usage.completion_tokens), (FinishReason::Length, 24));
    assert_eq!(usage.prompt_tokens as u64, whole["usage"]["prompt_tokens"].as_u64().unwrap());

    let mut tools = request(256);
    // The schema forbids additional properties, because a small model may write one after the
    // other.
    let city = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    tools.tools.push(json!({ "type": "function", "function": { "name": "weather", "parameters": city } }));
    tools.set("tool_choice", Some("required"));
    let ended = answer(&client, &tools).1.unwrap();
    assert_eq!(ended.reason, FinishReason::ToolCalls);
    let [call] = &ended.tool_calls[..] else { panic!("{ended:?}") };
    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
    assert!(
        call.name == "weather" && !call.id.is_empty() && (arguments["city"] == "Rome" || arguments["city"] == "Oslo")
    );

    let mut wrong = request(8);
    wrong.set("temperature", Some(-1.0));
    let error = answer(&client, &wrong).1.unwrap_err().to_string();
    assert!(error.contains("answered 400") && error.contains("temperature"), "{error}");
}

#[test]
fn key_of_a_server_is_sent_and_never_told() {
    let served = Served::with(|options| options.key = Some(KEY.to_owned()));
    assert_eq!(client(&served, Some(KEY)).models().unwrap(), ["Storyteller"]);
    assert_eq!(answer(&client(&served, Some(KEY)), &request(4)).1.unwrap().reason, FinishReason::Length);
    for (key, says) in [(None, "no API key was sent"), (Some("sk-another"), "the API key is missing or wrong")] {
        let error = client(&served, key).models().unwrap_err().to_string();
        assert!(error.contains("401") && error.contains(says) && !error.contains("sk-"), "{error}");
    }
}

#[test]
fn cancelled_answer_ends_on_the_server() {
    let served = Served::new().endless();
    let (cancel, (sender, first)) = (Cancel::default(), mpsc::channel());
    let answered = {
        let (client, cancel) = (client(&served, None), cancel.clone());
        let mut request = request(1);
        request.settings.remove("max_tokens");
        // This bias bans the token that ends texts.
        request.set("logit_bias", Some(json!({ "1": -1e6 })));
        thread::spawn(move || client.chat(&request, &cancel, &mut |_| sender.send(()).unwrap_or(())))
    };
    first.recv_timeout(LONGEST).unwrap();
    cancel.cancel();
    assert_eq!(answered.join().unwrap(), Err(RemoteError::Cancelled));
    eventually("the end on the server", || !served.server.status().answering);
}

#[test]
fn terminal_chats_with_a_model_of_a_server() {
    let served = Served::with(|options| options.key = Some(KEY.to_owned()));
    let url = format!("http://{}", served.client.address);
    let folder = tempfile::tempdir().unwrap();
    let (key, wrong) = (folder.path().join("key"), folder.path().join("wrong"));
    fs::write(&key, format!("{KEY}\n")).unwrap();
    fs::write(&wrong, "sk-wrong\n").unwrap();
    let (key, wrong) = (key.to_str().unwrap(), wrong.to_str().unwrap());
    let saved = folder.path().join("chat.json");

    let asked = served.client.with("Authorization", &format!("Bearer {KEY}"));
    let whole = asked.post(CHAT, &chat(QUESTION, json!({ "max_tokens": 24 }))).json(200);
    let story = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let options = ["chat", "--remote", &url, "--temp", "0", "-n", "24"];
    let input = format!("{QUESTION}\n/stats\n/regenerate\n/save {}\n", saved.display());
    let ran = with_input(&[&options[..], &["--key-file", key]].concat(), input.as_bytes());
    let shown = ran.ok();
    assert_eq!(shown.matches(&story).count(), 2, "{shown}");
    assert!(shown.contains("answer 24 tokens") && shown.contains("--max-tokens reached"), "{shown}");
    let text = fs::read_to_string(&saved).unwrap();
    assert!(text.contains("Tell me a story") && !text.contains(KEY), "{text}");

    // The key comes from the environment, and the model has a name.
    let mut command = command(&[&options[..], &["--model", "Storyteller"]].concat());
    command.env("THERMOCLINE_REMOTE_KEY", KEY);
    assert_eq!(run(command, QUESTION.as_bytes()).ok().trim_end(), story.trim_end());

    let error = with_input(&[&options[..], &["--key-file", wrong]].concat(), b"Hi\n").failure(1);
    assert!(error.contains("401") && !error.contains("sk-wrong"), "{error}");
    let error = with_input(&[&options[..], &["--key-file", key]].concat(), b"/vram 1GiB\n").refusal();
    assert!(error.contains("the server decides this: Storyteller at 127.0.0.1"), "{error}");
    for flags in [&["--device", "cpu"][..], &["--on-full", "stop"], &["--threads", "1"], &["--static"]] {
        let error = with_input(&[&options[..], flags].concat(), b"").refusal();
        assert!(error.contains("--remote"), "{error}");
    }
    let error = with_input(&["chat", "--remote", "ftp://x"], b"").refusal();
    assert!(error.contains("http://"), "{error}");
    let error = with_input(&["chat", "--remote", "http://127.0.0.1:1"], b"").failure(1);
    assert!(error.contains("127.0.0.1:1 cannot be reached"), "{error}");
}

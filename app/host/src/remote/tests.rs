//! Tests the client against a scripted server.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use thermocline_engine::tokenizer::reasoning::AnswerPart;

use super::*;
use crate::testing::{PATIENCE, replies, scripted};

mod timing;

const KEY: &str = "sk-not-to-be-seen";

fn client(server: ServerAddress) -> RemoteClient {
    impatient(server, PATIENCE)
}

/// Creates a client that waits at most `silence` for a sign of life.
fn impatient(server: ServerAddress, silence: Duration) -> RemoteClient {
    RemoteClient::new(server, SecretKey::new(KEY), RemoteTimeouts { connect: PATIENCE, silence })
}

fn asked() -> RemoteRequest {
    let mut request = RemoteRequest::new("m");
    request.push("user", "Hello!");
    request
}

/// Returns the text, with thoughts in brackets, and the end of an answer.
fn answer(server: ServerAddress) -> (String, Result<RemoteAnswer, RemoteError>) {
    answer_of(&client(server))
}

fn answer_of(client: &RemoteClient) -> (String, Result<RemoteAnswer, RemoteError>) {
    let mut text = String::new();
    let ended = client.chat(&asked(), &Cancel::default(), &mut |event| match event {
        RemoteEvent::Text(AnswerPart::Answer, piece) => text.push_str(piece),
        RemoteEvent::Text(AnswerPart::Thinking | AnswerPart::ToolCall, piece) => text += &format!("({piece})"),
        RemoteEvent::ToolCall(index, name, piece) => text += &format!("<{index} {} {piece}>", name.unwrap_or("+")),
    });
    (text, ended)
}

fn stream(events: &[&str]) -> (String, Result<RemoteAnswer, RemoteError>) {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    answer(scripted(replies("200 OK", "text/event-stream; charset=utf-8", &body)).0)
}

#[test]
fn stream_of_thoughts_text_calls_and_usage_is_read() {
    let (text, ended) = stream(&[
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
        r#"{"choices":[{"delta":{"content":"Hé"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        "[DONE]",
    ]);
    assert_eq!(text, "(hm)Hé<0 f ><0 + {\"a\":><0 + 1}>");
    let ended = ended.unwrap();
    assert_eq!(ended.reason, FinishReason::ToolCalls);
    assert_eq!(ended.usage, Some(RemoteUsage { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5 }));
    let call = RemoteToolCall { id: "c1".to_owned(), name: "f".to_owned(), arguments: "{\"a\":1}".to_owned() };
    assert_eq!(ended.tool_calls, [call]);
}

#[test]
fn answer_that_is_not_streamed_is_read_whole() {
    let body = r#"{"choices":[{"message":{"role":"assistant","content":"Hi","reasoning":"so"},"finish_reason":"length"}],"usage":null}"#;
    let (text, ended) = answer(scripted(replies("200 OK", "application/json", body)).0);
    assert_eq!((&*text, ended.unwrap().reason), ("(so)Hi", FinishReason::Length));
}

#[test]
fn request_has_the_key_the_messages_and_the_settings() {
    let (server, requests) = scripted(replies("200 OK", "text/event-stream", "data: [DONE]\n\n"));
    let mut request = asked();
    request.set("temperature", Some(0.5));
    request.set("seed", None::<u64>);
    request.tools.push(serde_json::json!({ "type": "function" }));
    let ended = client(server.clone()).chat(&request, &Cancel::default(), &mut |_| ());
    assert_eq!(ended, Err(RemoteError::Interrupted { server: server.host().to_owned() }), "no reason has come");
    let sent = requests.recv().unwrap();
    let (head, body) = sent.split_at(sent.find('{').unwrap());
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains(&format!("authorization: bearer {KEY}")), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["model"], &body["temperature"]), (&"m".into(), &0.5.into()));
    assert_eq!(body["messages"][0], serde_json::json!({ "role": "user", "content": "Hello!" }));
    assert!(body["stream"] == true && body["stream_options"]["include_usage"] == true && body["tools"].is_array());
    assert!(body.get("seed").is_none());
}

#[test]
fn refusals_are_told_without_the_key() {
    let body = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}"}}}}"#);
    let (server, _requests) = scripted(replies("401 Unauthorized", "application/json", &body));
    let error = client(server.clone()).models().unwrap_err().to_string();
    assert!(
        error.contains("401") && error.contains("the API key is missing or wrong") && error.contains("[key]"),
        "{error}"
    );
    let (_, ended) = answer(server);
    for text in [error, format!("{ended:?}")] {
        assert!(!text.contains(KEY), "{text}");
    }
    assert!(!format!("{:?}", client("http://a".parse().unwrap())).contains(KEY));

    let (server, _requests) = scripted(|stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 8\r\n\r\nslow, ok");
    });
    let error = answer(server).1.unwrap_err().to_string();
    assert!(error.contains("429 (too many requests): slow, ok; try again in 7 s"), "{error}");
    let page = format!("<html>{}", "x".repeat(1 << 20));
    let error = answer(scripted(replies("502 Bad", "text/html", &page)).0).1.unwrap_err().to_string();
    assert!(error.contains("502") && error.len() < 600, "{error}");
}

#[test]
fn redirection_is_not_followed() {
    let (other, others) = scripted(replies("200 OK", "application/json", r#"{"data":[]}"#));
    let place = other.endpoint("/models");
    let (server, _requests) = scripted(move |stream: &mut TcpStream| {
        let head = format!("HTTP/1.1 307 Go\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    });
    let error = client(server.clone()).models().unwrap_err().to_string();
    assert!(error.contains("307") && error.contains(other.host()), "{error}");
    assert!(matches!(answer(server).1, Err(RemoteError::Status { status: 307, .. })));
    assert!(others.try_recv().is_err(), "the key went to another server");
}

#[test]
fn models_are_listed_by_name() {
    let list = r#"{"object":"list","data":[{"id":"b","object":"model"},{"id":"a/c:Q4"}]}"#;
    let (server, requests) = scripted(replies("200 OK", "application/json", list));
    assert_eq!(client(server).models().unwrap(), ["b", "a/c:Q4"]);
    assert!(requests.recv().unwrap().starts_with("GET /v1/models HTTP/1.1"));
    for body in ["", "[]", "{}", "<html>", r#"{"data":[{"name":"x"}]}"#, r#"{"data":[{"id":""}]}"#] {
        let error = client(scripted(replies("200 OK", "application/json", body)).0).models().unwrap_err();
        assert!(matches!(error, RemoteError::Malformed { place: "list of models", .. }), "{body}: {error}");
    }
    let huge = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "x".repeat(9 << 20));
    let error = client(scripted(replies("200 OK", "application/json", &huge)).0).models().unwrap_err();
    assert!(error.to_string().contains("a few megabytes"), "{error}");
}

#[test]
fn malformed_streams_are_refused_with_their_beginning() {
    for (event, expected) in [
        ("{", "a JSON object"),
        ("[]", "choices"),
        (r#"{"x":1}"#, "choices"),
        (r#"{"choices":[{"delta":{"content":7}}]}"#, "a string"),
        (r#"{"choices":[{"delta":{"tool_calls":[{"index":5}]}}]}"#, "the index"),
        (r#"{"choices":[{"delta":{"tool_calls":[{"index":18446744073709551615}]}}]}"#, "the index"),
    ] {
        let (_, ended) = stream(&[event, "[DONE]"]);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("got "), "{event}: {error}");
    }
    let reported = stream(&[r#"{"choices":[{"delta":{"content":"a"}}]}"#, r#"{"error":{"message":"out of memory"}}"#]);
    assert_eq!(reported.0, "a");
    assert!(reported.1.unwrap_err().to_string().ends_with("ended the answer: out of memory"));
    let page = answer(scripted(replies("200 OK", "text/html", "<html>")).0).1.unwrap_err().to_string();
    assert!(page.contains("expected text/event-stream, got text/html"), "{page}");
    let line = answer(scripted(replies("200 OK", "text/event-stream", &"x".repeat(2 << 20))).0).1.unwrap_err();
    assert!(matches!(line, RemoteError::Malformed { expected: "server-sent events", .. }), "{line}");
    let raw = answer(scripted(|stream: &mut TcpStream| drop(stream.write_all(b"SSH-2.0-x\r\n\r\n"))).0).1.unwrap_err();
    assert!(!matches!(raw, RemoteError::Cancelled), "{raw}");
}

#[test]
fn endless_answer_is_given_up() {
    let (server, _requests) = scripted(|stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        let piece = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(900_000));
        while stream.write_all(piece.as_bytes()).is_ok() {}
    });
    let (text, ended) = answer(server);
    assert!(text.len() <= 17 << 20);
    assert!(ended.unwrap_err().to_string().contains("at most 16 MiB"));
}

#[test]
fn connection_that_ends_or_falls_silent_is_told() {
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n";
    let (text, ended) = answer(scripted(replies("200 OK", "text/event-stream", piece)).0);
    assert!(text == "half" && matches!(ended, Err(RemoteError::Interrupted { .. })), "{ended:?}");
    // The server never completes an HTTP chunk.
    let (text, ended) = answer(
        scripted(move |stream: &mut TcpStream| {
            let chunk = format!("{:x}\r\n{piece}\r\nff\r\nda", piece.len());
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = stream.write_all(format!("{head}{chunk}").as_bytes());
        })
        .0,
    );
    assert!(text == "half" && ended.is_err(), "{ended:?}");
    for silent in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"] {
        let server = scripted(move |stream: &mut TcpStream| {
            let _ = stream.write_all(silent);
            // The server is silent until the client disconnects.
            let _ = stream.read(&mut [0]);
        });
        let (_, ended) = answer_of(&impatient(server.0, Duration::from_millis(600)));
        assert!(matches!(ended, Err(RemoteError::Silent { .. })), "{ended:?}");
    }
    let closed: ServerAddress = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string().parse().unwrap()
    };
    assert!(matches!(answer(closed).1, Err(RemoteError::Unreachable { .. })));
}

#[test]
fn cancel_closes_the_connection_at_once() {
    let (closed, closes) = mpsc::channel();
    let (server, requests) = scripted(move |stream: &mut TcpStream| {
        // The server is silent, as if it computed a long prompt. It sees the client disconnect as
        // the end of the request.
        let _ = closed.send(stream.read(&mut [0]).map_or(0, |read| read));
    });
    let cancel = Cancel::default();
    let hour = Duration::from_secs(3600);
    let patient = RemoteClient::new(server, None, RemoteTimeouts { connect: hour, silence: hour });
    let answered = {
        let cancel = cancel.clone();
        thread::spawn(move || patient.chat(&asked(), &cancel, &mut |_| ()))
    };
    requests.recv().unwrap();
    cancel.cancel();
    assert_eq!(answered.join().unwrap(), Err(RemoteError::Cancelled));
    assert_eq!(closes.recv_timeout(PATIENCE), Ok(0), "the server sees it");
    let (server, requests) = scripted(|_: &mut TcpStream| ());
    let refused = client(server).chat(&asked(), &cancel, &mut |_| ());
    assert_eq!(refused, Err(RemoteError::Cancelled));
    assert!(requests.try_recv().is_err(), "what was cancelled before is not sent");
}

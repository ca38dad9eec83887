//! Tools of MCP servers. Some are real, on standard input and output or over HTTP. Others break the
//! protocol.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    io::Write,
    net::TcpStream,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use serde_json::{Map, Value, json};
use thermocline_chats::tools::{
    Consent, ServerConfig, ServerTransport, ToolHub, ToolLimits, ToolServerState, ToolSettings, Toolbox,
};
use thermocline_host::{
    folders::Folders,
    remote::{KeyStore, SecretKey},
    testing::scripted_by_request,
};
use thermocline_tests::wait::{LONGEST, eventually, until};

const LIMITS: ToolLimits = ToolLimits { connect: LONGEST, call: LONGEST, message: 4 << 20, result: 1000, tools: 64 };

struct Servers {
    hub: Arc<ToolHub>,
    folder: tempfile::TempDir,
}

fn command(behaviour: &str) -> ServerConfig {
    let env = BTreeMap::from([("GIVEN".to_owned(), "yes".to_owned())]);
    let command = env!("CARGO_BIN_EXE_tool_server").to_owned();
    let transport = ServerTransport::Command { command, args: vec![behaviour.to_owned()], env };
    ServerConfig { name: behaviour.to_owned(), transport, enabled: true }
}

impl Servers {
    fn new(limits: ToolLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyStore::of(&Folders::below(folder.path()));
        Servers { hub: Arc::new(ToolHub::new(keys, limits, || ())), folder }
    }

    /// Connects to a server. Returns its state once it is connected or has failed.
    fn connect(&self, config: &ServerConfig) -> ToolServerState {
        self.hub.connect(std::slice::from_ref(config));
        eventually("a connection", || !self.hub.is_connecting());
        self.state()
    }

    fn state(&self) -> ToolServerState {
        self.hub.servers().remove(0).state
    }

    fn failure(&self, config: &ServerConfig) -> String {
        match self.connect(config) {
            ToolServerState::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn call(&self, config: &ServerConfig, tool: &str, arguments: Value) -> Result<String, String> {
        let ToolServerState::Ready { .. } = self.connect(config) else { panic!("{:?}", self.state()) };
        let Value::Object(arguments) = arguments else { panic!("{arguments}") };
        let call = self.hub.call(&config.name, tool, arguments);
        until("the end of a call", || call.take())
    }
}

/// Returns the result of a call to a server with this behaviour.
fn call(behaviour: &str) -> Result<String, String> {
    Servers::new(LIMITS).call(&command(behaviour), "echo", json!({ "text": "hello" }))
}

#[test]
fn tools_of_a_program_are_listed_called_and_their_errors_told() {
    let servers = Servers::new(LIMITS);
    for behaviour in ["good", "noisy"] {
        let config = command(behaviour);
        assert_eq!(servers.call(&config, "echo", json!({ "text": "hello" })).unwrap(), "hello");
        assert_eq!(servers.call(&config, "calculator", json!({})).unwrap_err(), "it does not add up");
    }
    let ToolServerState::Ready { tools, remark } = servers.state() else { panic!("{:?}", servers.state()) };
    assert_eq!(tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["echo", "calculator"]);
    assert!(remark.unwrap().starts_with("2 of its tools are left out"), "a long schema and a name that is none");

    let mut toolbox = Toolbox::new(Arc::clone(&servers.hub), ToolSettings::default());
    let offered: Vec<_> = toolbox.offered().into_iter().map(|tool| (tool.name, tool.consent)).collect();
    let name = |name: &str, consent| (name.to_owned(), consent);
    let want = [
        name("calculator", Consent::Always),
        name("clock", Consent::Always),
        name("echo", Consent::Ask),
        name("noisy_calculator", Consent::Ask),
    ];
    assert_eq!(offered, want, "a server's tool does not take the place of the program's own");
    toolbox.settings.consents.set(Some("noisy"), &tools[0], Consent::Never);
    assert_eq!(toolbox.offered().len(), 3);

    // The server is removed while it is connected; another is switched off.
    servers.hub.connect(&[]);
    assert!(servers.hub.servers().is_empty());
    let off = ServerConfig { enabled: false, ..command("good") };
    assert_eq!(servers.connect(&off), ToolServerState::Off);
    assert!(servers.hub.call("good", "echo", Map::new()).take().unwrap().unwrap_err().contains("not connected"));
}

#[test]
fn program_gets_no_variables_but_the_usual_and_its_own() {
    // cargo sets many variables for a test program.
    let text = Servers::new(ToolLimits { result: 100_000, ..LIMITS })
        .call(&command("environment"), "echo", json!({}))
        .unwrap();
    assert!(text.lines().any(|line| line == "GIVEN=yes") && text.contains("PATH="), "{text}");
    assert!(!text.contains("CARGO"), "{text}");
}

#[test]
fn hostile_servers_end_in_errors_that_say_so() {
    let error = call("huge").unwrap_err();
    assert!(error.contains("the server sent a message of more than 4194304 bytes"), "{error}");
    let long = call("long").unwrap();
    assert!(long.len() < 1100 && long.ends_with("[the result is longer: 1000 of 2097152 bytes are given]"), "{long}");
    let error = call("dies").unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    let refused = call("asks").unwrap();
    let want = "sampling/createMessage: refused, roots/list: refused, elicitation/create: decline, keys/read: refused";
    assert_eq!(refused, want);
    let servers = Servers::new(ToolLimits { call: Duration::from_millis(500), ..LIMITS });
    for behaviour in ["silent", "malformed"] {
        let error = servers.call(&command(behaviour), "echo", json!({})).unwrap_err();
        assert!(
            error.contains("did not answer within 0.5 s") || error.contains("does not match the request"),
            "{behaviour}: {error}"
        );
    }
    let servers = Servers::new(LIMITS);
    for behaviour in ["many", "endless"] {
        let ToolServerState::Ready { tools, remark } = servers.connect(&command(behaviour)) else {
            panic!("{behaviour}")
        };
        assert!(tools.len() <= 64 && remark.is_some(), "{behaviour}: {} {remark:?}", tools.len());
    }
}

#[test]
fn servers_that_do_not_start_say_why() {
    let servers = Servers::new(ToolLimits { connect: Duration::from_millis(800), ..LIMITS });
    let error = servers.failure(&command("mute"));
    assert!(error.contains("did not answer within 0.8 s"), "{error}");
    let error = servers.failure(&command("nonsense"));
    assert!(error.contains("did not answer within 0.8 s"), "{error}");
    let servers = Servers::new(LIMITS);
    let error = servers.failure(&command("ends"));
    assert!(
        error.contains("the server ended before it answered; the server reports: the configuration is missing"),
        "{error}"
    );
    let nowhere =
        ServerTransport::Command { command: "no-such-program-1".to_owned(), args: Vec::new(), env: BTreeMap::new() };
    let nowhere = ServerConfig { name: "nowhere".to_owned(), transport: nowhere, enabled: true };
    let error = servers.failure(&nowhere);
    assert!(error.contains("the program was not found"), "{error}");
    servers.hub.retry("nowhere");
    assert_eq!(servers.failure(&nowhere), error);
}

#[test]
fn a_server_that_died_is_told_and_connected_again() {
    let servers = Servers::new(LIMITS);
    let config = command("dies");
    servers.call(&config, "echo", json!({})).unwrap_err();
    let why = until("its end", || match servers.state() {
        ToolServerState::Failed(why) => Some(why),
        _ => None,
    });
    assert!(why.contains("panicked at the worst moment"), "{why}");
    let refused = servers.hub.call("dies", "echo", Map::new()).take().unwrap().unwrap_err();
    assert!(refused.contains("the server dies is not connected"), "{refused}");
    servers.hub.retry("dies");
    assert!(matches!(servers.connect(&config), ToolServerState::Ready { .. }));
}

#[test]
fn cancelled_calls_and_closed_hubs_leave_nothing_behind() {
    let hour = Duration::from_secs(3600);
    let servers = Servers::new(ToolLimits { connect: hour, call: hour, ..LIMITS });
    let mark = servers.folder.path().join("called");
    let mut config = command("silent");
    if let ServerTransport::Command { args, .. } = &mut config.transport {
        args.push(mark.to_str().unwrap().to_owned());
    }
    assert!(matches!(servers.connect(&config), ToolServerState::Ready { .. }));
    let call = servers.hub.call("silent", "echo", Map::new());
    eventually("the call at the server", || mark.exists());
    drop(call);
    // `close` does not wait for an answer.
    servers.hub.close();
    assert!(servers.hub.servers().is_empty());
    let path = servers.folder.path().to_owned();
    drop(servers);
    assert!(!path.exists());
}

/// Starts an HTTP server that answers each message with `reply`. Also returns its requests.
fn http(reply: impl Fn(&Value, &mut TcpStream) + Send + 'static) -> (ServerConfig, Receiver<String>) {
    let (address, requests) = scripted_by_request(move |request, stream| {
        // A message has no line breaks.
        let (_, message) = request.rsplit_once("\r\n").unwrap_or_default();
        reply(&serde_json::from_str(message).unwrap_or_default(), stream);
    });
    let headers = BTreeMap::from([("X-Team".to_owned(), "a".to_owned())]);
    let transport = ServerTransport::Url { url: format!("http://{}/mcp", address.host()), headers };
    (ServerConfig { name: "far".to_owned(), transport, enabled: true }, requests)
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nMcp-Session-Id: s1\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all((head + body).as_bytes());
}

/// Returns the result of a request to a server with one tool; `None` for a notification.
fn result(message: &Value) -> Option<Value> {
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        }),
        "tools/list" => json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] }),
        "tools/call" => json!({ "content": [{ "type": "text", "text": message["params"]["arguments"]["text"] }] }),
        _ => return None,
    };
    Some(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
}

#[test]
fn tools_of_an_http_server_are_called_by_json_and_by_events() {
    for events in [false, true] {
        let (config, requests) = http(move |message, stream| match result(message) {
            None => respond(stream, "202 Accepted", "text/plain", ""),
            Some(result) if events => {
                respond(stream, "200 OK", "text/event-stream", &format!(": hi\n\ndata: {result}\n\n"))
            }
            Some(result) => respond(stream, "200 OK", "application/json", &result.to_string()),
        });
        let servers = Servers::new(LIMITS);
        let keys = KeyStore::of(&Folders::below(servers.folder.path()));
        keys.set(config.transport.key_name().unwrap(), &SecretKey::new("sk-1").unwrap()).unwrap();
        assert_eq!(servers.call(&config, "echo", json!({ "text": "hé" })).unwrap(), "hé");
        let posts: Vec<String> =
            requests.try_iter().map(|it| it.to_lowercase()).filter(|it| it.starts_with("post")).collect();
        let with = |text: &str| posts.iter().filter(|it| it.contains(text)).count();
        assert_eq!((with("authorization: bearer sk-1"), with("x-team: a")), (posts.len(), posts.len()), "{posts:?}");
        assert!(with("mcp-session-id: s1") >= posts.len() - 1, "{posts:?}");
    }
}

#[test]
fn hostile_http_servers_end_in_errors_that_say_so() {
    let failure = |reply: fn(&Value, &mut TcpStream)| Servers::new(LIMITS).failure(&http(reply).0);
    let error = failure(|_, stream| respond(stream, "200 OK", "text/html", "<html>Log in\u{1b}[2J</html>"));
    assert!(error.contains("expected JSON or an event stream") && error.contains("<html>Log in[2J"), "{error}");
    let error = failure(|_, stream| respond(stream, "401 Unauthorized", "text/plain", "who are you?"));
    assert!(error.contains("HTTP 401: who are you?"), "{error}");
    let error = failure(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n",
        );
    });
    assert!(error.contains("the server redirects to http://elsewhere.example/, which is not followed"), "{error}");
    let error = failure(|_, stream| respond(stream, "200 OK", "application/json", &"[".repeat(8 << 20)));
    assert!(error.contains("the server sent a message of more than 4194304 bytes"), "{error}");

    let huge = |message: &Value, stream: &mut TcpStream| match result(message) {
        None => respond(stream, "202 Accepted", "text/plain", ""),
        Some(_) if message["method"] == "tools/call" => {
            respond(stream, "200 OK", "text/event-stream", &format!("data: {}", "x".repeat(50 << 20)));
        }
        Some(result) => respond(stream, "200 OK", "application/json", &result.to_string()),
    };
    let error = Servers::new(LIMITS).call(&http(huge).0, "echo", json!({})).unwrap_err();
    assert!(error.contains("more than 4194304 bytes"), "{error}");

    let absent = ServerTransport::Url { url: "http://127.0.0.1:9/mcp".to_owned(), headers: BTreeMap::new() };
    let absent = ServerConfig { name: "absent".to_owned(), transport: absent, enabled: true };
    let error = Servers::new(LIMITS).failure(&absent);
    assert!(error.contains("the server cannot be reached"), "{error}");
}

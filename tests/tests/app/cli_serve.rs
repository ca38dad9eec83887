//! `thermocline serve` as a process: its output, its end, and its answers, which equal those of
//! `run`.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, Command},
};

#[cfg(unix)]
use serde_json::Value;
use serde_json::json;
use thermocline_tests::{
    http::Client,
    served::{TEXT, text},
    terminal::{command, program_in, run, server_program, thermocline, wait},
};
#[cfg(unix)]
use thermocline_tests::{
    served::{CHAT, chat},
    wait::eventually,
};

#[cfg(unix)]
const QUESTION: &str = "Tell me a story about a dog and a kite.";

/// The program at any free port, with a client.
pub(super) struct Serving {
    child: Child,
    pub client: Client,
    greeting: String,
}

impl Serving {
    pub fn with(args: &[&str]) -> Self {
        Self::started(command(&[&["serve", "--port", "0"], args].concat()))
    }

    fn started(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        let address = greeting.trim_end().strip_suffix("/v1").and_then(|it| it.rsplit_once("http://"));
        let client = Client::new(address.unwrap_or_else(|| panic!("{greeting:?}")).1.parse().unwrap());
        Serving { child, client, greeting }
    }

    fn interrupt(&self) {
        self.signal("-INT");
    }

    fn signal(&self, signal: &str) {
        let sent = std::process::Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends the program and returns its standard error.
    pub fn killed(mut self) -> String {
        self.child.kill().unwrap();
        self.end().0
    }

    /// Interrupts the program, so that it reports every request before it ends, and returns its
    /// standard error.
    #[cfg(unix)]
    pub fn interrupted(self) -> String {
        self.interrupt();
        self.end().0
    }

    /// Waits for the end and returns standard error and exit status.
    fn end(mut self) -> (String, Option<i32>) {
        let code = wait(&mut self.child).code();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (said, code)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // `kill` fails if the process has already ended.
        let _ = self.child.kill();
    }
}

#[test]
#[cfg(unix)]
fn serve_answers_like_run() {
    let run = |args: &[&str]| thermocline(&[&["run", "--temp", "0", "--json"], args].concat()).json();
    let (chat_run, text_run) = (run(&["-p", QUESTION]), run(&["--raw", "-p", "One day", "-n", "30"]));
    let serving = Serving::with(&[]);
    assert!(serving.greeting.starts_with("Storyteller at http://127.0.0.1:"), "{}", serving.greeting);
    let answer = serving.client.post(CHAT, &chat(QUESTION, json!({}))).json(200);
    assert_eq!(answer["choices"][0]["message"]["content"], chat_run["text"]);
    let (usage, stats) = (&answer["usage"], &chat_run["stats"]);
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&stats["prompt_tokens"], &stats["generated_tokens"])
    );
    let answer = serving.client.post(TEXT, &text("One day", json!({ "max_tokens": 30 }))).json(200);
    assert_eq!(answer["choices"][0]["text"], text_run["text"]);
    serving.client.get("/nowhere").error(404);
    serving.interrupt();
    let (said, code) = serving.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("answer 30 tokens") && said.contains("[GET /nowhere"), "{said}");
}

#[test]
fn server_program_takes_the_options_of_serve_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let of_server = |args: &[&str]| program_in(&server_program(), folder.path(), args);
    // `-fa` is a flag of llama.cpp.
    let serving = Serving::started(of_server(&["--port", "0", "--alias", "storyteller", "-fa", "on"]));
    let models = serving.client.get("/v1/models").json(200);
    assert_eq!(models["data"][0]["id"], "storyteller", "{models}");
    drop(serving);
    let refused = run(of_server(&["--bogus"]), b"");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let help = run(of_server(&["--help"]), b"");
    assert!(
        help.stdout.contains("thermocline-server model.gguf") && !help.stdout.contains("thermocline serve"),
        "{help:?}"
    );
}

#[test]
#[cfg(unix)]
fn options_are_the_defaults_of_requests() {
    let serving = Serving::with(&[
        "--api-key",
        "geheim",
        "--temp",
        "0",
        "-n",
        "4",
        "-c",
        "64",
        "--allow-origin",
        "http://a.example",
        "--queue",
        "0",
        "-q",
    ]);
    serving.client.get("/v1/models").error(401);
    let client = serving.client.with("authorization", "Bearer geheim").with("origin", "http://a.example");
    let body = json!({ "messages": [{ "role": "user", "content": QUESTION }] });
    let ask = |body: &Value| client.post(CHAT, body).json(200);
    let (one, two) = (ask(&body), ask(&body));
    assert_eq!(one["choices"], two["choices"]);
    assert_eq!(
        (&one["usage"]["completion_tokens"], &one["choices"][0]["finish_reason"]),
        (&json!(4), &json!("length"))
    );
    assert_eq!(client.get("/v1/models").json(200)["data"][0]["context_length"], 64);
    serving.interrupt();
    let (said, code) = serving.end();
    assert_eq!((&*said, code), ("", Some(0)));
}

#[test]
#[cfg(unix)]
fn second_interrupt_ends_the_server_at_once() {
    let serving = Serving::with(&["--on-full", "shift"]);
    let endless = chat("Tell me a story.", json!({ "logit_bias": { "1": -1e6 }, "stream": true }));
    let mut caller = serving.client.begin(CHAT, &endless);
    assert!(caller.line_with("content\":\"").is_some());
    serving.interrupt();
    // The server has noticed the first signal once it refuses connections.
    eventually("a closed port", || std::net::TcpStream::connect(serving.client.address).is_err());
    assert!(caller.line_with("content\":\"").is_some(), "the answer goes on");
    serving.interrupt();
    let (said, code) = serving.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("Ctrl-C ends it now"), "{said}");
}

#[test]
fn unusable_addresses_and_models_are_refused() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let taken = thermocline(&["serve", "--port", &port]).refusal();
    assert!(taken.contains(&format!("port {port} is taken")), "{taken}");
    let unknown = thermocline(&["serve", "--host", "no such host", "--port", "0"]).refusal();
    assert!(unknown.contains("--host no such host"), "{unknown}");
    thermocline(&["serve", "a.gguf", "--model", "b.gguf"]).refusal();
    thermocline(&["serve", "--api-key", ""]).refusal();
    let none = thermocline(&["serve", "nowhere.gguf", "--port", "0"]).refusal();
    assert!(none.contains("nowhere.gguf"), "{none}");
}

#[test]
#[cfg(unix)]
fn termination_completes_the_answer_within_the_time_limit() {
    let body = chat(QUESTION, json!({ "stream": true, "max_tokens": 60 }));
    let serving = Serving::with(&[]);
    let mut caller = serving.client.begin(CHAT, &body);
    assert!(caller.line_with("content\":\"").is_some());
    serving.signal("-TERM");
    assert!(caller.line_with("[DONE]").is_some());
    assert_eq!(serving.end().1, Some(0));

    let serving = Serving::with(&["--on-full", "shift", "--drain", "1"]);
    let endless = chat("Tell me a story.", json!({ "logit_bias": { "1": -1e6 }, "stream": true }));
    let mut caller = serving.client.begin(CHAT, &endless);
    assert!(caller.line_with("content\":\"").is_some());
    serving.signal("-TERM");
    let (said, code) = serving.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("within 1 s") && !caller.rest().contains("[DONE]"), "{said}");
}

#[test]
#[cfg(unix)]
fn key_comes_from_a_file_and_the_network_requires_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "geheim\n").unwrap();
    let serving = Serving::with(&["--api-key-file", file.to_str().unwrap()]);
    serving.client.get("/v1/models").error(401);
    serving.client.with("x-api-key", "geheim").get("/v1/models").json(200);
    let refused = thermocline(&["serve", "--host", "0.0.0.0", "--port", "0"]).refusal();
    assert!(refused.contains("no key"), "{refused}");
    std::fs::write(&file, "\n").unwrap();
    let empty = thermocline(&["serve", "--api-key-file", file.to_str().unwrap()]).refusal();
    assert!(empty.contains("first line is empty"), "{empty}");
}

#[test]
fn folder_of_models_is_served_by_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf");
    let serving = Serving::with(&[folder, "--idle-unload", "60", "--device", "cpu"]);
    assert!(serving.greeting.contains(" models of ") && serving.greeting.contains("fixtures/gguf at http"));
    let ask = |model: &str| serving.client.post(TEXT, &text("a", json!({ "model": model, "max_tokens": 2 })));
    for model in ["llama-silu-gqa-256-Q4_0", "llama-silu-gqa-256-Q8_0"] {
        assert_eq!(ask(model).json(200)["model"], model);
        assert_eq!(serving.client.get("/health").json(200)["model"], model);
    }
    let error = ask("llama-99").error(404);
    assert!(error["message"].as_str().unwrap().contains("llama-silu-gqa-256-Q4_0, "), "{error}");
    // Windows has no signals. `tests/windows.sh` tests Ctrl-C in a console.
    if cfg!(unix) {
        serving.interrupt();
        assert_eq!(serving.end().1, Some(0));
    }
}

#[test]
fn server_says_at_its_start_how_much_memory_its_slots_may_take() {
    let plan =
        thermocline(&["plan", "--vram", "0", "--sessions", "3", "-c", "256", "--kv-type", "f16", "--json"]).json();
    let serving = Serving::with(&["--parallel", "3", "-c", "256", "--kv-type", "f16"]);
    let memory = serving.client.get("/v1/thermocline").json(200)["memory"].clone();
    assert_eq!(&memory["most_kv_bytes"], &plan["ram_by_purpose"]["KV cache"], "{plan}");
    let said = serving.killed();
    let size = memory["most_kv_bytes"].as_u64().unwrap() as f64 / f64::from(1 << 20);
    assert!(said.contains(&format!("[3 slots of 256 tokens: KV caches take up to {size:.1} MiB of RAM]")), "{said}");
    let slots = ["--parallel", "3", "-c", "256", "--kv-type", "f16"];
    let on_gpu = Serving::with(&[&slots[..], &["--device", "0"]].concat());
    let said = on_gpu.killed();
    let line = format!("[3 slots of 256 tokens: KV caches take up to {size:.1} MiB of GPU memory]");
    assert!(said.contains(&line), "{said}");
    let limited = Serving::with(&["--parallel", "3", "-c", "256", "--kv-type", "f16", "--kv-budget", "1MiB"]);
    let memory = limited.client.get("/v1/thermocline").json(200)["memory"].clone();
    assert!(memory["most_kv_bytes"].as_u64() < plan["ram_by_purpose"]["KV cache"].as_u64(), "{memory}");
}

#[test]
fn server_says_which_tools_it_has_left_out() {
    let serving = Serving::with(&[]);
    let body = json!({ "input": "Hi", "max_output_tokens": 2, "tools": [{ "type": "web_search" }, { "type": "custom", "name": "edit" }] });
    serving.client.post("/v1/responses", &body).json(200);
    #[cfg(unix)]
    {
        serving.interrupt();
        let said = serving.end().0;
        let line = "[POST /v1/responses: left out tools that this server cannot run: web_search, custom edit]";
        assert!(said.contains(line), "{said}");
    }
}

//! Chat templates from outside. The program reports a template that fails wherever it describes the
//! model, and dates use the local time zone.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;
#[cfg(unix)]
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
#[cfg(unix)]
use thermocline_tests::terminal::{command, run};
use thermocline_tests::{
    served::{CHAT, chat},
    terminal::{thermocline, with_input},
};

use super::cli_serve::Serving;

/// Makes a folder with a tiny model that has this chat template.
fn model(template: &str) -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(source.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["chat_template"] = template.into();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// The chat reports a template that fails before its first answer. The server reports it at its
/// start and in its state. Both use the words of `inspect`. They report a template that works as
/// the model's own.
#[test]
fn failing_template_is_told_by_chat_and_server() {
    let broken = model("{{ messages | no_such_filter }}");
    let path = broken.path().to_str().unwrap();
    let failure = thermocline(&["inspect", path, "--json"]).json()["chat_template"]["failure"].clone();
    let failure = failure.as_str().unwrap();
    assert!(failure.contains("`chat_template`") && failure.contains("no_such_filter"), "{failure}");

    let talk = with_input(&["chat", "-m", path, "--device", "cpu", "-n", "2", "--temp", "0"], b"Hello\n");
    let told: Vec<&str> = talk.stderr.lines().filter(|line| line.starts_with("[chat template: ")).collect();
    assert!(told.len() == 1 && told[0].contains(failure), "{talk:?}");
    assert_eq!(talk.code, Some(0));

    let serving = Serving::with(&["-m", path, "--device", "cpu"]);
    let shown = serving.client.get("/v1/thermocline").json(200);
    let shown = &shown["model"]["chat_template"];
    assert_eq!(shown["failure"], failure);
    assert!(shown["origin"].as_str().unwrap().starts_with("plain format: "), "{shown}");
    let answer = serving.client.post(CHAT, &chat("Hello", json!({ "max_tokens": 2 }))).json(200);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 1, "{answer}");
    let said = serving.killed();
    assert!(said.lines().any(|line| line.starts_with("[chat template: ") && line.contains(failure)), "{said}");

    let works = model("{% for m in messages %}{{ m.content }}{% endfor %}");
    let serving = Serving::with(&["-m", works.path().to_str().unwrap(), "--device", "cpu"]);
    let shown = serving.client.get("/v1/thermocline").json(200);
    let own = json!({ "origin": "the model's own (`chat_template`)", "failure": null });
    assert_eq!(shown["model"]["chat_template"], own);
    assert!(!serving.killed().contains("template"));
}

/// `strftime_now` uses the clock of the time zone in `TZ`. Zones differ by up to 26 hours, so two
/// of them always have different dates. The reference is `date`.
#[cfg(unix)]
#[test]
fn dates_in_templates_are_those_of_the_time_zone() {
    const FORMAT: &str = "%Y-%m-%d %H:%M %z, %A %d %B, day %j";
    let asks = model(&format!("{{{{ raise_exception('[' ~ strftime_now('{FORMAT}') ~ ']') }}}}"));
    let mut dates = Vec::new();
    for zone in ["Pacific/Kiritimati", "Etc/GMT+12", "Asia/Kathmandu", "UTC", "<+14>-14", "AAA12"] {
        let date = || {
            let date = Command::new("date").arg(format!("+{FORMAT}")).env("TZ", zone).env("LC_ALL", "C").output();
            String::from_utf8(date.unwrap().stdout).unwrap().trim_end().to_owned()
        };
        let mut inspect = command(&["inspect", asks.path().to_str().unwrap(), "--json"]);
        inspect.env("TZ", zone);
        // The minute may change between the two calls.
        let before = date();
        let shown = run(inspect, b"").json();
        let failure = shown["chat_template"]["failure"].as_str().unwrap();
        let told = failure.split_once('[').and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
        println!("{zone}: {told}");
        assert!(told == before || told == date(), "{zone}: {told}, not {before}");
        dates.push(told[..10].to_owned());
    }
    assert_ne!(dates[0], dates[1]);
    assert_eq!((&dates[0], &dates[1]), (&dates[4], &dates[5]), "zones by their rule");
}

//! The command line itself: help, versions, wrong flags.

#![allow(clippy::unwrap_used)]

use thermocline_tests::terminal::thermocline;

const COMMANDS: [&str; 9] = ["run", "chat", "inspect", "tokenize", "logits", "convert", "synth", "bench", "devices"];

#[test]
fn every_command_explains_itself() {
    let overview = thermocline(&["--help"]).ok();
    for command in COMMANDS {
        assert!(overview.contains(&format!("\n  {command}")), "{command}: {overview}");
        let help = thermocline(&[command, "--help"]).ok();
        assert!(help.contains("Usage: thermocline"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    assert!(thermocline(&["--version"]).ok().starts_with("thermocline "));
}

#[test]
fn wrong_flags_are_usage_errors() {
    for args in [
        &["--nonsense"][..],
        &["nonsense"],
        &["run", "--nonsense"],
        &["run", "-p", "x", "--temp", "warm"],
        &["run", "-p", "x", "--temp", "-1"],
        &["run", "-p", "x", "--temp", "nan"],
        &["run", "-p", "x", "--top-p", "1.5"],
        &["run", "-p", "x", "--context", "0"],
        &["run", "-p", "x", "--context", "99999999999999999999999"],
        &["run", "-p", "x", "--threads", "0"],
        &["run", "-p", "x", "--logit-bias", "1"],
        &["run", "-p", "x", "--kv-type", "q3"],
        &["run", "-p", "x", "--isa", "mmx"],
        &["run", "-p", "x", "--activation", "tanh"],
        &["run", "-p", "x", "--on-full", "explode"],
        &["run", "-p", "x", "--raw", "--chat"],
        &["run", "-p", "x", "--stream"],
        &["run", "-p", "x", "-f", "y"],
        &["tokenize", "--ids", "1,-2"],
        &["tokenize", "--ids", "one"],
        &["logits", "--tokens", "1"],
        &["logits", "--out", "x"],
        &["convert", "x"],
        &["convert", "x", "--type", "q9", "--out", "y"],
        &["inspect", "a", "b"],
    ] {
        let error = thermocline(args).refusal();
        assert!(error.len() > "error: ".len(), "{args:?}");
    }
}

#[test]
fn devices_are_shown() {
    let text = thermocline(&["devices"]).ok();
    assert!(text.contains("kernels"), "{text}");
    let json = thermocline(&["devices", "--json"]).json();
    let chosen = json["cpu"]["isa"]["chosen"].as_str().unwrap();
    assert!(json["cpu"]["isa"]["available"].as_array().unwrap().iter().any(|isa| isa == chosen));
    assert!(json["cpu"]["threads"].as_u64().unwrap() >= 1);
}

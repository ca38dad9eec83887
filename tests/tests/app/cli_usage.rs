//! The command line itself: help, versions, wrong flags.

#![allow(clippy::unwrap_used)]

use thermocline_tests::terminal::{command, run, thermocline};

const COMMANDS: [&str; 11] =
    ["run", "chat", "serve", "inspect", "tokenize", "logits", "convert", "prepare", "synth", "bench", "devices"];

#[test]
fn every_command_has_a_help_page() {
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
fn devices_shows_the_cpu() {
    let text = thermocline(&["devices"]).ok();
    assert!(text.contains("kernels"), "{text}");
    let json = thermocline(&["devices", "--json"]).json();
    let chosen = json["cpu"]["isa"]["chosen"].as_str().unwrap();
    assert!(json["cpu"]["isa"]["available"].as_array().unwrap().iter().any(|isa| isa == chosen));
    assert!(json["cpu"]["threads"].as_u64().unwrap() >= 1);
}

#[test]
fn gpus_are_listed_and_software_is_not_chosen() {
    let text = thermocline(&["devices"]).ok();
    let json = thermocline(&["devices", "--json"]).json();
    let gpus = json["gpu"].as_array().unwrap();
    assert!(!gpus.is_empty(), "the tests need a Vulkan driver (tests/run.sh installs one)");
    for (at, gpu) in gpus.iter().enumerate() {
        assert_eq!(gpu["index"], at);
        assert!(text.contains(gpu["name"].as_str().unwrap()), "{text}");
        assert!(gpu["max_binding_bytes"].as_u64().unwrap() >= 128 << 20, "{gpu}");
        assert!(gpu["tier"]["f16"].is_boolean() && gpu["subgroup_sizes"][1].is_u64(), "{gpu}");
        assert!(gpu["type"] != "software" || gpu["chosen"] == false, "{gpu}");
        for reading in gpu["vram"].as_array().unwrap() {
            assert!(reading["source"].is_string() && reading["total_bytes"].is_u64(), "{reading}");
        }
    }
    let chosen = gpus.iter().filter(|gpu| gpu["chosen"] == true).count();
    let real = gpus.iter().filter(|gpu| gpu["type"] != "software").count();
    assert_eq!(chosen, real.min(1));
}

#[test]
fn devices_lists_no_gpu_without_a_graphics_driver() {
    for form in [&["devices"][..], &["devices", "--json"]] {
        let mut command = command(form);
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        let ran = run(command, b"");
        assert_eq!(ran.stderr, "");
        if form.len() == 2 {
            assert_eq!(ran.json()["gpu"].as_array().unwrap().len(), 0);
        } else {
            assert!(ran.ok().contains("none found"));
        }
    }
}

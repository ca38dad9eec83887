//! The command line: help, versions, wrong flags.

#![allow(clippy::unwrap_used)]

use thermocline_tests::terminal::{command, run, thermocline, with_input};

const COMMANDS: [&str; 14] = [
    "run",
    "chat",
    "serve",
    "inspect",
    "tokenize",
    "logits",
    "convert",
    "prepare",
    "synth",
    "bench",
    "embed",
    "rerank",
    "devices",
    "completions",
];

#[test]
fn every_command_has_a_help_page() {
    let overview = thermocline(&["--help"]).ok();
    for command in COMMANDS {
        assert!(overview.contains(&format!("\n  {command}")), "{command}: {overview}");
        let help = thermocline(&[command, "--help"]).ok();
        assert!(help.contains("Usage: thermocline"), "{help}");
        // Example lines are not wrapped, so that users can copy them.
        let long = |line: &&str| line.chars().count() > 100 && !line.starts_with("  thermocline ");
        assert_eq!(help.lines().find(long), None, "{command}");
    }
    assert!(thermocline(&["--version"]).ok().starts_with("thermocline "));
}

#[test]
fn commands_that_generate_nothing_have_no_options_of_answers() {
    for (command, text) in [("embed", &["a"][..]), ("rerank", &["a", "b"])] {
        let help = thermocline(&[command, "--help"]).ok();
        for option in ["--temp", "--top-k", "--seed", "--max-tokens", "--stop", "--on-full", "--speculation", "--draft"]
        {
            assert!(!help.contains(&format!("{option} ")), "{command} {option}");
            thermocline(&[&[command][..], text, &[option, "1"]].concat()).refusal();
        }
        for option in ["--model", "--context", "--threads", "--device", "--vram", "--sparsity"] {
            assert!(help.contains(&format!("{option} ")), "{command} {option}");
        }
    }
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
        &["run", "-p", ""],
        &["run", "-p", " \n"],
        &["run", "-p", "x", "-ngl", "20"],
        &["run", "-p", "x", "-hf", "owner/name"],
        &["serve", "-np"],
        &["completions", "tcsh"],
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
    let portable = json["cpu"]["isa"]["portable"].as_bool().unwrap();
    assert!(portable == (chosen == "scalar") && portable == text.contains("portable code"), "{text}");
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

/// Linux, where Vulkan is the only API for a GPU.
#[test]
#[cfg(target_os = "linux")]
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

#[test]
fn examples_are_whole_lines_in_a_narrow_terminal() {
    let mut command = command(&["run", "--help"]);
    command.env("COLUMNS", "60");
    let page = run(command, b"").ok();
    let example = "  thermocline run -m llama-2-7b.Q4_0.gguf --raw -p \"Water boils at\" -n 32 --temp 0";
    assert!(page.lines().any(|line| line == example), "{page}");
    assert!(!page.contains('\u{a0}'), "{page}");
}

#[test]
fn misspelt_command_is_not_taken_for_a_model() {
    let ran = thermocline(&["benhc"]);
    assert!(ran.stderr.contains("did you mean `thermocline bench`?"), "{ran:?}");
    assert!(ran.refusal().contains("expected a command"));
    // Other systems always have a display, where a window shows the error.
    #[cfg(target_os = "linux")]
    assert!(thermocline(&["/no/such.gguf"]).stderr.contains("/no/such.gguf"));
}

#[test]
fn flags_of_llama_cpp_work_or_name_what_to_type() {
    let plain = thermocline(&["run", "-p", "Hi", "-n", "3", "-s", "1", "-q"]).ok();
    let theirs = ["-ngl", "99", "-fa", "--ctx-size", "256", "-ctk", "f32", "-ctv", "f32", "--jinja"];
    let ran = thermocline(&[&["run", "-p", "Hi", "--n-predict", "3", "-s", "1", "-q"][..], &theirs].concat());
    assert!(ran.stderr.contains("[-ngl 99: the GPU holds as much of the model as fits"), "{ran:?}");
    assert_eq!(ran.ok(), plain);
    let ran = thermocline(&["serve", "-ngl", "20"]);
    assert!(ran.stderr.contains("hint: --vram BYTES"), "{ran:?}");
    assert_eq!(ran.refusal(), "error: -ngl 20 is a flag of llama.cpp that Thermocline does not have");
}

#[test]
fn empty_input_is_refused() {
    for input in ["", "\n", " \n\n"] {
        assert!(with_input(&["run"], input.as_bytes()).refusal().contains("the prompt is empty"), "{input:?}");
    }
}

#[test]
fn machine_without_a_desktop_gets_no_complaint_of_a_driver() {
    let mut command = command(&["devices"]);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT");
    let ran = run(command, b"");
    assert_eq!(ran.stderr, "");
    assert!(ran.ok().contains("kernels"));
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let script = thermocline(&["completions", "bash"]).ok();
    let page = thermocline(&["man"]).ok();
    let folder = tempfile::tempdir().unwrap();
    thermocline(&["man", "--out", folder.path().to_str().unwrap()]).ok();
    for command in COMMANDS {
        assert!(script.contains(command) && page.contains(command), "{command}");
        let own = std::fs::read_to_string(folder.path().join(format!("thermocline-{command}.1"))).unwrap();
        assert!(own.contains("thermocline") && own.contains(".SH OPTIONS"), "{own}");
    }
}

#[test]
fn answer_follows_a_schema_or_a_grammar() {
    let ask =
        |form: &[&str]| thermocline(&[&["run", "-p", "Name an animal.", "-n", "40", "-s", "1", "-q"], form].concat());
    let folder = tempfile::tempdir().unwrap();
    let (schema, grammar) = (folder.path().join("schema.json"), folder.path().join("grammar.lark"));
    std::fs::write(&schema, r#"{"enum": ["cat", "dog"]}"#).unwrap();
    std::fs::write(&grammar, r#"start: "cat" | "dog""#).unwrap();
    for form in [["--json-schema", r#"{"enum": ["cat", "dog"]}"#], ["--json-schema-file", schema.to_str().unwrap()]] {
        let answer: String = serde_json::from_str(ask(&form).ok().trim()).unwrap();
        assert!(answer == "cat" || answer == "dog", "{answer}");
    }
    let gbnf = r#"root ::= "cat" | "dog""#;
    let lark = r#"start: "cat" | "dog""#;
    for form in [["--grammar", lark], ["--grammar", gbnf], ["--grammar-file", grammar.to_str().unwrap()]] {
        let answer = ask(&form).ok();
        assert!(["cat", "dog"].contains(&answer.trim()), "{answer}");
    }
    assert!(ask(&["--json-schema", "{"]).refusal().contains("--json-schema: expected a JSON schema"));
    assert!(ask(&["--json-schema", "{}", "--grammar", "x"]).refusal().contains("--grammar"));
    ask(&["--grammar", "start: ("]).refusal();
}

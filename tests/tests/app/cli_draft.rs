//! `--draft`: a draft model on the command line.

#![allow(clippy::unwrap_used)]

use super::cli_serve::Serving;
use thermocline_tests::terminal::thermocline;

/// The built-in model as a file.
const STORYTELLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/storyteller/storyteller-F16.gguf");

/// A model with other tokens.
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf/llama-silu-gqa-256-Q8_0.gguf");

#[test]
fn answer_with_a_draft_model_is_the_answer_without() {
    let run = |more: &[&str]| {
        let args = ["run", "-q", "-p", "Tell me a story.", "--temp", "0", "-n", "40", "--device", "cpu"];
        thermocline(&[&args[..], more].concat()).ok()
    };
    let plain = run(&["--speculation", "off"]);
    assert_eq!(run(&["--draft", STORYTELLER]), plain);
    assert_eq!(run(&["--draft", STORYTELLER, "--speculation", "off"]), plain);
    assert_eq!(run(&["-md", STORYTELLER]), plain);
}

#[test]
fn commands_refuse_a_draft_model_that_does_not_fit() {
    let commands = [
        &["run", "-p", "x", "-n", "1"][..],
        &["chat"],
        &["serve", "--port", "0"],
        &["plan", "--vram", "0"],
        &["bench", "--streams", "1", "-p", "4", "-n", "2"],
    ];
    for command in commands {
        let refusal = |draft: &str| thermocline(&[command, &["--draft", draft]].concat()).refusal();
        let error = refusal(OTHER);
        assert!(error.contains("in which token ") && error.contains("llama-silu-gqa-256-Q8_0.gguf"), "{error}");
        assert!(refusal("/gone/small.gguf").contains("/gone/small.gguf"));
        assert!(refusal("16").contains("the number of drafts"));
    }
    let error = thermocline(&["bench", "--draft", STORYTELLER]).refusal();
    assert!(error.contains("--draft: expected --streams"), "{error}");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf");
    let error = thermocline(&["serve", folder, "--port", "0", "--draft", STORYTELLER]).refusal();
    assert!(error.contains("--draft: expected one model"), "{error}");
}

#[test]
fn server_and_plan_count_the_memory_of_the_draft_model() {
    let context = ["-c", "256", "--kv-type", "f16"];
    let plan = |more: &[&str]| {
        let args = ["plan", "--vram", "0", "--sessions", "3", "--json"];
        thermocline(&[&args[..], &context, more].concat()).json()["ram_by_purpose"].clone()
    };
    let (alone, both) = (plan(&[]), plan(&["--draft", STORYTELLER]));
    let bytes = |plan: &serde_json::Value, purpose: &str| plan[purpose].as_u64().unwrap();
    assert_eq!((bytes(&alone, DRAFT_CACHE), bytes(&alone, DRAFT_WEIGHTS)), (0, 0));
    assert_eq!(bytes(&both, DRAFT_CACHE), bytes(&both, "KV cache"), "it is the same model");

    let draft = ["--device", "cpu", "--parallel", "3", "--draft", STORYTELLER];
    let serving = Serving::with(&[&context[..], &draft].concat());
    let status = serving.client.get("/v1/thermocline").json(200);
    assert_eq!(status["draft_model"]["weight_bytes"], both[DRAFT_WEIGHTS], "{status}");
    assert_eq!(status["draft_model"]["weight_bytes"], status["model"]["weight_bytes"]);
    let caches = bytes(&both, "KV cache") + bytes(&both, DRAFT_CACHE);
    assert_eq!(status["memory"]["most_kv_bytes"].as_u64(), Some(caches));
}

const DRAFT_WEIGHTS: &str = "weights of the draft model";
const DRAFT_CACHE: &str = "KV cache for drafts";

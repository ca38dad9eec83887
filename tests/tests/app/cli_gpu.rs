//! The terminal on a GPU, or on a software driver if there is no GPU.

#![allow(clippy::unwrap_used)]

use thermocline_engine::gpu::{AdapterId, Fallback, FallbackPart, Fallbacks, GpuFeature, adapters};
use thermocline_tests::{
    golden::Expected,
    terminal::{command_in, run, thermocline, with_input},
};

/// Chooses the first adapter of any kind.
const GPU: [&str; 2] = ["--device", "0"];

fn adapter() -> String {
    let devices = thermocline(&["devices", "--json"]).json();
    devices["gpu"][0]["name"].as_str().unwrap_or_else(|| panic!("no adapter: {devices}")).to_owned()
}

#[test]
fn run_prints_the_same_text_on_gpu_and_cpu() {
    // The neurons that predictors of quantised rows find depend on the processor's rounding.
    let run = ["run", "-p", "A cat and a kite", "--temp", "0", "-n", "24", "--quiet", "--sparsity", "exact"];
    let want = thermocline(&[&run[..], &["--device", "cpu"]].concat()).ok();
    assert!(want.len() > 20, "{want}");
    assert_eq!(thermocline(&[&run[..], &GPU].concat()).ok(), want);
    // Only part of the model is on the GPU. The cold rows of the prompt are streamed or not.
    for when in ["on", "off", "auto"] {
        let flags = ["--vram", "12MiB", "--context", "128", "--stream-prompts", when];
        assert_eq!(thermocline(&[&run[..], &GPU, &flags].concat()).ok(), want, "{when}");
    }
    let name = adapter();
    for tier in ["portable", "f16", "subgroups", "subgroups+f16"] {
        let flags = ["--device", &name, "--gpu-tier", tier, "--vram", "512MiB"];
        let ran = thermocline(&[&run[..], &flags].concat());
        assert_eq!(ran.stderr, "", "{tier}");
        assert_eq!(ran.ok(), want, "{tier}");
    }
}

#[test]
fn devices_says_what_is_done_without_until_it_is_to_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Fallbacks::in_folder(&folder.path().join("cache"));
    let adapter = AdapterId::of(&adapters(&kept)[0]);
    let give_up = |part| kept.add(Fallback::new(adapter.clone(), part, "it was wrong"));
    let start = |args: &[&str]| run(command_in(folder.path(), args), b"");
    let answer = ["run", "-p", "A cat", "--temp", "0", "-n", "8", "--quiet", "--sparsity", "exact", "--device"];
    let want = thermocline(&[&answer[..], &["cpu"]].concat()).ok();
    give_up(FallbackPart::Feature(GpuFeature::Subgroups));
    let listed = start(&["devices"]).ok();
    assert!(listed.contains("         subgroups disabled since 20") && listed.contains(": it was wrong\n"), "{listed}");
    let json = start(&["devices", "--json"]).json();
    assert_eq!(json["gpu"][0]["fallbacks"][0]["part"], "subgroups", "{json}");
    let ran = start(&[&answer[..], &["0"]].concat());
    assert!(ran.stderr.contains(" runs without subgroups over vulkan: it was wrong]"), "{}", ran.stderr);
    assert_eq!(ran.ok(), want);
    give_up(FallbackPart::Adapter);
    let refused = start(&[&answer[..], &["0"]].concat());
    let hint = "hint: `thermocline devices --try-again 0` uses it again";
    assert!(refused.stderr.contains(hint), "{}", refused.stderr);
    let refused = refused.refusal();
    assert!(refused.contains(" is not used over vulkan: it was wrong"), "{refused}");
    assert_eq!(start(&[&answer[..], &["auto"]].concat()).ok(), want);
    let listed = start(&["devices", "--try-again", "7"]).refusal();
    assert!(listed.contains("--try-again: ") && listed.contains("the number 7"), "{listed}");
    kept.add(Fallback::new(AdapterId { name: "another".to_owned(), ..adapter }, FallbackPart::Adapter, "it was wrong"));
    let listed = start(&["devices", "--try-again", "0"]).ok();
    assert!(!listed.contains("it was wrong"), "{listed}");
    let kept = std::fs::read_to_string(folder.path().join("cache/gpu-fallbacks.json")).unwrap();
    assert!(kept.contains("another") && !kept.contains("subgroups"), "{kept}");
    let ran = start(&[&answer[..], &["0"]].concat());
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.ok(), want);
}

#[test]
fn run_with_an_unusable_gpu_is_an_error() {
    let run = ["run", "-p", "x", "-n", "2", "--quiet"];
    for (flags, words) in [
        (&["--device", "no such card"][..], &["no such card", "software"][..]),
        (&["--device", "0", "--vram", "1MiB"], &["are needed", "available"]),
        (&["--device", "0", "--vram", "0"], &["are needed", "available"]),
        (&["--device", "cpu", "--vram", "1GiB"], &["--vram"]),
        (&["--device", "cpu", "--stream-prompts", "on"], &["--stream-prompts", "a GPU"]),
        (&["--stream-prompts", "always"], &["auto", "on", "off"]),
        (&["--vram", "much"], &["6GiB"]),
        (&["--gpu-tier", "best"], &["portable"]),
    ] {
        let error = thermocline(&[&run[..], flags].concat());
        let all = error.stderr.clone();
        error.refusal();
        assert!(words.iter().all(|word| all.contains(word)), "{flags:?}: {all}");
    }
    // The model fits, but not with the long context.
    let with = |context| thermocline(&[&run[..], &["--device", "0", "--vram", "64MiB", "--context", context]].concat());
    with("256").ok();
    let error = with("256k").refusal();
    assert!(error.contains("in VRAM") && error.contains("are needed"), "{error}");
    // Without `--device`, the CPU is enough.
    thermocline(&[&run[..], &["--vram", "0"]].concat()).ok();
    thermocline(&[&run[..], &["--device", "auto", "--vram", "1MiB"]].concat()).ok();
}

#[test]
fn gpu_logits_match_those_of_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let logits = |name: &str, flags: &[&str]| {
        let out = folder.path().join(name);
        let what = ["logits", "--text", "The sun", "--greedy", "6", "--out", out.to_str().unwrap()];
        thermocline(&[&what[..], flags].concat()).ok();
        let file = Expected::read(&out);
        (file.f32("logits"), file.ids("greedy_ids"))
    };
    let (want, want_ids) = logits("cpu", &["--device", "cpu"]);
    let (got, ids) = logits("gpu", &GPU);
    assert_eq!(ids, want_ids);
    let range = want.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
    let error = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && error <= 0.02 * range, "largest error {error} of a range of {range}");

    let out = folder.path().join("none");
    let what = ["logits", "--text", "x", "--out", out.to_str().unwrap()];
    let error = thermocline(&[&what[..], &["--device", "0", "--vram", "1MiB"]].concat()).refusal();
    assert!(error.contains("are needed"), "{error}");
}

#[test]
fn chat_device_command_shows_the_device() {
    let chat = |flags: &[&str], input: &[u8]| with_input(&[&["chat"], flags].concat(), input);
    assert_eq!(chat(&["--device", "cpu"], b"/device\n").ok(), "CPU\n");
    let shown = chat(&GPU, b"/device retry\n/device\n").ok();
    assert!(shown.starts_with(&format!("GPU {}: ", adapter())) && shown.contains("attention weights"), "{shown}");
}

#[test]
fn report_is_written_whatever_fails() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let args = ["report", "--quick", "--device", "no such card", "--out", page.to_str().unwrap()];
    let said = thermocline(&args).ok();
    assert!(said.contains("No kernel was measured") && said.contains("page.html is written"), "{said}");
    let text = std::fs::read_to_string(&page).unwrap();
    for part in ["<h2>Machine</h2>", "<h2>Kernels</h2>", "failed: ", "no such card", "<h2>Hybrid</h2>", "</html>"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("<script") && !text.contains("http"), "{text}");
}

#[test]
fn devices_test_prints_every_kernel_of_a_named_gpu() {
    let name = adapter();
    let test = ["devices", "--test", "--device", &name, "--weights", "q4_0"];
    let json = thermocline(&[&test[..], &["--json"]].concat()).json();
    let found = &json["gpu"][0]["self_test"];
    assert!(found["right"] == true && found["failed_features"].as_array().unwrap().is_empty(), "{found}");
    let rows = found["rows"].as_array().unwrap();
    for kernel in ["gemv", "gemm", "gemv_dot", "attention_decode", "attention_prompt", "route", "delta_net"] {
        assert!(rows.iter().any(|row| row["kernel"] == kernel && row["outcome"] == "right"), "{kernel}: {found}");
    }
    let text = thermocline(&test).ok();
    assert!(text.contains(&format!("{name}: all {} kernels are right", rows.len())), "{text}");
    assert!(text.lines().any(|line| line.contains("gemv_dot Q4_0") && line.contains("packed dot products")), "{text}");
    // Software adapters are never chosen automatically, so they are not tested unless named.
    if json["gpu"][0]["type"] == "software" {
        assert!(thermocline(&["devices", "--test"]).ok().contains("no GPU was tested"));
    }
    assert!(thermocline(&["devices", "--test", "--device", "no such card"]).refusal().contains("no such card"));
    assert!(thermocline(&["devices", "--test", "--weights", "q9"]).refusal().contains("q4_k"));
    thermocline(&["devices", "--device", "0"]).refusal();
}

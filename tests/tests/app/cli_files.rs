//! Files that are broken, missing or forbidden. Each gives one clear error and exit code 2, and no
//! file is left half-written.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
use thermocline_tests::terminal::run;
use thermocline_tests::terminal::thermocline;
#[cfg(unix)]
use thermocline_tests::{
    terminal::{command, wait},
    wait::eventually,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Returns every command that reads `model`. Commands that write a file write to `out`.
fn readers<'a>(model: &'a str, out: &'a str) -> [Vec<&'a str>; 6] {
    [
        vec!["inspect", model],
        vec!["run", "-m", model, "-p", "x"],
        vec!["run", "-m", model, "-p", "x", "--no-mmap"],
        vec!["chat", "-m", model],
        vec!["logits", "-m", model, "--tokens", "1", "--out", out],
        vec!["convert", model, "--out", out],
    ]
}

#[test]
fn malformed_files_are_refused_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let index: serde_json::Value = serde_json::from_slice(&fs::read(fixture("malformed/index.json")).unwrap()).unwrap();
    for case in index.as_array().unwrap() {
        let name = case["file"].as_str().unwrap();
        let path = fixture("malformed").join(name);
        for args in readers(path.to_str().unwrap(), out.to_str().unwrap()) {
            let ran = thermocline(&args);
            if case["expect"] == "ok" {
                ran.ok();
                let _ = fs::remove_file(&out);
                continue;
            }
            let error = ran.refusal();
            assert!(error.contains(name) && error.contains("expected") && error.contains("got"), "{args:?}: {error}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{args:?} left something behind");
        }
    }
}

#[test]
fn files_that_are_no_model_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("page.gguf"), "<!doctype html>").unwrap();
    fs::write(path("pickle.bin"), b"\x80\x02}q").unwrap();
    fs::create_dir(path("folder")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("out");
    for name in ["vanished.gguf", "empty", "page.gguf", "pickle.bin", "folder"] {
        for args in readers(&path(name), out.to_str().unwrap()) {
            let error = thermocline(&args).refusal();
            assert!(error.contains(name), "{args:?}: {error}");
        }
    }
}

#[cfg(unix)]
#[test]
fn inspect_of_an_unreadable_file_names_its_path() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.gguf");
    fs::copy(fixture("malformed/valid-control.gguf"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let inspected = thermocline(&["inspect", path.to_str().unwrap()]);
    // The result depends on the user, because root can read every file.
    match fs::read(&path) {
        Ok(_) => assert!(inspected.ok().contains("llama")),
        Err(_) => assert!(inspected.refusal().contains("secret.gguf")),
    }
    let through_a_file = path.join("model.gguf");
    let error = thermocline(&["inspect", through_a_file.to_str().unwrap()]).refusal();
    assert!(error.contains("secret.gguf/model.gguf"), "{error}");
}

#[test]
fn unknown_architecture_is_named() {
    let path = fixture("quants/quants.gguf");
    let path = path.to_str().unwrap();
    let error = thermocline(&["run", "-m", path, "-p", "x"]).refusal();
    assert!(error.contains("quant-fixture") && error.contains("llama"), "{error}");
    // `inspect` shows the file without an error.
    let shown = thermocline(&["inspect", path, "--json", "--tensors"]).json();
    assert!(shown["problem"].as_str().unwrap().contains("quant-fixture"));
    assert_eq!(shown["tensors"].as_array().unwrap().len(), 16);
}

#[test]
fn inspect_shows_every_container() {
    for (name, kind, layers) in [
        ("malformed/valid-control.gguf", "gguf", 1),
        ("powerinfer/llama-relu-q4_0.powerinfer.gguf", "powerinfer", 2),
        ("models/llama-relu", "huggingface", 3),
    ] {
        let path = fixture(name);
        let path = path.to_str().unwrap();
        let shown = thermocline(&["inspect", path, "--json"]).json();
        assert_eq!(shown["container"]["kind"], kind);
        assert_eq!(shown["model"]["layers"], layers);
        assert!(shown["kv_cache"]["f16"]["bytes_per_token"].as_u64().unwrap() > 0);
        let text = thermocline(&["inspect", path, "--tensors"]).ok();
        assert!(text.contains("token_embd.weight") && text.contains("KV cache"), "{text}");
    }
    let builtin = thermocline(&["inspect"]).ok();
    assert!(builtin.contains("Storyteller") && builtin.contains("F16"), "{builtin}");
}

#[test]
fn converted_model_generates_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model.gguf");
    let (source, out) = (fixture("models/qwen3"), out.to_str().unwrap());
    let source = source.to_str().unwrap();
    let report = thermocline(&["convert", source, "--type", "f32", "--out", out, "--json"]).json();
    assert_eq!(report["architecture"], "qwen3");
    assert_eq!(report["file_bytes"].as_u64().unwrap(), fs::metadata(out).unwrap().len());
    let tell = |model: &str| thermocline(&["run", "-m", model, "--raw", "-p", "abc", "--temp", "0", "-n", "16"]).ok();
    assert_eq!(tell(source), tell(out));
    assert!(thermocline(&["convert", source, "--type", "q8_0", "--out", out]).ok().contains("Q8_0"));
    // Row lengths of this model are not multiples of 256.
    let text = thermocline(&["convert", source, "--type", "q6_k", "--out", out]).ok();
    assert!(
        text.contains("note: ") && text.contains("Q8_0 instead of Q6_K, because blocks of Q6_K do not divide rows of"),
        "{text}"
    );
    let report = thermocline(&["convert", source, "--type", "q6_k", "--out", out, "--json"]).json();
    let fallbacks = report["fallbacks"].as_array().unwrap();
    assert_eq!(fallbacks.len() as u64, report["tensors"]["Q8_0"].as_u64().unwrap());
    assert!(fallbacks.iter().all(|it| it["wanted"] == "Q6_K" && it["row_elements"].as_u64().unwrap() % 256 != 0));
    let whole = thermocline(&["convert", source, "--type", "q8_0", "--out", out, "--json"]).json();
    assert_eq!(whole["fallbacks"].as_array().unwrap().len(), 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(thermocline(&["convert", out, "--out", out]).refusal().matches("model.gguf").count(), 1);
}

/// The file size limit replaces a full disk. A write fails halfway, for every user.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_leaves_the_old_file_and_no_partial_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model.gguf");
    fs::write(&out, "what was there before").unwrap();
    let (source, out) = (fixture("models/qwen3"), out.to_str().unwrap());
    let program = command(&[]).get_program().to_owned();
    for args in [
        vec!["convert", source.to_str().unwrap(), "--type", "f32", "--out", out],
        vec!["logits", "--tokens", "1,2,3,4,5,6,7,8,9,10", "--out", out],
        vec!["synth", "--shape", "tiny-llama", "--out", out],
    ] {
        // The test ignores SIGXFSZ so that the write itself fails, as it does on a full disk.
        let mut limited = std::process::Command::new("bash");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 40; exec \"$@\"", "bash"]).arg(&program).args(&args);
        limited.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        limited.stderr(std::process::Stdio::piped());
        let error = run(limited, b"").failure(1);
        assert!(error.contains("cannot write"), "{args:?}: {error}");
        assert_eq!(fs::read(out).unwrap(), b"what was there before", "{args:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{args:?} left something behind");
    }
}

#[test]
#[cfg(unix)]
fn signals_leave_no_partial_file() {
    use std::os::unix::process::ExitStatusExt;

    for (signal, code, number) in [("-INT", Some(130), None), ("-TERM", None, Some(15))] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("model.gguf");
        fs::write(&out, "what was there before").unwrap();
        let files = || fs::read_dir(folder.path()).unwrap().count();
        let args = ["synth", "--shape", "llama-7b", "--layers", "2", "--out", out.to_str().unwrap()];
        let mut child = command(&args).spawn().unwrap();
        eventually("a partial file", || files() == 2);
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let status = wait(&mut child);
        assert_eq!((status.code(), status.signal()), (code, number), "{signal}");
        assert_eq!(files(), 1, "{signal}");
        assert_eq!(fs::read(out).unwrap(), b"what was there before", "{signal}");
    }
}

#[test]
fn output_in_a_missing_folder_is_an_error() {
    let source = fixture("models/qwen3");
    for args in [
        vec!["convert", source.to_str().unwrap(), "--out", "/nowhere/at/all.gguf"],
        vec!["synth", "--shape", "tiny-llama", "--out", "/nowhere/at/all.gguf"],
    ] {
        let error = thermocline(&args).failure(1);
        assert!(error.contains("/nowhere/at"), "{error}");
    }
}

#[test]
fn bundles_are_written_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, text, out) = (path("m.gguf"), path("text"), path("prepared.thermocline.gguf"));
    let synth = ["synth", "--shape", "tiny-relu-llama", "--layers", "2", "--out", &model, "--bundles"];
    thermocline(&synth).ok();
    let layers = |sidecar: &str| thermocline(&["inspect", sidecar, "--json"]).json()["prepared"].clone();
    let made = layers(&path("m.thermocline.gguf"));
    // Three rows of 144 bytes, and padding.
    assert_eq!(made["layers"][1]["bundle_bytes"], 512, "{made}");
    for sparsity in ["exact", "predicted"] {
        let run = |more: &[&str]| {
            let args = ["run", "-m", &model, "--raw", "-p", "abc", "-n", "12", "--sparsity", sparsity, "--temp", "0"];
            thermocline(&[&args[..], &["--device", "cpu", "-t", "2"], more].concat()).ok()
        };
        assert_eq!(run(&[]), run(&["--sidecar", "none"]), "{sparsity}");
    }
    for shape in [&["--shape", "tiny-llama"][..], &["--shape", "tiny-relu-llama", "--no-predictor"]] {
        let out = path("none.gguf");
        let args = [&["synth", "--out", &out, "--bundles"], shape].concat();
        assert!(thermocline(&args).refusal().contains("--bundles"));
    }
    let opt = path("opt.gguf");
    let synth_opt = ["synth", "--shape", "tiny-opt", "--layers", "2", "--out", &opt];
    let refusal = thermocline(&[&synth_opt[..], &["--bundles"]].concat()).refusal();
    assert!(refusal.contains("--bundles: expected a shape with gates"), "{refusal}");
    assert!(!Path::new(&opt).exists(), "nothing is written before the refusal");

    fs::write(&text, "Once upon a time, a cat sat on a mat. ".repeat(40)).unwrap();
    let prepare = |more: &[&str]| {
        let args = ["prepare", "--text", &text, "--tokens", "300", "--predictors", "none", "--no-inputs", "-t", "2"];
        thermocline(&[&args[..], &["--out", &out], more].concat())
    };
    // The built-in model fits into RAM.
    for (more, has) in [(&[][..], false), (&["--bundles", "off"], false), (&["--bundles", "on"], true)] {
        let told = prepare(more).ok();
        assert_eq!(
            (told.contains("bytes per neuron in 6 of 6 layers"), told.contains("on disk")),
            (has, has),
            "{told}"
        );
        assert_eq!(layers(&out)["layers"][0]["bundle_bytes"].is_u64(), has);
    }
    assert!(prepare(&["--bundles", "on", "--no-down"]).refusal().contains("--no-down"));
    // Neurons of OPT have no gates.
    thermocline(&synth_opt).ok();
    let told = prepare(&["--bundles", "on", "-m", &opt]).ok();
    assert!(told.contains("no bundles: they need dense layers with gates"), "{told}");
}

#[test]
fn synth_command_meets_the_requested_activity() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("synth.gguf");
    let out = out.to_str().unwrap();
    let args = ["synth", "--shape", "tiny-relu-llama", "--active", "0.2", "--out", out, "--json"];
    let report = thermocline(&args).json();
    let (asked, measured) =
        (report["asked"]["active"].as_f64().unwrap(), report["measured"]["active"].as_f64().unwrap());
    assert!((measured / asked - 1.0).abs() <= 0.1, "{report}");
    assert_eq!(thermocline(&["inspect", out, "--json"]).json()["container"]["kind"], "powerinfer");
    let run = thermocline(&["run", "-m", out, "--raw", "-p", "abc", "-n", "4", "--json"]).json();
    assert_eq!(run["tokens"].as_array().unwrap().len(), 4);
    assert!(thermocline(&["synth", "--shape", "tiny-opt", "--active", "2", "--out", out]).refusal().contains("active"));
}

//! `thermocline eval`, as a person or a script runs it.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use thermocline_engine::placement::Machine;
use thermocline_tests::terminal::thermocline;

const TEXT: &str = "Once upon a time there was a little dog. He liked to run in the park and play with his red ball. \
One day the ball was gone. The dog was sad, so he asked the bird. The bird said: \"Look in the tree!\" ";

#[test]
fn measurements_print_tables_and_write_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text"), TEXT.repeat(12)).unwrap();
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let run = |args: &[&str]| {
        let shared = ["--text", &path("text"), "--ctx", "96", "--chunks", "3", "--device", "cpu", "-t", "2"];
        thermocline(&[&["eval"], args, &shared].concat())
    };

    let table = run(&["perplexity", "--json", &path("ppl.json"), "--csv", &path("ppl.csv")]).ok();
    for word in ["storyteller", "dense", "prefill", "f16 KV cache", "cpu", "141 tokens scored in 3 contexts of 96"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let json: serde_json::Value = serde_json::from_str(&read("ppl.json")).unwrap();
    let result = &json["result"]["perplexity"];
    assert!(result["perplexity"]["value"].as_f64().unwrap() > 1.0, "{json}");
    assert_eq!((&result["conditions"]["tokens"], &result["conditions"]["phase"]), (&141.into(), &"prefill".into()));
    let csv = read("ppl.csv");
    let mut lines = csv.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert!(heads.contains(&"figure") && heads.contains(&"phase") && lines.next().unwrap().starts_with("perplexity,"));

    let table = run(&["kl", "--sparsity", "exact"]).ok();
    assert!(table.contains("exact, decode") && table.contains("same most likely token [%]"), "{table}");
    let row = table.lines().find(|line| line.contains("same most likely token")).unwrap();
    assert!(row.contains("100.000"), "{row}");
    let table = run(&["kl", "--sparsity", "exact", "--phase", "prefill"]).ok();
    assert!(table.contains("describe the dense model"), "{table}");

    run(&["kl", "--write-base", &path("base"), "--sparsity", "dense"]).ok();
    let from_file =
        thermocline(&["eval", "kl", "--base", &path("base"), "--sparsity", "dense", "--device", "cpu"]).ok();
    assert!(from_file.contains("141 tokens scored in 3 contexts of 96"), "{from_file}");

    let table = run(&["firing", "--svg", &path("firing.svg")]).ok();
    assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), 2 + 6, "{table}");
    let sweep = ["sweep", "--cut", "0,0.5,0.98", "--svg", &path("sweep.svg"), "--csv", &path("sweep.csv")];
    let table = run(&sweep).ok();
    assert!(table.contains("threshold, decode") && table.contains("KL [nats]"), "{table}");
    assert_eq!(read("sweep.csv").lines().count(), 4);
    let pruned = ["sweep", "--prune", "cold", "--fractions", "0,0.5", "--svg", &path("pruned.svg")];
    let table = run(&pruned).ok();
    assert!(table.contains("coldest pruned") && table.contains("dense, decode"), "{table}");
    let half = table.lines().rfind(|line| line.starts_with("| ")).unwrap();
    assert!(half.starts_with("| 0.5"), "{table}");
    for name in ["firing.svg", "sweep.svg", "pruned.svg"] {
        let svg = read(name);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("tokens scored"), "{name}");
    }
    assert!(read("sweep.svg").contains("perplexity") && read("sweep.svg").contains("dense"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 8, "a temporary file is left");
}

#[test]
fn scores_of_skipped_neurons_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text"), TEXT.repeat(20)).unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/llama-silu-gqa");
    let (text, csv) = (path("text"), path("csv"));
    let shared = ["--text", &text, "--calibrate", &text, "--ctx", "64", "--chunks", "4", "--device", "cpu"];
    let skips = |flags: &[&str]| thermocline(&[&["eval", "skips"], &shared[..], flags].concat());
    let table = skips(&["-m", model, "--windows", "2", "--shares", "0.3,0.5", "--csv", &csv]).ok();
    assert!(table.contains("gate, by layer") && table.contains("worth, by side"), "{table}");
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 1 + 2 * 6);
    assert!(skips(&["-m", model, "--shares", "1"]).refusal().contains("a fraction from 0 to below 1"));
    let opt = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/opt");
    assert!(skips(&["-m", opt]).refusal().contains("gated dense FFNs"));
}

#[test]
fn perplexity_does_not_depend_on_the_placement() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text"), TEXT.repeat(6)).unwrap();
    Machine::typical().store(path("machine").as_ref()).unwrap();
    let eval = |flags: &[&str]| {
        let shared = ["--text", &path("text"), "--ctx", "64", "--chunks", "2", "--kv-type", "f32"];
        thermocline(&[&["eval", "perplexity", "--json", &path("json")], flags, &shared].concat())
    };
    let value = |flags: &[&str]| {
        let table = eval(flags).ok();
        let json: Value = serde_json::from_str(&std::fs::read_to_string(path("json")).unwrap()).unwrap();
        (json["result"]["perplexity"]["perplexity"]["value"].as_f64().unwrap(), table)
    };
    let plan = ["plan", "--machine", &path("machine"), "--vram", "1GiB", "--json"];
    let ffns = thermocline(&plan).json()["bytes_by_purpose"]["FFN weights"].as_u64().unwrap();
    for mode in [&["--sparsity", "dense"][..], &["--sparsity", "exact"], &["--sparsity", "exact", "--phase", "prefill"]]
    {
        let (want, _) = value(&[mode, &["--device", "cpu", "--activations", "float"]].concat());
        // This budget has room for the last layer's attention and half of all FFNs, so the model is
        // partly on the GPU.
        let on_gpu = [mode, &["--device", "0", "--activations", "float", "--vram"]].concat();
        let refused = eval(&[&on_gpu[..], &["64KiB"]].concat()).refusal();
        let least = refused.split(" bytes are needed").next().and_then(|text| text.rsplit(' ').next());
        let least: u64 = least.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{refused}"));
        let vram = (least + ffns / 2).to_string();
        let (got, table) = value(&[&on_gpu[..], &[&vram]].concat());
        assert!(table.contains("gpu with "), "{table}");
        assert!((got / want - 1.0).abs() < 1e-3, "{mode:?}: {got} on both, {want} on the CPU");
    }
}

#[test]
fn eval_refuses_invalid_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let (short, bytes) = (folder.path().join("short"), folder.path().join("bytes"));
    std::fs::write(&short, "Once upon a time. And so on and on.").unwrap();
    std::fs::write(&bytes, [0xff, 0xfe, 0x00]).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let truncated = folder.path().join("truncated");
    std::fs::write(&truncated, "_log").unwrap();
    let (short, bytes, truncated) = (text(&short), text(&bytes), text(&truncated));
    let refused = |args: &[&str]| thermocline(&[&["eval"], args, &["--device", "cpu"]].concat()).refusal();
    assert!(refused(&["perplexity", "--text", &short]).contains("at least 1024 tokens, which are two windows of 512"));
    assert!(refused(&["perplexity", "--text", &bytes]).contains("UTF-8"));
    assert!(refused(&["perplexity", "--text", "/nonexistent"]).contains("/nonexistent"));
    assert!(refused(&["kl", "--base", &short]).contains("_logits_"));
    assert!(refused(&["kl", "--base", &truncated]).contains("expected 20 bytes, got 4"));
    assert!(
        refused(&["recall", "--text", &short, "--ctx", "4", "--chunks", "1", "--sidecar", "none"])
            .contains("predictors")
    );
    assert!(refused(&["sweep", "--text", &short, "--ctx", "4", "--cut", "2"]).contains("a fraction from 0 to 1"));
    let ignored = ["sweep", "--text", &short, "--ctx", "4", "--prune", "random", "--calibrate", &short];
    assert!(refused(&ignored).contains("--calibrate"));
}

#[test]
fn eval_plot_draws_a_csv_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("speeds.csv"), "mode,decoding [tokens/s]\r\ndense,10.5\r\npredicted,31.5\r\n").unwrap();
    let plot = |flags: &[&str]| thermocline(&[&["eval", "plot", "--in", &path("speeds.csv")], flags].concat());
    plot(&["--out", &path("speeds.svg"), "--subtitle", "one machine"]).ok();
    let svg = std::fs::read_to_string(path("speeds.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.matches("<rect").count() == 2, "{svg}");
    for part in ["<title>speeds</title>", "one machine", "decoding [tokens/s]", "dense", "predicted", "31.5"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert!(plot(&["--out", &path("x.svg"), "--y", "speed"]).refusal().contains("got speed"));
}

/// Thresholds of inputs, from `prepare` to the modes that use them.
#[test]
fn input_sparsity_is_prepared_chosen_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text"), TEXT.repeat(24)).unwrap();
    let (out, text) = (path("small.thermocline.gguf"), path("text"));
    let prepare = ["prepare", "--text", &text, "--tokens", "1000", "--predictors", "none", "--no-down", "-t", "2"];
    let told = thermocline(&[&prepare[..], &["--out", &out][..]].concat()).ok();
    for word in ["--sparsity threshold --level", "at 25 % perplexity", "at 50 % perplexity", "KL"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let shared = ["--text", &text, "--ctx", "96", "--chunks", "3", "--device", "cpu", "-t", "2", "--sidecar", &out];
    let table =
        thermocline(&[&["eval", "sweep", "--inputs", "0.1,0.6", "--csv", &path("csv")][..], &shared].concat()).ok();
    assert!(table.contains("input sparsity") && table.contains("threshold, decode"), "{table}");
    let csv = std::fs::read_to_string(path("csv")).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let kl = lines[0].iter().position(|head| head.contains("KL")).unwrap();
    let [low, high] = [1, 2].map(|line| lines[line][kl].parse::<f64>().unwrap());
    // The divergence that the smallest tenth of the inputs adds is less than the table shows.
    assert!(0.0 <= low && low < high && high > 0.01, "{csv}");

    let run = |more: &[&str]| {
        let shared =
            ["-p", "Once upon a time", "-n", "8", "--device", "cpu", "-t", "2", "--temp", "0", "--sidecar", &out];
        thermocline(&[&["run"][..], &shared, more].concat())
    };
    let dense = run(&["--sparsity", "dense"]).ok();
    assert_eq!(run(&["--sparsity", "threshold", "--level", "0.05"]).ok().is_empty(), dense.is_empty());
    for (more, what) in [
        (&["--sparsity", "dense", "--level", "0.4"][..], "a mode that skips nothing"),
        (&["--sparsity", "threshold", "--level", "0.9"], "at most 0.75"),
        (&["--sparsity", "threshold", "--level", "0"], "above 0"),
        (&["--sparsity", "threshold", "--level", "0.4", "--sidecar", "none"], "thermocline prepare"),
    ] {
        let told = match more.contains(&"none") {
            true => {
                let plain = ["run", "-p", "Once", "-n", "4", "--device", "cpu"];
                thermocline(&[&plain[..], more].concat()).refusal()
            }
            false => run(more).refusal(),
        };
        assert!(told.contains(what), "{what}: {told}");
    }
}

#[test]
fn routes_are_recorded_kept_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text"), TEXT.repeat(6)).unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/mixtral");
    let (routes, csv, svg) = (path("some.routes"), path("csv"), path("svg"));
    let recorded =
        thermocline(&["eval", "routes", "-m", model, "--text", &path("text"), "--tokens", "100", "--out", &routes])
            .ok();
    assert!(recorded.contains("bound") && recorded.contains("this model: a"), "{recorded}");
    let again = thermocline(&["eval", "routes", "--in", &routes, "--csv", &csv, "--svg", &svg]).ok();
    assert_eq!(again, recorded);
    assert!(std::fs::read_to_string(&svg).unwrap().contains("tokens/s"));
    let made =
        ["eval", "routes", "--synthetic", "64,4,2,2,20", "--tokens", "400", "--places", "8,16,64", "--csv", &csv];
    let made = thermocline(&made).ok();
    assert!(made.contains("up to 8 places") && made.contains("not worthwhile"), "{made}");
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 1 + 3 * 5);
    let price = ["eval", "routes", "-m", model, "--text", &path("text"), "--tokens", "12", "--price", "--csv", &csv];
    let priced = thermocline(&price).ok();
    assert!(priced.contains("KL [nats]") && priced.contains("0.75"), "{priced}");
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 1 + 5 * 4);
    let refused = thermocline(&["run", "--device", "cpu", "-p", "x", "-n", "1", "--routes", "near=0.1"]).refusal();
    assert!(refused.contains("no experts") && refused.contains("mixture of experts"), "{refused}");
    std::fs::write(&routes, "noise").unwrap();
    let told = thermocline(&["eval", "routes", "--in", &routes]).refusal();
    assert!(told.contains("recorded routes"), "{told}");
    assert!(thermocline(&["eval", "routes"]).refusal().contains("--text FILE"));
    assert!(thermocline(&["eval", "routes", "--synthetic", "1,2"]).refusal().contains("five numbers"));
}

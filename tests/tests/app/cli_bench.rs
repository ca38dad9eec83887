//! `thermocline bench`: llama-bench's fields, kernels of a GPU, and models that are partly on a
//! GPU.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tempfile::TempDir;
use thermocline_engine::placement::Machine;
use thermocline_tests::terminal::{Ran, thermocline};

#[test]
fn bench_on_a_gpu_reports_vram_bandwidth_and_kernel_times() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf/llama-silu-gqa-256-Q4_0.gguf");
    let args = ["bench", "-m", model, "--device", "0", "--quick", "-p", "9", "-n", "3", "-r", "1"];
    let rows = thermocline(&[&args[..], &["-o", "json"]].concat()).json();
    for row in rows.as_array().unwrap() {
        assert_ne!(row["backends"], "CPU");
        assert!(row["n_gpu_layers"].as_u64().unwrap() > 0 && row["avg_ts"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["thermocline"]["vram_used"].as_u64().unwrap() > 0, "{row}");
    }
    let table = thermocline(&args).ok();
    assert!(table.contains(" ngl |") && table.contains(" of copy bandwidth |") && table.contains(" tg3 |"), "{table}");

    let profile = thermocline(&[&args[..], &["--kernels", "-o", "json"]].concat()).json();
    assert!(profile["speed"]["copy_bytes_per_second"].as_f64().unwrap() > 0.0, "{profile}");
    assert!(profile["speed"]["hand_over"]["median_us"].as_f64().unwrap() > 0.0, "{profile}");
    let tests = profile["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 2);
    for test in tests {
        let kernels = test["kernels"].as_array().unwrap();
        assert!(kernels.iter().any(|kernel| kernel["weights"] == "Q4_0"), "{test}");
        assert!(kernels.iter().all(|kernel| kernel["calls"].as_u64().unwrap() > 0), "{test}");
    }
    let text = thermocline(&[&args[..], &["--kernels"]].concat()).ok();
    assert!(text.contains("attention_decode") && text.contains("hand-over"), "{text}");
    assert!(thermocline(&[&args[..4], &["no such card"]].concat()).refusal().contains("no such card"));
    thermocline(&["bench", "-m", model, "--device", "cpu", "--kernels"]).refusal();
    thermocline(&[&args[..], &["--kernels", "-o", "csv"]].concat()).refusal();
}

#[test]
fn bench_tells_the_longest_submission() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf/llama-silu-gqa-256-Q4_0.gguf");
    let args = ["bench", "-m", model, "--quick", "-p", "40", "-n", "3", "-r", "2", "--longest"];
    let on_gpu = |form: &str| thermocline(&[&args[..], &["--device", "0", "-o", form]].concat());
    let text = on_gpu("md").ok();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("longest submission of ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    // Chunks are shorter if the machine is busy.
    let wanted = [("pp40", 1..=40), ("tg3", 1..=1)];
    for (line, (name, tokens)) in lines.iter().zip(wanted.clone()) {
        let rest = line.strip_prefix(&format!("longest submission of {name}: ")).unwrap_or_else(|| panic!("{text}"));
        let ms = rest.split_once(" ms, ").and_then(|(ms, _)| ms.parse::<f64>().ok());
        let of = rest.split_once(", tokens: ").and_then(|(_, of)| of.parse::<u64>().ok());
        assert!(ms.is_some_and(|ms| ms > 0.0) && of.is_some_and(|of| tokens.contains(&of)), "{text}");
    }
    for (row, (_, tokens)) in on_gpu("json").json().as_array().unwrap().iter().zip(wanted) {
        let longest = &row["thermocline"]["longest_submission"];
        assert!(longest["ms"].as_f64().unwrap() > 0.0 && longest["work"].as_u64().unwrap() > 0, "{row}");
        assert!(tokens.contains(&longest["tokens"].as_u64().unwrap()), "{row}");
    }
    assert!(thermocline(&[&args[..], &["--device", "cpu"]].concat()).refusal().contains("--longest"));
    let others = thermocline(&[&args[..args.len() - 1], &["--device", "0"]].concat()).ok();
    assert!(!others.contains("longest"), "{others}");
}

#[test]
fn bench_rows_have_the_fields_of_llama_bench() {
    let args = ["bench", "-p", "16", "-n", "8", "-r", "2", "-o"];
    let json = thermocline(&[&args[..], &["json"]].concat()).json();
    for (row, (prompt, generated)) in json.as_array().unwrap().iter().zip([(16, 0), (0, 8)]) {
        assert_eq!((row["n_prompt"].as_u64(), row["n_gen"].as_u64()), (Some(prompt), Some(generated)));
        assert_eq!(row["samples_ts"].as_array().unwrap().len(), 2);
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0 && row["thermocline"]["read_bandwidth"].as_f64().unwrap() > 0.0);
    }
    let table = thermocline(&[&args[..], &["md"]].concat()).ok();
    assert!(table.contains(" pp16 |") && table.contains(" tg8 |") && table.contains("t/s"), "{table}");
    let csv = thermocline(&[&args[..], &["csv"]].concat()).ok();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.len() == 3 && columns.iter().all(|count| *count == columns[0]), "{csv}");
    let missing = thermocline(&["bench", "-p", "8", "-n", "0", "--peer", "/nowhere/llama-bench"]).failure(1);
    assert!(missing.contains("/nowhere/llama-bench"), "{missing}");
    thermocline(&["bench", "-p", "0", "-n", "0"]).refusal();
}

/// A small model that is placed partly on the GPU.
struct Part {
    folder: TempDir,
    /// VRAM budget in bytes, with room for two layers and a half.
    budget: String,
}

impl Part {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let part = Part { folder, budget: String::new() };
        let (model, machine) = (part.path("m.gguf"), part.path("machine.json"));
        let made =
            ["synth", "--shape", "tiny-relu-llama", "--layers", "4", "--type", "q8_0", "--sidecar", "--out", &model];
        thermocline(&made).ok();
        // On this machine, it pays to place all of such a small model on the GPU.
        let mut slow = Machine::typical();
        slow.cpu.rates.values_mut().for_each(|rate| (rate.sequential, rate.scattered) = (1e6, 1e6));
        slow.store(machine.as_ref()).unwrap();
        let plan = ["plan", "-m", &model, "--machine", &machine, "--vram", "1GiB", "--context", "8", "--json"];
        let all = thermocline(&[&plan[..], &["--sparsity", "exact"]].concat()).json();
        assert!(!all["assumptions"].to_string().contains("no profile says"), "{all}");
        assert_eq!(all["bytes"], all["everything"]);
        let small = Part { budget: "1MiB".to_owned(), ..part };
        let refused = small.bench(&["-n", "8", "--placement", "layers"]).failure(1);
        let least = refused.split("one whole layer in VRAM: ").nth(1).and_then(|rest| rest.split(' ').next());
        let least: u64 = least.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{refused}"));
        let layer = all["layers"][0]["bytes"].as_u64().unwrap();
        Part { budget: (least + 3 * layer / 2).to_string(), ..small }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `thermocline bench` on the GPU without a prompt.
    fn bench(&self, args: &[&str]) -> Ran {
        let model = self.path("m.gguf");
        let fixed = ["bench", "-m", &model, "--device", "0", "--quick", "-p", "0", "--vram", &self.budget];
        thermocline(&[&fixed[..], args].concat())
    }
}

/// Returns a figure of a row that llama-bench does not have.
fn of(row: &Value, name: &str) -> f64 {
    row["thermocline"][name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"))
}

#[test]
fn bench_compares_neuron_and_layer_placement_at_one_budget() {
    let part = Part::new();
    let ways = ["--placement", "layers,neurons", "--sparsity", "dense,exact,predicted"];
    let rows = part.bench(&[&["-n", "8", "-r", "2", "-o", "json"], &ways[..]].concat()).json();
    let rows = rows.as_array().unwrap();
    let modes = ["dense", "exact", "predicted"];
    let wanted: Vec<_> = ["layers", "neurons"].into_iter().flat_map(|how| modes.map(|mode| (how, mode))).collect();
    assert_eq!(rows.len(), wanted.len());
    let speed = |row: &Value| row["avg_ts"].as_f64().unwrap();
    for (row, (placement, mode)) in rows.iter().zip(&wanted) {
        let extra = &row["thermocline"];
        assert!(extra["placement"] == *placement && extra["sparsity"] == *mode, "{row}");
        assert_eq!(
            (extra["vram_budget"].to_string(), row["samples_ts"].as_array().unwrap().len()),
            (part.budget.clone(), 2)
        );
        assert!(of(row, "vram_used") > 0.0 && of(row, "vram_used") <= of(row, "vram_budget"), "{row}");
        assert!((of(row, "ratio_to_layers") - speed(row) / speed(&rows[0])).abs() < 1e-9, "{row}");
        let (hot, hits, waiting) = (of(row, "hot_fraction"), of(row, "hit_rate"), of(row, "waiting"));
        // The synthetic model's layers are alike, and the planner places the neurons that fire most
        // first.
        assert!((0.0..=1.0).contains(&hits) && hits >= 0.8 * hot && waiting < 1.0, "{row}");
        let layers = row["n_gpu_layers"].as_u64().unwrap();
        match *placement {
            "layers" => assert!(layers == 2 && hot == 0.5 && waiting == 0.0, "{row}"),
            _ => assert!(layers > 0 && (hot == 1.0 || waiting > 0.0), "{row}"),
        }
        assert!((0.05..0.15).contains(&of(row, "active_neurons")), "{row}");
        assert!(of(row, "scattered_bytes_per_token") <= of(row, "bytes_per_token"), "{row}");
    }
    for ways in rows.chunks(3) {
        let read: Vec<f64> = ways.iter().map(|row| of(row, "bytes_per_token")).collect();
        assert!(read[1] < read[0], "exact reads less than dense: {read:?}");
    }
}

#[test]
fn bench_tables_have_columns_of_placements() {
    let (part, short) = (Part::new(), ["-n", "2", "-r", "1"]);
    // Without a placement, the whole model must fit on the GPU.
    assert!(part.bench(&short).failure(1).contains("are needed"));
    let table = part.bench(&[&short[..], &["--placement", "layers,neurons"]].concat()).ok();
    assert!(["placement", "hit rate", "waiting", "ratio to layers"].iter().all(|head| table.contains(head)), "{table}");
    let one = part.bench(&[&short[..], &["--placement", "neurons", "-o", "csv"]].concat()).ok();
    assert_eq!(one.lines().count(), 2, "{one}");
}

/// The buffer that streams cold rows of prompts to the GPU takes VRAM there.
#[test]
fn bench_streams_prompts_where_it_is_told_to() {
    let part = Part::new();
    // The budget has room for the smallest useful placement and for the buffer, a quarter of it.
    let budget = part.budget.parse::<u64>().unwrap() / 8 * 9;
    let part = Part { budget: budget.to_string(), ..part };
    let used = |when: &str| {
        let args = ["-n", "2", "-r", "1", "-p", "64", "--placement", "neurons", "-o", "json", "--stream-prompts", when];
        of(&part.bench(&args).json()[0], "vram_used")
    };
    let (on, off) = (used("on"), used("off"));
    assert!(on > off, "{on} bytes with it, {off} without");
    assert!(part.bench(&["-n", "2", "--stream-prompts", "on"]).refusal().contains("required"));
}

#[test]
fn bench_refuses_ways_that_a_device_or_a_model_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf").to_str().unwrap().to_owned();
    let made = ["synth", "--shape", "tiny-relu-llama", "--layers", "2", "--type", "q8_0", "--sidecar", "--out", &model];
    thermocline(&made).ok();
    let on_cpu = ["bench", "-m", &model, "--device", "cpu", "-p", "0", "-n", "2", "-r", "1"];
    assert!(thermocline(&[&on_cpu[..], &["--placement", "layers"]].concat()).refusal().contains("--placement"));
    let modes = thermocline(&[&on_cpu[..], &["--sparsity", "dense,exact", "-o", "jsonl"]].concat()).ok();
    assert!(modes.lines().count() == 2 && modes.contains("\"sparsity\":\"exact\""), "{modes}");
    let on_gpu = ["bench", "-m", &model, "--device", "0", "--quick", "-p", "0", "-n", "2", "-r", "1"];
    assert!(thermocline(&[&on_gpu[..], &["--placement", "rows"]].concat()).refusal().contains("'rows'"));
    thermocline(&[&on_gpu[..], &["--kernels", "--sparsity", "dense,exact"]].concat()).refusal();
    assert!(thermocline(&["synth", "--shape", "tiny-llama", "--sidecar", "--out", &model]).refusal().contains("ReLU"));
}

#[test]
fn moe_models_are_made_planned_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, dense, machine) = (path("m.gguf"), path("dense.gguf"), path("machine.json"));
    let synth = |shape: &str, out: &str, more: &[&str]| {
        thermocline(&[&["synth", "--shape", shape, "--layers", "3", "--type", "q8_0", "--out", out], more].concat())
    };
    let made = synth("tiny-turbosparse-mixtral", &model, &["--sidecar"]).ok();
    assert!(made.contains("a token uses 2 of 8 experts") && made.contains("neurons that fire"), "{made}");
    assert!(synth("tiny-mixtral", &dense, &["--sidecar"]).ok().contains("a token uses 2 of 8 experts"));
    let refused = synth("tiny-turbosparse-mixtral", &path("none.gguf"), &["--predictor-rank", "128"]).refusal();
    assert!(
        refused.contains("an MoE model has no predictors") && !folder.path().join("none.gguf").exists(),
        "{refused}"
    );

    let mut slow = Machine::typical();
    slow.cpu.rates.values_mut().for_each(|rate| (rate.sequential, rate.scattered) = (1e6, 1e6));
    slow.store(machine.as_ref()).unwrap();
    let plan = |model: &str, vram: &str| {
        let args = ["plan", "-m", model, "--machine", &machine, "--vram", vram, "--context", "8", "--json"];
        thermocline(&args).json()
    };
    for (model, modes) in [(&model, "dense,exact"), (&dense, "dense")] {
        let all = plan(model, "1GiB");
        assert!(!all["assumptions"].to_string().contains("no profile says"), "{all}");
        let most = all["everything"].as_u64().unwrap();
        let budget = (most * 3 / 4).to_string();
        let some = plan(model, &budget);
        let counted = |layer: &Value| layer["counted"] == "experts" && layer["neurons"] == 8;
        let layers = some["layers"].as_array().unwrap();
        assert!(layers.iter().all(counted), "{some}");
        assert!(layers.iter().any(|layer| (1..8).contains(&layer["hot"].as_u64().unwrap())), "{some}");

        let bench = |place: &[&str]| {
            let args = ["bench", "-m", model, "-p", "0", "-n", "8", "-r", "1", "-o", "json", "--sparsity", modes];
            thermocline(&[&args[..], place].concat()).json()
        };
        let of = |row: &Value, name: &str| row["thermocline"][name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        let on_cpu = bench(&["--device", "cpu"]);
        let on_both = bench(&["--device", "0", "--quick", "--vram", &budget, "--placement", "neurons"]);
        for row in on_both.as_array().unwrap() {
            assert!(of(row, "vram_used") > 0.0 && of(row, "vram_used") <= of(row, "vram_budget"), "{row}");
            assert!((0.1..1.0).contains(&of(row, "hot_fraction")), "{row}");
        }
        if let [dense, exact] = &on_cpu.as_array().unwrap()[..] {
            assert!((0.05..0.15).contains(&of(exact, "active_neurons")), "{exact}");
            assert!(of(exact, "bytes_per_token") < 0.9 * of(dense, "bytes_per_token"), "{on_cpu}");
        }
    }
}

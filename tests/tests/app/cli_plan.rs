//! `thermocline plan`: tables and JSON, for this machine and for another.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::Value;
use thermocline_engine::{
    model::{LoadOptions, Model},
    placement::Machine,
    session::{DeviceChoice, Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions},
    synth,
    synth::{SynthOptions, SynthShape},
};
use thermocline_tests::{
    terminal::{command_in, run, thermocline},
    wait::until,
};

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).to_str().unwrap().to_owned()
}

/// Writes the speeds of a typical desktop to a file and returns its path.
fn typical(folder: &Path) -> String {
    let path: PathBuf = folder.join("desktop.json");
    Machine::typical().store(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes the speeds of a machine on which every use of the GPU pays, including streamed prompts.
/// Returns the path.
fn eager(folder: &Path) -> String {
    let mut eager = Machine::typical();
    eager.cpu.rates.values_mut().for_each(|rate| (rate.sequential, rate.scattered) = (1e6, 1e6));
    eager.cpu.prompts.values_mut().for_each(|rate| *rate /= 1e3);
    let path = folder.join("eager.json");
    eager.store(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the bytes of the buffer that streams cold rows of prompts.
fn streamed(plan: &Value) -> u64 {
    plan["bytes_by_purpose"]["streamed prompts"].as_u64().unwrap()
}

/// Returns the bytes of RAM for a purpose, without the mapped file.
fn ram(plan: &Value, purpose: &str) -> u64 {
    plan["ram_by_purpose"][purpose].as_u64().unwrap()
}

fn speed(plan: &Value) -> f64 {
    plan["tokens_per_second"].as_f64().unwrap()
}

#[test]
fn built_in_model_is_planned_for_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let machine = typical(folder.path());
    let plan = |vram: &str, more: &[&str]| {
        thermocline(&[&["plan", "--machine", &machine, "--vram", vram, "--json"][..], more].concat()).json()
    };
    let all = plan("4GiB", &[]);
    assert_eq!(all["resident_layers"], all["layers"].as_array().unwrap().len());
    assert!(all["hot_neurons"] == all["neurons"] && all["head"] == true);
    let everything = all["everything"].as_u64().unwrap();
    let purposes: u64 =
        all["bytes_by_purpose"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!((all["bytes"].as_u64(), purposes), (Some(everything), everything));
    let rungs = all["ladder"].as_array().unwrap();
    assert!(rungs.windows(2).all(|pair| speed(&pair[0]) <= speed(&pair[1])), "{rungs:?}");
    assert!(rungs.iter().all(|rung| rung["bytes"].as_u64() <= rung["budget"].as_u64()), "{rungs:?}");

    let most = everything * 4 / 5;
    let part = plan(&most.to_string(), &["--sparsity", "exact", "--context", "256"]);
    assert!(part["bytes"].as_u64().unwrap() <= most && part["bytes"] != 0, "{part}");
    assert!(speed(&rungs[0]) < speed(&part) && part["context"] == 256 && part["sparsity"]["mode"] == "exact");
    let longer = plan("4GiB", &["--context", "2k", "--sessions", "3"]);
    let kv = |plan: &Value| plan["bytes_by_purpose"]["KV cache"].as_u64().unwrap();
    assert_eq!(
        kv(&longer) / 3 / 2048,
        kv(&part) / (256 * part["resident_layers"].as_u64().unwrap()) * longer["resident_layers"].as_u64().unwrap()
    );

    let text = thermocline(&["plan", "--machine", &machine, "--vram", "4GiB", "--sidecar", "none"]).ok();
    for part in ["tokens/s", "a mid-range GPU", "no profile says", "| layers", "| memory for", "| budget"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A card runs at a third of its speed in bursts. `plan` reports both speeds. It expects less of
/// split layers and the same of whole layers.
#[test]
fn plan_tells_speeds_that_sink_in_bursts() {
    let folder = tempfile::tempdir().unwrap();
    let steady = typical(folder.path());
    let mut sinking = Machine::typical();
    sinking.gpu.as_mut().unwrap().bursts.values_mut().for_each(|fraction| *fraction = 0.333);
    sinking.store(&folder.path().join("sinking.json")).unwrap();
    let sinking = folder.path().join("sinking.json").to_str().unwrap().to_owned();
    let plan = |machine: &str, vram: &str, form: &[&str]| {
        let shape = ["plan", "--shape", "relu-llama-7b", "--machine", machine, "--vram", vram];
        thermocline(&[&shape[..], form].concat())
    };
    let [before, after] = [&steady, &sinking].map(|machine| plan(machine, "2GiB", &["--json"]).json());
    assert!(speed(&after) < speed(&before), "{} {}", speed(&after), speed(&before));
    assert!(before["bursts"].as_array().unwrap().is_empty());
    let told = after["bursts"].as_array().unwrap();
    let rates = |of: &Value| ["bytes_per_second", "sustained_bytes_per_second"].map(|key| of[key].as_f64().unwrap());
    let near = |of: &Value| rates(of).iter().zip([79.92e9, 240e9]).all(|(rate, of)| (rate / of - 1.0).abs() < 1e-9);
    assert!(told.iter().any(|of| of["type"] == "Q4_0" && near(of)), "{told:?}");
    let text = plan(&sinking, "2GiB", &[]).ok();
    assert!(text.contains("\nbursts    the GPU reads Q4_0 weights at 79.9 GB/s in split layers"), "{text}");
    assert!(
        text.contains(", and at 240.0 GB/s in whole layers\n") && !plan(&steady, "2GiB", &[]).ok().contains("bursts  ")
    );
    let whole =
        [&steady, &sinking].map(|machine| speed(&plan(machine, "40GiB", &["--json", "--sparsity", "dense"]).json()));
    assert_eq!(whole[0], whole[1], "the GPU alone does not wait");
}

#[test]
fn moe_model_is_planned_expert_by_expert() {
    let folder = tempfile::tempdir().unwrap();
    // On this machine even the smallest expert pays.
    let mut quick = Machine::typical();
    let gpu = quick.gpu.as_mut().unwrap();
    (gpu.hand_over, gpu.dispatch) = (0.0, 0.0);
    quick.store(&folder.path().join("quick.json")).unwrap();
    let machine = folder.path().join("quick.json").to_str().unwrap().to_owned();
    let model = fixture("models/mixtral");
    let plan = |more: &[&str]| thermocline(&[&["plan", "--machine", &machine, "-m", &model][..], more].concat());
    let everything = plan(&["--vram", "1GiB", "--json"]).json()["everything"].as_u64().unwrap();
    let budgets = (8..16).map(|part| (everything * part / 16).to_string());
    let plans: Vec<(String, Value)> =
        budgets.map(|budget| (budget.clone(), plan(&["--vram", &budget, "--json"]).json())).collect();
    let some = plans.iter().find(|(_, plan)| {
        let layers = plan["layers"].as_array().unwrap();
        assert!(layers.iter().all(|layer| layer["counted"] == "experts" && layer["neurons"] == 4));
        layers.iter().any(|layer| (1..4).contains(&layer["hot"].as_u64().unwrap()))
    });
    let (budget, some) = some.unwrap();
    let text = plan(&["--vram", budget]).ok();
    assert!(text.contains("| of experts |") && text.contains("| hot experts |"), "{text}");
    for layer in some["layers"].as_array().unwrap() {
        assert!(text.contains(&format!("{} of 4", layer["hot"])), "{text}");
    }
}

#[test]
fn plan_has_a_row_for_the_streaming_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let path = eager(folder.path());
    // This model has neuron-major down projections.
    let model = fixture("powerinfer/llama-relu-q4_0.powerinfer.gguf");
    let plan = |vram: u64, form: &[&str]| {
        let vram = vram.to_string();
        thermocline(&[&["plan", "--machine", &path, "-m", &model, "--vram", &vram][..], form].concat())
    };
    let all = plan(1 << 30, &["--json"]).json();
    assert_eq!((streamed(&all), all["bytes"].clone()), (0, all["everything"].clone()), "nothing is cold");
    assert!(!plan(1 << 30, &[]).ok().contains("streamed prompts"));
    let budget = all["everything"].as_u64().unwrap() * 15 / 16;
    let some = plan(budget, &["--json"]).json();
    let purposes = some["bytes_by_purpose"].as_object().unwrap().values();
    assert_eq!(purposes.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), some["bytes"].as_u64().unwrap());
    assert!(
        streamed(&some) > 0 && streamed(&some) <= budget / 32 && some["bytes"].as_u64().unwrap() <= budget,
        "{some}"
    );
    assert!(plan(budget, &[]).ok().contains("| streamed prompts"));
}

/// Cold experts are streamed, too, if that is faster and the buffer holds a matrix of an expert.
/// The chunks of prompts are then longer, which takes more scratch memory.
#[test]
fn plan_has_a_row_for_streamed_experts() {
    let folder = tempfile::tempdir().unwrap();
    let (eager, typical) = (eager(folder.path()), typical(folder.path()));
    let plan = |machine: &str, vram: u64| {
        let vram = vram.to_string();
        thermocline(&["plan", "--machine", machine, "--shape", "gpt-oss-120b", "--vram", &vram, "--json"]).json()
    };
    let budget = 8 << 30;
    let some = plan(&eager, budget);
    assert!(streamed(&some) > 0 && streamed(&some) <= budget / 32, "{some}");
    assert!(some["bytes"].as_u64().unwrap() <= budget, "{some}");
    let all = plan(&eager, 1 << 40);
    assert_eq!((streamed(&all), all["bytes"].clone()), (0, all["everything"].clone()), "nothing is cold");
    // Gates and ups of an expert have 2 x 2880 x 2880 weights of half a byte. The buffer holds them
    // once on the device and twice in staging buffers. An expert that needs more than the buffer's
    // share gets up to an eighth of the budget.
    let least = 3 * 2880 * 2880;
    assert!(streamed(&plan(&eager, 32 * least - (1 << 20))) >= least, "one expert");
    assert_eq!(streamed(&plan(&eager, 8 * least - (1 << 20))), 0, "the buffer is too small for an expert");
    let mut slow = Machine::load(Path::new(&typical)).unwrap();
    slow.gpu.iter_mut().flat_map(|gpu| gpu.streams.values_mut()).for_each(|rate| *rate = 1e6);
    let path = folder.path().join("slow.json");
    slow.store(&path).unwrap();
    assert_eq!(streamed(&plan(path.to_str().unwrap(), budget)), 0, "the bus is slow");
}

/// Opening a model makes its down projections neuron-major. The copies take RAM.
#[test]
fn neuron_major_copies_made_on_opening_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (eager(folder.path()), fixture("models/llama-relu"));
    let plan = |more: &[&str]| thermocline(&[&["plan", "--machine", &path, "-m", &model][..], more].concat());
    let planned = |sparsity: &str| {
        let all = plan(&["--json", "--sparsity", sparsity]).json();
        let budget = (all["everything"].as_u64().unwrap() * 7 / 8).to_string();
        let some = plan(&["--json", "--sparsity", sparsity, "--vram", &budget]).json();
        let text = plan(&["--sparsity", sparsity]).ok();
        let bytes = ram(&some, "neuron-major down projections");
        assert_eq!(text.contains("for neuron-major down projections\n"), bytes > 0, "{text}");
        (bytes, some["sparsity"]["reason"].to_string())
    };
    let (bytes, reason) = planned("auto");
    assert!(bytes > 0 && reason.contains("silences"), "{bytes} {reason}");
    let (bytes, reason) = planned("exact");
    assert!(bytes > 0 && reason.contains("up and down rows"), "{bytes} {reason}");
    let (bytes, reason) = planned("dense");
    assert!(bytes == 0, "{bytes} {reason}");
}

/// A CPU that rounds activations has copies of the second layers of the predictors that it uses.
#[test]
fn plan_counts_cpu_copies_of_predictors() {
    let folder = tempfile::tempdir().unwrap();
    let synthetic = SynthOptions::new(SynthShape::named("tiny-relu-llama").unwrap(), folder.path().join("m.gguf"));
    let model = synth::generate(&synthetic, &mut |_| ()).unwrap().path.to_str().unwrap().to_owned();
    let machine = typical(folder.path());
    let plan = |more: &[&str]| thermocline(&[&["plan", "--machine", &machine, "-m", &model][..], more].concat());
    let copied = |vram: &str, more: &[&str]| {
        let plan = plan(&[&["--json", "--vram", vram], more].concat()).json();
        (ram(&plan, "copies of predictors"), plan["resident_layers"].as_u64().unwrap())
    };
    let loaded = Model::open(model.as_ref(), &LoadOptions::default()).unwrap();
    let layers = &loaded.weights.layers;
    let each = layers[0].predictor.as_ref().unwrap().copied_bytes();
    let predicted = ["--sparsity", "predicted"];
    assert!(each > 0 && copied("0", &predicted) == (each * layers.len() as u64, 0));
    assert_eq!(copied("4GiB", &predicted), (0, layers.len() as u64), "the GPU predicts");
    assert_eq!(copied("0", &["--sparsity", "exact"]).0, 0);
    assert_eq!(copied("0", &["--sparsity", "predicted", "--activations", "float"]).0, 0);
    let text = plan(&["--vram", "0", "--sparsity", "predicted"]).ok();
    assert!(text.contains("for copies of predictors\n"), "{text}");
}

/// Returns the bytes of a session's caches when it is new, and their maximum in a chat of 24
/// messages.
fn held_bytes(model: &str, context: usize) -> [u64; 2] {
    let options = EngineOptions { context: Some(context), device: DeviceChoice::Cpu, ..EngineOptions::default() };
    let engine = Engine::open(model.as_ref(), options).unwrap();
    let session = engine.session(SessionOptions::default()).unwrap();
    let new = until("a cache", || Some(engine.memory().kv).filter(|bytes| *bytes > 0));
    let chat: Vec<u32> = (0..24 * 6).map(|i| (i * i * 31 + i * 29 + 5) % 380).collect();
    let most = (1..=24).map(|message| {
        let prompt = Prompt::Tokens(chat[..6 * message].to_vec());
        let request = Request { sampling: Sampling::greedy(), max_tokens: Some(1), ..Request::new(prompt) };
        let events: Vec<Event> = session.generate(request).into_iter().collect();
        assert!(matches!(events.last(), Some(Event::Done { .. })), "{events:?}");
        engine.memory().kv
    });
    [new, most.max().unwrap()]
}

/// The planned RAM of caches, with the maximum for copies of windows and states, equals the RAM of
/// a session to the byte.
#[test]
fn snapshots_are_planned_as_sessions_hold_them() {
    const CONTEXT: usize = 1024;
    let folder = tempfile::tempdir().unwrap();
    let machine = typical(folder.path());
    let planned = |name: &str, vram: &str, more: &[&str]| {
        let (model, context) = (fixture(name), CONTEXT.to_string());
        let of = ["plan", "--machine", &machine, "-m", &model, "--context", &context, "--json", "--vram", vram];
        let plan = thermocline(&[&of[..], more].concat()).json();
        ["KV cache", "snapshots for prefix reuse"].map(|purpose| ram(&plan, purpose))
    };
    for name in ["models/gemma3", "models/qwen3_5", "models/llama-relu"] {
        let [rows, snapshots] = planned(name, "0", &[]);
        assert_eq!(planned(name, "0", &["--sessions", "3"]), [3 * rows, 3 * snapshots], "{name}");
        let [new, most] = held_bytes(&fixture(name), CONTEXT);
        println!("{name}: {rows} bytes and {snapshots} of snapshots are planned, {new} to {most} held");
        assert_eq!(most - new, snapshots, "{name}");
        assert!((rows..rows + rows / 50).contains(&new), "{name}: {new} bytes, not {rows}");
        assert_eq!(snapshots > 0, name != "models/llama-relu", "{name}");
        let text = thermocline(&["plan", "--machine", &machine, "--vram", "0", "-m", &fixture(name)]).ok();
        assert!(text.contains("beside the file, for KV cache\n"), "{text}");
        let shown = thermocline(&["inspect", "--json", &fixture(name)]).json();
        let shown = shown["kv_cache"]["f16"]["snapshot_bytes"].as_u64().unwrap();
        let short = name == "models/gemma3";
        assert_eq!(shown, if short { 0 } else { snapshots }, "{name}: no context of 256 tokens has a ring");
    }
}

#[test]
fn plan_measures_this_machine_once_and_saves_it() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved.json");
    let plan = |args: &[&str]| {
        run(command_in(folder.path(), &[&["plan", "--json", "--vram", "16MiB"][..], args].concat()), b"").json()
    };
    let first = plan(&["--device", "0", "--save-machine", saved.to_str().unwrap()]);
    assert!(first["machine"]["gpu"]["hand_over"].as_f64().unwrap() > 0.0 && speed(&first) > 0.0);
    assert_eq!(first["machine"], plan(&["--device", "0"])["machine"], "measured once");
    assert_eq!(first["machine"]["memory"]["ram"].as_u64(), thermocline_host::memory::total());
    let elsewhere = ["--machine", saved.to_str().unwrap()];
    assert_eq!(first, plan(&[&["--device", "0"], &elsewhere[..]].concat()), "planned elsewhere");
    // A GPU that is named is used, whether it is faster than the CPU or not.
    assert!(first["bytes"].as_u64() > Some(0));
}

#[test]
fn split_of_powerinfers_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, model) = (typical(folder.path()), fixture("powerinfer/llama-relu-q4_0.powerinfer.gguf"));
    let split = format!("{model}.generated.gpuidx");
    let plan = |split: &str| thermocline(&["plan", "--machine", &machine, "-m", &model, "--split", split, "--json"]);
    let shown = plan(&split).json();
    assert!(shown["hot_neurons"].as_u64() > Some(0) && shown["hot_neurons"].as_u64() < shown["neurons"].as_u64());
    assert!(plan(&model).refusal().contains("generic.gpu_index"));
    let other = fixture("powerinfer/llama-relu-f16.powerinfer.gguf.generated.gpuidx");
    plan(&other).ok();
    let refused = thermocline(&["plan", "--machine", &machine, "--split", &split]).refusal();
    assert!(refused.contains("of the model"), "{refused}");
}

#[test]
fn plan_refuses_invalid_machine_files_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.json");
    std::fs::write(&broken, "{}").unwrap();
    let broken = broken.to_str().unwrap();
    assert!(thermocline(&["plan", "--machine", broken]).refusal().contains("version"));
    assert!(thermocline(&["plan", "--machine", "/nowhere/m.json"]).refusal().contains("/nowhere/m.json"));
    assert!(thermocline(&["plan", "--device", "cpu", "--vram", "1GiB"]).refusal().contains("--vram"));
}

#[test]
fn budget_is_planned_on_a_machine_without_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command_in(folder.path(), &["plan", "--vram", "16MiB", "--json"]);
    command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
    let ran = run(command, b"");
    assert!(ran.stderr.contains("[this machine has no GPU: the plan uses the speeds of a mid-range GPU"), "{ran:?}");
    let plan = ran.json();
    assert!(plan["resident_layers"].as_u64() > Some(0) && plan["machine"]["gpu"].is_object(), "{plan}");
}

/// Plans without a model file and without a GPU, from the sizes of a shape and the published
/// figures of a machine.
#[test]
fn shape_is_planned_for_a_published_machine_without_a_file() {
    let plan = |shape: &str, machine: &str, more: &[&str]| {
        thermocline(&[&["plan", "--shape", shape, "--machine", machine, "--json"][..], more].concat()).json()
    };
    let card = plan("relu-llama-70b", "rtx4090-i9", &[]);
    let alone = plan("relu-llama-70b", "rtx4090-i9", &["--vram", "0"]);
    assert_eq!(card["layers"].as_array().unwrap().len(), 80);
    assert!(speed(&card) > 1.3 * speed(&alone) && speed(&alone) > 0.1, "{} {}", speed(&card), speed(&alone));
    let small = plan("relu-llama-70b", "rtx4090-i9", &["--vram", "8GiB"]);
    assert!(speed(&small) < speed(&card), "{} {}", speed(&small), speed(&card));
    let small_pc = plan("relu-llama-70b", "i5-10400", &[]);
    assert!(small_pc["tokens_per_second"].is_null() && small_pc["missing_ram"].as_u64() > Some(16 << 30));
    // Twice as many firing neurons cost speed, and so do wider weights.
    let busy = plan("relu-llama-70b", "rtx4090-i9", &["--active", "0.3"]);
    let wide = plan("relu-llama-70b", "rtx4090-i9", &["--type", "f16"]);
    assert!(speed(&busy) < speed(&card) && speed(&wide) < speed(&card));
    let experts = plan("gpt-oss-20b", "rx9070xt-r7", &["--type", "mxfp4"]);
    assert!(speed(&experts) > speed(&card));
    let said = thermocline(&["plan", "--shape", "relu-llama-7b", "--machine", "pc-of-no-one"]);
    assert!(said.code != Some(0) && said.stderr.contains("pc-of-no-one"), "{}", said.stderr);
}

/// A GPU has no 8-bit KV cache. If the user asks for one, `plan` names the type that the GPU uses
/// and counts its bytes.
#[test]
fn plan_and_inspect_say_which_cache_a_gpu_has() {
    let plan = |ty: &str, form: &[&str]| {
        let args = ["plan", "--shape", "relu-llama-7b", "--machine", "rtx4090-i9", "--kv-type", ty];
        thermocline(&[&args[..], form].concat())
    };
    let [eight, sixteen] = ["q8_0", "f16"].map(|ty| (plan(ty, &[]).ok(), plan(ty, &["--json"]).json()));
    assert!(eight.0.contains("tokens, Q8_0 (F16 on the GPU)\n") && sixteen.0.contains("tokens, F16\n"), "{}", eight.0);
    assert_eq!((&eight.1["kv_type"], &eight.1["gpu_kv_type"]), (&"Q8_0".into(), &"F16".into()));
    assert_eq!(eight.1["bytes_by_purpose"], sixteen.1["bytes_by_purpose"]);
    let inspected = thermocline(&["inspect"]).ok();
    assert!(inspected.contains(" in all (Q8_0; F16 on a GPU)\n"), "{inspected}");
    let help = plan("q8_0", &["--help"]).ok();
    assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains("the part in GPU memory is f16"), "{help}");
}

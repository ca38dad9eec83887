//! `thermocline plan` of models that do not fit into RAM, and budgets above a card's memory.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};
use thermocline_engine::placement::{Machine, MemorySizes};
use thermocline_tests::terminal::{Ran, thermocline, with_input};

const GIB: u64 = 1 << 30;

/// Writes a typical desktop with `ram` bytes of RAM and a disk that reads `disk` bytes per second.
/// Returns the path.
fn desktop(folder: &Path, ram: Option<u64>, disk: Option<f64>) -> String {
    let path = folder.join("desktop.json");
    let mut machine = Machine::typical();
    (machine.memory, machine.disk) = (MemorySizes { ram, vram: None }, disk);
    machine.store(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Plans a dense model with 7 billion parameters for the machine in the file `path`.
fn dense(path: &str, vram: &str, form: &[&str]) -> Ran {
    let args = ["plan", "--shape", "relu-llama-7b", "--sparsity", "dense", "--machine", path, "--vram", vram];
    thermocline(&[&args[..], form].concat())
}

fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or_else(|| panic!("{key}: {of}"))
}

/// A model that does not fit into RAM is read from the disk in part for each token. The speed
/// includes these reads.
#[test]
fn speed_of_a_model_larger_than_ram_includes_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let planned = |ram: u64, disk: Option<f64>| {
        let path = desktop(folder.path(), Some(ram), disk);
        (dense(&path, "0", &["--json"]).json(), dense(&path, "0", &[]).ok())
    };
    let (all, text) = planned(64 * GIB, Some(2e9));
    let needed = all["ram_needed"].as_u64().unwrap();
    assert_eq!((&all["missing_ram"], &all["disk_bytes_per_token"]), (&json!(0), &json!(0.0)));
    assert!(
        all["memory_notes"].as_array().unwrap().is_empty()
            && text.contains(" of them weights; the machine has 64.0 GiB\n"),
        "{text}"
    );
    let others: u64 = all["ram_by_purpose"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert!(all["ram_by_purpose"]["scratch"].as_u64() > Some(0), "{all}");

    let (some, text) = planned(needed - GIB, Some(2e9));
    let read = number(&some, "disk_bytes_per_token");
    assert_eq!((&some["missing_ram"], &some["ram_needed"]), (&json!(GIB), &json!(needed)));
    // The embedding and the predictors are missing first, and a dense token reads none of them.
    assert!((0.6..0.9).contains(&(read / GIB as f64)), "{read}");
    // The CPU computes meanwhile.
    let seconds = number(&all, "seconds").max(read / 2e9);
    assert!((number(&some, "seconds") / seconds - 1.0).abs() < 1e-9, "{some}");
    assert!((number(&some, "tokens_per_second") * seconds - 1.0).abs() < 1e-9, "{some}");
    assert!(some["bottleneck"] == "the disk" && seconds > number(&all, "seconds"), "{some}");
    let note = some["memory_notes"][0].as_str().unwrap();
    assert!(note.starts_with("1.0 GiB of RAM are missing: the machine has ") && note.ends_with(" s"), "{note}");
    assert!(text.contains(note) && text.contains(&format!("{:.2} tokens/s, ", 1.0 / seconds)), "{text}");

    let (unknown, text) = planned(needed - GIB, None);
    assert!(unknown["tokens_per_second"].is_null() && unknown["seconds"].is_null(), "{unknown}");
    let note = unknown["memory_notes"][0].as_str().unwrap();
    assert!(note.ends_with("the disk's speed is unknown, so no speed is predicted"), "{note}");
    assert!(text.contains("\nno speed predicted, ") && !text.contains(" tokens/s,"), "{text}");

    let (swapped, _) = planned(others - 1, Some(2e9));
    assert!(swapped["tokens_per_second"].is_null(), "{swapped}");
    let note = swapped["memory_notes"][0].as_str().unwrap();
    assert!(note.ends_with("needed besides weights, so no speed is predicted"), "{note}");
}

/// An engine without room for neuron-major copies does not make them, and a plan does not count
/// them.
#[test]
fn copies_without_room_are_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let copies = |ram: u64| {
        let path = desktop(folder.path(), Some(ram), None);
        let shape = ["plan", "--shape", "turbosparse-mixtral", "--sparsity", "exact", "--machine", &path];
        let plan = thermocline(&[&shape[..], &["--vram", "0", "--json"]].concat()).json();
        plan["ram_by_purpose"]["neuron-major down projections"].as_u64().unwrap()
    };
    assert!(copies(128 * GIB) > 5 * GIB);
    assert_eq!(copies(20 * GIB), 0);
}

/// Every budget of the comparison is priced with its own RAM.
#[test]
fn weights_in_gpu_memory_need_no_ram() {
    let folder = tempfile::tempdir().unwrap();
    let path = desktop(folder.path(), Some(2 * GIB), None);
    let plan = dense(&path, "1GiB", &["--json"]).json();
    let rungs = plan["ladder"].as_array().unwrap();
    let (first, last) = (&rungs[0], &rungs[rungs.len() - 1]);
    assert!(first["tokens_per_second"].is_null() && first["missing_ram"].as_u64() > Some(GIB), "{first}");
    assert_eq!((first["bottleneck"].as_str(), &last["missing_ram"]), (Some("the disk"), &json!(0)));
    assert!(number(last, "tokens_per_second") > 10.0, "{last}");
    assert!(dense(&path, "1GiB", &[]).ok().contains("|        - |"), "a budget without a speed");
}

/// `--ram` plans as for a machine with this much RAM.
#[test]
fn plan_for_less_ram_is_that_of_a_smaller_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = desktop(folder.path(), Some(64 * GIB), Some(2e9));
    let plan = |more: &[&str]| dense(&path, "0", &[&["--json"], more].concat()).json();
    let (whole, limited) = (plan(&[]), plan(&["--ram", "4GiB"]));
    assert!(number(&limited, "tokens_per_second") < number(&whole, "tokens_per_second") / 2.0, "{limited}");
    desktop(folder.path(), Some(4 * GIB), Some(2e9));
    assert_eq!(plan(&[]), limited);
}

/// Files of older versions have no sizes. Their plans assume that everything fits, and say so.
#[test]
fn machine_file_without_sizes_is_planned_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let path = desktop(folder.path(), None, None);
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file.as_object_mut().unwrap().remove("memory").unwrap();
    std::fs::write(&path, file.to_string()).unwrap();
    let plan = dense(&path, "0", &["--json"]).json();
    assert!(plan["missing_ram"].is_null() && number(&plan, "tokens_per_second") > 1.0, "{plan}");
    let note = "the size of the RAM is unknown, so the plan assumes that everything fits";
    assert_eq!(plan["memory_notes"], json!([note]));
    assert!(dense(&path, "0", &[]).ok().contains(note));
}

/// Without `--machine`, the RAM is that of this machine.
#[test]
fn plan_for_this_machine_knows_its_ram() {
    let args = ["plan", "--shape", "relu-llama-7b", "--device", "cpu", "--context", "64k", "--sessions", "65535"];
    let plan = thermocline(&[&args[..], &["--json"]].concat()).json();
    let ram = plan["machine"]["memory"]["ram"].as_u64().unwrap();
    assert_eq!(plan["missing_ram"].as_u64(), Some(plan["ram_needed"].as_u64().unwrap() - ram));
    assert!(plan["tokens_per_second"].is_null(), "{plan}");
}

/// `plan` reports in text and JSON if a published machine lacks memory. Unified memory is one
/// budget.
#[test]
fn plan_tells_memory_that_is_not_there() {
    let plan = |shape: &str, machine: &str, vram: &str, form: &[&str]| {
        let args = ["plan", "--shape", shape, "--type", "q4_0", "--machine", machine, "--vram", vram];
        thermocline(&[&args[..], form].concat())
    };
    let told = |shape: &str, machine: &str, vram: &str| {
        let (text, json) = (plan(shape, machine, vram, &[]).ok(), plan(shape, machine, vram, &["--json"]).json());
        let notes: Vec<&str> = json["memory_notes"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        assert!(notes.iter().all(|note| text.contains(note)), "{notes:?}: {text}");
        (json["missing_ram"].as_u64().unwrap(), json["budget"].as_u64().unwrap(), notes.join("; "))
    };
    let (missing, _, notes) = told("relu-llama-70b", "apple-m2", "12GiB");
    assert!(missing >> 30 >= 10 && notes.contains("of RAM are missing: the machine has 24.0 GiB"), "{notes}");
    let (missing, budget, notes) = told("relu-llama-7b", "rtx3060-r5", "30GiB");
    assert_eq!((missing, notes.as_str()), (0, "the budget is limited to 12.0 GiB, the memory of the GPU"));
    assert!(budget <= 12 << 30, "{budget}");
    assert_eq!(told("relu-llama-7b", "rtx3060-r5", "4GiB"), (0, 4 << 30, String::new()));
}

/// A budget above the card's memory is limited to it, and every command says so.
#[test]
fn budget_above_the_cards_memory_is_limited() {
    const TOO_MUCH: &str = "4194304GiB";
    let budget = ["--device", "0", "--vram", TOO_MUCH];
    let plan = thermocline(&[&["plan", "--json"][..], &budget].concat()).json();
    let card = plan["machine"]["memory"]["vram"].as_u64().unwrap();
    assert!(plan["budget"].as_u64().unwrap() <= card, "{plan}");
    let size = plan["memory_notes"][0].as_str().unwrap().strip_prefix("the budget is limited to ").unwrap();
    let size = size.strip_suffix(", the memory of the GPU").unwrap();
    let line = format!("[--vram: the budget is limited to {size}, the memory of ");
    for command in [
        &["run", "-p", "Hi", "-n", "1"][..],
        &["logits", "--tokens", "1,2", "--out", "/dev/null"],
        &["bench", "--quick", "-p", "0", "-n", "1", "-r", "1"],
    ] {
        let ran = thermocline(&[command, &budget].concat());
        assert_eq!(ran.stderr.matches(&line).count(), 1, "{ran:?}");
    }
    let chat = with_input(&["chat", "--device", "0"], format!("/vram {TOO_MUCH}\n/vram 64MiB\n").as_bytes());
    assert!(chat.stdout.contains(&format!("at most {size}, which is all of the GPU's memory\n")), "{chat:?}");
    assert!(chat.stdout.contains("at most 64.0 MiB of GPU memory\n"), "{chat:?}");
}

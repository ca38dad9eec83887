//! `thermocline report`: writes one page about this machine, which users can send to others. Every
//! measurement is a separate process. If a driver crashes, the page reports the failure and
//! continues.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::Value;

use crate::cli::report_page::ReportPage;
use thermocline_host::units;
use thermocline_terminal::{
    answer,
    failure::{Failure, Outcome},
};

/// Time limit of all measurements together.
const TIME: Duration = Duration::from_secs(420);
/// Weight types of the self-test: the most common ones in models.
const TESTED: &str = "q4_0,q4_k,q5_k,q6_k,q8_0,f16,bf16,f32";
/// Fraction of the copy bandwidth below which the page lists a kernel as slow. Only kernels that
/// read weights for one token count.
const SLOW: f64 = 0.7;
/// Budgets for placing the model, as fractions of its memory.
const BUDGETS: [(u64, u64); 2] = [(1, 3), (2, 3)];

const DETAILS: &str = "\
The page lists the processor, the memory and the GPUs. It shows which GPU kernels agree with the
CPU, and which fraction of the GPU's memory bandwidth each kernel reaches. It compares planned and
measured speeds of a model of random weights whose neurons are placed under two budgets. The
measurements take at most eight minutes. The page contains no file names and no texts.";

/// Measures this machine and writes a page about it.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct ReportArgs {
    /// GPU to measure, as in `thermocline bench`; gpu is the GPU that is chosen automatically
    #[arg(long, value_name = "DEVICE", default_value = "gpu")]
    device: String,
    /// The page to write
    #[arg(short, long, value_name = "FILE", default_value = "thermocline-report.html")]
    out: PathBuf,
    /// Use small models and short measurements, for a software driver
    #[arg(long)]
    quick: bool,
}

/// Runs the command.
pub fn report(args: &ReportArgs) -> Outcome {
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::Output(format!("{what}: {error}"));
    let program = std::env::current_exe().map_err(|error| failed("the path of this program is unknown", &error))?;
    let folder = tempfile::tempdir().map_err(|error| failed("cannot create a folder for a model", &error))?;
    let steps = Steps { program, folder: folder.path().to_owned(), started: Instant::now(), quick: args.quick };
    let mut page = ReportPage::new();
    page.step("Machine", steps.json(&["devices", "--json"]), machine);
    let tested = ["devices", "--test", "--json", "--device", &args.device];
    let tested = [&tested[..], if args.quick { &["--weights", "q4_0"] } else { &["--weights", TESTED] }].concat();
    page.step("Self-test", steps.json(&tested), self_test);
    let mut slow = Vec::new();
    let kernels = steps.measured(&["bench", "--kernels", "-o", "json", "--device", &args.device]);
    let measured = page.step("Kernels", kernels, |found, page| kernels_of(found, &mut slow, page));
    page.section("Hybrid");
    hybrid(&steps, &args.device, &mut page);
    page.section("Slow kernels");
    let end = slow_text(measured, &slow);
    page.paragraph(&end);
    fs::write(&args.out, page.finish(steps.started.elapsed()))
        .map_err(|error| failed(&format!("cannot write {}", args.out.display()), &error))?;
    answer::print(&format!("{end}\n{} is written; you can send it unchanged\n", args.out.display()))
}

/// Builds the last paragraph.
fn slow_text(measured: bool, slow: &[String]) -> String {
    match slow {
        [] if measured => format!("No measured kernel is below {:.0} % of the copy bandwidth.", SLOW * 100.0),
        [] => "No kernel was measured.".to_owned(),
        slow => format!("Below {:.0} % of the copy bandwidth: {}.", SLOW * 100.0, slow.join(", ")),
    }
}

/// Runs this program for each measurement.
struct Steps {
    program: PathBuf,
    /// Folder for models and program output.
    folder: PathBuf,
    started: Instant,
    quick: bool,
}

impl Steps {
    /// Runs the program with these arguments. Returns its output, or the last line of its error.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let left = TIME.checked_sub(self.started.elapsed()).ok_or("skipped, because seven minutes have passed")?;
        let files = ["out", "error"].map(|name| self.folder.join(name));
        let [out, error] = files.each_ref().map(|path| File::create(path).map_err(|error| error.to_string()));
        let child = Command::new(&self.program).args(args).stdin(Stdio::null()).stdout(out?).stderr(error?).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        let deadline = Instant::now() + left;
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("stopped: it took too long".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let [out, error] = files.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned());
        if status.success() {
            return Ok(out);
        }
        let line = error.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("there is no error message");
        Err(format!("{line} ({status})"))
    }

    fn json(&self, args: &[&str]) -> Result<Value, String> {
        serde_json::from_str(&self.run(args)?).map_err(|error| format!("its output is not JSON: {error}"))
    }

    /// Runs the program and parses its JSON. Adds `--quick` if the report is quick.
    fn measured(&self, args: &[&str]) -> Result<Value, String> {
        self.json(&[args, if self.quick { &["--quick"] } else { &[] }].concat())
    }
}

/// Lists processor, memory and GPUs. Returns true.
fn machine(found: &Value, page: &mut ReportPage) -> bool {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let bytes = |value: &Value| value.as_u64().map_or("unknown".to_owned(), units::bytes);
    let (cpu, memory) = (&found["cpu"], &found["memory"]);
    let mut rows = vec![
        vec!["program".to_owned(), format!("thermocline {}", env!("CARGO_PKG_VERSION"))],
        vec!["system".to_owned(), format!("{}, {}", std::env::consts::OS, std::env::consts::ARCH)],
        vec![
            "CPU".to_owned(),
            format!("{}, {} cores, {}", text(&cpu["model"]), cpu["physical_cores"], text(&cpu["isa"]["chosen"])),
        ],
        vec![
            "memory".to_owned(),
            format!("{}, reads {}", bytes(&memory["total_bytes"]), rate(&memory["read_bytes_per_second"])),
        ],
    ];
    let gpus = || found["gpu"].as_array().into_iter().flatten();
    for gpu in gpus() {
        let vram = gpu["vram"].as_array().and_then(|readings| readings.first()).map(|vram| bytes(&vram["total_bytes"]));
        let parts = [text(&gpu["type"]), text(&gpu["backend"]), text(&gpu["driver"]), vram.unwrap_or_default()];
        let subgroups = &gpu["subgroup_sizes"];
        rows.push(vec![
            format!("GPU {}", gpu["index"]),
            format!("{}: {}, subgroups {subgroups}", text(&gpu["name"]), parts.join(", ")),
        ]);
    }
    rows.extend(gpus().flat_map(|gpu| {
        let without = gpu["fallbacks"].as_array().into_iter().flatten();
        without.map(|it| {
            vec![format!("GPU {}", gpu["index"]), format!("{} disabled: {}", text(&it["part"]), text(&it["why"]))]
        })
    }));
    page.table(&["", ""], &rows);
    true
}

/// Lists the results of the tested GPUs. Returns true if a GPU was tested.
fn self_test(found: &Value, page: &mut ReportPage) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut tested = false;
    for gpu in found["gpu"].as_array().into_iter().flatten().filter(|gpu| gpu["self_test"].is_object()) {
        let test = &gpu["self_test"];
        tested = true;
        if let Some(error) = test["error"].as_str() {
            page.paragraph(&format!("{} was not tested: {error}", text(&gpu["name"])));
            continue;
        }
        let milliseconds = test["milliseconds"].as_f64().unwrap_or(f64::NAN);
        page.paragraph(&format!("{}: {}, in {milliseconds:.0} ms.", text(&gpu["name"]), text(&test["conclusion"])));
        let rows = test["rows"].as_array().into_iter().flatten().map(|row| {
            let result = match text(&row["outcome"]).as_str() {
                "failed" => text(&row["reason"]),
                outcome => {
                    let difference = row["difference"].as_f64();
                    let difference =
                        difference.map_or("differs by NaN".to_owned(), |by| format!("differs by {by:.1e}"));
                    format!("{outcome}, {difference}")
                }
            };
            let feature = row["feature"].as_str().unwrap_or("plain").replace('_', " ");
            let milliseconds = row["milliseconds"].as_f64().unwrap_or(f64::NAN);
            vec![text(&row["kernel"]), text(&row["weights"]), feature, result, format!("{milliseconds:.1}")]
        });
        page.table(&["kernel", "weights", "variant", "result", "ms"], &rows.collect::<Vec<_>>());
    }
    if !tested {
        page.paragraph("No GPU was tested.");
    }
    tested
}

/// Compares products of weights with the copy bandwidth. Adds slow products for one token to
/// `slow`.
fn kernels_of(found: &Value, slow: &mut Vec<String>, page: &mut ReportPage) -> bool {
    let (speed, copies) = (&found["speed"], found["bandwidth"].as_f64().unwrap_or(0.0));
    page.paragraph(&format!(
        "{}: copies {}, reads {}, uploads {}, downloads {}; a hand-over takes {:.0} us, one in twenty more than {:.0} us.",
        found["device"].as_str().unwrap_or("the GPU"),
        rate(&speed["copy_bytes_per_second"]),
        rate(&speed["read_bytes_per_second"]),
        rate(&speed["upload_bytes_per_second"]),
        rate(&speed["download_bytes_per_second"]),
        speed["hand_over"]["median_us"].as_f64().unwrap_or(f64::NAN),
        speed["hand_over"]["p95_us"].as_f64().unwrap_or(f64::NAN),
    ));
    let mut rows = Vec::new();
    for product in found["products"].as_array().into_iter().flatten() {
        let moved = product["bytes_per_second"].as_f64().unwrap_or(0.0);
        let (ty, way) = (product["weight_type"].as_str().unwrap_or("?"), product["way"].as_str().unwrap_or("?"));
        let fraction = if copies > 0.0 { moved / copies } else { 0.0 };
        let size = format!("{} x {}", product["rows"], product["cols"]);
        if product["tokens"] == 1 && fraction < SLOW {
            slow.push(format!("{ty} {size} {way} ({:.0} %)", fraction * 100.0));
        }
        let us = product["seconds"].as_f64().unwrap_or(f64::NAN) * 1e6;
        let (tokens, percent) = (product["tokens"].to_string(), format!("{:.0} %", fraction * 100.0));
        rows.push(vec![
            ty.to_owned(),
            size,
            tokens,
            way.to_owned(),
            format!("{us:.1}"),
            rate(&product["bytes_per_second"]),
            percent,
        ]);
    }
    page.table(&["weights", "rows x columns", "tokens", "arithmetic", "us", "bandwidth", "of copy bandwidth"], &rows);
    true
}

/// Compares planned and measured speeds of a model under budgets.
fn hybrid(steps: &Steps, device: &str, page: &mut ReportPage) {
    let file = steps.folder.join("model.gguf");
    let file = file.to_string_lossy().into_owned();
    let file = file.as_str();
    let shape: &[&str] = if steps.quick { &["tiny-relu-llama"] } else { &["relu-llama-7b", "--layers", "8"] };
    let synth = [&["synth", "--type", "q4_0", "--sidecar", "--out", file, "--shape"][..], shape].concat();
    if let Err(error) = steps.run(&synth) {
        return page.paragraph(&format!("the model could not be made: {error}"));
    }
    let everything = ["plan", "--json", "-m", file, "--device", device, "--sparsity", "exact", "--context", "512"];
    let whole = match steps.json(&everything) {
        Ok(plan) => plan,
        Err(error) => return page.paragraph(&format!("the plan cannot be made: {error}")),
    };
    let Some(everything) = whole["everything"].as_u64() else {
        return page.paragraph("the plan does not contain the size of the model");
    };
    page.paragraph(&format!("{}, Q4_0, of random weights, {} in all.", shape.join(" "), units::bytes(everything)));
    bursts(&whole, page);
    let mut rows = Vec::new();
    for (part, of) in BUDGETS {
        let bytes = everything / of * part;
        let vram = bytes.to_string();
        let budget = units::bytes(bytes);
        let plan = [
            &["plan", "--json", "-m", file, "--device", device, "--vram", &vram][..],
            &["--sparsity", "exact", "--context", "512"],
        ];
        let planned = match steps.json(&plan.concat()) {
            Ok(plan) => plan["tokens_per_second"].as_f64().map_or("?".to_owned(), |speed| format!("{speed:.1}")),
            Err(error) => error,
        };
        let bench = ["bench", "-m", file, "--device", device, "--vram", &vram, "-p", "0", "-n", "16", "-r", "2"];
        let ways = ["--placement", "layers,neurons", "--sparsity", "dense,exact", "-o", "json"];
        match steps.measured(&[&bench[..], &ways].concat()) {
            Err(error) => rows.push(vec![budget, "-".to_owned(), planned, error]),
            Ok(found) => rows.extend(found.as_array().into_iter().flatten().map(|run| {
                let (extra, speed) = (&run["thermocline"], run["avg_ts"].as_f64().unwrap_or(f64::NAN));
                let name = |key: &str| extra[key].as_str().unwrap_or("-").to_owned();
                let way = format!("{}, {}", name("placement"), name("sparsity"));
                let figure =
                    |key: &str| extra[key].as_f64().map_or("-".to_owned(), |it| format!("{:.0} %", it * 100.0));
                // The plan assumes neurons in exact mode.
                let planned = if way == "neurons, exact" { planned.clone() } else { "-".to_owned() };
                vec![budget.clone(), way, planned, format!("{speed:.1}"), figure("hot_fraction"), figure("waiting")]
            })),
        }
    }
    page.table(
        &["budget", "placed by", "tokens/s planned", "tokens/s measured", "neurons on the GPU", "CPU waits"],
        &rows,
    );
}

/// Lists GPU speeds that are lower in bursts, which `plan` uses for split layers. Writes nothing if
/// no speed is lower.
fn bursts(plan: &Value, page: &mut ReportPage) {
    for of in plan["bursts"].as_array().into_iter().flatten() {
        page.paragraph(&format!(
            "The GPU reads {} weights at {} in short submissions with waits between them, and at {} without waits. Plans for split layers use the first speed.",
            of["type"].as_str().unwrap_or("?"),
            rate(&of["bytes_per_second"]),
            rate(&of["sustained_bytes_per_second"]),
        ));
    }
}

/// Formats a rate like `12.3 GB/s`.
fn rate(bytes_per_second: &Value) -> String {
    bytes_per_second.as_f64().map_or("unknown".to_owned(), |rate| format!("{:.1} GB/s", rate / 1e9))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_that_are_done_without_are_said() {
        let fallback = json!({ "part": "packed dot products", "why": "they are <wrong>" });
        let gpu = json!({ "index": 1, "fallbacks": [fallback] });
        let mut page = ReportPage::new();
        assert!(machine(&json!({ "gpu": [gpu] }), &mut page));
        assert!(page.html().contains("<td>GPU 1</td><td>packed dot products disabled: they are &lt;wrong&gt;</td>"));
    }

    #[test]
    fn speeds_that_sink_in_bursts_are_said_beside_those_without_waits() {
        let rate = json!({ "type": "Q4_K", "bytes_per_second": 8e10, "sustained_bytes_per_second": 2.4e11 });
        let mut page = ReportPage::new();
        bursts(&json!({ "bursts": [rate] }), &mut page);
        for text in ["Q4_K weights", "80.0 GB/s in short submissions", "240.0 GB/s without waits"] {
            assert!(page.html().contains(text), "{}", page.html());
        }
        let mut steady = ReportPage::new();
        bursts(&json!({ "bursts": [] }), &mut steady);
        assert!(!steady.html().contains("short submissions"));
    }

    #[test]
    fn tested_kernels_are_rows() {
        let row = |outcome: Value| {
            let mut row = json!({ "kernel": "norm", "weights": null, "feature": "subgroups", "milliseconds": 1.0 });
            row.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
            row
        };
        let rows = [
            row(json!({ "outcome": "wrong", "difference": null })),
            row(json!({ "outcome": "failed", "reason": "the driver <refused>" })),
        ];
        let test = json!({ "conclusion": "right without subgroups", "milliseconds": 12.0, "rows": rows });
        let mut page = ReportPage::new();
        assert!(self_test(&json!({ "gpu": [{ "name": "Arc", "self_test": test }, {}] }), &mut page));
        for text in ["Arc: right without subgroups, in 12 ms.", "wrong, differs by NaN", "the driver &lt;refused&gt;"] {
            assert!(page.html().contains(text), "{}", page.html());
        }
        assert!(!self_test(&json!({ "gpu": [{}] }), &mut page));
    }

    #[test]
    fn kernels_below_the_limit_are_named() {
        let product = |tokens: u64, rate: f64| {
            json!({ "weight_type": "Q4_0", "tokens": tokens, "seconds": 1e-3, "bytes_per_second": rate,
                "rows": 4, "cols": 8, "way": "floats" })
        };
        let found = json!({ "device": "D", "bandwidth": 100.0, "speed": {},
            "products": [product(1, 69.0), product(1, 71.0), product(32, 1.0)] });
        let mut slow = Vec::new();
        assert!(kernels_of(&found, &mut slow, &mut ReportPage::new()));
        assert_eq!(slow, ["Q4_0 4 x 8 floats (69 %)"]);
        assert!(slow_text(true, &slow).contains("Below 70 %") && slow_text(true, &[]).contains("No measured kernel"));
    }
}

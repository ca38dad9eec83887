//! Steps within which a driver ends the program: the next start does without what was tried, and answers.

#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use thermocline_engine::gpu::{
    AdapterChoice, DriverProbe, Fallbacks, FaultPoint, Faults, Gpu, GpuOptions, RiskyStep, adapters, answer_probe,
    probe_with,
};
use thermocline_tests::{
    own_process,
    terminal::{command, command_in, run, thermocline},
};

/// A step on the software driver the tests have, and its sentence.
struct Step {
    name: &'static str,
    step: RiskyStep,
    why: &'static str,
    /// True if the adapter computes without what was tried.
    computes: bool,
}

const STEPS: [Step; 4] = [
    Step {
        name: "enumeration",
        step: RiskyStep::Enumeration,
        why: "the program ended while they were looked for",
        computes: false,
    },
    Step { name: "opening", step: RiskyStep::Opening, why: "the program ended while it was opened", computes: false },
    Step {
        name: "pipeline",
        step: RiskyStep::Pipeline,
        why: "the program ended while the kernel `subgroup_trial` was compiled",
        computes: true,
    },
    Step {
        name: "submission",
        step: RiskyStep::Submission,
        why: "the program ended in its first submission",
        computes: false,
    },
];

/// Opens the first adapter and ends within a step: the part of another process.
fn end_within(name: &str, cache: &Path) {
    let step = STEPS.iter().find(|it| it.name == name).unwrap().step;
    let (faults, fallbacks) = (Faults(Some((FaultPoint::Abort(step), 1))), Fallbacks::in_folder(cache));
    let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, fallbacks, ..GpuOptions::default() });
    eprintln!("went on: {gpu:?}");
}

#[test]
fn steps_that_end_the_program_are_not_taken_again() {
    if let Some((name, cache)) = own_process::part().as_deref().and_then(|part| part.split_once(' ')) {
        return end_within(name, Path::new(cache));
    }
    let question = ["run", "-p", "A cat and a kite", "--temp", "0", "-n", "12", "--quiet", "--sparsity", "exact"];
    let want = thermocline(&[&question[..], &["--device", "cpu"]].concat()).ok();
    for Step { name, why, computes, .. } in STEPS {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let part = format!("{name} {}", cache.display());
        let ended = own_process::start("markers::steps_that_end_the_program_are_not_taken_again", &part).output();
        let ended = ended.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && !said.contains("went on"), "{name}: {said}");
        assert!(fs::read_dir(&cache).unwrap().count() > 0, "{name}: no marker is left");
        let start = |args: &[&str]| run(command_in(folder.path(), args), b"");
        let answer = |device: &str| start(&[&question[..], &["--device", device]].concat());
        assert_eq!(answer("auto").ok(), want, "{name}");
        let asked = answer("0");
        assert!(asked.stderr.contains(why), "{name}: {}", asked.stderr);
        match computes {
            true => assert_eq!(asked.ok(), want, "{name}"),
            false => _ = asked.refusal(),
        }
        let listed = start(&["devices"]).ok();
        assert!(listed.contains(why), "{name}: {listed}");
        let listed = start(&["devices", "--try-again"]).ok();
        assert!(!listed.contains(why) && listed.contains("GPU 0"), "{name}: {listed}");
        let again = answer("0");
        assert_eq!(again.stderr, "", "{name}");
        assert_eq!(again.ok(), want, "{name}");
    }
}

const PROBE_TEST: &str = "markers::drivers_that_end_the_probe_are_done_without";

/// Looks for adapters over a probe that ends within them: this test once more, with the names of backends behind its own arguments.
fn look_over_a_probe_that_ends(cache: &Path) {
    let backends: Vec<String> = std::env::args().skip_while(|it| it != "--nocapture").skip(1).collect();
    if !backends.is_empty() {
        let faults = Faults(Some((FaultPoint::Abort(RiskyStep::Enumeration), 1)));
        return answer_probe(&backends, faults, &mut std::io::stdout()).unwrap();
    }
    let arguments = ["--exact", PROBE_TEST, "--nocapture"].map(str::to_owned).to_vec();
    probe_with(DriverProbe { program: std::env::current_exe().unwrap(), arguments });
    let found = adapters(&Fallbacks::in_folder(cache));
    eprintln!("found {} and went on", found.len());
}

#[test]
fn drivers_that_end_the_probe_are_done_without() {
    if let Some(cache) = own_process::part() {
        return look_over_a_probe_that_ends(Path::new(&cache));
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let start = |args: &[&str]| run(command_in(folder.path(), args), b"");
    let question = ["run", "-p", "A cat and a kite", "--temp", "0", "-n", "12", "--quiet", "--sparsity", "exact"];
    let want = thermocline(&[&question[..], &["--device", "cpu"]].concat()).ok();
    // Drivers that do no harm are known from the first start on, and not looked at by a probe at the second.
    assert!(start(&["devices"]).ok().contains("GPU 0"));
    let stamp = cache.join("gpu-drivers.txt");
    assert!(fs::read_to_string(&stamp).unwrap().lines().next().unwrap().contains("vulkan"));
    let finds_some = || {
        let mut looks = own_process::start(PROBE_TEST, &cache.display().to_string());
        // The drivers are the same if the environment is.
        for (name, value) in command(&[]).get_envs() {
            match value {
                Some(value) => looks.env(name, value),
                None => looks.env_remove(name),
            };
        }
        let looked = looks.output().unwrap();
        let said = String::from_utf8_lossy(&looked.stderr);
        assert!(looked.status.success() && said.contains(" and went on"), "{said}");
        !said.contains("found 0 ")
    };
    assert!(finds_some());
    fs::remove_file(&stamp).unwrap();
    assert!(!finds_some());
    let sentence = "GPUs are not looked for over vulkan: its drivers end the program";
    assert!(start(&["devices"]).ok().contains(sentence));
    assert_eq!(start(&[&question[..], &["--device", "auto"]].concat()).ok(), want);
    let asked = start(&[&question[..], &["--device", "0"]].concat());
    assert!(asked.stderr.contains("hint: `thermocline devices --try-again` uses it"), "{}", asked.stderr);
    let asked = asked.refusal();
    assert!(asked.contains(sentence), "{asked}");
    let listed = start(&["devices", "--try-again"]).ok();
    assert!(!listed.contains(sentence) && listed.contains("GPU 0"), "{listed}");
    assert_eq!(start(&[&question[..], &["--device", "0"]].concat()).ok(), want);
}

#[test]
fn probe_names_the_backends_whose_drivers_have_answered() {
    let said = thermocline(&["probe-drivers", "vulkan"]).ok();
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    assert!(matches!(lines[..], [hello, "vulkan"] if hello.starts_with("thermocline probe ")), "{said}");
}

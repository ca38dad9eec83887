//! The workspace's imports: every arrow between modules points down the floors of `engine/ARCHITECTURE.md`, and no circle of
//! imports joins files of different folders. Code under `#[cfg(test)]` is left out: unit tests may use what is above them.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    graph,
    sources::{Import, Workspace},
};

/// Modules of the engine, from the ground up. A module imports from lower floors only.
const FLOORS: [&[&str]; 12] = [
    &["error", "files", "telemetry"],
    &["quant"],
    &["format"],
    &["cpu", "gpu", "tokenizer"],
    &["model"],
    &["runtime", "synth"],
    &["placement"],
    &["device", "sparsity"],
    &["hybrid"],
    &["calibration"],
    &["session"],
    &["bench", "eval"],
];

/// Arrows between modules of one floor: importer, imported.
const BESIDE: [(&str, &str); 2] = [("telemetry", "error"), ("files", "error")];

/// Packages of the workspace and those they may import.
const PACKAGES: [(&str, &[&str]); 4] = [
    ("thermocline_shaders", &[]),
    ("thermocline_engine", &["thermocline_shaders"]),
    ("thermocline", &["thermocline_engine", "thermocline_shaders"]),
    ("thermocline_tests", &["thermocline", "thermocline_engine", "thermocline_shaders"]),
];

/// Paths that a module must not import, though the floors would allow it: importer, what, why.
const FORBIDDEN: [(&str, &str, &str); 7] = [
    ("thermocline::ui", "thermocline_engine::gpu", "the window reads devices from the session's reports"),
    ("thermocline::ui", "wgpu::Device", "the window draws with the device that eframe opened"),
    ("thermocline_engine::placement", "thermocline_engine::runtime::Processor", "plans know bytes and times only"),
    ("thermocline_engine::placement", "thermocline_engine::runtime::CpuProcessor", "plans know bytes and times only"),
    ("thermocline_engine::placement", "thermocline_engine::runtime::Forward", "plans know bytes and times only"),
    ("thermocline_engine::placement", "thermocline_engine::runtime::cpu", "plans know bytes and times only"),
    ("thermocline_engine::placement", "thermocline_engine::gpu::Gpu", "plans know no device"),
];

#[test]
fn packages_import_only_packages_below_them() {
    let workspace = Workspace::read();
    let mut wrong = String::new();
    for import in workspace.imports() {
        let (from, to) = (&import.from[0], &import.to[0]);
        let Some((_, allowed)) = PACKAGES.iter().find(|(package, _)| package == from) else {
            panic!("{from}: not a package of the workspace");
        };
        if from != to && PACKAGES.iter().any(|(package, _)| package == to) && !allowed.contains(&to.as_str()) {
            line(&mut wrong, &import, "package not allowed");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn engine_modules_import_only_floors_below_them() {
    let workspace = Workspace::read();
    let floor = |module: &str| FLOORS.iter().position(|floor| floor.contains(&module));
    let (mut wrong, mut arrows) = (String::new(), BTreeSet::new());
    for import in workspace.imports() {
        if import.from[0] != "thermocline_engine" || import.to[0] != "thermocline_engine" {
            continue;
        }
        let (Some(from), Some(to)) = (import.from.get(1), import.to.get(1)) else { continue };
        // `crate::Error` and the like are re-exports of the ground floor.
        let to = if floor(to).is_none() && to.starts_with(char::is_uppercase) { "error" } else { to };
        if from == to {
            continue;
        }
        let (Some(above), Some(below)) = (floor(from), floor(to)) else {
            line(&mut wrong, &import, "a module that stands on no floor");
            continue;
        };
        if above <= below && !BESIDE.contains(&(from, to)) {
            line(&mut wrong, &import, "an arrow that does not point down");
        }
        arrows.insert((from.clone(), to.to_owned()));
    }
    assert!(arrows.len() > 40, "only {} arrows found: {arrows:?}", arrows.len());
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn forbidden_paths_are_not_imported() {
    let workspace = Workspace::read();
    let mut wrong = String::new();
    for import in workspace.imports() {
        let (from, to) = (import.from.join("::"), import.to.join("::"));
        for (importer, path, why) in FORBIDDEN {
            if within(&from, importer) && within(&to, path) {
                line(&mut wrong, &import, why);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn circles_of_imports_stay_within_a_folder() {
    let workspace = Workspace::read();
    let (graph, names) = workspace.files();
    assert!(names.len() > 300, "only {} files found", names.len());
    let mut wrong = String::new();
    for circle in graph::circles(&graph) {
        let folders: BTreeSet<_> = circle.iter().map(|file| workspace.folder(*file)).collect();
        if folders.len() > 1 {
            let files: Vec<_> = circle.iter().map(|file| names[*file].as_str()).collect();
            let _ = writeln!(wrong, "{}", files.join(" "));
            for (from, to) in graph::edges_within(&graph, &circle) {
                let _ = writeln!(wrong, "    {} -> {}", names[from], names[to]);
            }
        }
    }
    assert!(wrong.is_empty(), "files of different folders import each other:\n{wrong}");
}

/// Whether `path` is `prefix` or lies below it.
fn within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn line(wrong: &mut String, import: &Import, why: &str) {
    let _ = writeln!(wrong, "{}: {} ({why})", import.file.display(), import.to.join("::"));
}

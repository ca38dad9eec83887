//! The source files of the workspace's own code.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns every source file of the packages in the program, relative to the root.
pub fn sources() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["app", "engine", "shaders"].map(|folder| root().join(folder)).into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test =
                ["tests", "testing", "timing", "examples"].contains(&path.file_stem().unwrap().to_str().unwrap());
            match path.is_dir() {
                true if path != folder.join("tests") && path != folder.join("examples") => folders.push(path),
                false if !is_test && path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    assert!(found.len() > 400, "only {} sources found", found.len());
    found
}

//! What tests of panels share.

use std::time::{Duration, Instant};

use egui::Context;
use egui_kittest::Harness;

use super::{shell::Shell, theme};
use crate::folders::Folders;

/// A world in a folder of its own, which is removed with the first value. No model is open.
pub fn shell() -> (tempfile::TempDir, Shell) {
    let folder = tempfile::tempdir().unwrap();
    let shell = Shell::new(&Context::default(), Folders::below(folder.path())).unwrap();
    (folder, shell)
}

/// Frames until something is so.
pub fn until<S>(harness: &mut Harness<'_, S>, is: impl Fn(&Harness<'_, S>) -> bool) {
    theme::install(&harness.ctx);
    let began = Instant::now();
    while !is(harness) {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {:#?}", harness.root());
        std::thread::sleep(Duration::from_millis(5));
        harness.run_steps(1);
    }
}

//! The system's file dialogs, which block their thread.

use std::time::{Duration, Instant};

use rfd::FileDialog;

/// A dialog that was closed this soon was never seen: there is none on this desktop.
const UNSEEN: Duration = Duration::from_millis(400);

/// Outcome of a dialog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialogAnswer<T> {
    /// The user chose this.
    Chosen(T),
    /// The user closed it.
    Closed,
    /// This desktop has no file dialog.
    NoDialog,
}

/// Shows a dialog and waits for its end. Tests have no desktop.
pub fn ask<T>(show: impl FnOnce(FileDialog) -> Option<T>) -> DialogAnswer<T> {
    if cfg!(test) {
        return DialogAnswer::NoDialog;
    }
    let began = Instant::now();
    match show(FileDialog::new()) {
        Some(chosen) => DialogAnswer::Chosen(chosen),
        None if began.elapsed() < UNSEEN => DialogAnswer::NoDialog,
        None => DialogAnswer::Closed,
    }
}

//! The system's file dialogs. They block their thread.

use std::time::{Duration, Instant};

use rfd::FileDialog;

/// A dialog that closes sooner than this was never visible: the desktop has no file dialog.
const UNSEEN: Duration = Duration::from_millis(400);

/// Outcome of a dialog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialogAnswer<T> {
    /// The user chose this.
    Chosen(T),
    /// The user closed the dialog.
    Closed,
    /// This desktop has no file dialog.
    NoDialog,
}

/// Shows a dialog and waits until it closes. In tests the answer is always `NoDialog`.
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

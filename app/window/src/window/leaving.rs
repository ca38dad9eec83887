//! An action that would lose something, and the state of the question that the window asks before it.

use egui::Id;

use crate::command::Command;

/// An action of the user that would lose something.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Leave {
    /// Open or close a model.
    Model(Command),
    /// Close the window.
    Window,
}

/// The question, and its answer.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    pub(super) asked: Option<Leave>,
    /// True in the first frame of the question: its button needs the keyboard.
    pub(super) is_new: bool,
    /// The control that had the keyboard before.
    pub(super) focused: Option<Id>,
    /// True once the user has agreed that the window closes.
    pub(super) agreed: bool,
}

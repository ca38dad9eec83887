//! The question before something is lost. Opening another model or closing the window stops the
//! running answers.

use egui::{Context, Frame, Id, Modal, Ui, UserAttentionType, ViewportCommand};

use super::Window;
use crate::command::Command;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{primary_button, small},
};

/// A user action that would lose something.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Leave {
    /// Open or close a model.
    Model(Command),
    /// Close the window.
    Window,
}

/// The open question, and the user's answer.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    asked: Option<Leave>,
    /// True in the first frame of the question. Its button then gets the keyboard focus.
    is_new: bool,
    /// The control that had the keyboard focus before.
    focused: Option<Id>,
    /// True once the user has agreed to close the window.
    agreed: bool,
}

impl Window {
    /// Asks before `command` stops answers. True if the command waits for the user's decision.
    pub(super) fn holds(&mut self, command: &Command) -> bool {
        let closes = matches!(command, Command::OpenModel(_) | Command::ReopenModel | Command::CloseModel);
        let leave = Leave::Model(command.clone());
        if !closes || self.losses(&leave).is_empty() {
            return false;
        }
        self.ask_to_leave(leave);
        true
    }

    /// If closing would lose something, keeps the window open and asks.
    pub(super) fn hold_close(&mut self, ctx: &Context) {
        let closes = ctx.input(|input| input.viewport().close_requested());
        if !closes || self.leaving.agreed || self.losses(&Leave::Window).is_empty() {
            return;
        }
        ctx.send_viewport_cmd(ViewportCommand::CancelClose);
        // The user may have closed a minimised window from the task bar.
        ctx.send_viewport_cmd(ViewportCommand::Minimized(false));
        ctx.send_viewport_cmd(ViewportCommand::RequestUserAttention(UserAttentionType::Informational));
        self.ask_to_leave(Leave::Window);
        ctx.request_repaint();
    }

    fn ask_to_leave(&mut self, leave: Leave) {
        self.leaving.is_new = self.leaving.asked.as_ref() != Some(&leave);
        self.leaving.asked = Some(leave);
    }

    /// Sentences about what would be lost.
    fn losses(&self, leave: &Leave) -> Vec<String> {
        let answers = match self.shell.chat_controller.busy_chats() {
            0 => None,
            1 => Some("An answer is being written. It will stop. The text so far is kept.".to_owned()),
            n => Some(format!("{n} answers are being written. They will stop. The text so far is kept.")),
        };
        let own = match leave {
            Leave::Model(_) => Vec::new(),
            Leave::Window => self.conversation.losses(),
        };
        answers.into_iter().chain(own).collect()
    }

    /// Shows the question over the window. Returns the command to carry out.
    pub(super) fn ask_before_leaving(&mut self, ui: &Ui) -> Option<Command> {
        let leave = self.leaving.asked.clone()?;
        let (title, action) = self.words_of(&leave);
        let (losses, palette) = (self.losses(&leave), Palette::of(ui));
        let is_new = std::mem::take(&mut self.leaving.is_new);
        if is_new {
            self.leaving.focused = ui.memory(|memory| memory.focused());
        }
        let modal = Modal::new(Id::unique("leaving")).frame(Frame::popup(ui.style()).inner_margin(24));
        let shown = modal.show(ui, |ui| {
            ui.set_width(420.0);
            ui.heading(title);
            ui.add_space(8.0);
            losses.iter().for_each(|loss| _ = ui.label(loss));
            if losses.is_empty() {
                ui.label(small("Nothing will be lost now.", palette.muted));
            }
            ui.add_space(12.0);
            ui.horizontal(|ui| {
                let stay = primary_button(ui, "Cancel", true);
                if is_new {
                    stay.request_focus();
                }
                let leaves = ui.button(action).clicked();
                (stay.clicked(), leaves)
            })
            .inner
        });
        let (stays, leaves) = shown.inner;
        if stays || leaves || shown.should_close() {
            self.leaving.asked = None;
            if let Some(before) = self.leaving.focused.take() {
                ui.memory_mut(|memory| memory.request_focus(before));
            }
        }
        match leave {
            Leave::Model(command) => leaves.then_some(command),
            Leave::Window => {
                if leaves {
                    self.leaving.agreed = true;
                    ui.send_viewport_cmd(ViewportCommand::Close);
                }
                None
            }
        }
    }

    /// The title of the question, and the label of the button that leaves.
    fn words_of(&self, leave: &Leave) -> (String, &'static str) {
        let model = self.shell.engine_handle.state().model();
        let open = || model.as_ref().map_or_else(|| "the model".to_owned(), ToString::to_string);
        match leave {
            Leave::Model(Command::OpenModel(model)) => (format!("Open {model}?"), "Open anyway"),
            Leave::Model(Command::ReopenModel) => (format!("Open {} again?", open()), "Open anyway"),
            Leave::Model(_) => (format!("Close {}?", open()), "Close anyway"),
            Leave::Window => ("Close Thermocline?".to_owned(), "Close anyway"),
        }
    }
}

//! Comparisons: two sides repeat the last answer of the chat.

use super::{Conversation, compared::ComparisonView};
use crate::shell::Shell;
use thermocline_chats::{
    chat::{AnswerComparison, Side},
    store::Speaker,
};
use thermocline_host::engine_handle::ModelState;

impl Conversation {
    /// Starts a comparison: both sides repeat the last answer, below it.
    pub(super) fn compare(&mut self, sides: [Side; 2], shell: &mut Shell) {
        let ModelState::Ready { model, engine } = shell.engine_handle.state() else {
            return shell.toasts.info("Open a model on this computer first.");
        };
        if self.busy(shell) || self.is_elsewhere(shell) {
            return shell.toasts.info("Wait until the answer is written.");
        }
        if shell.is_comparing() {
            return shell.toasts.info("Two answers are being compared. Wait for them, or close the comparison.");
        }
        let is_answer = |speaker, calls: bool| speaker == Speaker::Assistant && !calls;
        let row = self.branch.iter().rposition(|it| is_answer(it.speaker, !it.calls().is_empty()));
        let (Some(chat), Some(row)) = (&self.chat, row) else {
            return shell.toasts.info("Ask something first. This repeats the last answer.");
        };
        let answer = self.branch[row].id;
        let request = shell.chat_controller.repeated_request(&shell.store, &engine, &model, chat.id, answer);
        let Some(request) = shell.toasts.check(request) else { return };
        let own = shell.engine_options(&model).sparsity;
        let comparison = AnswerComparison::start(&shell.engine_handle, engine, own, sides, request);
        shell.compared = comparison.over();
        self.comparison = Some(ComparisonView::new(answer, comparison));
        if row + 1 == self.branch.len() {
            self.rows.go_to_end();
        } else {
            self.rows.go_to(row);
        }
    }

    /// Ends a comparison whose model is closed. It must end before another model opens.
    pub(super) fn end_comparison_of_closed_model(&mut self, shell: &Shell) {
        if self.comparison.as_ref().is_some_and(|view| !view.is_over()) && shell.engine_handle.engine().is_none() {
            self.comparison = None;
        }
    }
}

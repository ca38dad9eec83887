//! The user's choices about tools: consent to a waiting call, and the chat's switch.

use super::{Conversation, tool_calls::ToolCallChoice};
use crate::shell::Shell;
use thermocline_chats::{
    chat::ToolDecision,
    tools::{Consent, OfferedTool, ToolServerState},
};

impl Conversation {
    /// Carries out the user's choice about the waiting call.
    pub(super) fn choose(&mut self, choice: ToolCallChoice, shell: &mut Shell) {
        let Some(chat) = self.chat.as_ref().map(|chat| chat.id) else { return };
        let decision = match choice {
            ToolCallChoice::Decide(decision) => decision,
            ToolCallChoice::Always => {
                if let Some(pending) = shell.chat_controller.pending_call(chat) {
                    let (server, tool) = (pending.tool.server.clone(), pending.tool.tool.clone());
                    shell.settings.tools.consents.set(server.as_deref(), &tool, Consent::Always);
                    shell.follow_tools(true);
                }
                ToolDecision::Allow
            }
        };
        shell.chat_controller.decide_call(chat, decision);
        // The next poll continues the answer.
        shell.engine_handle.notify();
        self.composer.focus = true;
        self.refresh(shell);
    }

    /// Switches the model's tools on or off in this chat.
    pub(super) fn switch_tools(&mut self, shell: &mut Shell) {
        let Some(id) = self.ensure_chat(shell) else { return };
        let on = !self.chat.as_ref().is_some_and(|chat| chat.tools);
        if shell.toasts.check(shell.store.set_chat_tools(id, on)).is_some()
            && let Some(chat) = &mut self.chat
        {
            chat.tools = on;
        }
    }
}

/// Describes the switch of tools: the available tools and their problems.
pub(super) fn tools_help(shell: &mut Shell, on: bool, offered: &[OfferedTool]) -> String {
    let knows = shell.engine_handle.engine().is_none_or(|engine| engine.chat_template().knows_tools());
    let Some(tools) = shell.chat_controller.tools().filter(|_| on) else {
        return "Lets the model use tools in this chat: a calculator, a clock, and the tools of the servers in Settings"
            .to_owned();
    };
    let names: Vec<&str> = offered.iter().map(|offered| &*offered.name).collect();
    let mut help = format!("The model may use: {}", names.join(", "));
    for report in tools.hub().servers() {
        match report.state {
            ToolServerState::Connecting => help += &format!("\nConnecting to {}", report.config.name),
            ToolServerState::Failed(why) => help += &format!("\n{} is not connected: {why}", report.config.name),
            ToolServerState::Off | ToolServerState::Ready { .. } => {}
        }
    }
    if !knows {
        help += "\nThis model's chat template does not support tools. The tools are described in the prompt instead, but the \
            model might not use them.";
    }
    help
}

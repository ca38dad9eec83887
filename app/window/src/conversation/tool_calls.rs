//! Tool calls in a chat: the card that asks for the user's consent, and folded results.

use std::time::Duration;

use egui::{CollapsingHeader, Id, Label, Margin, RichText, ScrollArea, Ui};
use egui_material_icons::icons::{ICON_CONTENT_COPY, ICON_SERVICE_TOOLBOX};
use serde_json::Value;

use super::message_action::MessageAction;
use thermocline_chats::{
    chat::{PendingCall, ToolDecision},
    store::{StoredMessage, ToolCall, ToolOutcome},
};
use thermocline_rich_text::{
    theme::{Palette, strong},
    widgets::{icon_button, muted, outlined, small, wide},
};

/// Maximum height of arguments and results before they scroll, in points.
const HIGHEST: f32 = 200.0;

/// Maximum number of characters of a server's description on the card.
const DESCRIBED: usize = 240;

/// Maximum number of characters shown of arguments and results.
const SHOWN: usize = 20_000;

/// The user's choice on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallChoice {
    /// Decide about this call only.
    Decide(ToolDecision),
    /// Allow this call and all later calls of the tool.
    Always,
}

/// Id of the card's first button.
fn id_of_deny() -> Id {
    Id::unique("deny the call of a tool")
}

/// Shows the call that waits for consent. `focus` moves the keyboard focus to the first button, for
/// a new card while nothing is being typed.
pub fn pending(ui: &mut Ui, pending: &PendingCall<'_>, focus: bool) -> Option<ToolCallChoice> {
    let palette = Palette::of(ui);
    let PendingCall { call, tool, since } = pending;
    let place =
        tool.server.as_ref().map_or("built into Thermocline".to_owned(), |server| format!("from the server {server}"));
    if let Some(since) = since {
        let seconds = since.elapsed().as_secs();
        muted(ui, format!("Running {}, {place}: {seconds} s", tool.tool.name));
        ui.request_repaint_after(Duration::from_secs(1));
        return None;
    }
    let mut choice = None;
    wide(ui, outlined(palette.panel, palette.amber, Margin::same(12)), |ui| {
        ui.horizontal_wrapped(|ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            ui.label(ICON_SERVICE_TOOLBOX.rich_text().size(16.0).color(palette.amber));
            ui.label(RichText::new(format!("May the model use {}?", tool.tool.name)).font(strong(14.0)));
            muted(ui, place);
        });
        if tool.server.is_some() && !tool.tool.description.is_empty() {
            let said = tool.tool.described(DESCRIBED);
            muted(ui, format!("The server's description: {said}"));
        }
        text(ui, "arguments", &arguments(call));
        ui.add_space(4.0);
        ui.horizontal_wrapped(|ui| {
            let deny = ui.push_id(id_of_deny(), |ui| ui.button("Deny")).inner;
            if focus {
                deny.request_focus();
            }
            if deny.on_hover_text("The model is told that the call is not allowed").clicked() {
                choice = Some(ToolCallChoice::Decide(ToolDecision::Deny));
            }
            if ui.button("Allow once").on_hover_text("Allows only this call").clicked() {
                choice = Some(ToolCallChoice::Decide(ToolDecision::Allow));
            }
            let always = ui.button("Always allow");
            if always
                .on_hover_text("Allows this call and all later calls of this tool, until the tool changes")
                .clicked()
            {
                choice = Some(ToolCallChoice::Always);
            }
        });
    });
    choice
}

/// Shows the result of a call in one line, and in full once unfolded.
pub fn result(ui: &mut Ui, message: &StoredMessage) -> Option<MessageAction> {
    let palette = Palette::of(ui);
    let Some(result) = message.result() else {
        ui.add(Label::new(small(&message.content, palette.muted)).wrap());
        return None;
    };
    let name = match &result.server {
        Some(server) => format!("{} from {server}", result.call.name),
        None => result.call.name.clone(),
    };
    let (line, colour) = match result.outcome {
        ToolOutcome::Done => (format!("Used {name}"), palette.muted),
        ToolOutcome::Failed => (format!("{name} failed"), palette.bad),
        ToolOutcome::Denied => (format!("{name} was not allowed"), palette.amber),
    };
    let mut act = None;
    CollapsingHeader::new(small(line, colour)).id_salt("call").show(ui, |ui| {
        muted(ui, "Arguments");
        text(ui, "arguments", &arguments(&result.call));
        ui.horizontal(|ui| {
            muted(ui, "Result");
            if icon_button(ui, ICON_CONTENT_COPY, "Copy result").clicked() {
                act = Some(MessageAction::Copy(message.content.clone()));
            }
        });
        text(ui, "result", &message.content);
    });
    act
}

/// Shows that calls of an answer were stopped and have no results.
pub fn stopped(ui: &mut Ui, calls: &[ToolCall]) {
    let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
    muted(ui, format!("Stopped before these tool calls were complete: {}", names.join(", ")));
}

/// Shows untrusted text of a model or a server in a monospaced font.
fn text(ui: &mut Ui, salt: &str, text: &str) {
    // A long call must not hide anything, so the number of omitted characters is shown.
    let shown = match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}\n[{} more characters]", &text[..end], text[end..].chars().count()),
        None => text.to_owned(),
    };
    ScrollArea::vertical().id_salt(salt).max_height(HIGHEST).show(ui, |ui| {
        ui.add(Label::new(RichText::new(shown).monospace().size(12.0)).wrap());
    });
}

/// Formats arguments for people, one per line.
fn arguments(call: &ToolCall) -> String {
    match serde_json::from_str::<Value>(&call.arguments) {
        Ok(Value::Object(map)) if map.is_empty() => "none".to_owned(),
        Ok(Value::Object(map)) => {
            let line = |(name, value): (&String, &Value)| match value {
                Value::String(text) => format!("{name}: {text}"),
                other => format!("{name}: {other}"),
            };
            map.iter().map(line).collect::<Vec<_>>().join("\n")
        }
        _ if call.arguments.trim().is_empty() => "none".to_owned(),
        _ => call.arguments.clone(),
    }
}

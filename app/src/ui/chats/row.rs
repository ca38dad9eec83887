//! One line of the list.

use egui::{Button, Key, Label, RichText, TextEdit, Ui, text::LayoutJob};
use egui_material_icons::icons::{ICON_MORE_HORIZ, ICON_PUSH_PIN};

use crate::{
    store::{Chat, ChatId, Folder, FolderId, SearchHit},
    ui::{theme::Palette, widgets::icon_button},
};

/// An action on a chat in the list.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatAction {
    /// Show it.
    Open,
    /// Change its name.
    Rename,
    /// This is its name now; `None`: the old one.
    Named(Option<String>),
    /// Keep it on top, or not.
    Pin(bool),
    /// Put it into a folder, or into none.
    Move(Option<FolderId>),
    /// Take it off the list.
    Delete,
    /// All that is shown of it, on the clipboard.
    Copy,
    /// A file for people.
    Markdown,
    /// A file for programs.
    Json,
}

/// A name that is being changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Editing {
    /// Of a chat.
    Chat(ChatId, String),
    /// Of a folder.
    Folder(FolderId, String),
}

/// A chat; `shown`: in the middle of the window now, `busy`: being answered.
pub fn chat(
    ui: &mut Ui,
    chat: &Chat,
    folders: &[Folder],
    shown: bool,
    busy: bool,
    editing: &mut Option<Editing>,
) -> Option<ChatAction> {
    if let Some(Editing::Chat(id, name)) = editing
        && *id == chat.id
    {
        return rename(ui, name, "Name of the chat").map(ChatAction::Named);
    }
    let palette = Palette::of(ui);
    let title = if chat.title.is_empty() { "New chat" } else { &chat.title };
    let mut act = None;
    ui.push_id(chat.id, |ui| {
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            let width = ui.available_width() - 28.0 - if chat.pinned { 20.0 } else { 0.0 };
            let colour = if shown { palette.text } else { palette.muted };
            let mark = if busy { " …" } else { "" };
            let text = RichText::new(format!("{title}{mark}")).size(14.0).color(colour);
            let button = Button::selectable(shown, text).truncate();
            let size = egui::vec2(width, 32.0);
            let (rect, _) = ui.allocate_exact_size(size, egui::Sense::hover());
            let layout = egui::Layout::left_to_right(egui::Align::Center)
                .with_main_justify(true)
                .with_main_align(egui::Align::Min);
            let response =
                ui.scope_builder(egui::UiBuilder::new().max_rect(rect).layout(layout), |ui| ui.add(button)).inner;
            if response.clicked() {
                act = Some(ChatAction::Open);
            }
            if response.double_clicked() {
                act = Some(ChatAction::Rename);
            }
            response.context_menu(|ui| act = menu(ui, chat, folders).or(act.take()));
            if chat.pinned {
                ui.add(Label::new(ICON_PUSH_PIN.rich_text().size(12.0).color(palette.muted))).on_hover_text("Pinned");
            }
            let more = icon_button(ui, ICON_MORE_HORIZ, &format!("More for {title}"));
            egui::Popup::menu(&more).show(|ui| act = menu(ui, chat, folders).or(act.take()));
        });
    });
    act
}

fn menu(ui: &mut Ui, chat: &Chat, folders: &[Folder]) -> Option<ChatAction> {
    let mut act = None;
    let mut entry = |ui: &mut Ui, name: &str, wanted: ChatAction| {
        if ui.button(name).clicked() {
            act = Some(wanted);
        }
    };
    entry(ui, "Rename", ChatAction::Rename);
    entry(ui, if chat.pinned { "Unpin" } else { "Pin" }, ChatAction::Pin(!chat.pinned));
    for folder in folders.iter().filter(|folder| chat.folder != Some(folder.id)) {
        entry(ui, &format!("Move to {}", folder.name), ChatAction::Move(Some(folder.id)));
    }
    if chat.folder.is_some() {
        entry(ui, "Take out of the folder", ChatAction::Move(None));
    }
    ui.separator();
    entry(ui, "Copy the chat", ChatAction::Copy);
    entry(ui, "Export as Markdown …", ChatAction::Markdown);
    entry(ui, "Export as JSON …", ChatAction::Json);
    ui.separator();
    entry(ui, "Delete", ChatAction::Delete);
    if act.is_some() {
        ui.close();
    }
    act
}

/// A field for a name. `Some(None)`: given up.
fn rename(ui: &mut Ui, name: &mut String, what: &str) -> Option<Option<String>> {
    let field = ui.add(TextEdit::singleline(name).desired_width(f32::INFINITY));
    field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::TextInput, true, what));
    if ui.input(|input| input.key_pressed(Key::Escape)) {
        return Some(None);
    }
    if field.lost_focus() {
        return Some(Some(name.clone()));
    }
    if !field.has_focus() {
        field.request_focus();
    }
    None
}

/// A field for a folder's name; the old one if the change is given up.
pub fn rename_folder(ui: &mut Ui, name: &mut String) -> Option<String> {
    rename(ui, name, "Name of the folder").map(Option::unwrap_or_default)
}

/// Something that was found.
pub fn hit(ui: &mut Ui, hit: &SearchHit) -> egui::Response {
    let palette = Palette::of(ui);
    let mut job = LayoutJob::default();
    let mut add = |text: &str, size: f32, colour| {
        job.append(
            text,
            0.0,
            egui::TextFormat { font_id: egui::FontId::proportional(size), color: colour, ..Default::default() },
        );
    };
    let title = if hit.title.is_empty() { "New chat" } else { &hit.title };
    add(title, 14.0, palette.text);
    if hit.message.is_some() {
        let part = |range: std::ops::Range<usize>| hit.excerpt.get(range).unwrap_or_default();
        add("\n", 12.0, palette.muted);
        add(part(0..hit.found.start), 12.0, palette.muted);
        add(part(hit.found.clone()), 12.0, palette.amber);
        add(part(hit.found.end..hit.excerpt.len()), 12.0, palette.muted);
    }
    ui.add(Button::new(job).fill(palette.panel).wrap().min_size(egui::vec2(ui.available_width(), 32.0)))
}

//! A row of the chat list.

use egui::{Button, EventFilter, Id, Key, Label, Modifiers, RichText, Sense, TextStyle, Ui, text::LayoutJob};
use egui_material_icons::icons::{ICON_MORE_HORIZ, ICON_PUSH_PIN};

use crate::keyboard;
use thermocline_chats::store::{Chat, ChatId, Folder, FolderId, SearchHit, Store};
use thermocline_rich_text::{
    text::{Edition, TextField},
    theme::Palette,
    widgets::{sensing_icon_button, small},
};

/// A movement of the keyboard focus in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowMove {
    /// Stay here.
    Here,
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// To the first row.
    First,
    /// To the last row.
    Last,
}

/// An action on a chat in the list.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatAction {
    /// Show it.
    Open,
    /// Keep the keyboard focus, or move it to another row.
    Focus(RowMove),
    /// Start to rename it.
    Rename,
    /// Rename it to this name. `None` keeps the old name.
    Named(Option<String>),
    /// Pin it or unpin it.
    Pin(bool),
    /// Move it into a folder, or out of all folders.
    Move(Option<FolderId>),
    /// Delete it.
    Delete,
    /// Copy its shown branch to the clipboard.
    Copy,
    /// Export it as Markdown.
    Markdown,
    /// Export it as JSON.
    Json,
}

/// A name that is being edited.
#[derive(Debug, Clone, PartialEq)]
pub enum Editing {
    /// The name of a chat.
    Chat(ChatId, NewName),
    /// The name of a folder.
    Folder(FolderId, NewName),
}

/// The text of the name field.
#[derive(Debug, Clone, PartialEq)]
pub struct NewName {
    text: String,
    edition: Edition,
}

impl NewName {
    /// Creates a name field with the present name, selected.
    pub fn new(present: impl Into<String>) -> Self {
        NewName { text: present.into(), edition: Edition::default() }
    }
}

/// The state of a chat in the list.
#[derive(Debug, Clone, Copy)]
pub struct RowState {
    /// True if the chat is shown in the window.
    pub shown: bool,
    /// True while the chat is being answered.
    pub busy: bool,
    /// True if Tab stops at this chat. Tab stops at one chat of the list only.
    pub stop: bool,
    /// True if the row should get the keyboard focus.
    pub wanted: bool,
}

/// Shows the row of a chat of `store`.
pub fn chat(
    ui: &mut Ui,
    store: &Store,
    chat: &Chat,
    folders: &[Folder],
    RowState { shown, busy, stop, wanted }: RowState,
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
            let sense = if stop { Sense::click() } else { Sense::CLICK };
            let button = Button::selectable(shown, text).truncate().sense(sense);
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
            if wanted {
                response.request_focus();
                response.scroll_to_me(None);
                // The key that moved the focus to this row must not move it further.
                act = act.take().or(Some(ChatAction::Focus(RowMove::Here)));
            } else if response.has_focus() {
                act = act.take().or_else(|| moved(ui, response.id));
            }
            let response = response.on_hover_ui(|ui| dates(ui, store, chat, title));
            if response.double_clicked() {
                act = Some(ChatAction::Rename);
            }
            response.context_menu(|ui| act = menu(ui, chat, folders).or(act.take()));
            if chat.pinned {
                ui.add(Label::new(ICON_PUSH_PIN.rich_text().size(12.0).color(palette.muted))).on_hover_text("Pinned");
            }
            let more = sensing_icon_button(ui, ICON_MORE_HORIZ, &format!("More for {title}"), sense);
            egui::Popup::menu(&more).show(|ui| act = menu(ui, chat, folders).or(act.take()));
        });
    });
    act
}

/// The movement that the pressed key requests, for the row with the keyboard focus.
fn moved(ui: &Ui, row: Id) -> Option<ChatAction> {
    // Without this filter, egui would move the focus to the nearest control.
    let filter = EventFilter { vertical_arrows: true, ..EventFilter::default() };
    ui.memory_mut(|memory| memory.set_focus_lock_filter(row, filter));
    let moves = [
        (Key::ArrowUp, RowMove::Up),
        (Key::ArrowDown, RowMove::Down),
        (Key::Home, RowMove::First),
        (Key::End, RowMove::Last),
    ];
    let pressed = |key: Key| keyboard::pressed(ui, Modifiers::NONE, key);
    let to = moves.into_iter().find(|(key, _)| pressed(*key)).map(|(_, to)| to).unwrap_or(RowMove::Here);
    Some(ChatAction::Focus(to))
}

/// Shows the whole title and the time of the last message.
fn dates(ui: &mut Ui, store: &Store, chat: &Chat, title: &str) {
    ui.label(title);
    if let (Ok(created), Ok(updated)) = (store.local_time(chat.created), store.local_time(chat.updated)) {
        ui.label(small(format!("Started {created}, last message {updated}"), Palette::of(ui).muted));
    }
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
        entry(ui, "Remove from the folder", ChatAction::Move(None));
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

/// Shows a field for a name. Returns `Some(None)` if the user cancels.
fn rename(ui: &mut Ui, name: &mut NewName, what: &str) -> Option<Option<String>> {
    let name_field = TextField::line(Id::unique("name in the list of chats"), TextStyle::Body.resolve(ui.style()));
    let name_field = name_field.of(name.edition);
    let field = name_field.show(ui, &mut name.text, |field| field.desired_width(f32::INFINITY));
    field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::TextInput, true, what));
    if ui.input(|input| input.key_pressed(Key::Escape)) {
        return Some(None);
    }
    if field.lost_focus() {
        return Some(Some(name.text.clone()));
    }
    if !field.has_focus() {
        name_field.select_all(ui, &name.text);
        field.request_focus();
        field.scroll_to_me(None);
    }
    None
}

/// Shows a field for a folder's name. Returns an empty name if the user cancels.
pub fn rename_folder(ui: &mut Ui, name: &mut NewName) -> Option<String> {
    rename(ui, name, "Name of the folder").map(Option::unwrap_or_default)
}

/// Shows a search result.
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

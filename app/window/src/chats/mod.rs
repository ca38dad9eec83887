//! The column of chats: [`ChatsPanel`] lists them by the time of their last message and shows
//! search results. [`files`] exports and imports chats. Keys follow [`list_order`]. A thread may
//! read the [`chat_list`].

mod chat_list;
mod files;
mod list_order;
mod row;
mod wordmark;

use std::time::{Duration, Instant};

use egui::{Button, CollapsingHeader, Context, Id, Layout, RichText, Role, ScrollArea, TextStyle, Ui, WidgetInfo};
use egui_material_icons::icons::{ICON_CREATE_NEW_FOLDER, ICON_RESTORE_FROM_TRASH, ICON_SETTINGS, ICON_UPLOAD};

use self::{
    chat_list::ChatList,
    files::ChatFiles,
    list_order::ListOrder,
    row::{ChatAction, Editing, NewName, RowState},
};
use crate::{
    command::{Command, Page},
    shell::Shell,
};
use thermocline_chats::store::{Chat, ChatId, FolderId, SearchHit, StoreError};
use thermocline_rich_text::{
    background::{Background, SLOW},
    text::TextField,
    theme::Palette,
    widgets::{icon_button, icon_menu, muted, primary_button, small},
};

/// Time for which a button can restore a deleted chat.
const UNDO: Duration = Duration::from_secs(12);

/// Time for which deleted chats are kept, in milliseconds.
const KEPT: i64 = 30 * 24 * 60 * 60 * 1000;

/// Minimum time between two readings of the list while answers are written.
const PAUSE: Duration = Duration::from_millis(400);

/// Delay between the last key and the search.
const SEARCH: Duration = Duration::from_millis(150);

/// The column of chats.
#[derive(Debug, Default)]
pub struct ChatsPanel {
    list: ChatList,
    order: ListOrder,
    /// The store's version when the list was read, and the time of that reading.
    seen: Option<((u64, i64), Instant)>,
    /// The list that a thread is reading, with its version of the store.
    reading: Background<((u64, i64), Result<ChatList, StoreError>)>,
    purged: bool,
    query: String,
    typed: Option<Instant>,
    hits: Option<Vec<SearchHit>>,
    searching: Background<Result<Vec<SearchHit>, StoreError>>,
    /// True if the search field should get the keyboard focus.
    pub focus: bool,
    /// True if the first search result should get the keyboard focus.
    enter: bool,
    /// True if the first search result should open as soon as it is found.
    choose: bool,
    editing: Option<Editing>,
    deleted: Option<(ChatId, String, Instant)>,
    /// Export and import of chats.
    pub files: ChatFiles,
    /// Text for the clipboard.
    copy: Option<String>,
}

impl ChatsPanel {
    /// Reads the list again if the store has changed, and expires deleted chats.
    pub fn tick(&mut self, ctx: &Context, shell: &mut Shell) {
        self.order.focused = false;
        if !self.purged {
            self.purged = true;
            shell.change_chats(|store| store.purge(KEPT));
        }
        if self.files.tick(ctx, shell) {
            self.seen = None;
        }
        if self.deleted.as_ref().is_some_and(|(.., since)| since.elapsed() > UNDO) {
            self.deleted = None;
        }
        self.read(ctx, shell);
    }

    /// Reads the list again if it has changed: own changes at once, other changes on a thread.
    fn read(&mut self, ctx: &Context, shell: &mut Shell) {
        if let Some((version, list)) = self.reading.take()
            && self.seen.is_some_and(|(seen, _)| seen == version)
            && let Some(list) = shell.toasts.check(list)
        {
            self.set_list(list);
        }
        let Some(version) = shell.toasts.check(shell.store.version()) else { return };
        let busy = shell.chat_controller.is_busy();
        let waits = match self.seen {
            Some((seen, _)) if seen == version => return,
            Some((_, when)) if when.elapsed() < PAUSE && busy => return,
            // Another window, or an answer that is being written, changed the list.
            Some((seen, _)) => !busy && seen.0 != version.0,
            None => true,
        };
        if waits || shell.store.file().is_none() {
            self.seen = Some((version, Instant::now()));
            if let Some(list) = shell.toasts.check(ChatList::read(&shell.store)) {
                self.set_list(list);
            }
        } else if !self.reading.is_busy() {
            self.seen = Some((version, Instant::now()));
            let list = shell.store.reading(ChatList::read);
            shell.toasts.check(self.reading.start(ctx, move || (version, list())));
        }
    }

    fn set_list(&mut self, list: ChatList) {
        self.order.set(&list.chats, &list.folders);
        self.list = list;
    }

    /// Moves the keyboard focus to the list, or to the search field if there are no chats.
    pub fn focus_list(&mut self) {
        self.order.wanted = !self.list.chats.is_empty() && self.hits.is_none();
        self.focus = !self.order.wanted;
    }

    /// Carries out a command of a key: show another chat, rename it, or delete it.
    pub fn handle_command(&mut self, ctx: &Context, command: &Command, shell: &mut Shell) {
        let chat = match command {
            Command::NextChat | Command::PreviousChat => {
                self.order.forget_stop();
                self.order.neighbour(shell.shown, *command == Command::NextChat)
            }
            _ => self.order.target(shell.shown),
        };
        let Some(chat) = chat else { return };
        let act = match command {
            Command::RenameChat => ChatAction::Rename,
            Command::DeleteChat => ChatAction::Delete,
            _ => ChatAction::Open,
        };
        self.act(ctx, chat, act, shell);
    }

    /// Shows the column.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if let Some(text) = self.copy.take() {
            ui.copy_text(text);
        }
        self.files.show(ui, shell);
        wordmark::show(ui);
        ui.vertical_centered_justified(|ui| {
            if primary_button(ui, "New chat", true).clicked() {
                shell.queue_command(Command::NewChat);
            }
        });
        self.search_field(ui, shell);
        let bottom = egui::Panel::bottom("chats bottom").resizable(false).show_separator_line(false);
        bottom.frame(egui::Frame::NONE).show(ui, |ui| self.bottom(ui, shell));
        ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            ui.spacing_mut().item_spacing.y = 4.0;
            if self.hits.is_some() { self.found(ui, shell) } else { self.list(ui, shell) }
        });
    }

    fn search_field(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let field = TextField::line(Id::unique("search of chats"), TextStyle::Body.resolve(ui.style()));
        let field = field
            .show(ui, &mut self.query, |field| field.hint_text("Search chats   Ctrl+K").desired_width(f32::INFINITY));
        field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::SearchInput, true, "Search chats"));
        if std::mem::take(&mut self.focus) {
            field.request_focus();
        }
        if field.changed() {
            (self.typed, self.choose) = (Some(Instant::now()), false);
        }
        if field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Escape)) {
            self.query.clear();
            self.typed = Some(Instant::now());
        }
        if field.has_focus() && ui.input(|input| input.key_pressed(egui::Key::ArrowDown)) {
            self.enter = self.hits.as_ref().is_some_and(|hits| !hits.is_empty());
            self.order.wanted = self.hits.is_none();
        }
        let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
        self.choose |= entered && !self.query.trim().is_empty();
        self.search(ui, shell);
    }

    /// Takes the results of the search thread, and starts a search for newly typed words.
    fn search(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if let Some(found) = self.searching.take() {
            self.hits = shell.toasts.check(found);
        }
        if self.searching.is_slow() {
            muted(ui, "Searching …");
        } else if self.searching.is_busy() {
            ui.request_repaint_after(SLOW);
        }
        let Some(since) = self.typed else { return };
        if self.query.trim().is_empty() {
            (self.hits, self.typed, self.choose) = (None, None, false);
            self.searching = Background::default();
        } else if since.elapsed() >= SEARCH || self.choose {
            self.typed = None;
            let query = self.query.clone();
            let search = shell.store.reading(move |store| store.search(&query));
            shell.toasts.check(self.searching.start(ui, search));
        } else {
            ui.request_repaint_after(SEARCH);
        }
    }

    fn found(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let hits = self.hits.as_deref().unwrap_or_default();
        // While a search runs, `hits` still has the results of the previous one.
        let choose = !self.searching.is_busy() && std::mem::take(&mut self.choose);
        if hits.is_empty() {
            muted(ui, format!("No chat contains \u{201c}{}\u{201d}. Try fewer or shorter words.", self.query.trim()));
        }
        for (n, hit) in hits.iter().enumerate() {
            let response = ui.push_id(n, |ui| row::hit(ui, hit)).inner;
            if std::mem::take(&mut self.enter) {
                response.request_focus();
            }
            if response.clicked() || (n == 0 && choose) {
                shell.queue_command(match hit.message {
                    Some(message) => Command::OpenMessage(hit.chat, message),
                    None => Command::OpenChat(hit.chat),
                });
            }
        }
    }

    fn list(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let mut act = None;
        let (today, yesterday) = self.list.days;
        let (stop, wanted) = (self.order.stop(shell.shown), std::mem::take(&mut self.order.wanted));
        let show = |ui: &mut Ui, chat: &Chat, editing: &mut Option<Editing>| {
            let shown = shell.shown == Some(chat.id.number());
            let busy = shell.chat_controller.progress(chat.id).is_some();
            let stop = stop == Some(chat.id);
            let state = RowState { shown, busy, stop, wanted: wanted && stop };
            row::chat(ui, &shell.store, chat, &self.list.folders, state, editing)
        };
        let mut group = |ui: &mut Ui, name: &str, of: &dyn Fn(&Chat) -> bool, editing: &mut Option<Editing>| {
            let mut some = false;
            for chat in self.list.chats.iter().filter(|chat| of(chat)) {
                if !some && !name.is_empty() {
                    some = true;
                    ui.add_space(8.0);
                    ui.label(RichText::new(name.to_uppercase()).size(11.0).color(Palette::of(ui).muted));
                }
                if let Some(wanted) = show(ui, chat, editing)
                    && (act.is_none() || !matches!(wanted, ChatAction::Focus(_)))
                {
                    act = Some((chat.id, wanted));
                }
            }
        };
        group(ui, "Pinned", &|chat| chat.pinned, &mut self.editing);
        let mut folder_act = None;
        for folder in &self.list.folders {
            let title = RichText::new(&folder.name).size(12.0);
            let header = CollapsingHeader::new(title).id_salt(("folder", folder.id)).default_open(true);
            let response = header.show(ui, |ui| {
                let inside = |chat: &Chat| !chat.pinned && chat.folder == Some(folder.id);
                group(ui, "", &inside, &mut self.editing);
                if !self.list.chats.iter().any(inside) {
                    muted(ui, "No chats here yet");
                }
            });
            response.header_response.context_menu(|ui| {
                if ui.button("Rename folder").clicked() {
                    folder_act = Some((folder.id, folder.name.clone(), false));
                }
                let help = "The chats are kept, outside any folder.";
                if ui.button("Remove folder").on_hover_text(help).clicked() {
                    folder_act = Some((folder.id, folder.name.clone(), true));
                }
            });
            if let Some(Editing::Folder(id, name)) = &mut self.editing
                && *id == folder.id
            {
                folder_act = row::rename_folder(ui, name).map(|kept| (folder.id, kept, false)).or(folder_act);
            }
        }
        let loose = |chat: &Chat| !chat.pinned && chat.folder.is_none();
        group(ui, "Today", &|chat| loose(chat) && chat.updated >= today, &mut self.editing);
        let last = |chat: &Chat| loose(chat) && chat.updated < today && chat.updated >= yesterday;
        group(ui, "Yesterday", &last, &mut self.editing);
        group(ui, "Earlier", &|chat| loose(chat) && chat.updated < yesterday, &mut self.editing);
        if self.list.chats.is_empty() {
            ui.add_space(8.0);
            muted(ui, "Chats appear here as soon as you write something.");
        }
        if let Some((id, wanted)) = act {
            self.act(ui, id, wanted, shell);
        }
        if let Some((id, name, remove)) = folder_act {
            self.change_folder(id, name, remove, shell);
        }
    }

    fn change_folder(&mut self, id: FolderId, name: String, remove: bool, shell: &mut Shell) {
        if remove {
            shell.change_chats(move |store| store.remove_folder(id));
        } else if matches!(&self.editing, Some(Editing::Folder(edited, _)) if *edited == id) {
            self.editing = None;
            let name = name.trim().to_owned();
            if !name.is_empty() {
                shell.change_chats(move |store| store.rename_folder(id, &name));
            }
        } else {
            self.editing = Some(Editing::Folder(id, NewName::new(name)));
        }
        self.seen = None;
    }

    fn act(&mut self, ctx: &Context, id: ChatId, act: ChatAction, shell: &mut Shell) {
        let title =
            self.list.chats.iter().find(|chat| chat.id == id).map(|chat| chat.title.clone()).unwrap_or_default();
        match act {
            ChatAction::Focus(to) => {
                self.order.lead(id, to);
                return;
            }
            ChatAction::Open => shell.queue_command(Command::OpenChat(id)),
            ChatAction::Rename => self.editing = Some(Editing::Chat(id, NewName::new(title))),
            ChatAction::Named(name) => {
                self.editing = None;
                if let Some(name) = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()) {
                    shell.change_chats(move |store| store.rename_chat(id, &name));
                }
            }
            ChatAction::Pin(pinned) => shell.change_chats(move |store| store.pin_chat(id, pinned)),
            ChatAction::Move(folder) => shell.change_chats(move |store| store.move_chat(id, folder)),
            ChatAction::Delete => {
                shell.chat_controller.stop_answer(id);
                shell.change_chats(move |store| store.delete_chat(id));
                self.deleted = Some((id, title, Instant::now()));
                if shell.shown == Some(id.number()) {
                    shell.queue_command(Command::NewChat);
                }
            }
            ChatAction::Copy => {
                self.copy = shell.toasts.check(files::markdown(&shell.store, id, false));
            }
            ChatAction::Markdown => self.files.export_markdown(ctx, id, &title, shell),
            ChatAction::Json => self.files.export_json(ctx, vec![id], &title, shell),
        }
        self.seen = None;
    }

    fn bottom(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let mut restore = None;
        if let Some((id, title, since)) = &self.deleted {
            ui.horizontal_wrapped(|ui| {
                let title = if title.is_empty() { "New chat" } else { title };
                ui.label(small(format!("Deleted \u{201c}{title}\u{201d}"), Palette::of(ui).muted));
                if ui.button("Undo").clicked() {
                    restore = Some(*id);
                }
            });
            ui.request_repaint_after(UNDO.saturating_sub(since.elapsed()));
        }
        ui.horizontal(|ui| {
            if ui.button("Models").clicked() {
                shell.queue_command(Command::Show(Page::Models));
            }
            ui.with_layout(Layout::right_to_left(egui::Align::Center), |ui| {
                if icon_button(ui, ICON_SETTINGS, "Settings").clicked() {
                    shell.queue_command(Command::Show(Page::Preferences));
                }
                if !self.list.gone.is_empty() {
                    icon_menu(ui, ICON_RESTORE_FROM_TRASH, "Deleted chats", |ui| restore = self.bin(ui).or(restore));
                }
                icon_menu(ui, ICON_UPLOAD, "Import and export", |ui| {
                    let help = "Markdown or JSON. You can also drop files on the window.";
                    if ui.button("Import chats …").on_hover_text(help).clicked() {
                        self.files.import(ui, shell);
                    }
                    let all: Vec<ChatId> = self.list.chats.iter().map(|chat| chat.id).collect();
                    if ui.add_enabled(!all.is_empty(), egui::Button::new("Export all chats …")).clicked() {
                        self.files.export_json(ui, all, "chats", shell);
                    }
                });
                if icon_button(ui, ICON_CREATE_NEW_FOLDER, "New folder").clicked()
                    && let Some(id) = shell.toasts.check(shell.store.add_folder("New folder"))
                {
                    self.editing = Some(Editing::Folder(id, NewName::new("New folder")));
                    self.seen = None;
                }
            });
        });
        if let Some(id) = restore {
            self.deleted = None;
            self.seen = None;
            if shell.toasts.check(shell.store.restore_chat(id)).is_some() {
                shell.queue_command(Command::OpenChat(id));
            }
        }
    }

    /// Shows the deleted chats. Returns the chat that the user restores.
    fn bin(&self, ui: &mut Ui) -> Option<ChatId> {
        let mut chosen = None;
        muted(ui, "Deleted chats are kept for 30 days. Click one to restore it.");
        ScrollArea::vertical().max_height(320.0).show(ui, |ui| {
            for chat in &self.list.gone {
                let title = if chat.title.is_empty() { "New chat" } else { &chat.title };
                let button = ui.push_id(chat.id, |ui| ui.add(Button::new(title).truncate())).inner;
                let name = format!("Restore {title}");
                button.widget_info(|| WidgetInfo::labeled(Role::Button, true, &name));
                if button.clicked() {
                    chosen = Some(chat.id);
                    ui.close();
                }
            }
        });
        chosen
    }
}

#[cfg(test)]
mod tests;

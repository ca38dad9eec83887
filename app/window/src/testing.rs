//! A window without a screen, for the tests of panels. Tests use the same controls as people.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use egui::{
    Event, Key, Modifiers, MouseWheelSource, MouseWheelUnit, PointerButton, Pos2, TouchPhase, Vec2, accesskit::Role,
};
use egui_kittest::{
    Harness, Node,
    kittest::{NodeT, Queryable, by},
};

use crate::{Window, command::Command, shell::Shell};
use thermocline_chats::{
    settings::{ModelSettings, Settings, Theme},
    store::{ChatId, NewMessage, Store, StoredMessage},
};
use thermocline_host::{
    engine_handle::ModelState,
    folders::Folders,
    library::ModelId,
    testing::{PATIENCE, eventually},
};

/// A file that was dropped on the window.
#[derive(Debug)]
struct Dropped(PathBuf);

impl egui::DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        Err("this file is never read as a whole".to_owned())
    }
}

/// A window in a folder of its own.
pub struct TestWindow {
    /// The harness of the window.
    pub it: Harness<'static, Window>,
    /// The folders of its files.
    pub folders: Folders,
    size: [f32; 2],
    // Declared after the harness, which writes into it. `None` if the test owns the folder.
    folder: Option<Rc<tempfile::TempDir>>,
}

/// A press or release of the primary pointer button.
pub fn button(pos: Pos2, pressed: bool) -> Event {
    Event::PointerButton { pos, button: PointerButton::Primary, pressed, modifiers: Modifiers::NONE }
}

/// A press or release of a key while modifiers are held.
pub fn key(key: Key, pressed: bool, modifiers: Modifiers) -> Event {
    Event::Key { key, physical_key: None, pressed, repeat: false, modifiers }
}

/// A turn of the wheel by this many points.
pub fn wheel(points: f32) -> Event {
    let (unit, phase, source) = (MouseWheelUnit::Point, TouchPhase::Move, MouseWheelSource::Wheel);
    Event::MouseWheel { unit, delta: Vec2::new(0.0, points), phase, source, modifiers: Modifiers::NONE }
}

/// Adds a chat with this title to the file of chats. The texts alternate between the user's
/// messages and the answers, beginning with the user's.
pub fn add_chat(folders: &Folders, title: &str, texts: &[&str]) -> ChatId {
    let (mut store, _) = Store::open(&folders.chats()).unwrap();
    let chat = store.add_chat(None, "").unwrap();
    if !title.is_empty() {
        store.rename_chat(chat, title).unwrap();
    }
    let mut parent = None;
    for (n, text) in texts.iter().enumerate() {
        let message = if n % 2 == 0 { NewMessage::user(text) } else { NewMessage::assistant(text) };
        parent = Some(store.add_message(chat, parent, &message).unwrap());
    }
    chat
}

fn window(size: [f32; 2], folders: Folders) -> Harness<'static, Window> {
    // A small model may generate bytes that have no glyphs.
    let builder = Harness::builder().with_size(size).with_step_dt(1.0 / 60.0).with_max_steps(8).allow_missing_glyphs();
    builder.build_eframe(move |creation| Window::new(&creation.egui_ctx, folders, None).unwrap())
}

impl TestWindow {
    /// Opens a window of `size` points with the built-in model on the CPU. Before it opens,
    /// `prepare` may change the settings and add files to the folders.
    pub fn with(size: [f32; 2], prepare: impl FnOnce(&Folders, &mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::below(folder.path());
        let mut settings = Settings { theme: Theme::Dark, reduced_motion: true, ..Settings::default() };
        let on_cpu = ModelSettings { device: Some(String::new()), ..ModelSettings::default() };
        settings.models.insert(ModelId::Builtin.key(), on_cpu);
        prepare(&folders, &mut settings);
        settings.save(&folders.settings()).unwrap();
        TestWindow { folder: Some(Rc::new(folder)), ..Self::in_folders(size, folders) }
    }

    /// Opens a window on the files in `folders`.
    pub fn in_folders(size: [f32; 2], folders: Folders) -> Self {
        TestWindow { it: window(size, folders.clone()), folders, size, folder: None }
    }

    /// Opens another window on the same files.
    pub fn beside(&self) -> Self {
        TestWindow { folder: self.folder.clone(), ..Self::in_folders(self.size, self.folders.clone()) }
    }

    /// Closes the window and opens it again.
    pub fn again(self) -> Self {
        let TestWindow { it, folders, size, folder } = self;
        eframe::App::on_exit(&mut it.into_state());
        TestWindow { folder, ..Self::in_folders(size, folders) }
    }

    /// Opens a window as [`TestWindow::with`] does, without preparations.
    pub fn new(size: [f32; 2]) -> Self {
        Self::with(size, |_, _| ())
    }

    /// Opens a window as [`TestWindow::new`] does, and waits until its model is ready.
    pub fn opened(size: [f32; 2]) -> Self {
        Self::opened_with(size, |_, _| ())
    }

    /// Opens a window as [`TestWindow::with`] does, and waits until its model is ready.
    pub fn opened_with(size: [f32; 2], prepare: impl FnOnce(&Folders, &mut Settings)) -> Self {
        let mut window = Self::with(size, prepare);
        window.ready();
        window
    }

    /// State shared by the panels.
    pub fn shell(&mut self) -> &mut Shell {
        &mut self.it.state_mut().shell
    }

    /// Draws a few frames.
    pub fn step(&mut self) {
        self.it.run_steps(4);
    }

    /// Draws frames until `is` returns true, for at most [`PATIENCE`].
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Window) -> bool) {
        eventually(what, || {
            is(self.it.state_mut()) || {
                self.it.step();
                false
            }
        });
        self.step();
    }

    /// Draws frames until a model is ready.
    pub fn ready(&mut self) {
        self.until("a model", |window| window.shell.engine_handle.engine().is_some());
    }

    /// Draws frames until this model is ready.
    ///
    /// # Panics
    /// If the model cannot be opened.
    pub fn until_open(&mut self, id: &ModelId) {
        self.until("the model", |window| match window.shell.engine_handle.state() {
            ModelState::Failed { reason, .. } => panic!("{reason}"),
            ModelState::Opening(_) => false,
            state => state.model().as_ref() == Some(id),
        });
    }

    /// Draws frames until no answer is being written.
    pub fn answered(&mut self) {
        self.until("the end of the answer", |window| !window.shell.chat_controller.is_busy());
    }

    /// Sends a message and waits for the end of its answer.
    pub fn ask(&mut self, text: &str) {
        self.write("Message", text);
        self.press(Key::Enter);
        self.answered();
    }

    /// Queues a command. The next frames handle it.
    pub fn command(&mut self, command: Command) {
        self.shell().queue_command(command);
        self.step();
    }

    /// Draws frames until a control or a text with this name appears.
    pub fn appears(&mut self, name: &str) {
        let began = Instant::now();
        while !self.shows(name) {
            assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {name:?} among {:?}", self.texts());
            thread::sleep(Duration::from_millis(4));
            self.it.step();
        }
    }

    /// Types text into the focused control.
    pub fn types(&mut self, text: &str) {
        text.chars().for_each(|letter| self.it.event(Event::Text(letter.to_string())));
        self.step();
    }

    /// The messages of the shown chat.
    pub fn branch(&mut self) -> Vec<StoredMessage> {
        let shell = self.shell();
        let Some(number) = shell.settings.last_chat else { return Vec::new() };
        let chat = shell.store.find_chat(number).unwrap().unwrap();
        shell.store.branch(chat.id).unwrap()
    }

    /// True if a control or text has this name or contains it.
    pub fn shows(&self, name: &str) -> bool {
        self.it.query_all_by_label_contains(name).next().is_some()
    }

    /// All visible texts.
    pub fn texts(&self) -> Vec<String> {
        let nodes = self.it.root().children_recursive();
        nodes.filter_map(|node| node.accesskit_node().label().or(node.value())).collect()
    }

    /// The control with this name.
    pub fn control<'a>(&'a self, name: &'a str) -> Node<'a> {
        self.it.get_by(move |node| node.label().as_deref() == Some(name) && egui::accessibility::is_input(node.role()))
    }

    /// The control with this role and name.
    pub fn role<'a>(&'a self, role: Role, name: &'a str) -> Node<'a> {
        // A slider's label belongs to its number field.
        self.it.get(by().role(role).label(name).include_labels())
    }

    /// True if there is a control with this role and name.
    pub fn has(&self, role: Role, name: &str) -> bool {
        self.it.query(by().role(role).label(name).include_labels()).is_some()
    }

    /// Scrolls the control with this name into view and clicks it.
    pub fn click(&mut self, name: &str) {
        self.control(name).scroll_to_me();
        self.step();
        let node = self.control(name);
        assert!(!node.accesskit_node().is_disabled(), "{name:?} cannot be clicked now");
        self.tap(node.rect().center());
    }

    /// Presses and releases at `pos` within one frame. Nothing that appears or vanishes can move a
    /// button between the two halves.
    pub fn tap(&mut self, pos: Pos2) {
        self.it.input_mut().events.extend([Event::PointerMoved(pos), button(pos, true), button(pos, false)]);
        self.step();
        self.it.remove_cursor();
        self.step();
    }

    /// The text in the field with this name.
    pub fn value(&self, name: &str) -> String {
        self.control(name).value().unwrap_or_default()
    }

    /// Focuses the control with this name.
    pub fn focus(&mut self, name: &str) {
        self.control(name).focus();
        self.step();
    }

    /// Types into the field with this name.
    pub fn write(&mut self, name: &str, text: &str) {
        self.focus(name);
        self.it.event(Event::Text(text.to_owned()));
        self.step();
    }

    /// Erases the text in the field with this name.
    pub fn erase(&mut self, name: &str) {
        self.focus(name);
        self.ctrl(Key::A);
        self.press(Key::Backspace);
    }

    /// Holds a file over the window.
    pub fn hold(&mut self, path: &Path) {
        let file = egui::HoveredFile { path: Some(path.to_owned()), ..egui::HoveredFile::default() };
        self.it.input_mut().hovered_files = vec![file];
        // The first frame measures what is centred.
        self.it.step();
        self.it.step();
    }

    /// Drops files on the window.
    pub fn let_go(&mut self, paths: &[&Path]) {
        self.it.input_mut().hovered_files.clear();
        let dropped = &mut self.it.input_mut().dropped_files;
        paths.iter().for_each(|path| dropped.push(Arc::new(Dropped(path.to_path_buf()))));
        self.step();
    }

    /// The text that a click on a control copies to the clipboard.
    pub fn copies(&mut self, click: impl FnOnce(&Self)) -> Option<String> {
        click(self);
        (0..4).find_map(|_| {
            self.it.step();
            self.copied()
        })
    }

    /// The text that the last frame copied to the clipboard.
    pub fn copied(&self) -> Option<String> {
        let commands = &self.it.output().platform_output.commands;
        commands.iter().find_map(|command| match command {
            egui::OutputCommand::CopyText(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: Key) {
        self.it.key_press(key);
        self.step();
    }

    /// Presses a key while Ctrl is held.
    pub fn ctrl(&mut self, key: Key) {
        self.press_with(Modifiers::COMMAND, key);
    }

    /// Presses a key with modifiers within one frame, as in a slow window.
    pub fn press_in_one_frame(&mut self, modifiers: Modifiers, pressed: Key) {
        let (held, let_go) = (Event::ModifiersChanged(modifiers), Event::ModifiersChanged(Modifiers::NONE));
        let (down, up) = (key(pressed, true, modifiers), key(pressed, false, modifiers));
        self.it.input_mut().events.extend([held, down, up, let_go]);
        self.step();
    }

    /// Presses a key while modifiers are held.
    pub fn press_with(&mut self, modifiers: Modifiers, key: Key) {
        self.it.key_press_modifiers(modifiers, key);
        self.step();
    }
}

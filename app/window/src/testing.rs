//! A window without a screen, for the tests of panels: what is said to it goes through the same controls that people use.

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

/// A file that was let go over the window.
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

/// The window, in a folder of its own.
pub struct TestWindow {
    /// It.
    pub it: Harness<'static, Window>,
    /// Where its files are.
    pub folders: Folders,
    size: [f32; 2],
    // After the windows, which write into it; `None` if the test has it.
    folder: Option<Rc<tempfile::TempDir>>,
}

/// The pointer's first button goes down or comes up here.
pub fn button(pos: Pos2, pressed: bool) -> Event {
    Event::PointerButton { pos, button: PointerButton::Primary, pressed, modifiers: Modifiers::NONE }
}

/// A key goes down or comes up while others are held.
pub fn key(key: Key, pressed: bool, modifiers: Modifiers) -> Event {
    Event::Key { key, physical_key: None, pressed, repeat: false, modifiers }
}

/// The wheel turns by so many points.
pub fn wheel(points: f32) -> Event {
    let (unit, phase, source) = (MouseWheelUnit::Point, TouchPhase::Move, MouseWheelSource::Wheel);
    Event::MouseWheel { unit, delta: Vec2::new(0.0, points), phase, source, modifiers: Modifiers::NONE }
}

/// Adds a chat of this title to the file of chats. The texts are its messages: the first is the
/// user's, the second its answer, and so on.
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
    // A small model may say bytes that are no text.
    let builder = Harness::builder().with_size(size).with_step_dt(1.0 / 60.0).with_max_steps(8).allow_missing_glyphs();
    builder.build_eframe(move |creation| Window::new(&creation.egui_ctx, folders, None).unwrap())
}

impl TestWindow {
    /// A window of `size` points with the built-in model on the CPU; `prepare` may change settings and put files into folders
    /// before it opens.
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

    /// A window on the files that a test has in `folders`.
    pub fn in_folders(size: [f32; 2], folders: Folders) -> Self {
        TestWindow { it: window(size, folders.clone()), folders, size, folder: None }
    }

    /// Another window on the same files.
    pub fn beside(&self) -> Self {
        TestWindow { folder: self.folder.clone(), ..Self::in_folders(self.size, self.folders.clone()) }
    }

    /// Closed, and opened again.
    pub fn again(self) -> Self {
        let TestWindow { it, folders, size, folder } = self;
        eframe::App::on_exit(&mut it.into_state());
        TestWindow { folder, ..Self::in_folders(size, folders) }
    }

    /// As [`TestWindow::with`], with nothing special.
    pub fn new(size: [f32; 2]) -> Self {
        Self::with(size, |_, _| ())
    }

    /// As [`TestWindow::new`], with its model ready.
    pub fn opened(size: [f32; 2]) -> Self {
        Self::opened_with(size, |_, _| ())
    }

    /// As [`TestWindow::with`], with its model ready.
    pub fn opened_with(size: [f32; 2], prepare: impl FnOnce(&Folders, &mut Settings)) -> Self {
        let mut window = Self::with(size, prepare);
        window.ready();
        window
    }

    /// State shared by the panels.
    pub fn shell(&mut self) -> &mut Shell {
        &mut self.it.state_mut().shell
    }

    /// A few frames.
    pub fn step(&mut self) {
        self.it.run_steps(4);
    }

    /// Frames until something is so, which must come within [`PATIENCE`].
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Window) -> bool) {
        eventually(what, || {
            is(self.it.state_mut()) || {
                self.it.step();
                false
            }
        });
        self.step();
    }

    /// Frames until a model is ready.
    pub fn ready(&mut self) {
        self.until("a model", |window| window.shell.engine_handle.engine().is_some());
    }

    /// Frames until this model is ready.
    ///
    /// # Panics
    /// If it cannot be opened.
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

    /// Queues a command, which the next frames handle.
    pub fn command(&mut self, command: Command) {
        self.shell().queue_command(command);
        self.step();
    }

    /// Frames until a control or a text of this name is there.
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

    /// The messages of the chat that is shown.
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

    /// All that is written anywhere.
    pub fn texts(&self) -> Vec<String> {
        let nodes = self.it.root().children_recursive();
        nodes.filter_map(|node| node.accesskit_node().label().or(node.value())).collect()
    }

    /// The control of this name.
    pub fn control<'a>(&'a self, name: &'a str) -> Node<'a> {
        self.it.get_by(move |node| node.label().as_deref() == Some(name) && egui::accessibility::is_input(node.role()))
    }

    /// The control of this role and name.
    pub fn role<'a>(&'a self, role: Role, name: &'a str) -> Node<'a> {
        // A slider is the label of its number.
        self.it.get(by().role(role).label(name).include_labels())
    }

    /// True if there is a control of this role and name.
    pub fn has(&self, role: Role, name: &str) -> bool {
        self.it.query(by().role(role).label(name).include_labels()).is_some()
    }

    /// A click on the control of this name, which is brought into view before.
    pub fn click(&mut self, name: &str) {
        self.control(name).scroll_to_me();
        self.step();
        let node = self.control(name);
        assert!(!node.accesskit_node().is_disabled(), "{name:?} cannot be clicked now");
        self.tap(node.rect().center());
    }

    /// A click here, within one frame: what comes and goes above by itself cannot move a button away between its two halves.
    pub fn tap(&mut self, pos: Pos2) {
        self.it.input_mut().events.extend([Event::PointerMoved(pos), button(pos, true), button(pos, false)]);
        self.step();
        self.it.remove_cursor();
        self.step();
    }

    /// The text in the field of this name.
    pub fn value(&self, name: &str) -> String {
        self.control(name).value().unwrap_or_default()
    }

    /// Gives the keyboard to the control of this name.
    pub fn focus(&mut self, name: &str) {
        self.control(name).focus();
        self.step();
    }

    /// Writes into the field of this name.
    pub fn write(&mut self, name: &str, text: &str) {
        self.focus(name);
        self.it.event(Event::Text(text.to_owned()));
        self.step();
    }

    /// Takes out what is written in the field of this name.
    pub fn erase(&mut self, name: &str) {
        self.focus(name);
        self.ctrl(Key::A);
        self.press(Key::Backspace);
    }

    /// A file that is held over the window.
    pub fn hold(&mut self, path: &Path) {
        let file = egui::HoveredFile { path: Some(path.to_owned()), ..egui::HoveredFile::default() };
        self.it.input_mut().hovered_files = vec![file];
        // What is put into the middle is measured first.
        self.it.step();
        self.it.step();
    }

    /// Files that are let go over the window.
    pub fn let_go(&mut self, paths: &[&Path]) {
        self.it.input_mut().hovered_files.clear();
        let dropped = &mut self.it.input_mut().dropped_files;
        paths.iter().for_each(|path| dropped.push(Arc::new(Dropped(path.to_path_buf()))));
        self.step();
    }

    /// The text a click on a control puts on the clipboard.
    pub fn copies(&mut self, click: impl FnOnce(&Self)) -> Option<String> {
        click(self);
        (0..4).find_map(|_| {
            self.it.step();
            self.copied()
        })
    }

    /// The text the last frame put on the clipboard.
    pub fn copied(&self) -> Option<String> {
        let commands = &self.it.output().platform_output.commands;
        commands.iter().find_map(|command| match command {
            egui::OutputCommand::CopyText(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A key that is pressed and let go.
    pub fn press(&mut self, key: Key) {
        self.it.key_press(key);
        self.step();
    }

    /// A key that is pressed while Ctrl is held.
    pub fn ctrl(&mut self, key: Key) {
        self.press_with(Modifiers::COMMAND, key);
    }

    /// The same within one frame, as in a slow window.
    pub fn press_in_one_frame(&mut self, modifiers: Modifiers, pressed: Key) {
        let (held, let_go) = (Event::ModifiersChanged(modifiers), Event::ModifiersChanged(Modifiers::NONE));
        let (down, up) = (key(pressed, true, modifiers), key(pressed, false, modifiers));
        self.it.input_mut().events.extend([held, down, up, let_go]);
        self.step();
    }

    /// A key that is pressed while others are held.
    pub fn press_with(&mut self, modifiers: Modifiers, key: Key) {
        self.it.key_press_modifiers(modifiers, key);
        self.step();
    }
}

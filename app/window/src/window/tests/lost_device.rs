//! Windows on a real screen whose devices are lost: at the start, during an answer, during an
//! answer to another program, and repeatedly. The contents survive, and in the end another backend
//! draws the window. Drivers that crash the program come last at the next start. The model is
//! loaded onto its device after the first frame.

use std::{
    cell::{Cell, RefCell},
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use thermocline_engine::session::{DeviceStatus, LoadStage};

use crate::{
    opening::DesktopWindow,
    window::{Window, startup},
};
use thermocline_chats::{
    chat::SamplingOverrides,
    server_switch::ServerState,
    settings::{ModelSettings, Settings},
    store::{ChatId, MessageState},
};
use thermocline_host::{folders::Folders, library::ModelId, testing::PATIENCE};

/// A virtual screen. Dropping it stops its server.
struct Screen {
    server: Child,
    display: String,
    /// Runtime files of the programs on the screen.
    folder: tempfile::TempDir,
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Environment variable of a process with a screen. It passes a word to the test.
const ON_A_SCREEN: &str = "THERMOCLINE_TEST_ON_A_SCREEN";

/// A process can create one event loop, and the environment selects its display. So this test runs
/// itself again in a process of its own.
#[test]
fn window_outlives_its_devices() {
    if own_screen().is_some() {
        return on_a_screen();
    }
    let screen = Screen::new();
    let (ended_well, said) = screen.again("window_outlives_its_devices", "");
    assert!(ended_well && said.contains("1 passed"), "{said}");
}

/// The word passed to this process, which has a screen. `None` in the process of the tests.
fn own_screen() -> Option<String> {
    std::env::var(ON_A_SCREEN).ok()
}

impl Screen {
    fn new() -> Self {
        let arguments = ["-displayfd", "1", "-screen", "0", "1440x900x24", "-nolisten", "tcp", "-noreset"];
        let mut server = Command::new("Xvfb");
        server.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = server.spawn().expect("Xvfb, which tests/run.sh installs");
        let mut display = String::new();
        let read = BufReader::new(server.stdout.take().unwrap()).read_line(&mut display);
        let screen = Screen { server, display: format!(":{}", display.trim()), folder: tempfile::tempdir().unwrap() };
        read.unwrap();
        screen
    }

    /// Runs the test with this name again, with the screen and `word`. Returns true if it
    /// succeeded, and its standard output.
    fn again(&self, test: &str, word: &str) -> (bool, String) {
        let module = module_path!().split_once("::").unwrap().1;
        let name = format!("{module}::{test}");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(ON_A_SCREEN, word)
            .env("DISPLAY", &self.display)
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env_remove("WAYLAND_DISPLAY")
            .env_remove("WGPU_BACKEND")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        (child.wait().unwrap().success(), said)
    }
}

/// Settings of windows that differ only in their chats.
fn folders(root: &tempfile::TempDir) -> Folders {
    let folders = Folders::below(root.path());
    let mut settings = Settings { reduced_motion: true, ..Settings::default() };
    settings.server.on = true;
    settings.server.port = 0;
    let on_cpu = ModelSettings { device: Some(String::new()), ..ModelSettings::default() };
    settings.models.insert(ModelId::Builtin.key(), on_cpu);
    settings.save(&folders.settings()).unwrap();
    folders
}

/// The life of a window: a question, its answer, and an answer to another program.
#[derive(Default)]
struct Life {
    frames: Cell<usize>,
    /// Frames since the answers ended.
    rest: Cell<usize>,
    chat: Cell<Option<ChatId>>,
    client: RefCell<Option<std::thread::JoinHandle<String>>>,
    told: RefCell<String>,
    began: Cell<Option<Instant>>,
    lost: Cell<usize>,
}

impl Life {
    /// Runs one frame of the life. True once it is over.
    fn lives_on(&self, window: &mut Window) -> bool {
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: frame {}", self.frames.get());
        self.frames.set(self.frames.get() + 1);
        window.waker.now();
        let shell = &mut window.shell;
        let ServerState::On { url, .. } = shell.serving.state() else { return false };
        if shell.engine_handle.engine().is_none() {
            return false;
        }
        if self.chat.get().is_none() {
            let chat = shell.store.add_chat(None, "").unwrap();
            let choices =
                SamplingOverrides { temperature: Some(0.0), max_tokens: Some(400), ..SamplingOverrides::default() };
            shell.store.set_chat_sampling(chat, choices.to_json().as_deref()).unwrap();
            let text = "Tell me a story about a frog.";
            shell.chat_controller.send_message(&mut shell.store, chat, None, text).unwrap();
            self.chat.set(Some(chat));
            let question =
                r#"{"messages": [{"role": "user", "content": "What is rain?"}], "temperature": 0, "stream": true}"#;
            let ask = move || post(&format!("{url}/chat/completions"), question);
            *self.client.borrow_mut() = Some(std::thread::spawn(ask));
            return false;
        }
        if let Some(client) = self.client.borrow_mut().take_if(|client| client.is_finished()) {
            *self.told.borrow_mut() = client.join().unwrap();
        }
        let over = !shell.chat_controller.is_busy() && !self.told.borrow().is_empty();
        self.rest.set(if over { self.rest.get() + 1 } else { 0 });
        self.rest.get() > 3
    }

    /// The answer as it was stored.
    fn answer(&self, folders: &Folders) -> String {
        let (store, _) = thermocline_chats::store::Store::open(&folders.chats()).unwrap();
        let branch = store.branch(self.chat.get().unwrap()).unwrap();
        assert_eq!(branch[1].state, MessageState::Complete);
        branch[1].content.clone()
    }
}

/// Runs a life in which the device is lost `losses` times. `loses` selects the frames, from the
/// life and the number of frames since the window was last opened.
fn live(desktop: &mut DesktopWindow, folders: &Folders, losses: usize, loses: &dyn Fn(&Life, usize) -> bool) -> Life {
    let (life, since, lost) = (Life::default(), Cell::new(0), RefCell::new(None));
    let opened = startup::run_with(desktop, folders, None, &|window, frame| {
        let (over, context) = (life.lives_on(window), window.waker.context());
        // The window of a lost device may still draw frames before it is reopened. A device that is
        // lost before its first frame is refused, and another backend draws the window.
        if lost.borrow().as_ref() == Some(&context) || window.opening.is_some() {
            return;
        }
        if over && life.lost.get() == losses {
            context.send_viewport_cmd(egui::ViewportCommand::Close);
            return;
        }
        since.set(since.get() + 1);
        if life.lost.get() < losses && loses(&life, since.get()) {
            life.lost.set(life.lost.get() + 1);
            since.set(0);
            lost.replace(Some(context));
            frame.wgpu_render_state().unwrap().device.destroy();
        }
    });
    opened.unwrap();
    life
}

fn drawn_by(folders: &Folders) -> Option<String> {
    Settings::load(&folders.settings()).unwrap().0.drawing.worked
}

fn on_a_screen() {
    let mut desktop = DesktopWindow::on_any_thread().unwrap();
    let root = tempfile::tempdir().unwrap();
    let folders = folders(&root);
    let undisturbed = live(&mut desktop, &folders, 0, &|_, _| false);
    let (answer, told) = (undisturbed.answer(&folders), undisturbed.told.take());
    assert!(!answer.is_empty() && told.contains("[DONE]"), "{answer}: {told}");
    assert_eq!(drawn_by(&folders).as_deref(), Some("vulkan"));
    // Losses in the first visible frame, and in the middle of both answers.
    let once = live(&mut desktop, &folders, 2, &|life, since| match life.lost.get() {
        0 => since == 2,
        _ => life.chat.get().is_some() && since > 2,
    });
    assert_eq!((once.lost.get(), once.answer(&folders)), (2, answer.clone()));
    assert_eq!(text_of(&once.told.take()), text_of(&told));
    // Repeated losses: the third in a minute is the last of this backend.
    let often = live(&mut desktop, &folders, 3, &|_, since| since > 1);
    assert_eq!((often.lost.get(), often.answer(&folders)), (3, answer));
    assert_eq!(text_of(&often.told.take()), text_of(&told));
    assert_eq!(drawn_by(&folders).as_deref(), Some("gl"), "three losses in a minute");
}

#[test]
fn drivers_that_end_the_program_before_the_first_frame_come_last() {
    if let Some(root) = own_screen() {
        return open_once(Path::new(&root));
    }
    let (screen, root) = (Screen::new(), tempfile::tempdir().unwrap());
    let folders = folders(&root);
    let open =
        || screen.again("drivers_that_end_the_program_before_the_first_frame_come_last", root.path().to_str().unwrap());
    let (ended_well, said) = open();
    assert!(ended_well && drawn_by(&folders).as_deref() == Some("vulkan"), "{said}");
    std::fs::write(root.path().join(ABORTS), b"").unwrap();
    let (ended_well, said) = open();
    assert!(!ended_well, "{said}");
    std::fs::remove_file(root.path().join(ABORTS)).unwrap();
    let (ended_well, said) = open();
    assert!(ended_well && drawn_by(&folders).as_deref() == Some("gl"), "{said}");
    let told = folders.fallbacks().all().iter().map(ToString::to_string).collect::<Vec<_>>();
    let sentence = "The window is drawn over vulkan only if no other backend can draw it: \
         the program ended before the window drew its first frame";
    assert_eq!(told, [sentence]);
    folders.fallbacks().clear();
    assert!(folders.fallbacks().last_for_windows().is_empty());
}

/// If this file exists beside the folders, the window aborts the program in its first frame.
const ABORTS: &str = "aborts";

/// Opens a window that closes as soon as it has drawn.
fn open_once(root: &Path) {
    let mut desktop = DesktopWindow::on_any_thread().unwrap();
    let opened = startup::run_with(&mut desktop, &Folders::below(root), None, &|window, _| {
        if root.join(ABORTS).exists() {
            std::process::abort();
        }
        window.waker.now();
        if window.opening.is_none() {
            window.waker.context().send_viewport_cmd(egui::ViewportCommand::Close);
        }
    });
    opened.unwrap();
}

#[test]
fn the_model_goes_to_its_device_after_the_first_frame() {
    if own_screen().is_some() {
        return open_slowly();
    }
    let (ended_well, said) = Screen::new().again("the_model_goes_to_its_device_after_the_first_frame", "");
    assert!(ended_well && said.contains("1 passed"), "{said}");
}

/// Opens a window that shows nothing for half a second: the screen does not accept its first
/// frames.
fn open_slowly() {
    let root = tempfile::tempdir().unwrap();
    let folders = folders(&root);
    let (mut settings, _) = Settings::load(&folders.settings()).unwrap();
    let on_gpu = ModelSettings { device: Some("llvmpipe".to_owned()), ..ModelSettings::default() };
    settings.models.insert(ModelId::Builtin.key(), on_gpu);
    settings.save(&folders.settings()).unwrap();
    let (ready, after, began) = (Cell::new(None::<Instant>), Cell::new(0), Instant::now());
    let mut desktop = DesktopWindow::on_any_thread().unwrap();
    let opened = startup::run_with(&mut desktop, &folders, None, &|window, _| {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {} frames", after.get());
        window.waker.now();
        let device = window.shell.engine_handle.engine().map(|engine| engine.device());
        let Some((watch, _)) = &window.opening else {
            after.set(after.get() + 1);
            if matches!(device, Some(DeviceStatus::Gpu(_))) {
                window.waker.context().send_viewport_cmd(egui::ViewportCommand::Close);
            }
            return;
        };
        let Some(device) = device else { return watch.missed(&wgpu::CurrentSurfaceTexture::Occluded) };
        let is_waiting = matches!(device, DeviceStatus::Loading(LoadStage::Opening));
        assert!(is_waiting && window.shell.adapters.list().is_none(), "before the first frame: {device:?}");
        let since = ready.get().unwrap_or_else(Instant::now);
        ready.set(Some(since));
        if since.elapsed() < Duration::from_millis(500) {
            watch.missed(&wgpu::CurrentSurfaceTexture::Occluded);
        }
    });
    opened.unwrap();
    assert!(ready.get().is_some() && after.get() > 0, "the model was not awaited");
}

fn post(url: &str, question: &str) -> String {
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    let answer = agent.post(url).content_type("application/json").send(question);
    answer.unwrap().body_mut().read_to_string().unwrap()
}

/// The text of a streamed answer.
fn text_of(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let values = events.filter_map(|event| serde_json::from_str::<serde_json::Value>(event).ok());
    values.filter_map(|value| Some(value["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
}

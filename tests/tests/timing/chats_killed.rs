//! A program that is killed while a model writes loses at most the last second of the answer. Two
//! windows on the same chats do not harm each other. The test starts itself again as the window,
//! with the real model but without a screen, and kills it.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use egui::{Event, Key, Modifiers, Pos2, RawInput, Rect, Vec2};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use thermocline_chats::store::{MessageState, Speaker, Store, StoredMessage};
use thermocline_host::folders::Folders;
use thermocline_tests::{own_process, wait};
use thermocline_window::Window;

use super::alone;

/// Number of windows that run at the same time.
const AT_ONCE: usize = 5;

/// Maximum time from a window's first words to its end, in milliseconds.
const WITHIN: u64 = 2500;

/// Maximum loss, in milliseconds.
const LOSS: u128 = 1000;

const QUESTION: &str = "Tell me a story about a cat and a boat.";

/// Environment variable with the folder of the window's files.
const FOLDER: &str = "THERMOCLINE_TEST_FOLDER";

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Requests a story, and another version of it when it ends, until the process is killed. For every
/// frame it writes a line to standard error: when the frame began, when it was shown, which answer
/// it shows, and the answer's length.
fn window(folder: &Path) -> ! {
    let ctx = egui::Context::default();
    let mut window = Window::new(&ctx, Folders::below(folder), None).unwrap();
    let key = |key, modifiers| Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers };
    let began = Instant::now();
    // Input events, the last first. The text field has the cursor one frame after it requests it.
    let mut script: Vec<Option<Event>> = Vec::new();
    let mut asked = false;
    loop {
        let shell = window.shell();
        if shell.engine_handle.engine().is_some() && !shell.chat_controller.is_busy() && script.is_empty() {
            script = if asked {
                vec![None, Some(key(Key::R, Modifiers::COMMAND))]
            } else {
                let (enter, text) = (key(Key::Enter, Modifiers::NONE), Event::Text(QUESTION.to_owned()));
                vec![None, Some(enter), None, Some(text), None, None, Some(key(Key::L, Modifiers::COMMAND))]
            };
            asked = true;
        }
        let input = RawInput {
            screen_rect: Some(Rect::from_min_size(Pos2::ZERO, Vec2::new(1280.0, 800.0))),
            time: Some(began.elapsed().as_secs_f64()),
            events: script.pop().flatten().into_iter().collect(),
            ..RawInput::default()
        };
        let frame_began = now();
        let frame = ctx.run_ui(input, |ui| {
            window.tick(ui);
            window.show(ui);
        });
        frame.drop_without_applying_deltas();
        for chat in window.shell().store.chats().unwrap() {
            if let Some(progress) = window.shell().chat_controller.progress(chat.id) {
                eprintln!("{frame_began} {} {:?} {}", now(), progress.id, progress.content.len());
            }
        }
        thread::sleep(Duration::from_millis(16));
    }
}

/// Progress of an answer on the screen, as the window reports it. Times are milliseconds since
/// 1970.
struct Said {
    frame_began: u128,
    seen: u128,
    id: String,
    length: usize,
}

impl Said {
    fn of(line: &str) -> Option<Self> {
        // The last line may be truncated.
        let mut words = line.strip_suffix('\n')?.split(' ');
        let (began, seen, id, length) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (frame_began, seen, length) = (began.parse().ok()?, seen.parse().ok()?, length.parse().ok()?);
        Some(Said { frame_began, seen, id: id.to_owned(), length })
    }
}

/// A window on a folder, and its reports so far.
struct Writing {
    window: Child,
    says: Receiver<Said>,
    said: Vec<Said>,
}

impl Writing {
    /// Opens a window and waits for its first words.
    fn open(folder: &Path) -> Self {
        let mut command = own_process::start("chats_killed::killed_windows_lose_at_most_the_last_second", "window");
        let mut window = command.env(FOLDER, folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(window.stderr.take().unwrap());
        let (sender, says) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                match Said::of(&line) {
                    Some(said) => drop(sender.send(said)),
                    None => eprint!("{line}"),
                }
                line.clear();
            }
        });
        let mut it = Writing { window, says, said: Vec::new() };
        it.until("its first words", |said| said.length > 0);
        it
    }

    /// Waits for a report for which `is` is true.
    fn until(&mut self, what: &str, is: impl Fn(&Said) -> bool) -> &Said {
        loop {
            let said = self.says.recv_timeout(wait::LONGEST).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = is(&said);
            self.said.push(said);
            if found {
                return &self.said[self.said.len() - 1];
            }
        }
    }

    /// Kills the window and collects all its reports. Returns the time of the kill.
    fn kill(&mut self) -> u128 {
        self.window.kill().unwrap();
        let killed = now();
        self.window.wait().unwrap();
        self.said.extend(self.says.iter());
        killed
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // `kill` fails if the window has already been killed.
        let _ = self.window.kill();
        let _ = self.window.wait();
    }
}

/// Returns a folder whose window uses the CPU only, because this test is not about GPUs.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let settings = r#"{"models": {"builtin:storyteller": {"device": ""}}, "heatmap": {"on": true}}"#;
    fs::write(Folders::below(folder.path()).settings(), settings).unwrap();
    folder
}

/// Checks that the chat file is intact. Returns all messages.
fn messages(folder: &Path) -> Vec<Vec<StoredMessage>> {
    let (store, damage) = Store::open(&Folders::below(folder).chats()).unwrap();
    assert_eq!(damage, None);
    store.chats().unwrap().iter().map(|chat| store.messages(chat.id).unwrap()).collect()
}

#[test]
fn killed_windows_lose_at_most_the_last_second() {
    if own_process::part().is_some() {
        window(Path::new(&std::env::var_os(FOLDER).unwrap()));
    }
    kill(15);
}

#[test]
#[ignore = "second tier: fifty windows instead of fifteen"]
fn fifty_killed_windows_lose_at_most_the_last_second() {
    kill(50);
}

/// Kills this number of windows.
fn kill(windows: usize) {
    let _alone = alone();
    let seed = now() as u64;
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut most = 0;
    for _ in 0..windows / AT_ONCE {
        let delays: Vec<u64> = (0..AT_ONCE).map(|_| random.next_u64() % WITHIN).collect();
        let losses = thread::scope(|scope| {
            let killers: Vec<_> = delays.iter().map(|delay| scope.spawn(|| kill_one(*delay))).collect();
            killers.into_iter().map(|killer| killer.join().unwrap()).max()
        });
        most = most.max(losses.unwrap_or(0));
    }
    println!("{windows} windows killed while they wrote; at most the last {most} ms were lost");
}

/// Kills a window `delay` ms after its first words. Returns the age of the oldest words that were
/// shown and lost, in milliseconds.
fn kill_one(delay: u64) -> u128 {
    let folder = folder();
    let mut window = Writing::open(folder.path());
    thread::sleep(Duration::from_millis(delay));
    let killed = window.kill();
    let chats = messages(folder.path());
    assert_eq!(chats.len(), 1);
    assert_eq!((chats[0][0].speaker, &*chats[0][0].content), (Speaker::User, QUESTION));
    let kept: HashMap<String, &StoredMessage> =
        chats[0].iter().map(|message| (format!("{:?}", message.id), message)).collect();
    // A frame saves before it is shown, and this is the last shown frame. If a busy machine stopped
    // the window afterwards, that is no loss by the program.
    let alive = window.said[window.said.len() - 1].frame_began;
    let mut loss = 0;
    for Said { seen, id, length, .. } in &window.said {
        let answer = kept.get(id).unwrap_or_else(|| panic!("answer {id} is lost after {delay} ms"));
        if answer.content.len() < *length {
            loss = loss.max(killed - seen);
            let unsaved = alive.saturating_sub(*seen);
            assert!(unsaved < LOSS, "{unsaved} ms lost after {delay} ms");
        }
    }
    let answers: Vec<&StoredMessage> =
        chats[0].iter().filter(|message| message.speaker == Speaker::Assistant).collect();
    // The latest answer may have begun after the window's last report.
    for answer in answers.split_last().map_or(&[][..], |(_, earlier)| earlier) {
        let ended = matches!(answer.state, MessageState::Complete | MessageState::Truncated);
        assert!(ended, "an earlier answer is {:?}", answer.state);
    }
    loss
}

/// Each window writes its own chat. One is killed, and the other continues.
#[test]
fn two_windows_on_the_same_chats_do_not_harm_each_other() {
    let _alone = alone();
    let folder = folder();
    let (mut first, mut second) = thread::scope(|scope| {
        let [first, second] = [(); 2].map(|()| scope.spawn(|| Writing::open(folder.path())));
        (first.join().unwrap(), second.join().unwrap())
    });
    for window in [&mut first, &mut second] {
        let seen = window.until("a sentence", |said| said.length > 40).seen;
        window.until("the time in which it is saved", |said| said.frame_began > seen + LOSS);
    }
    first.kill();
    let between = now();
    second.until("the other's words", |said| said.frame_began > between + 500 && said.length > 0);
    second.kill();
    let chats = messages(folder.path());
    assert_eq!(chats.len(), 2, "each has its own chat");
    for messages in &chats {
        assert_eq!(messages.iter().filter(|message| message.speaker == Speaker::User).count(), 1);
        assert!(messages[1..].iter().all(|answer| answer.parent == Some(messages[0].id)));
        assert!(messages[1].content.len() > 40, "{:?}", messages[1]);
    }
    println!("two windows wrote {} answers into the same file", chats.iter().map(|chat| chat.len() - 1).sum::<usize>());
}

//! A program that is killed while a model writes loses no more than the last second of it, and two windows on the same chats do not
//! harm each other. The test starts itself again as the window, with the real model but no screen, and kills it.

#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use egui::{Event, Key, Modifiers, Pos2, RawInput, Rect, Vec2};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use thermocline::{
    folders::Folders,
    store::{Message, MessageState, Speaker, Store},
    ui::Window,
};

/// Windows killed, and how many at a time.
const KILLS: usize = 50;
const AT_ONCE: usize = 5;

/// A window is killed within this time after its first words.
const WITHIN: u64 = 2500;

/// The most that may be lost, in milliseconds.
const LOSS: u128 = 1000;

const QUESTION: &str = "Tell me a story about a cat and a boat.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("window"), Some(folder)) => window(Path::new(&folder)),
        _ => {
            kill_them();
            two_at_once();
        }
    }
    ExitCode::SUCCESS
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Asks for a story, and for another version of it when it ends, until the program is ended. Says with every frame when that
/// was and how much of which answer is on the screen.
fn window(folder: &Path) {
    let ctx = egui::Context::default();
    let mut window = Window::new(&ctx, Folders::below(folder), None).unwrap();
    let key = |key, modifiers| Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers };
    let began = Instant::now();
    // What is typed, last key first; the field has the cursor a frame after it was asked to.
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
        let frame = ctx.run_ui(input, |ui| {
            window.tick(ui);
            window.show(ui);
        });
        frame.drop_without_applying_deltas();
        for chat in window.shell().store.chats().unwrap() {
            if let Some(progress) = window.shell().chat_controller.progress(chat.id) {
                println!("{} {:?} {}", now(), progress.id, progress.content.len());
            }
        }
        std::io::stdout().flush().unwrap();
        thread::sleep(Duration::from_millis(16));
    }
}

/// A window in a folder, with what it says from its first words on.
struct Killed {
    window: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Killed {
    fn open(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut window = command.arg("window").arg(folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(window.stdout.take().unwrap());
        let mut line = String::new();
        while said.read_line(&mut line).unwrap() > 0 && (line.is_empty() || line.ends_with(" 0\n")) {
            line.clear();
        }
        assert!(!line.is_empty(), "the window ended by itself");
        Killed { window, said }
    }

    /// Kills it. Returns how much of each answer was seen when, and when it was killed.
    fn kill(mut self) -> (Vec<(u128, String, usize)>, u128) {
        self.window.kill().unwrap();
        let killed = now();
        self.window.wait().unwrap();
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        let read = |line: &str| {
            let mut words = line.split(' ');
            let (time, id, length) = (words.next()?, words.next()?, words.next()?);
            Some((time.parse().ok()?, id.to_owned(), length.parse().ok()?))
        };
        // The last line may be truncated.
        let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
        (whole.lines().filter_map(read).collect(), killed)
    }
}

/// A folder whose window computes with the CPU alone: GPUs are not what is tested.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let settings = r#"{"models": {"builtin:storyteller": {"device": ""}}, "heatmap": {"on": true}}"#;
    fs::write(Folders::below(folder.path()).settings(), settings).unwrap();
    folder
}

/// Every message, after checking that the file is whole.
fn messages(folder: &Path) -> Vec<Vec<Message>> {
    let (store, damage) = Store::open(&Folders::below(folder).chats()).unwrap();
    assert_eq!(damage, None);
    store.chats().unwrap().iter().map(|chat| store.messages(chat.id).unwrap()).collect()
}

fn kill_them() {
    let seed = now() as u64;
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut most = 0;
    for _ in 0..KILLS / AT_ONCE {
        let delays: Vec<u64> = (0..AT_ONCE).map(|_| random.next_u64() % WITHIN).collect();
        let losses = thread::scope(|scope| {
            let killers: Vec<_> = delays.iter().map(|delay| scope.spawn(|| kill_one(*delay))).collect();
            killers.into_iter().map(|killer| killer.join().unwrap()).max()
        });
        most = most.max(losses.unwrap_or(0));
    }
    println!("{KILLS} windows killed while they wrote; at most the last {most} ms were lost");
}

/// Kills a window so long after its first words. Returns how old the oldest words are that were seen and lost, in milliseconds.
fn kill_one(delay: u64) -> u128 {
    let folder = folder();
    let window = Killed::open(folder.path());
    thread::sleep(Duration::from_millis(delay));
    let (seen, killed) = window.kill();
    let chats = messages(folder.path());
    assert_eq!(chats.len(), 1);
    assert_eq!((chats[0][0].speaker, &*chats[0][0].content), (Speaker::User, QUESTION));
    let kept: HashMap<String, &Message> =
        chats[0].iter().map(|message| (format!("{:?}", message.id), message)).collect();
    let alive = seen.last().map_or(killed, |(time, ..)| *time);
    let mut loss = 0;
    for (time, id, length) in &seen {
        let answer = kept.get(id).unwrap_or_else(|| panic!("answer {id} is lost after {delay} ms"));
        if answer.content.len() < *length {
            loss = loss.max(killed - time);
            // A machine that is too busy to show anything for a second is not what is tested.
            assert!(alive - time < LOSS, "{} ms lost after {delay} ms", alive - time);
        }
    }
    let answers: Vec<&Message> = chats[0].iter().filter(|message| message.speaker == Speaker::Assistant).collect();
    // The latest may have begun after the window said something last.
    for answer in answers.split_last().map_or(&[][..], |(_, earlier)| earlier) {
        let ended = matches!(answer.state, MessageState::Complete | MessageState::Truncated);
        assert!(ended, "an earlier answer is {:?}", answer.state);
    }
    loss
}

/// Two windows on the same chats: each writes its own, one is killed, the other goes on.
fn two_at_once() {
    let folder = folder();
    let (first, second) = thread::scope(|scope| {
        let [first, second] = [(); 2].map(|()| scope.spawn(|| Killed::open(folder.path())));
        (first.join().unwrap(), second.join().unwrap())
    });
    thread::sleep(Duration::from_secs(2));
    let (seen, _) = first.kill();
    let between = now();
    thread::sleep(Duration::from_secs(2));
    let (later, _) = second.kill();
    assert!(!seen.is_empty() && later.iter().any(|(time, ..)| *time > between + 500), "the other one stopped");
    let chats = messages(folder.path());
    assert_eq!(chats.len(), 2, "each has its own chat");
    for messages in &chats {
        assert_eq!(messages.iter().filter(|message| message.speaker == Speaker::User).count(), 1);
        assert!(messages[1..].iter().all(|answer| answer.parent == Some(messages[0].id)));
        assert!(messages[1].content.len() > 40, "{:?}", messages[1]);
    }
    println!("two windows wrote {} answers into the same file", chats.iter().map(|chat| chat.len() - 1).sum::<usize>());
}

//! Whoever is killed while a model writes loses no more than the last second of it: the test starts itself again as the
//! writer, and kills it.

#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    process::{Command, ExitCode},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use thermocline::store::{MessageState, NewMessage, Store, Streaming};

/// Writers killed, and how many at a time.
const KILLS: u64 = 50;
const AT_ONCE: u64 = 10;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("write"), Some(path)) => write(Path::new(&path)),
        _ => kill_them(),
    }
    ExitCode::SUCCESS
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Writes the time, token by token, until somebody ends it.
fn write(path: &Path) {
    let (mut store, _) = Store::open(path).unwrap();
    let chat = store.add_chat(None, "").unwrap();
    let question = store.add_message(chat, None, &NewMessage::user("What time is it?")).unwrap();
    let mut answer = Streaming::begin(&mut store, chat, Some(question), None).unwrap();
    loop {
        answer.push(&mut store, &format!("{} ", now())).unwrap();
        thread::sleep(Duration::from_millis(3));
    }
}

fn kill_them() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..KILLS / AT_ONCE {
        let delays: Vec<u64> = (0..AT_ONCE).map(|_| 50 + random.next_u64() % 2500).collect();
        thread::scope(|scope| delays.iter().for_each(|delay| drop(scope.spawn(|| kill_one(*delay)))));
    }
    println!("{KILLS} writers killed, nothing older than a second lost");
}

fn kill_one(delay: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chats.db");
    let mut writer = Command::new(std::env::current_exe().unwrap()).arg("write").arg(&path).spawn().unwrap();
    thread::sleep(Duration::from_millis(delay));
    let killed = now();
    writer.kill().unwrap();
    writer.wait().unwrap();

    let (store, damage) = Store::open(&path).unwrap();
    assert_eq!(damage, None, "after {delay} ms");
    let Some(chat) = store.chats().unwrap().pop() else {
        assert!(delay < 2000, "nothing on disk after {delay} ms");
        return;
    };
    let branch = store.branch(chat.id).unwrap();
    let Some(answer) = branch.get(1) else { return };
    assert_eq!(answer.state, MessageState::Streaming, "it may still seem alive");
    let began = answer.created as u128;
    let last = answer.content.split_whitespace().last().map_or(began, |time| time.parse().unwrap());
    assert!(killed.saturating_sub(last) < 1000, "{} ms lost after {delay} ms", killed.saturating_sub(last));
}

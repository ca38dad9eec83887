//! The duration of frames, and their number.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use egui::{Key, Modifiers, vec2};

use super::frames::{quiet, repaint_delay, rest};
use crate::{
    testing::{TestWindow, key, wheel},
    window::frame_throttle::FrameThrottle,
};
use thermocline_chats::{
    server_switch::ServerState,
    store::{Store, import_export::FileFormat},
};
use thermocline_host::testing::PATIENCE;

/// Maximum time of a frame on the window's thread, for 30 frames per second.
const FRAME: Duration = Duration::from_millis(33);

/// The clock of a frame. Windows counts thread time in steps as long as a frame, so wall time is
/// used there.
#[cfg(windows)]
type FrameClock = Instant;
#[cfg(not(windows))]
type FrameClock = cpu_time::ThreadTime;

const MESSAGES: i64 = 10_000;

/// Number of messages of a short chat that still exceeds the window.
const FEW: i64 = 40;

/// Runs a frame with its tessellation. Returns the time it took.
fn frame(stage: &mut TestWindow) -> Duration {
    let began = FrameClock::now();
    stage.it.step();
    let output = stage.it.output();
    let meshes = stage.it.ctx.tessellate(output.shapes.clone(), output.pixels_per_point);
    assert!(!meshes.is_empty());
    began.elapsed()
}

/// A chat of paragraphs, lists and code. Ten thousand messages correspond to a year of use.
fn long_chat(messages: i64) -> String {
    let contents = [
        "Why is the sky blue?".to_owned(),
        "Some *words* about `light`. ".repeat(20),
        "And then?\nTell me more.".to_owned(),
        format!("First this.\n\n- one\n- two\n\n```rust\nfn main() {{}}\n```\n\n{}", "And so on. ".repeat(40)),
    ];
    let message = |n: i64| {
        let role = if n % 2 == 0 { "user" } else { "assistant" };
        let mut message = serde_json::json!({"role": role, "content": contents[n as usize % 4], "created": n});
        if n > 0 {
            message["parent"] = (n - 1).into();
        }
        message
    };
    let messages: Vec<_> = (0..messages).map(message).collect();
    let chat = serde_json::json!({"title": "long", "created": 1, "updated": 1, "messages": messages});
    serde_json::json!({"format": "thermocline.chats", "version": 1, "chats": [chat]}).to_string()
}

/// The times of frames while a chat of `messages` messages is scrolled, in ascending order.
fn scrolled(messages: i64) -> Vec<Duration> {
    let mut stage = TestWindow::opened_with([1440.0, 900.0], |folders, settings| {
        let (mut store, _) = Store::open(&folders.chats()).unwrap();
        settings.last_chat = Some(store.import(FileFormat::Json, &long_chat(messages)).unwrap().added[0].number());
    });
    if cfg!(windows) {
        // With wall time, waiting for the thread that counts tokens would count, as it happens
        // under Wine.
        stage.until("the chat's tokens", |window| window.conversation.counted().is_some());
    }
    let over = stage.control("Message").rect().center() - vec2(0.0, 300.0);
    stage.it.hover_at(over);
    stage.it.run_steps(10);
    let mut frames = Vec::new();
    // Slowly, quickly, and in leaps to places that were never visible.
    for (step, count) in [(40.0, 60), (400.0, 60), (20_000.0, 30), (-3_000.0, 60)] {
        for _ in 0..count {
            stage.it.event(wheel(step));
            frames.push(frame(&mut stage));
        }
    }
    frames.sort();
    frames
}

#[test]
fn ten_thousand_messages_are_scrolled_without_a_late_frame() {
    let (few, frames) = (scrolled(FEW), scrolled(MESSAGES));
    let of_few = few[few.len() / 2];
    let (middle, longest) = (frames[frames.len() / 2], frames[frames.len() - 1]);
    println!("{} frames over {MESSAGES} messages: {middle:?} in the middle, {longest:?} the longest", frames.len());
    println!("over {FEW}: {of_few:?} in the middle, {:?} the longest", few[few.len() - 1]);
    assert!(middle < 3 * of_few, "{middle:?} in the middle, {of_few:?} with {FEW} messages");
    // A slow machine has longer frames, but not because of the messages.
    let late = FRAME.max(4 * of_few);
    // The machine may delay one frame in a hundred: page faults and a shared core count as this
    // thread's time.
    let (usual, slowest) = frames.split_at(frames.len() - frames.len() / 100);
    assert!(usual.iter().all(|time| *time < late), "the longest: {:?}, {slowest:?}", &usual[usual.len() - 5..]);
    assert!(longest < 4 * late, "a frame took {longest:?}");
}

#[test]
fn idle_window_draws_no_frames() {
    let mut stage = TestWindow::opened([1440.0, 900.0]);
    rest(&mut stage.it);
    stage.ask("Tell me a story about a frog.");
    stage.it.remove_cursor();
    for key in [Key::M, Key::Comma, Key::Comma] {
        quiet(&mut stage.it);
        stage.ctrl(key);
    }
    quiet(&mut stage.it);
}

#[test]
fn software_drawn_window_draws_few_frames_during_an_answer() {
    let mut stage = TestWindow::opened([1440.0, 900.0]);
    let drawn = Rc::new(Cell::new(0));
    let waits = Rc::clone(&drawn);
    stage.it.state_mut().throttle_frames(Some(FrameThrottle::new(move || waits.set(waits.get() + 1))));
    stage.write("Message", "Tell me a story about a frog.");
    for answer in 1..=3 {
        quiet(&mut stage.it);
        let (modifiers, asks) = if answer == 1 { (Modifiers::NONE, Key::Enter) } else { (Modifiers::COMMAND, Key::R) };
        stage.it.event(key(asks, true, modifiers));
        stage.it.step();
        assert!(stage.shell().chat_controller.is_busy(), "{asks:?} asks for nothing");
        // The frame of the key is not on the screen yet.
        assert!(!stage.shell().chat_controller.is_generating() && drawn.get() == answer - 1);
        assert!(
            repaint_delay(&stage.it) <= Duration::from_millis(1),
            "the next frame comes after {:?}",
            repaint_delay(&stage.it)
        );

        let (began, mut frames) = (Instant::now(), 0);
        while stage.shell().chat_controller.is_busy() {
            assert!(began.elapsed() < PATIENCE, "no end within {PATIENCE:?}");
            stage.it.step();
            frames += 1;
        }
        let tenths = began.elapsed().as_millis() / 100;
        assert!(frames <= tenths + 2, "{frames} frames in {tenths} tenths of a second");
        assert_eq!(drawn.get(), answer, "each answer begins once, after one frame");
    }
}

#[test]
fn software_drawn_window_draws_few_frames_during_a_served_answer() {
    let mut stage = TestWindow::opened_with([1440.0, 900.0], |_, settings| {
        (settings.server.on, settings.server.port) = (true, 0);
    });
    stage.it.state_mut().throttle_frames(Some(FrameThrottle::new(|| ())));
    let url = match stage.shell().serving.state() {
        ServerState::On { url, .. } => url,
        other => panic!("{other:?}"),
    };
    quiet(&mut stage.it);
    let question = r#"{"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0}"#;
    let asking = std::thread::spawn(move || {
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        let answer = agent.post(format!("{url}/chat/completions")).content_type("application/json").send(question);
        answer.unwrap().body_mut().read_to_string().unwrap()
    });
    stage.until("the answer's beginning", |window| window.shell.serving.active_answer().is_some());
    let (began, mut frames) = (Instant::now(), 0);
    while stage.shell().serving.active_answer().is_some() {
        stage.it.step();
        frames += 1;
    }
    let tenths = began.elapsed().as_millis() / 100;
    assert!(frames <= tenths + 2, "{frames} frames in {tenths} tenths of a second");
    assert!(asking.join().unwrap().contains("Once"), "it was answered");
}

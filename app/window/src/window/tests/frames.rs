//! Frames that are drawn while nothing happens, and while the window is hidden.

use std::time::{Duration, Instant};

use egui::ViewportId;
use egui_kittest::Harness;

use crate::Window;
use thermocline_chats::chat::SamplingOverrides;
use thermocline_host::testing::{PATIENCE, eventually};

/// Delay until the window draws its next frame if nothing happens.
pub fn repaint_delay<State>(it: &Harness<'_, State>) -> Duration {
    it.output().viewport_output[&ViewportId::ROOT].repaint_delay
}

/// Draws frames until the window is idle: settings are written, lists are read.
pub fn rest<State>(it: &mut Harness<'_, State>) {
    let began = Instant::now();
    while repaint_delay(it) != Duration::MAX {
        assert!(
            began.elapsed() < PATIENCE,
            "it wants to be drawn again after {:?}: {:?}",
            repaint_delay(it),
            it.ctx.repaint_causes()
        );
        std::thread::sleep(repaint_delay(it).min(Duration::from_millis(50)));
        it.step();
    }
}

/// Draws frames until nothing has woken the window for a second, so that background work has ended,
/// too.
pub fn quiet<State>(it: &mut Harness<'_, State>) {
    let began = Instant::now();
    loop {
        rest(it);
        std::thread::sleep(Duration::from_secs(1));
        if !it.ctx.has_requested_repaint() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it is woken again and again: {:?}", it.ctx.repaint_causes());
        it.step();
    }
}

#[test]
fn hidden_window_saves_its_answer_and_idles() {
    let folder = tempfile::tempdir().unwrap();
    let folders = thermocline_host::folders::Folders::below(folder.path());
    // A hidden window only ticks.
    let tick = move |ui: &mut egui::Ui, window: &mut Option<Window>| {
        window.get_or_insert_with(|| Window::new(ui, folders.clone(), None).unwrap()).tick(ui);
    };
    let mut it = Harness::builder().with_step_dt(1.0 / 60.0).build_ui_state(tick, None);
    let until = |it: &mut Harness<'_, Option<Window>>, is: &dyn Fn(&Window) -> bool| {
        eventually("the window", || {
            it.step();
            it.state().as_ref().is_some_and(is)
        });
    };
    until(&mut it, &|window| window.shell.engine_handle.engine().is_some());
    let shell = &mut it.state_mut().as_mut().unwrap().shell;
    let chat = shell.store.add_chat(None, "").unwrap();
    let greedy = SamplingOverrides { temperature: Some(0.0), ..SamplingOverrides::default() };
    shell.store.set_chat_sampling(chat, greedy.to_json().as_deref()).unwrap();
    shell.chat_controller.send_message(&mut shell.store, chat, None, "Tell me a story about a frog.").unwrap();
    until(&mut it, &|window| !window.shell.chat_controller.is_busy());
    let shell = &it.state().as_ref().unwrap().shell;
    assert!(shell.store.branch(chat).unwrap()[1].content.contains("Once"));
    rest(&mut it);
}

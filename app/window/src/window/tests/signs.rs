//! Notices of what was done: a copy, a running server.

use egui::{Key, accesskit::Role};

use crate::{command::Page, testing::TestWindow};

const SIZE: [f32; 2] = [1440.0, 900.0];

#[test]
fn copies_are_told() {
    let mut stage = TestWindow::opened(SIZE);
    stage.types("Tell me a story about a boat.");
    // Copying by keyboard shows no notice.
    stage.ctrl(Key::A);
    stage.it.event(egui::Event::Copy);
    stage.step();
    assert!(!stage.shows("Copied to the clipboard"));
    stage.press(Key::Enter);
    stage.answered();
    for button in ["Copy message", "Copy answer"] {
        stage.click(button);
        assert!(stage.shows("Copied to the clipboard"), "{button}: {:?}", stage.texts());
        stage.click("Close this notice");
    }
}

#[test]
fn server_that_is_on_is_seen_above_every_page() {
    let mut stage = TestWindow::opened_with(SIZE, |_, settings| (settings.server.on, settings.server.port) = (true, 0));
    stage.until("the sign", |window| window.shell.settings.server.on);
    assert!(stage.has(Role::Button, "Server"));
    stage.tap(stage.role(Role::Button, "Server").rect().center());
    assert_eq!(stage.it.state().page, Page::Preferences);
    assert!(stage.has(Role::Button, "Server"));
    stage.shell().settings.server.on = false;
    stage.step();
    assert!(!stage.has(Role::Button, "Server"));
}

//! What can be chosen, chosen.

use egui::{Key, accesskit::Role};

use super::*;
use crate::ui::testing::Stage;

const SIZE: [f32; 2] = [1200.0, 1400.0];

fn page(stage: &mut Stage) {
    stage.click("Settings");
    assert_eq!(stage.it.state().page, Page::Preferences);
}

#[test]
fn the_zoom_waits_until_it_is_let_go() {
    let mut stage = Stage::new(SIZE);
    page(&mut stage);
    let rect = stage.role(Role::Slider, "Size of everything").rect();
    let to = rect.right_center() - egui::vec2(2.0, 0.0);
    stage.it.hover_at(rect.center());
    stage.it.drag_at(rect.center());
    stage.it.hover_at(to);
    stage.step();
    assert_eq!(stage.it.ctx.zoom_factor(), 1.0, "the window would grow under the pointer");
    stage.it.drop_at(to);
    stage.step();
    assert!(stage.it.ctx.zoom_factor() > 2.5, "{}", stage.it.ctx.zoom_factor());
}

#[test]
fn places_are_told_and_copied_and_keys_are_listed() {
    let mut stage = Stage::new(SIZE);
    page(&mut stage);
    let (settings, chats) = (stage.folders.settings(), stage.folders.chats());
    for (button, path) in [("Copy the path: Settings", settings), ("Copy the path: Chats", chats)] {
        stage.control(button).click();
        stage.it.step();
        assert_eq!(stage.copied(), Some(path.display().to_string()));
    }
    assert!(stage.shows("Search all chats") && stage.shows("Begin a new line"));
    stage.press(Key::F1);
    stage.click("Close");
    stage.press(Key::F1);
    stage.press(Key::Escape);
    assert!(!stage.shows("Close"));
}

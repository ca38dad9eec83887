//! What can be chosen, chosen.

use egui::{Key, accesskit::Role};

use super::*;
use crate::{settings::Settings, ui::testing::Stage};

const SIZE: [f32; 2] = [1200.0, 1400.0];

fn page(stage: &mut Stage) {
    stage.click("Settings");
    assert_eq!(stage.it.state().page, Page::Preferences);
}

#[test]
fn colours_size_and_movement_are_chosen_seen_at_once_and_kept() {
    let mut stage = Stage::new(SIZE);
    page(&mut stage);
    for (name, theme, seen) in [
        ("Light", Theme::Light, egui::Theme::Light),
        ("Dark", Theme::Dark, egui::Theme::Dark),
        ("Light", Theme::Light, egui::Theme::Light),
    ] {
        stage.click(name);
        assert_eq!((stage.shell().settings.theme, stage.it.ctx.theme()), (theme, seen));
    }
    stage.role(Role::Slider, "Size of everything").set_value_accesskit(1.25);
    stage.step();
    assert_eq!((f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor()), (1.25, 1.25));
    // The keys of the window are heard as well.
    stage.ctrl(Key::Plus);
    assert!(stage.it.ctx.zoom_factor() > 1.25);
    assert_eq!(f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor());
    stage.click("Less movement: what opens and closes does so at once");
    assert!(!stage.shell().settings.reduced_motion && stage.it.ctx.global_style().animation_time > 0.0);

    let path = stage.folders.settings();
    stage.until("the file", |_| {
        Settings::load(&path).is_ok_and(|(it, _)| it.theme == Theme::Light && !it.reduced_motion)
    });
    stage.click("Reset");
    assert_eq!((f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor()), (1.0, 1.0));
    stage.click("As the system");
    assert_eq!(stage.shell().settings.theme, Theme::System);
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

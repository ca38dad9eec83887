//! Signs of what was done: a copy, a server that runs, one's own message.

use egui::{CornerRadius, Key, Shape, accesskit::Role, epaint::RectShape};

use crate::{
    settings::Theme,
    store::{NewMessage, Store},
    ui::{
        command::Page,
        testing::TestWindow,
        theme::{Palette, RADIUS},
    },
};

const SIZE: [f32; 2] = [1440.0, 900.0];

#[test]
fn copies_are_told() {
    let mut stage = TestWindow::new(SIZE);
    stage.ready();
    stage.types("Tell me a story about a boat.");
    // Who presses the keys knows.
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
    let mut stage = TestWindow::with(SIZE, |_, settings| (settings.server.on, settings.server.port) = (true, 0));
    stage.ready();
    stage.until("the sign", |window| window.shell.settings.server.on);
    assert!(stage.has(Role::Button, "Server"));
    stage.tap(stage.role(Role::Button, "Server").rect().center());
    assert_eq!(stage.it.state().page, Page::Preferences);
    assert!(stage.has(Role::Button, "Server"));
    stage.shell().settings.server.on = false;
    stage.step();
    assert!(!stage.has(Role::Button, "Server"));
}

fn each_rect(shape: &Shape, rect: &mut impl FnMut(&RectShape)) {
    match shape {
        Shape::Vec(shapes) => shapes.iter().for_each(|shape| each_rect(shape, rect)),
        Shape::Rect(drawn) => rect(drawn),
        _ => {}
    }
}

#[test]
fn own_message_has_an_outline_in_both_themes() {
    for (theme, palette) in [(Theme::Dark, Palette::DARK), (Theme::Light, Palette::LIGHT)] {
        let mut stage = TestWindow::with(SIZE, |folders, settings| {
            let (mut store, _) = Store::open(&folders.chats()).unwrap();
            let chat = store.add_chat(None, "").unwrap();
            store.add_message(chat, None, &NewMessage::user("Tell me about a frog.")).unwrap();
            (settings.theme, settings.last_chat) = (theme, Some(chat.number()));
        });
        stage.ready();
        stage.step();
        let mut outlines = Vec::new();
        let mut own = |rect: &RectShape| {
            if rect.fill == palette.raised && rect.corner_radius == CornerRadius::same(RADIUS + 4) {
                outlines.push(rect.stroke);
            }
        };
        stage.it.output().shapes.iter().for_each(|drawn| each_rect(&drawn.shape, &mut own));
        assert!(!outlines.is_empty(), "no message of one's own is drawn");
        assert!(outlines.iter().all(|it| it.width >= 1.0 && it.color == palette.line), "{theme:?}: {outlines:?}");
    }
}

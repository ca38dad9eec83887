//! Tests of the settings through the window.

use std::net::{Ipv4Addr, TcpListener};

use egui::{Key, accesskit::Role};

use super::*;
use crate::testing::TestWindow;
use thermocline_chats::settings::Settings;
use thermocline_host::library::ModelId;

const SIZE: [f32; 2] = [1200.0, 1400.0];

fn page(stage: &mut TestWindow) {
    stage.click("Settings");
    assert_eq!(stage.it.state().page, Page::Preferences);
}

#[test]
fn theme_zoom_and_motion_settings_apply_at_once_and_are_saved() {
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    for (name, theme, seen) in [
        ("Light", Theme::Light, egui::Theme::Light),
        ("Dark", Theme::Dark, egui::Theme::Dark),
        ("Light", Theme::Light, egui::Theme::Light),
    ] {
        stage.click(name);
        assert_eq!((stage.shell().settings.theme, stage.it.ctx.theme()), (theme, seen));
    }
    stage.role(Role::Slider, "Interface size").set_value_accesskit(1.25);
    stage.step();
    assert_eq!((f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor()), (1.25, 1.25));
    // Zoom keys change the setting, too.
    stage.ctrl(Key::Plus);
    assert!(stage.it.ctx.zoom_factor() > 1.25);
    assert_eq!(f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor());
    stage.click("Reduce motion (no animations)");
    assert!(!stage.shell().settings.reduced_motion && stage.it.ctx.global_style().animation_time > 0.0);
    // If the CPU draws the window, nothing is animated, whatever the setting.
    thermocline_rich_text::frame_pace::set_draws_by_cpu(&stage.it.ctx, true);
    for reduced in [true, false] {
        stage.click("Reduce motion (no animations)");
        assert_eq!((stage.shell().settings.reduced_motion, stage.it.ctx.global_style().animation_time), (reduced, 0.0));
    }

    let path = stage.folders.settings();
    stage.until("the file", |_| {
        Settings::load(&path).is_ok_and(|(it, _)| it.theme == Theme::Light && !it.reduced_motion)
    });
    stage.click("Reset");
    assert_eq!((f32::from(stage.shell().settings.zoom), stage.it.ctx.zoom_factor()), (1.0, 1.0));
    stage.click("Use system setting");
    assert_eq!(stage.shell().settings.theme, Theme::System);
}

#[test]
fn zoom_slider_applies_on_release() {
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    let rect = stage.role(Role::Slider, "Interface size").rect();
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
fn data_paths_are_copied_and_keys_are_listed() {
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    let (settings, chats) = (stage.folders.settings(), stage.folders.chats());
    for (button, path) in [("Copy the path: Settings", settings), ("Copy the path: Chats", chats)] {
        stage.control(button).click();
        stage.it.step();
        assert_eq!(stage.copied(), Some(path.display().to_string()));
    }
    assert!(stage.shows("Search all chats") && stage.shows("Start a new line"));
    stage.press(Key::F1);
    stage.click("Close");
    assert!(!stage.has(Role::Button, "Close"));
    stage.press(Key::F1);
    assert!(stage.has(Role::Button, "Close"));
    stage.press(Key::Escape);
    assert!(!stage.has(Role::Button, "Close") && stage.it.state().page == Page::Preferences, "the list alone is left");
}

const SERVE: &str = "Serve this model to other programs";

/// The server's response on a port for a path: status and body.
fn get(port: u16, path: &str, body: Option<&str>) -> Result<(u16, String), ureq::Error> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
    let url = format!("http://127.0.0.1:{port}{path}");
    let mut response = match body {
        None => agent.get(url).call()?,
        Some(body) => agent.post(url).content_type("application/json").send(body)?,
    };
    Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
}

#[test]
fn server_answers_with_the_open_model_while_it_is_on() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.server.port = port);
    page(&mut stage);
    stage.ready();
    assert!(!stage.shows("Copy the address") && !stage.shell().settings.server.on, "it is off until it is wanted");

    stage.click(SERVE);
    stage.appears(&format!("Port {port} is taken"));
    assert!(!stage.shows("Copy the address"));
    drop(taken);
    stage.click("Try again");
    let url = format!("http://127.0.0.1:{port}/v1");
    stage.appears(&url);
    assert!(stage.shows("no requests yet"), "{:?}", stage.texts());
    assert!(!stage.shows(&format!("Port {port} is taken")));
    stage.control("Copy the address").click();
    stage.it.step();
    assert_eq!(stage.copied(), Some(url));

    let question = r#"{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 3}"#;
    let (status, body) = get(port, "/v1/chat/completions", Some(question)).unwrap();
    assert!(status == 200 && body.contains(r#""completion_tokens":3"#) && body.contains("Storyteller"), "{body}");
    stage.appears("1 request");
    let engine = stage.shell().engine_handle.engine().unwrap();
    assert_eq!(engine.telemetry().generated_tokens, 3, "by the engine of the window");
    get(port, "/nowhere", None).unwrap();
    stage.appears("Last refused request: GET /nowhere");

    // The server releases a model that is closed.
    let old = std::sync::Arc::downgrade(engine.model());
    drop(engine);
    stage.shell().engine_handle.close();
    stage.until("the old model to be gone", |_| old.strong_count() == 0);
    let (status, body) = get(port, "/v1/chat/completions", Some(question)).unwrap();
    assert!(status == 503 && body.contains("no model is open"), "{body}");
    stage.shell().open_model(ModelId::Builtin);
    stage.ready();
    assert_eq!(get(port, "/v1/chat/completions", Some(question)).unwrap().0, 200);

    // The key takes effect once it is complete.
    stage.write("API key", "geheim");
    assert_eq!(get(port, "/v1/models", None).unwrap().0, 200);
    stage.press(Key::Tab);
    assert_eq!((&*stage.shell().settings.server.key, get(port, "/v1/models", None).unwrap().0), ("geheim", 401));

    // The server is on after a restart, and stops when it is switched off.
    let mut stage = stage.again();
    page(&mut stage);
    stage.appears("Copy the address");
    assert_eq!(get(port, "/v1/models", None).unwrap().0, 401);
    stage.click(SERVE);
    assert!(!stage.shows("Copy the address") && get(port, "/health", None).is_err());
}

#[test]
fn server_without_a_key_on_a_network_shows_a_warning_and_port_moves() {
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.server.port = 0);
    page(&mut stage);
    stage.click("Allow connections from other computers");
    assert!(!stage.shows("Connections from other computers need an API key"), "it is off");
    stage.click(SERVE);
    stage.appears("Connections from other computers need an API key");
    stage.appears("needs a key");
    stage.write("API key", "geheim");
    stage.press(Key::Tab);
    stage.appears("http://127.0.0.1:");
    assert!(stage.shows("this computer's address or name"));
    assert!(!stage.shows("Connections from other computers need an API key"));
    // The server moves to another port.
    assert_eq!(stage.shell().settings.server.port, 0);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    stage.role(Role::SpinButton, "Port").set_value_accesskit(f64::from(free));
    stage.appears(&format!("http://127.0.0.1:{free}/v1"));
    assert_eq!((stage.shell().settings.server.port, get(free, "/health", None).is_ok()), (free, true));
}

//! The card of the server for other programs.

use egui::{DragValue, Id, RichText, TextStyle, Ui};

use super::title;
use crate::shell::Shell;
use thermocline_chats::server_switch::ServerState;
use thermocline_host::units::counted;
use thermocline_rich_text::{text::TextField, theme::Palette, widgets};

/// The card of the server.
#[derive(Debug, Default)]
pub struct Serving {
    /// The port while it is dragged, and the key while it is typed. The server must not start with
    /// half a key.
    port: Option<u16>,
    key: Option<String>,
}

impl Serving {
    /// Shows the card.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        title(ui, "Other programs");
        let settings = &mut shell.settings.server;
        ui.checkbox(&mut settings.on, "Serve this model to other programs").on_hover_text(
            "Serves the open model through an OpenAI-compatible HTTP API. Requests and chats take turns.",
        );
        ui.horizontal(|ui| {
            let label = ui.label("Port").id;
            let mut port = self.port.unwrap_or(settings.port);
            let field = DragValue::new(&mut port).range(0..=u16::MAX).speed(1.0).update_while_editing(false);
            let field = ui
                .add(field)
                .labelled_by(label)
                .on_hover_text("The port that programs connect to. 0 chooses a free port.");
            if field.dragged() {
                self.port = Some(port);
            } else if field.changed() || self.port.is_some() {
                self.port = None;
                settings.port = port;
            }
            let label = ui.label("API key").id;
            let mut key = self.key.clone().unwrap_or_else(|| settings.key.clone());
            let field = TextField::line(Id::unique("key of this server"), TextStyle::Body.resolve(ui.style()));
            let field = field.show(ui, &mut key, |field| field.hint_text("optional").desired_width(200.0));
            let field = field.labelled_by(label).on_hover_text("Programs must send this key with each request");
            if field.changed() {
                self.key = Some(key);
            }
            if !field.has_focus()
                && let Some(key) = self.key.take()
            {
                settings.key = key.trim().to_owned();
            }
        });
        ui.checkbox(&mut settings.network, "Allow connections from other computers")
            .on_hover_text("Any computer on the network can then connect");
        if settings.on && settings.network && settings.key.is_empty() {
            let palette = Palette::of(ui);
            let warning = "Connections from other computers need an API key. Enter one.";
            ui.label(widgets::small(warning, palette.amber));
        }
        match shell.serving.state() {
            ServerState::Off => {}
            ServerState::On { url, status } => {
                ui.horizontal_wrapped(|ui| {
                    ui.label(RichText::new(&url).monospace());
                    let copy = "Copy the address";
                    if ui.button("Copy").accessible_name(copy).on_hover_text(copy).clicked() {
                        ui.copy_text(url);
                    }
                    let mut said = match status.requests {
                        0 => "no requests yet".to_owned(),
                        n => counted(n as usize, "request"),
                    };
                    if status.answering {
                        said += ", one is being answered";
                    }
                    if status.waiting > 0 {
                        said += &format!(", {} waiting", status.waiting);
                    }
                    widgets::muted(ui, said);
                });
                if shell.settings.server.network {
                    widgets::muted(ui, "On other computers, replace 127.0.0.1 with this computer's address or name.");
                }
                if let Some(error) = status.last_error {
                    widgets::muted(ui, format!("Last refused request: {error}"));
                }
            }
            ServerState::Failed(why) => {
                widgets::trouble(ui, why);
                if ui.button("Try again").clicked() {
                    shell.serving.retry();
                }
            }
        }
    }
}

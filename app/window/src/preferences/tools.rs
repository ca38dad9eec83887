//! The servers of tools, and the user's consent to each tool.

use egui::{CollapsingHeader, Id, Key, KeyboardShortcut, Modifiers, RichText, TextStyle, Ui};

use super::title;
use crate::{keyboard, shell::Shell};
use thermocline_chats::tools::{
    Consent, ImportedServer, ServerReport, Tool, ToolServerState, builtin::Builtin, read_servers,
};
use thermocline_host::{
    remote::{KeyPlace, SecretKey},
    units::counted,
};
use thermocline_rich_text::{
    background::Background,
    text::TextField,
    theme::{self, Palette},
    widgets,
};

/// Maximum number of characters of a description.
const DESCRIBED: usize = 160;

/// Servers whose keys were stored, or the error.
type AddedServers = Result<(Vec<ImportedServer>, Option<KeyPlace>), String>;

/// The card of tools.
#[derive(Debug, Default)]
pub struct ToolsCard {
    /// The typed or pasted text: a command, an address, or JSON.
    text: String,
    /// The typed key.
    key: String,
    trouble: Option<String>,
    adding: Background<AddedServers>,
}

impl ToolsCard {
    /// Shows the card.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        title(ui, "Tools");
        widgets::muted(
            ui,
            "Tools that models may call. Turn them on for a chat with the toolbox below the message field. The tools of MCP servers ask \
             before they run, unless you allow them.",
        );
        for builtin in Builtin::ALL {
            tool(ui, shell, None, &builtin.tool());
        }
        shell.follow_tools(true);
        let reports = shell.chat_controller.tools().map(|tools| tools.hub().servers()).unwrap_or_default();
        for report in &reports {
            ui.separator();
            ui.push_id(("server", &report.config.name), |ui| server(ui, shell, report));
        }
        ui.separator();
        self.fields(ui, shell);
    }

    /// True if the text field has a server that is not added yet.
    pub fn is_typed(&self) -> bool {
        !self.text.trim().is_empty()
    }

    fn fields(&mut self, ui: &mut Ui, shell: &mut Shell) {
        match self.adding.take() {
            Some(Ok((servers, place))) => {
                if let Some(place) = place {
                    shell.toasts.success(widgets::sentence(place));
                }
                let added = servers.into_iter().try_for_each(|server| shell.settings.tools.add(server.config));
                self.trouble = added.err();
            }
            Some(Err(why)) => self.trouble = Some(why),
            None => {}
        }
        let label = ui.label("Server to add: a command, an address, or JSON with mcpServers").id;
        let (id, font) = (Id::unique("tool server"), TextStyle::Body.resolve(ui.style()));
        let field = TextField::lines(id, font).show(ui, &mut self.text, |field| {
            field
                .desired_rows(1)
                .desired_width(f32::INFINITY)
                .return_key(KeyboardShortcut::new(Modifiers::SHIFT, Key::Enter))
                .hint_text("npx -y @modelcontextprotocol/server-filesystem ~/Documents")
        });
        let field = field.labelled_by(label);
        ui.horizontal(|ui| {
            let label = ui.label("API key of the server").id;
            let width = (ui.available_width() - 144.0).max(96.0);
            let key = TextField::secret(Id::unique("key of a tool server"), TextStyle::Body.resolve(ui.style()));
            let hint = "if required";
            let key =
                key.show(ui, &mut self.key, |field| field.hint_text(hint).desired_width(width)).labelled_by(label);
            let ready = self.is_typed() && !self.adding.is_busy();
            let add = ui.add_enabled(ready, egui::Button::new("Add tool server"));
            let add = add.on_hover_text("Starts the server or connects to it, then lists its tools (Enter)").clicked();
            let entered = (field.has_focus() || key.lost_focus()) && keyboard::pressed(ui, Modifiers::NONE, Key::Enter);
            if add || (entered && ready) {
                self.add(ui, shell);
            }
        });
        if let Some(why) = &self.trouble {
            widgets::trouble(ui, why);
        }
    }

    /// Parses the servers in the text field, with the key.
    fn typed(&self) -> Result<Vec<ImportedServer>, String> {
        let mut servers = read_servers(&self.text)?;
        if let Some(key) = SecretKey::typed(&self.key)? {
            match &mut servers[..] {
                [server] if server.config.transport.key_name().is_some() => server.key = Some(key),
                _ => return Err("a key needs exactly one server with an address".to_owned()),
            }
        }
        Ok(servers)
    }

    fn add(&mut self, ui: &Ui, shell: &mut Shell) {
        let servers = match self.typed() {
            Ok(servers) => servers,
            Err(why) => return self.trouble = Some(why),
        };
        self.trouble = None;
        let keys = shell.keys.clone();
        // The keychain may wait for the user.
        let work = move || {
            let mut place = None;
            for server in &servers {
                if let (Some(name), Some(key)) = (server.config.transport.key_name(), &server.key) {
                    place = Some(keys.set(name, key).map_err(|error| error.to_string())?);
                }
            }
            Ok((servers, place))
        };
        shell.toasts.check(self.adding.start(ui, work));
        self.text.clear();
        self.key.clear();
    }
}

fn server(ui: &mut Ui, shell: &mut Shell, report: &ServerReport) {
    let palette = Palette::of(ui);
    let ServerReport { config, state } = report;
    let name = &config.name;
    ui.label(RichText::new(name).font(theme::strong(14.0)));
    widgets::muted(ui, config.transport.line());
    if config.transport.is_open() {
        ui.label(widgets::small(
            "Not encrypted. Others on the network can read the messages and the key",
            palette.amber,
        ));
    }
    ui.horizontal_wrapped(|ui| {
        let mut enabled = config.enabled;
        if ui.checkbox(&mut enabled, format!("Use {name}")).changed()
            && let Some(kept) = shell.settings.tools.servers.iter_mut().find(|kept| kept.name == *name)
        {
            kept.enabled = enabled;
        }
        let remove = ui.button("Remove").accessible_name(format!("Remove the tool server {name}"));
        if remove.on_hover_text("Removes the server, its key and the permissions of its tools").clicked() {
            shell.settings.tools.remove(name);
            if let Some(key) = config.transport.key_name() {
                shell.toasts.check(shell.keys.remove(key));
            }
        }
        match state {
            ToolServerState::Off => widgets::muted(ui, "off"),
            ToolServerState::Connecting => widgets::muted(ui, "connecting …"),
            ToolServerState::Ready { .. } => ui.label(widgets::small("connected", palette.good)),
            ToolServerState::Failed(_) => {
                let again = ui.button("Connect again").accessible_name(format!("Connect again to {name}"));
                if again.clicked()
                    && let Some(tools) = shell.chat_controller.tools()
                {
                    tools.hub().retry(name);
                }
                ui.label(widgets::small("not connected", palette.bad))
            }
        };
    });
    match state {
        ToolServerState::Failed(why) => {
            widgets::trouble(ui, why);
        }
        ToolServerState::Ready { tools, remark } => {
            if let Some(remark) = remark {
                ui.label(widgets::small(widgets::sentence(remark), palette.amber));
            }
            let line = widgets::small(format!("{} of {name}", counted(tools.len(), "tool")), palette.text);
            CollapsingHeader::new(line).id_salt("tools").default_open(tools.len() <= 4).show(ui, |ui| {
                for one in tools.iter() {
                    tool(ui, shell, Some(name), one);
                }
            });
        }
        ToolServerState::Off | ToolServerState::Connecting => {}
    }
}

/// Shows a tool with the user's consent to it.
fn tool(ui: &mut Ui, shell: &mut Shell, server: Option<&str>, tool: &Tool) {
    let now = shell.settings.tools.consents.get(server, tool);
    ui.push_id(&tool.name, |ui| {
        ui.horizontal_wrapped(|ui| {
            ui.label(RichText::new(&tool.name).monospace());
            for (consent, name) in Consent::NAMES {
                let choice = ui.selectable_label(now == consent, name);
                let whole = match consent {
                    Consent::Ask => format!("Ask before {}", tool.name),
                    Consent::Always => format!("Always allow {}", tool.name),
                    Consent::Never => format!("Never allow {}", tool.name),
                };
                if choice.accessible_name(whole).clicked() {
                    shell.settings.tools.consents.set(server, tool, consent);
                }
            }
        });
        let described = tool.described(DESCRIBED);
        if !described.is_empty() {
            widgets::muted(ui, described);
        }
    });
}

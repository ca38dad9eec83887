//! Servers with their own models. The user adds a server by address and key, and opens its models
//! like local ones.

use std::collections::HashMap;

use egui::{Align, Id, RichText, TextStyle, Ui};

use crate::{command::Command, shell::Shell};
use thermocline_host::{
    engine_handle::ModelState,
    library::ModelId,
    remote::{KeyPlace, KeyStore, RemoteClient, RemoteError, RemoteModel, RemoteTimeouts, SecretKey, ServerAddress},
};
use thermocline_rich_text::{
    background::Background,
    text::TextField,
    theme::{self, Palette},
    widgets,
};

/// Maximum number of a server's models shown. The filter finds the others.
const SHOWN: usize = 40;

/// Names of a server's models, or the reason why they are unknown.
type ListedModels = Result<Vec<String>, NotListed>;

/// Why the models of a server are unknown.
#[derive(Debug)]
struct NotListed {
    why: String,
    /// True if the server asks for a key, or for another one.
    wants_key: bool,
}

impl NotListed {
    fn other(why: impl ToString) -> Self {
        NotListed { why: why.to_string(), wants_key: false }
    }
}

/// The answer of a server: its models, and where its new key is stored.
#[derive(Debug)]
struct Answered {
    server: ServerAddress,
    kept: Result<Option<KeyPlace>, String>,
    listed: ListedModels,
}

/// The view of the servers: fields to add one, and the models of each.
#[derive(Debug, Default)]
pub struct ServersView {
    /// The typed address.
    address: String,
    /// The typed key.
    key: String,
    /// A sentence about a wrong address or key.
    trouble: Option<String>,
    adding: Background<Answered>,
    /// The last added server, until the page has scrolled to it.
    added: Option<ServerAddress>,
    known: HashMap<ServerAddress, KnownServer>,
}

/// The models of one server, as far as they are known.
#[derive(Debug, Default)]
struct KnownServer {
    asking: Background<Answered>,
    listed: Option<ListedModels>,
    /// The typed key.
    key: String,
    /// Text that every shown model name contains.
    filter: String,
}

impl ServersView {
    /// Shows the servers.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ui.add_space(8.0);
        ui.label(RichText::new("Models on servers").font(theme::strong(15.0)));
        self.follow(shell);
        widgets::card(ui, |ui| self.fields(ui, shell));
        let servers = shell.settings.remote_servers.clone();
        for server in servers {
            let known = self.known.entry(server.clone()).or_default();
            let shown = ui.push_id(server.as_str(), |ui| widgets::card(ui, |ui| known.show(ui, shell, &server)));
            if self.added.take_if(|added| *added == server).is_some() {
                shown.response.scroll_to_me(Some(Align::Center));
            }
        }
        self.known.retain(|server, _| shell.settings.remote_servers.contains(server));
    }

    /// Takes the answer of the server that is being added.
    fn follow(&mut self, shell: &mut Shell) {
        let Some(Answered { server, kept, listed }) = self.adding.take() else { return };
        if !tell_of_key(shell, kept) {
            return;
        }
        if !shell.settings.remote_servers.contains(&server) {
            shell.settings.remote_servers.push(server.clone());
        }
        self.added = Some(server.clone());
        self.known.insert(server, KnownServer { listed: Some(listed), ..KnownServer::default() });
    }

    fn fields(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let text = "Any OpenAI-compatible server, such as vLLM, SGLang, llama-server or another Thermocline";
        let label = widgets::muted(ui, text).id;
        let font = TextStyle::Body.resolve(ui.style());
        let address = TextField::line(Id::unique("address of a server"), font.clone());
        let address = address
            .show(ui, &mut self.address, |field| field.hint_text("http://host:8000/v1").desired_width(f32::INFINITY));
        let address = address.labelled_by(label);
        let mut entered = address.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
        ui.horizontal(|ui| {
            let label = ui.label("API key of the server").id;
            let width = (ui.available_width() - 104.0).max(96.0);
            let key = TextField::secret(Id::unique("key of a server"), font);
            let key = key.show(ui, &mut self.key, |field| field.hint_text("if required").desired_width(width));
            let key = key.labelled_by(label);
            entered |= key.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
            let ready = !self.address.trim().is_empty() && !self.adding.is_busy();
            let add = ui.add_enabled(ready, egui::Button::new("Add server"));
            entered = ready && (entered || add.on_hover_text("Adds the server and lists its models").clicked());
        });
        if self.adding.is_busy() {
            ui.spinner();
        }
        if let Some(why) = &self.trouble {
            widgets::trouble(ui, why);
        }
        if entered {
            self.add(ui, shell);
        }
    }

    fn add(&mut self, ui: &Ui, shell: &mut Shell) {
        let server = self.address.parse::<ServerAddress>().map_err(|error| error.to_string());
        let typed = server.and_then(|server| Ok((server, SecretKey::typed(&self.key)?)));
        let (server, key) = match typed {
            Ok(typed) => typed,
            Err(why) => return self.trouble = Some(why),
        };
        self.trouble = None;
        let keys = shell.keys.clone();
        shell.toasts.check(self.adding.start(ui, move || ask(server, key.as_ref(), &keys)));
        self.address.clear();
        self.key.clear();
    }
}

/// Reports where a key is stored. False if it could not be stored.
fn tell_of_key(shell: &mut Shell, kept: Result<Option<KeyPlace>, String>) -> bool {
    match kept {
        Ok(Some(place)) => shell.toasts.success(widgets::sentence(place)),
        Ok(None) => {}
        Err(why) => {
            shell.show_error(why);
            return false;
        }
    }
    true
}

/// Stores the `key` of a server, if there is a new one, and requests the server's models. May wait
/// for the user to unlock the keychain.
fn ask(server: ServerAddress, key: Option<&SecretKey>, keys: &KeyStore) -> Answered {
    let kept = key.map(|key| keys.set(&server, key).map_err(|error| error.to_string())).transpose();
    let listed = list(&server, keys);
    Answered { server, kept, listed }
}

fn list(server: &ServerAddress, keys: &KeyStore) -> ListedModels {
    let key = keys.get(server).map_err(NotListed::other)?;
    let had_key = key.is_some();
    let client = RemoteClient::new(server.clone(), key, RemoteTimeouts::default());
    client.models().map_err(|error| match error {
        RemoteError::Status { status: 401 | 403, .. } => {
            let why =
                if had_key { "This server does not accept the API key." } else { "This server needs an API key." };
            NotListed { why: why.to_owned(), wants_key: true }
        }
        error => NotListed::other(error),
    })
}

impl KnownServer {
    fn show(&mut self, ui: &mut Ui, shell: &mut Shell, server: &ServerAddress) {
        if let Some(Answered { kept, listed, .. }) = self.asking.take()
            && tell_of_key(shell, kept)
        {
            self.listed = Some(listed);
        }
        let palette = Palette::of(ui);
        ui.label(RichText::new(server.host()).font(theme::strong(14.0)));
        widgets::muted(ui, server.as_str());
        let colour = if server.is_private() { palette.muted } else { palette.amber };
        ui.label(widgets::small(server.destination(), colour));
        ui.horizontal(|ui| {
            let text = if self.listed.is_some() { "Refresh models" } else { "Show its models" };
            let ask = ui.add_enabled(!self.asking.is_busy(), egui::Button::new(text));
            if ask.on_hover_text(format!("Refresh the model list of {}", server.host())).clicked() {
                self.ask(ui, shell, server, None);
            }
            let remove = ui.button("Remove").accessible_name(format!("Remove {}", server.host()));
            if remove.on_hover_text("Removes the server and its key").clicked()
                && shell.toasts.check(shell.keys.remove(server)).is_some()
            {
                shell.settings.remote_servers.retain(|it| it != server);
            }
            if self.asking.is_busy() {
                ui.spinner();
            }
        });
        match &self.listed {
            None => {}
            Some(Err(NotListed { why, .. })) => {
                widgets::trouble(ui, why);
            }
            Some(Ok(models)) if models.is_empty() => {
                widgets::muted(ui, "The server has no models.");
            }
            Some(Ok(models)) => {
                if models.len() > SHOWN {
                    let label = ui.label(format!("Filter {} models", models.len())).id;
                    let font = TextStyle::Body.resolve(ui.style());
                    let field = TextField::line(Id::unique(("filter of models", server)), font);
                    field.show(ui, &mut self.filter, |field| field).labelled_by(label);
                }
                let filter = self.filter.to_lowercase();
                let found = models.iter().filter(|name| name.to_lowercase().contains(&filter));
                for name in found.take(SHOWN) {
                    model(ui, shell, RemoteModel { server: server.clone(), name: name.clone() });
                }
            }
        }
        if matches!(self.listed, Some(Err(NotListed { wants_key: true, .. }))) {
            self.key_field(ui, shell, server);
        }
    }

    fn ask(&mut self, ui: &Ui, shell: &mut Shell, server: &ServerAddress, key: Option<SecretKey>) {
        let (asked, keys) = (server.clone(), shell.keys.clone());
        shell.toasts.check(self.asking.start(ui, move || ask(asked, key.as_ref(), &keys)));
    }

    /// Shows a field for the key that the server asks for.
    fn key_field(&mut self, ui: &mut Ui, shell: &mut Shell, server: &ServerAddress) {
        let entered = ui.horizontal(|ui| {
            let name = format!("API key of {}", server.host());
            let label = ui.label("API key").id;
            let field = TextField::secret(Id::unique(("key of", server)), TextStyle::Body.resolve(ui.style()));
            let width = (ui.available_width() - 104.0).max(96.0);
            let field = field.show(ui, &mut self.key, |field| field.desired_width(width)).labelled_by(label);
            let typed = !self.key.trim().is_empty() && !self.asking.is_busy();
            let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
            let button = ui.add_enabled(typed, egui::Button::new("Use key")).accessible_name(format!("Use the {name}"));
            typed && (button.on_hover_text("Saves the key and lists the models").clicked() || entered)
        });
        if entered.inner
            && let Some(key) = shell.toasts.check(SecretKey::typed(&self.key))
        {
            self.key.clear();
            self.ask(ui, shell, server, key);
        }
    }
}

/// Shows a model of a server, with the button that opens or closes it.
fn model(ui: &mut Ui, shell: &mut Shell, model: RemoteModel) {
    let state = shell.engine_handle.state();
    ui.horizontal_wrapped(|ui| {
        let name = &model.name;
        match &state {
            ModelState::Remote { model: open, .. } if *open == model => {
                let close = ui.button("Close").accessible_name(format!("Close {name}"));
                if close.on_hover_text("Stops using this server's model").clicked() {
                    shell.queue_command(Command::CloseModel);
                }
            }
            ModelState::Opening(opening) if opening.model == ModelId::Remote(model.clone()) => {
                ui.spinner();
            }
            _ => {
                let open = ui.button("Open").accessible_name(format!("Open {name}"));
                if open.on_hover_text(model.server.destination()).clicked() {
                    shell.queue_command(Command::OpenModel(ModelId::Remote(model.clone())));
                }
            }
        }
        ui.label(name);
        if let ModelState::Failed { model: failed, reason, .. } = &state
            && *failed == ModelId::Remote(model.clone())
        {
            widgets::trouble(ui, reason);
        }
    });
}

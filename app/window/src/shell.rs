//! State shared by all panels: engine, settings, folders, downloads.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use egui::Context;
use thermocline_engine::session::{AdapterChoice, DeviceChoice, EngineOptions, GpuOptions};

use crate::{
    adapters::Adapters, command::Command, models::Preparation, neurons::NeuronMarks, passage_models::PassageModels,
    settings_file::SettingsFile, toasts::Toasts, vram::VramState,
};
use thermocline_chats::{
    chat::{ChatController, StopCause},
    download::Downloads,
    server_switch::ServerSwitch,
    settings::{ModelSettings, VramBudget},
    store::{ChatId, Store, StoreError},
    tools::{ToolHub, ToolLimits, Toolbox},
};
use thermocline_host::{
    builtin,
    engine_handle::{EngineHandle, ModelState},
    folders::Folders,
    library::ModelId,
    remote::KeyStore,
};
use thermocline_rich_text::{waker::Waker, widgets};

/// Interval between attempts to change the chats while another connection writes.
const LOCKED: Duration = Duration::from_millis(100);

/// A change of the chats.
type ChatChange = Box<dyn FnOnce(&mut Store) -> Result<(), StoreError>>;

/// The state outside a panel.
pub struct Shell {
    /// The folders of all files.
    pub folders: Folders,
    /// The user's settings.
    pub settings: SettingsFile,
    /// The chats.
    pub store: Store,
    /// Number of the shown chat.
    pub shown: Option<i64>,
    /// The engine.
    pub engine_handle: EngineHandle,
    /// Answers that are being written, in any chat.
    pub chat_controller: ChatController,
    /// The server through which other programs use the model.
    pub serving: ServerSwitch,
    /// The model downloads.
    pub downloads: Downloads,
    /// The latest preparation of a model, running or ended.
    pub preparation: Option<Preparation>,
    /// API keys of model servers.
    pub keys: KeyStore,
    /// GPUs of this machine.
    pub adapters: Adapters,
    /// Marks that the neuron map sets in the chat, and the chat on the map.
    pub marks: NeuronMarks,
    /// Embedding models that find passages of files.
    pub passage_models: PassageModels,
    /// The estimates and choices for the VRAM of the open model.
    pub vram: VramState,
    /// Set after the latest comparison has restored the model's mode and budget.
    pub compared: Arc<AtomicBool>,
    /// The notices below the top bar.
    pub toasts: Toasts,
    commands: Vec<Command>,
    /// Pending changes of the chats, in order. They wait until no other connection writes.
    changes: VecDeque<ChatChange>,
}

impl Shell {
    /// True while two answers are compared. The comparison may have changed the model's mode or
    /// budget for now.
    pub fn is_comparing(&self) -> bool {
        !self.compared.load(Relaxed)
    }

    /// Reads the settings and chats below `folders`. Events of the engine and of downloads wake
    /// `ctx`.
    ///
    /// # Errors
    /// Returns a sentence if chats cannot be stored anywhere.
    pub fn new(ctx: &Context, folders: Folders) -> Result<Self, String> {
        let mut toasts = Toasts::default();
        let (settings, trouble) = SettingsFile::read(&folders.settings());
        if let Some(trouble) = trouble {
            toasts.warning(widgets::sentence(trouble));
        }
        let (mut store, salvage) = match Store::open(&folders.chats()) {
            Ok(opened) => opened,
            Err(error) => {
                let (copy, chats) = Store::copy_in_memory(&folders.chats()).map_err(|error| error.to_string())?;
                toasts.error(not_saved(&error, &folders, chats));
                (copy, None)
            }
        };
        if let Some(salvage) = salvage {
            let (chats, messages) = (salvage.chats, salvage.messages);
            let damaged = salvage.damaged.display();
            let saved = format!("{chats} chats with {messages} messages were recovered");
            toasts.warning(format!("The chat file was damaged: {saved}. The damaged file is kept as {damaged}."));
        }
        let wake = |ctx: &Context| {
            let waker = Waker::of(ctx);
            move || waker.in_time()
        };
        store.watch(wake(ctx));
        let downloads = Downloads::new(wake(ctx)).map_err(|error| format!("downloads: {error}"))?;
        let engine_handle = EngineHandle::new(wake(ctx));
        settings.apply(ctx);
        // Two windows that show the same chat would write into each other's messages.
        let shown = settings.last_chat.filter(|_| !store.has_other_instances());
        let (keys, mut chat_controller) = (KeyStore::of(&folders), ChatController::new(engine_handle.clone()));
        let fallbacks = folders.fallbacks();
        let hub = ToolHub::new(keys.clone(), ToolLimits::default(), wake(ctx));
        chat_controller.set_tools(Toolbox::new(Arc::new(hub), settings.tools.clone()));
        Ok(Shell {
            keys,
            folders,
            settings,
            store,
            shown,
            engine_handle,
            chat_controller,
            serving: ServerSwitch::new(wake(ctx)),
            downloads,
            preparation: None,
            adapters: Adapters::new(fallbacks),
            marks: NeuronMarks::default(),
            passage_models: PassageModels::default(),
            vram: VramState::default(),
            compared: Arc::new(AtomicBool::new(true)),
            toasts,
            commands: Vec::new(),
            changes: VecDeque::new(),
        })
    }

    /// Moves the window from the context of `before`, whose device was lost, to `ctx`, and applies
    /// the settings.
    pub fn move_to(&mut self, ctx: &Context, before: &Waker) {
        before.move_to(ctx);
        self.settings.apply(ctx);
    }

    /// Applies the settings of the tools. `connect` requests the servers now. They stay connected
    /// until the window closes.
    pub fn follow_tools(&mut self, connect: bool) {
        let Some(tools) = self.chat_controller.tools() else { return };
        if tools.settings != self.settings.tools {
            tools.settings = self.settings.tools.clone();
        }
        if connect || tools.hub().has_servers() {
            tools.connect();
        }
    }

    /// Queues a command for the window, to run after this frame.
    pub fn queue_command(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// The model that the next frame will open.
    pub fn model_to_open(&self) -> Option<&ModelId> {
        self.commands.iter().rev().find_map(|command| match command {
            Command::OpenModel(model) => Some(model),
            _ => None,
        })
    }

    /// Takes the commands queued since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Shows an error to the user as a sentence.
    pub fn show_error(&mut self, what: impl std::fmt::Display) {
        self.toasts.error(widgets::sentence(what));
    }

    /// Changes the chats now, or in a later frame if another connection is writing.
    pub fn change_chats<T: 'static>(&mut self, change: impl FnOnce(&mut Store) -> Result<T, StoreError> + 'static) {
        self.changes.push_back(Box::new(move |store: &mut Store| change(store).map(drop)));
        self.make_changes();
    }

    /// Applies the pending changes, as far as no other connection writes.
    fn make_changes(&mut self) {
        while !self.changes.is_empty() && self.store.is_writable() {
            self.toasts.check(self.changes.pop_front().map_or(Ok(()), |change| change(&mut self.store)));
        }
    }

    /// Applies the pending changes. Requests another frame if some remain.
    pub fn try_changes(&mut self, ctx: &Context) {
        self.make_changes();
        if !self.changes.is_empty() {
            ctx.request_repaint_after(LOCKED);
        }
    }

    /// Applies all pending changes before the window closes. Waits for other connections.
    pub fn finish_changes(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            self.toasts.check(change(&mut self.store));
        }
    }

    /// Sets the shown chat. The next start shows it again.
    pub fn remember(&mut self, chat: Option<ChatId>) {
        self.shown = chat.map(ChatId::number);
        // Chats in memory do not exist at the next start.
        if !self.store.path().as_os_str().is_empty() {
            self.settings.last_chat = self.shown;
        }
    }

    /// The settings that the user chose for a model.
    pub fn model_settings(&mut self, model: &ModelId) -> &mut ModelSettings {
        self.settings.models.entry(model.key()).or_default()
    }

    /// Opens a model with its settings.
    pub fn open_model(&mut self, model: ModelId) {
        self.settings.add_recent(&model.key());
        // Otherwise sessions would keep the old model in memory.
        for error in self.chat_controller.release_model(&mut self.store, StopCause::ModelClosed) {
            self.show_error(error);
        }
        self.serving.release_model();
        let options = self.engine_options(&model);
        match model {
            ModelId::Remote(model) => self.engine_handle.open_remote(model, self.keys.clone()),
            model => self.engine_handle.open(model, options),
        }
    }

    /// Loads the open model onto its device again.
    pub fn reload_device(&mut self) {
        if let ModelState::Ready { model, .. } = self.engine_handle.state() {
            let device = self.model_settings(&model).device.clone();
            self.choose_device(device);
        }
        self.adapters.asked = None;
    }

    /// Runs the open model on the adapter of this name, now and whenever it is opened. An empty
    /// name selects the CPU, `None` the best adapter.
    pub fn choose_device(&mut self, name: Option<String>) {
        let ModelState::Ready { model, engine } = self.engine_handle.state() else { return };
        self.model_settings(&model).device = name;
        let device = self.engine_options(&model).device;
        self.toasts.check(engine.set_device(&device));
    }

    /// The options to open a model with.
    pub fn engine_options(&self, model: &ModelId) -> EngineOptions {
        let pipeline_cache = Some(self.folders.pipelines());
        let chosen = self.settings.models.get(&model.key()).cloned().unwrap_or_default();
        let budget = match chosen.budget {
            Some(VramBudget::AtMost(bytes)) => Some(bytes),
            // The free memory is known once the device is open. The VRAM panel then sets the
            // budget.
            Some(VramBudget::LeaveFree(_)) | None => None,
        };
        let fallbacks = self.adapters.fallbacks.clone();
        let gpu = |adapter| GpuOptions { adapter, budget, fallbacks, pipeline_cache, ..GpuOptions::default() };
        let device = match chosen.device.as_deref() {
            None => DeviceChoice::Auto(gpu(AdapterChoice::Best)),
            Some("") => DeviceChoice::Cpu,
            Some(name) => DeviceChoice::Gpu(gpu(AdapterChoice::Name(name.to_owned()))),
        };
        let defaults = EngineOptions::default();
        let kv_type = match model {
            ModelId::Builtin => builtin::KV_TYPE,
            ModelId::Path(_) | ModelId::Remote(_) => defaults.kv_type,
        };
        EngineOptions {
            context: chosen.context,
            kv_type: chosen.kv_type.as_deref().and_then(|name| name.parse().ok()).unwrap_or(kv_type),
            draft: chosen.draft.map(Into::into),
            sparsity: chosen.sparsity.as_deref().and_then(|name| name.parse().ok()).unwrap_or(defaults.sparsity),
            level: chosen.level,
            device,
            adaptive: chosen.adaptive,
            counts: (!self.settings.no_counts).then(|| self.folders.counts()),
            speeds: Some(self.folders.cache.clone()),
            ..defaults
        }
    }

    /// Writes changed settings, as [`SettingsFile::keep`] says.
    pub fn keep_settings(&mut self, ctx: &Context, now: bool) {
        let kept = self.settings.keep(&self.folders.settings(), ctx, now);
        self.toasts.check(kept.map_err(|error| format!("settings: {error}")));
    }
}

/// The notice that chats are in memory only. `chats` is the number of readable chats in the file.
fn not_saved(error: &StoreError, folders: &Folders, chats: usize) -> String {
    let why = match error {
        StoreError::Newer { .. } => error.to_string(),
        _ => format!("the folder {} is not writable", folders.data.display()),
    };
    let shown = match chats {
        0 => "",
        1 => " You can still read the saved chat.",
        _ => " You can still read the saved chats.",
    };
    tracing::warn!(%error, "chats are in memory only");
    let what = "What you write is lost when you close the window.";
    format!("{} {what}{shown}", widgets::sentence(format!("chats are not being saved: {why}")))
}

//! The window's server: on or off as set, serving the model that is open in the window.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use thermocline_engine::session::{Prompt, Request};

use crate::{chat::SamplingOverrides, settings::ServerSettings};
use thermocline_host::engine_handle::{EndSignal, EngineHandle, ModelState};
use thermocline_server::{ModelSource, ServedModel, ServedModels, Server, ServerOptions, ServerStatus};

/// State of the window's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerState {
    /// Switched off.
    Off,
    /// Listening.
    On {
        /// Base URL for clients.
        url: String,
        /// Current load.
        status: ServerStatus,
    },
    /// Switched on, but the start failed. Holds the reason as a sentence.
    Failed(String),
}

/// A server that follows the settings.
pub struct ServerSwitch {
    /// The settings applied last, and their result.
    applied: (ServerSettings, Option<Result<Server, String>>),
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for ServerSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSwitch").field("applied", &self.applied).finish_non_exhaustive()
    }
}

impl ServerSwitch {
    /// A switch that is off. `notify` is called, from any thread, when the state has changed.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        ServerSwitch { applied: (ServerSettings::default(), None), notify: Arc::new(notify) }
    }

    /// Applies changed settings, and releases a model that `engine_handle` has closed.
    pub fn apply(&mut self, settings: &ServerSettings, engine_handle: &EngineHandle) {
        let (applied, server) = &mut self.applied;
        if let Some(Ok(running)) = server {
            running.release_model_unless(engine_handle.engine().as_ref());
        }
        if applied == settings && server.is_some() == settings.on {
            return;
        }
        // Drop the old server first: it may hold the port.
        *server = None;
        *applied = settings.clone();
        if settings.on {
            let notify = Arc::clone(&self.notify);
            *server = Some(Server::start(
                server_options(settings),
                ServedModels::Open(model_source(engine_handle.clone())),
                move |_| notify(),
            ));
        }
    }

    /// Makes the next [`ServerSwitch::apply`] repeat a failed start.
    pub fn retry(&mut self) {
        self.applied.1 = None;
    }

    /// Releases the model so that it can be closed.
    pub fn release_model(&self) {
        if let Some(Ok(server)) = &self.applied.1 {
            server.release_model_unless(None);
        }
    }

    /// End signal of the answer that the model is generating for another program.
    pub fn active_answer(&self) -> Option<EndSignal> {
        self.applied.1.as_ref()?.as_ref().ok()?.active_answer()
    }

    /// Current state.
    pub fn state(&self) -> ServerState {
        match &self.applied.1 {
            None => ServerState::Off,
            Some(Ok(server)) if server.is_finished() => {
                ServerState::Failed("the server has ended by itself: this is a bug".to_owned())
            }
            Some(Ok(server)) => ServerState::On { url: server.url(), status: server.status() },
            Some(Err(why)) => ServerState::Failed(why.clone()),
        }
    }
}

fn server_options(settings: &ServerSettings) -> ServerOptions {
    let ip = if settings.network { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    let key = Some(settings.key.clone()).filter(|key| !key.is_empty());
    ServerOptions { key, ..ServerOptions::at(SocketAddr::from((ip, settings.port))) }
}

/// The model that is open in the window, with its own sampling.
fn model_source(engine_handle: EngineHandle) -> ModelSource {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Arc::new(move || match engine_handle.state() {
        ModelState::Ready { model, engine } => {
            let defaults = Request {
                sampling: SamplingOverrides::model_defaults(&model),
                ..Request::new(Prompt::Tokens(Vec::new()))
            };
            Ok(ServedModel { name: model.to_string(), since, engine, defaults })
        }
        ModelState::Opening(opening) => Err(format!("{} is being opened; try again in a moment", opening.model)),
        ModelState::Failed { model, failure, reason } => Err(format!("{model} {failure}: {reason}")),
        ModelState::Remote { model, .. } => {
            Err(format!("{model} is not computed here; programs can ask {} themselves", model.server.host()))
        }
        ModelState::Empty => Err("no model is open in Thermocline".to_owned()),
    })
}

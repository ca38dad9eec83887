//! A server that is on or off as the user chose, for the model that is open in a window.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use thermocline_engine::session::{Prompt, Request};

use super::{Offer, Options, Server, Source, Status};
use crate::{
    host::{Ending, Host, HostState},
    settings::ServerSettings,
    talk::Choices,
};

/// What became of the user's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchState {
    /// It is off.
    Off,
    /// It listens.
    On {
        /// What clients take as their base URL.
        url: String,
        /// How much it has to do.
        status: Status,
    },
    /// It is to be on, and cannot be.
    Failed(String),
}

/// Keeps a server as settings say.
pub struct Switch {
    /// What was made of the settings that were seen last.
    made: (ServerSettings, Option<Result<Server, String>>),
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("made", &self.made).finish_non_exhaustive()
    }
}

impl Switch {
    /// Off. `notify` is called, from any thread, when there is something new to be shown.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        Switch { made: (ServerSettings::default(), None), notify: Arc::new(notify) }
    }

    /// Does what settings say, if they have changed, and lets go of a model that `host` has closed.
    pub fn follow(&mut self, settings: &ServerSettings, host: &Host) {
        let (seen, made) = &mut self.made;
        if let Some(Ok(server)) = made {
            server.leave_unless(host.engine().as_ref());
        }
        if seen == settings && made.is_some() == settings.on {
            return;
        }
        // The old one first: it may have the port.
        *made = None;
        *seen = settings.clone();
        if settings.on {
            let notify = Arc::clone(&self.notify);
            *made = Some(Server::start(options(settings), source(host.clone()), move |_| notify()));
        }
    }

    /// Tries again what has failed, with the next [`Switch::follow`].
    pub fn retry(&mut self) {
        self.made.1 = None;
    }

    /// Lets go of the model, so that it can be closed.
    pub fn leave(&self) {
        if let Some(Ok(server)) = &self.made.1 {
            server.leave_unless(None);
        }
    }

    /// The end of the answer that the model is giving to another program.
    pub fn speaking(&self) -> Option<Ending> {
        self.made.1.as_ref()?.as_ref().ok()?.speaking()
    }

    /// How it stands.
    pub fn state(&self) -> SwitchState {
        match &self.made.1 {
            None => SwitchState::Off,
            Some(Ok(server)) if server.is_finished() => {
                SwitchState::Failed("the server has ended by itself: this is a bug".to_owned())
            }
            Some(Ok(server)) => SwitchState::On { url: server.url(), status: server.status() },
            Some(Err(why)) => SwitchState::Failed(why.clone()),
        }
    }
}

fn options(settings: &ServerSettings) -> Options {
    let ip = if settings.network { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    let key = Some(settings.key.clone()).filter(|key| !key.is_empty());
    Options { key, ..Options::at(SocketAddr::from((ip, settings.port))) }
}

/// What is open in a window, with the model's own sampling.
fn source(host: Host) -> Source {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Arc::new(move || match host.state() {
        HostState::Ready { model, engine } => {
            let defaults = Request { sampling: Choices::base(&model), ..Request::new(Prompt::Tokens(Vec::new())) };
            Ok(Offer { name: model.to_string(), since, engine, defaults })
        }
        HostState::Opening(opening) => Err(format!("{} is being opened; try again in a moment", opening.model)),
        HostState::Failed { model, reason } => Err(format!("{model} could not be opened: {reason}")),
        HostState::Empty => Err("no model is open in Thermocline".to_owned()),
    })
}

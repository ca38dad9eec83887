//! The tools of a chat: which tools the model is offered, their names, and their calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Consent, RunningCall, Tool, ToolHub, ToolServerState, ToolSettings, builtin::Builtin};

/// Largest number of offered tools.
const MOST_OFFERED: usize = 128;

/// Longest name in characters.
const MOST_NAME: usize = 64;

/// A tool that is offered to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// Name by which the model knows the tool.
    pub name: String,
    /// Name of its server; `None` for a built-in tool.
    pub server: Option<String>,
    /// The tool.
    pub tool: Arc<Tool>,
    /// The user's consent to it.
    pub consent: Consent,
}

/// Servers, settings and built-in tools.
#[derive(Debug, Clone)]
pub struct Toolbox {
    hub: Arc<ToolHub>,
    /// The current settings.
    pub settings: ToolSettings,
}

impl Toolbox {
    /// A toolbox with these servers.
    pub fn new(hub: Arc<ToolHub>, settings: ToolSettings) -> Self {
        Toolbox { hub, settings }
    }

    /// The connections to the servers.
    pub fn hub(&self) -> &ToolHub {
        &self.hub
    }

    /// Connects to the servers in the settings.
    pub fn connect(&self) {
        self.hub.connect(&self.settings.servers);
    }

    /// The tools offered to the model: all available tools, without the tools that the user never
    /// allows.
    pub fn offered(&self) -> Vec<OfferedTool> {
        let own = Builtin::ALL.into_iter().map(|builtin| (None, Arc::new(builtin.tool())));
        let reports = self.hub.servers();
        let of_servers = reports.iter().flat_map(|report| match &report.state {
            ToolServerState::Ready { tools, .. } => {
                tools.iter().map(|tool| (Some(report.config.name.clone()), Arc::clone(tool))).collect()
            }
            _ => Vec::new(),
        });
        let mut offered: Vec<OfferedTool> = Vec::new();
        for (server, tool) in own.chain(of_servers) {
            let consent = self.settings.consents.get(server.as_deref(), &tool);
            if consent == Consent::Never || offered.len() >= MOST_OFFERED {
                continue;
            }
            // The first tool keeps its name, so that no server takes the name of a built-in tool or
            // of another server's tool.
            let taken = |name: &str| offered.iter().any(|other| other.name == name);
            let mut name = tool.name.clone();
            if taken(&name) {
                name = prefixed(server.as_deref().unwrap_or_default(), &name);
            }
            if !taken(&name) {
                offered.push(OfferedTool { name, server, tool, consent });
            }
        }
        offered
    }

    /// Runs a tool. The user has allowed the call.
    pub fn run(&self, tool: &OfferedTool, arguments: Map<String, Value>) -> RunningCall {
        match &tool.server {
            Some(server) => self.hub.call(server, &tool.tool.name, arguments),
            None => match Builtin::ALL.into_iter().find(|builtin| builtin.tool().name == tool.tool.name) {
                Some(builtin) => RunningCall::ended(builtin.run(&arguments)),
                None => RunningCall::ended(Err(format!("there is no tool {}", tool.tool.name))),
            },
        }
    }
}

/// `SERVER_NAME`, with characters that models write without mistakes.
fn prefixed(server: &str, name: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    let server: String = server.chars().map(letter).collect();
    let name = format!("{server}_{name}");
    let from = name.len().saturating_sub(MOST_NAME);
    name[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolLimits;
    use thermocline_host::{folders::Folders, remote::KeyStore};

    fn toolbox() -> Toolbox {
        let keys = KeyStore::of(&Folders::below(std::path::Path::new("nowhere")));
        Toolbox::new(Arc::new(ToolHub::new(keys, ToolLimits::default(), || ())), ToolSettings::default())
    }

    #[test]
    fn own_tools_are_offered_unless_they_are_never_allowed() {
        let mut toolbox = toolbox();
        let names = |toolbox: &Toolbox| toolbox.offered().into_iter().map(|tool| tool.name).collect::<Vec<_>>();
        assert_eq!(names(&toolbox), ["calculator", "clock"]);
        let calculator = toolbox.offered().remove(0);
        assert_eq!((calculator.consent, &calculator.server), (Consent::Always, &None));
        let arguments = serde_json::json!({ "expression": "2^5" });
        assert_eq!(toolbox.run(&calculator, arguments.as_object().unwrap().clone()).take(), Some(Ok("32".to_owned())));
        toolbox.settings.consents.set(None, &calculator.tool, Consent::Never);
        assert_eq!(names(&toolbox), ["clock"]);
    }

    #[test]
    fn names_of_servers_are_put_into_letters_that_models_write() {
        assert_eq!(prefixed("my files", "read"), "my_files_read");
        let long = prefixed("é", &"x".repeat(64));
        assert_eq!((long.len(), long.starts_with('x')), (64, true));
    }
}

//! Tools that a model may call in a chat: [`builtin`] ones, and those of MCP servers (Model Context Protocol). [`ServerConfig`] is a server
//! as the user has set it up; [`ToolHub`] keeps connections to servers on a thread of its own, over [`stdio`] or [`http`], and [`client`]
//! speaks the protocol; [`Consents`] say which tools may run without asking, and a [`Toolbox`] is all of it as a chat sees it. What a server
//! sends is unchecked text: it is limited in length and number, and it decides nothing here.

pub mod builtin;
mod calculator;
mod client;
mod clock;
mod config;
mod consent;
mod http;
mod hub;
mod result;
mod stdio;
mod tool;
mod toolbox;

pub use config::{ImportedServer, ServerConfig, ServerTransport, ToolSettings, read_servers};
pub use consent::{Consent, Consents};
pub use hub::{RunningCall, ServerReport, ToolHub, ToolServerState};
pub use result::{ToolLimits, shortened};
pub use tool::Tool;
pub use toolbox::{OfferedTool, Toolbox};

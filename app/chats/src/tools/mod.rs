//! Tools that a model may call in a chat: [`builtin`] tools, and tools of MCP servers (Model
//! Context Protocol). Text from servers is not trusted: its length and number are limited, and it
//! makes no decisions here.
//!
//! - [`ServerConfig`] is a server as set up by the user.
//! - [`ToolHub`] keeps the connections on a separate thread, over [`stdio`] or [`http`]. [`client`]
//!   implements the protocol.
//! - [`Consents`] hold which tools may run without asking.
//! - [`Toolbox`] combines all of this for a chat.

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

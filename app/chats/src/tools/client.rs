//! A connection to an MCP server, for tools only. A server's requests for model output (sampling),
//! for the user's folders (roots) and for the user's input (elicitation) are refused.

use std::{collections::HashMap, time::Duration};

// Deprecated by the protocol, and refused here.
#[expect(deprecated)]
use rmcp::model::ListRootsResult;
use rmcp::{
    ClientHandler, ErrorData, Peer, RoleClient, ServiceError, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, Implementation,
        ListRootsRequestMethod, PaginatedRequestParams,
    },
    service::{RequestContext, RunningService},
    transport::{StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig},
};
use serde_json::{Map, Value};
use tokio::time::timeout;
use ureq::http::{HeaderName, HeaderValue};

use super::{
    Tool, ToolLimits,
    config::{ServerConfig, ServerTransport},
    http::HttpClient,
    result,
    stdio::{self, Process, Trouble},
    tool::clean,
};
use thermocline_host::remote::SecretKey;

/// Largest number of pages read of a tool list.
const PAGES: usize = 50;

/// Longest part of a server's error that is shown, in characters.
const SHOWN: usize = 300;

/// A client that offers nothing to the server.
#[derive(Debug, Clone)]
struct Nothing;

impl ClientHandler for Nothing {
    #[expect(deprecated)]
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("thermocline", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), name)
    }
}

/// A connection and its list of tools.
#[derive(Debug)]
pub(super) struct ToolConnection {
    pub tools: Vec<Tool>,
    /// Note on tools that were left out.
    pub remark: Option<String>,
    service: RunningService<RoleClient, Nothing>,
    process: Option<Process>,
    trouble: Trouble,
}

/// The part of a connection that calls use.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    peer: Peer<RoleClient>,
    trouble: Trouble,
    limits: ToolLimits,
}

impl ToolConnection {
    /// Connects and reads the list of tools.
    ///
    /// # Errors
    /// A sentence that does not contain the key.
    pub async fn open(config: &ServerConfig, key: Option<&SecretKey>, limits: ToolLimits) -> Result<Self, String> {
        let trouble = Trouble::default();
        let (mut process, wait) = (None, limits.connect);
        let opened = match &config.transport {
            ServerTransport::Command { .. } => {
                let (started, lines, input) = stdio::start(&config.transport, limits.message, &trouble)?;
                process = Some(started);
                timeout(wait, Nothing.serve((lines, input))).await
            }
            ServerTransport::Url { url, headers } => {
                let client = HttpClient { most: limits.message, silence: limits.call, trouble: trouble.clone() };
                let mut http = StreamableHttpClientTransportConfig::with_uri(&**url).custom_headers(names(headers)?);
                if let Some(key) = key {
                    http = http.auth_header(key.expose());
                }
                timeout(wait, Nothing.serve(StreamableHttpClientTransport::with_client(client, http))).await
            }
        };
        let fail = |why: String| {
            let why = trouble.lock().take().unwrap_or(why);
            let why = key.map_or(why.clone(), |key| key.redact(&why));
            with_complaints(why, process.as_ref())
        };
        let service = match opened {
            Err(_) => return Err(fail(no_answer(wait))),
            Ok(Err(error)) => {
                // The program's error output may still be on its way.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return Err(fail(match error.to_string() {
                    closed if closed.contains("connection closed") => "the server ended before it answered".to_owned(),
                    other => format!("the server does not follow the MCP protocol: {}", short(&other)),
                }));
            }
            Ok(Ok(service)) => service,
        };
        let listed = match timeout(wait, list(service.peer(), limits.tools)).await {
            Err(_) => Err(no_answer(wait)),
            Ok(Err(error)) => Err(sentence(&error, limits.call)),
            Ok(Ok(listed)) => Ok(listed),
        };
        let (tools, remark) = listed.map_err(fail)?;
        Ok(ToolConnection { tools, remark, service, process, trouble })
    }

    /// The part of the connection that calls use.
    pub fn caller(&self, limits: ToolLimits) -> Caller {
        Caller { peer: self.service.peer().clone(), trouble: Trouble::clone(&self.trouble), limits }
    }

    /// Waits until the connection is closed, and returns the reason.
    pub async fn gone(&mut self) -> String {
        while !self.service.peer().is_transport_closed() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let why = self.trouble.lock().clone().unwrap_or_else(|| "the server has ended".to_owned());
        with_complaints(why, self.process.as_ref())
    }

    /// Closes the connection, and ends the program if the server is a program.
    pub async fn close(mut self) {
        let _ = self.service.close_with_timeout(Duration::from_millis(500)).await;
        if let Some(process) = self.process.take() {
            process.end().await;
        }
    }
}

impl Caller {
    /// Calls a tool. Dropping the future cancels the call on the server.
    ///
    /// # Errors
    /// A sentence for the model and the user.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<String, String> {
        self.trouble.lock().take();
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let called = timeout(self.limits.call, self.peer.call_tool_once(params)).await;
        match called {
            Err(_) => Err(no_answer(self.limits.call)),
            Ok(Ok(CallToolResponse::Complete(found))) => result::text(found, self.limits.result),
            Ok(Ok(_)) => Err("the server asked for more user input, which is not supported".to_owned()),
            Ok(Err(error)) => {
                let why = self.trouble.lock().clone();
                Err(why.map_or_else(|| sentence(&error, self.limits.call), |why| format!("the server: {why}")))
            }
        }
    }
}

/// Reads the tools of a server that can be offered to models, with a note if some were left out.
async fn list(peer: &Peer<RoleClient>, most: usize) -> Result<(Vec<Tool>, Option<String>), ServiceError> {
    let (mut tools, mut left_out, mut cursor) = (Vec::<Tool>::new(), 0, None);
    for _ in 0..PAGES {
        let page = peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor.take()))).await?;
        for tool in &page.tools {
            let schema = Value::Object((*tool.input_schema).clone());
            let tool = Tool::new(&tool.name, tool.description.as_deref().unwrap_or_default(), schema);
            let known = tools.iter().any(|other| other.name == tool.name);
            if tools.len() < most && !known && tool.is_offerable() {
                tools.push(tool);
            } else {
                left_out += 1;
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() >= most {
            break;
        }
    }
    let more = if cursor.is_some() { " or more" } else { "" };
    let remark =
        format!("{left_out}{more} of its tools are left out: there are too many, or their form is not supported");
    Ok((tools, (left_out > 0 || cursor.is_some()).then_some(remark)))
}

fn names(headers: &std::collections::BTreeMap<String, String>) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let header = |(name, value): (&String, &String)| {
        let wrong = || format!("the header {name:?}: expected a name and a value as HTTP has them");
        Ok((name.parse().map_err(|_| wrong())?, value.parse().map_err(|_| wrong())?))
    };
    headers.iter().map(header).collect()
}

/// Adds the program's error output to the reason.
fn with_complaints(why: String, process: Option<&Process>) -> String {
    match process.and_then(Process::complaints) {
        Some(complaints) => format!("{why}; the server reports: {complaints}"),
        None => why,
    }
}

fn no_answer(within: Duration) -> String {
    format!("the server did not answer within {} s", within.as_secs_f32())
}

fn short(text: &str) -> String {
    clean(text).chars().take(SHOWN).collect()
}

/// The error of a request as a sentence.
fn sentence(error: &ServiceError, within: Duration) -> String {
    match error {
        ServiceError::McpError(error) => format!("the server refused: {}", short(&error.message)),
        ServiceError::TransportClosed | ServiceError::Cancelled { .. } => "the server has ended".to_owned(),
        ServiceError::Timeout { .. } => no_answer(within),
        ServiceError::UnexpectedResponse => "the server's answer does not match the request".to_owned(),
        other => format!("the server: {}", short(&other.to_string())),
    }
}

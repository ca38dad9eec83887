//! MCP servers set up by the user, and their usual JSON form: `{"mcpServers": {"files": {"command":
//! "npx", "args": [...]}}}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ureq::http::Uri;

use super::Consents;
use thermocline_host::remote::SecretKey;

/// Largest number of servers.
const MOST_SERVERS: usize = 32;

/// Longest name, in characters.
const MOST_NAME: usize = 40;

/// Settings of tools. Server keys are kept elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolSettings {
    /// The servers, in the order they were added.
    pub servers: Vec<ServerConfig>,
    /// Consents given to tools.
    pub consents: Consents,
    /// Fields written by other versions.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Name, unique among the servers.
    pub name: String,
    /// How to reach it.
    #[serde(flatten)]
    pub transport: ServerTransport,
    /// `false`: it is neither started nor contacted.
    #[serde(default = "enabled")]
    pub enabled: bool,
}

fn enabled() -> bool {
    true
}

/// How to reach a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServerTransport {
    /// A program that communicates through its standard input and output.
    Command {
        /// Name or path of the program.
        command: String,
        /// Its arguments.
        #[serde(default)]
        args: Vec<String>,
        /// Environment variables added to the usual ones.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
    },
    /// An HTTP server.
    Url {
        /// Its address.
        url: String,
        /// Additional headers of every request, without the key.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        headers: BTreeMap<String, String>,
    },
}

/// A server read from text, with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedServer {
    /// The server.
    pub config: ServerConfig,
    /// The key found in the text.
    pub key: Option<SecretKey>,
}

impl ServerTransport {
    /// The command or the address, as one line.
    pub fn line(&self) -> String {
        match self {
            ServerTransport::Command { command, args, .. } => {
                let quoted = |word: &String| if word.contains(' ') { format!("\"{word}\"") } else { word.clone() };
                std::iter::once(command).chain(args).map(quoted).collect::<Vec<_>>().join(" ")
            }
            ServerTransport::Url { url, .. } => url.clone(),
        }
    }

    /// Name under which the server's key is kept.
    pub fn key_name(&self) -> Option<&str> {
        if let ServerTransport::Url { url, .. } = self { Some(url) } else { None }
    }

    /// `true` if others can read the calls in transit, because they leave this computer
    /// unencrypted.
    pub fn is_open(&self) -> bool {
        let ServerTransport::Url { url, .. } = self else { return false };
        let host = host(url);
        let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        url.starts_with("http://") && host != "localhost" && !ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// A name derived from the command or the address.
    fn name(&self) -> String {
        match self {
            ServerTransport::Command { command, args, .. } => {
                let word = args.iter().find(|word| !word.starts_with('-')).unwrap_or(command);
                let word = word.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(word);
                word.split('@').next().unwrap_or(word).to_owned()
            }
            ServerTransport::Url { url, .. } => host(url),
        }
    }
}

/// The host of an address; empty if it has none.
fn host(url: &str) -> String {
    url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default()
}

impl ToolSettings {
    /// Adds a server under a unique name.
    ///
    /// # Errors
    /// There are too many servers.
    pub fn add(&mut self, mut server: ServerConfig) -> Result<(), String> {
        if self.servers.len() >= MOST_SERVERS {
            return Err(format!("there are already {MOST_SERVERS} servers, which is the limit. Remove one first"));
        }
        let base = server.name.clone();
        for n in 2.. {
            if self.servers.iter().all(|other| other.name != server.name) {
                break;
            }
            server.name = format!("{base} {n}");
        }
        self.servers.push(server);
        Ok(())
    }

    /// Removes a server and the consents to its tools.
    pub fn remove(&mut self, name: &str) {
        self.servers.retain(|server| server.name != name);
        self.consents.forget(name);
    }
}

/// Reads servers from text that a user typed or pasted: a command, an address, or JSON with
/// `mcpServers`.
///
/// # Errors
/// A sentence that says what was expected, and where.
pub fn read_servers(text: &str) -> Result<Vec<ImportedServer>, String> {
    let text = text.trim();
    if text.starts_with('{') {
        return read_json(text);
    }
    let transport = if text.contains("://") {
        ServerTransport::Url { url: address(text)?, headers: BTreeMap::new() }
    } else {
        let mut words = words(text)?.into_iter();
        let command = words.next().ok_or("expected a command, an address, or JSON with `mcpServers`")?;
        ServerTransport::Command { command, args: words.collect(), env: BTreeMap::new() }
    };
    let config = ServerConfig { name: short_name(&transport.name()), transport, enabled: true };
    Ok(vec![ImportedServer { config, key: None }])
}

/// A name without characters that keys in the settings or single lines cannot contain.
fn short_name(name: &str) -> String {
    let name: String = super::tool::clean(name).chars().filter(|letter| !"/\n\t".contains(*letter)).collect();
    let name: String = name.trim().chars().take(MOST_NAME).collect();
    if name.is_empty() { "server".to_owned() } else { name }
}

/// Checks an address. It must begin with http:// or https://, and must have a host but no user name
/// or password.
fn address(text: &str) -> Result<String, String> {
    let wrong = |expected: &str| format!("the address: expected {expected}, got {text}");
    let uri: Uri = text.parse().map_err(|_| wrong("a URL like https://example.org/mcp"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("http:// or https://"));
    }
    let authority = uri.authority().ok_or_else(|| wrong("a host"))?;
    if authority.as_str().contains('@') {
        return Err("the address must not contain a user name or password. Enter the key in its own field".to_owned());
    }
    if authority.host().is_empty() {
        return Err(wrong("a host"));
    }
    Ok(text.to_owned())
}

/// Splits a command into words. Quotes keep spaces together.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in text.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_with(String::new);
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_with(String::new).push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(format!("the command: expected another {open} behind the last word"));
    }
    words.extend(word);
    Ok(words)
}

fn read_json(text: &str) -> Result<Vec<ImportedServer>, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("the JSON: {error}"))?;
    let servers = json.get("mcpServers").or(json.get("servers")).and_then(Value::as_object);
    let servers = servers.ok_or("the JSON: expected an object `mcpServers` with servers by name")?;
    if servers.is_empty() {
        return Err("the JSON: expected at least one server in `mcpServers`".to_owned());
    }
    servers.iter().map(|(name, server)| read_server(name, server)).collect()
}

fn read_server(name: &str, server: &Value) -> Result<ImportedServer, String> {
    let wrong = |field: &str, expected: &str| format!("`{field}` of the server {name:?}: expected {expected}");
    let texts = |field: &str| -> Result<BTreeMap<String, String>, String> {
        let expected = || wrong(field, "an object of texts");
        let Some(value) = server.get(field).filter(|value| !value.is_null()) else { return Ok(BTreeMap::new()) };
        let pairs = value.as_object().ok_or_else(expected)?.iter();
        pairs.map(|(name, value)| Ok((name.clone(), value.as_str().ok_or_else(expected)?.to_owned()))).collect()
    };
    let mut key = None;
    let transport = match (server.get("command"), server.get("url")) {
        (Some(command), None) => {
            let args = server.get("args").filter(|args| !args.is_null());
            let args = args.map_or(Ok(Vec::new()), |args| {
                let list = args.as_array().into_iter().flatten().map(|word| word.as_str().map(str::to_owned));
                let list: Option<Vec<String>> = list.collect();
                list.filter(|_| args.is_array()).ok_or_else(|| wrong("args", "a list of texts"))
            })?;
            let command = command.as_str().filter(|command| !command.trim().is_empty());
            let command = command.ok_or_else(|| wrong("command", "a program"))?.to_owned();
            ServerTransport::Command { command, args, env: texts("env")? }
        }
        (None, Some(url)) => {
            let url = address(url.as_str().ok_or_else(|| wrong("url", "a text"))?)?;
            let mut headers = texts("headers")?;
            headers.retain(|name, value| {
                let bearer =
                    name.eq_ignore_ascii_case("authorization").then(|| value.strip_prefix("Bearer ")).flatten();
                let found = bearer.and_then(SecretKey::new);
                key = found.clone().or(key.take());
                found.is_none()
            });
            ServerTransport::Url { url, headers }
        }
        _ => return Err(format!("the server {name:?}: expected either `command` or `url`")),
    };
    let disabled = server.get("disabled").and_then(Value::as_bool).unwrap_or(false);
    let config = ServerConfig { name: short_name(name), transport, enabled: !disabled };
    Ok(ImportedServer { config, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> ServerConfig {
        read_servers(text).unwrap_or_else(|error| panic!("{text}: {error}")).remove(0).config
    }

    #[test]
    fn commands_addresses_and_json_are_read() {
        let server = one("npx -y \"@scope/server-files\" '/home/me/my files'");
        let ServerTransport::Command { command, args, .. } = &server.transport else { panic!("{server:?}") };
        assert_eq!(
            (&**command, &args[..]),
            ("npx", &["-y", "@scope/server-files", "/home/me/my files"].map(String::from)[..])
        );
        assert_eq!(server.name, "server-files");
        assert_eq!(server.transport.line(), "npx -y @scope/server-files \"/home/me/my files\"");
        let server = one("https://tools.example/mcp?a=1");
        assert_eq!((&*server.name, &*server.transport.line()), ("tools.example", "https://tools.example/mcp?a=1"));

        let json = r#"{"mcpServers": {
            "files": {"command": "uvx", "args": ["mcp-files", "/tmp"], "env": {"TOKEN": "x"}, "disabled": true},
            "far": {"url": "http://10.0.0.1/mcp", "headers": {"Authorization": "Bearer sk-1", "X-Team": "a"}}}}"#;
        let servers = read_servers(json).unwrap();
        let [files, far] = &servers[..] else { panic!("{servers:?}") };
        assert_eq!((&*files.config.name, files.config.enabled, files.key.is_none()), ("files", false, true));
        let ServerTransport::Url { headers, .. } = &far.config.transport else { panic!("{far:?}") };
        assert_eq!((headers.len(), far.key.clone()), (1, SecretKey::new("sk-1")));
        assert!(far.config.transport.is_open() && !files.config.transport.is_open());
        assert!(!one("http://127.0.0.1:8080/mcp").transport.is_open());

        let kept = serde_json::to_string(&servers.iter().map(|it| &it.config).collect::<Vec<_>>()).unwrap();
        let again: Vec<ServerConfig> = serde_json::from_str(&kept).unwrap();
        assert!(again.iter().zip(&servers).all(|(a, b)| *a == b.config) && !kept.contains("sk-1"), "{kept}");
    }

    #[test]
    fn wrong_servers_are_refused_with_what_was_expected() {
        for (text, want) in [
            ("", "expected a command"),
            ("npx 'half", "expected another '"),
            ("ftp://x/y", "http:// or https://"),
            ("file:///etc/passwd", "http"),
            ("http://me:secret@x/mcp", "must not contain a user name"),
            ("{", "the JSON"),
            ("{}", "`mcpServers`"),
            (r#"{"mcpServers": {}}"#, "at least one"),
            (r#"{"mcpServers": {"a": {}}}"#, "either `command` or `url`"),
            (r#"{"mcpServers": {"a": {"command": 7}}}"#, "a program"),
            (r#"{"mcpServers": {"a": {"command": "x", "args": "y"}}}"#, "a list of texts"),
            (r#"{"mcpServers": {"a": {"command": "x", "env": {"y": 1}}}}"#, "an object of texts"),
        ] {
            let error = read_servers(text).unwrap_err();
            assert!(error.contains(want) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn servers_have_distinct_names() {
        let mut settings = ToolSettings::default();
        for _ in 0..3 {
            settings.add(one("server x")).unwrap();
        }
        let names = |settings: &ToolSettings| settings.servers.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&settings), ["x", "x 2", "x 3"]);
        settings.remove("x 2");
        assert_eq!(names(&settings), ["x", "x 3"]);
        for _ in 0..MOST_SERVERS - 2 {
            settings.add(one("server x")).unwrap();
        }
        assert!(settings.add(one("server x")).unwrap_err().contains("the limit"));
    }
}

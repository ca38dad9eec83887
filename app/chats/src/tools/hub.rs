//! Connections to all servers, on one thread. Nothing here blocks the caller: servers are started
//! and contacted in the background, and callers poll for the end of a call.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc as channel, oneshot},
    task::JoinHandle,
};

use super::{ServerConfig, Tool, ToolLimits, client::ToolConnection};
use thermocline_host::remote::KeyStore;

/// Longest wait for all servers to end.
const FAREWELL: Duration = Duration::from_secs(3);

/// State of a server's connection.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolServerState {
    /// Switched off.
    Off,
    /// Being started, or asked for its tools.
    Connecting,
    /// Connected.
    Ready {
        /// Its tools.
        tools: Arc<[Arc<Tool>]>,
        /// Note on tools that were left out.
        remark: Option<String>,
    },
    /// Not connected. Holds the reason in words.
    Failed(String),
}

/// A server and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerReport {
    /// The server.
    pub config: ServerConfig,
    /// Its state.
    pub state: ToolServerState,
}

/// Result of a call, or the reason why there is none.
type CallEnd = Result<String, String>;

/// A running call. Dropping it cancels the call.
#[derive(Debug)]
pub struct RunningCall {
    end: Arc<Mutex<Option<CallEnd>>>,
    /// Closed on drop. The other side waits for this.
    _cancel: Option<oneshot::Sender<()>>,
}

impl RunningCall {
    /// A call that has already ended.
    pub fn ended(end: CallEnd) -> Self {
        RunningCall { end: Arc::new(Mutex::new(Some(end))), _cancel: None }
    }

    /// The result, returned once.
    pub fn take(&self) -> Option<CallEnd> {
        self.end.lock().take()
    }
}

/// A call on its way to the server.
struct ServerCall {
    tool: String,
    arguments: Map<String, Value>,
    end: Arc<Mutex<Option<CallEnd>>>,
    cancelled: oneshot::Receiver<()>,
}

enum HubOrder {
    Servers(Vec<ServerConfig>),
    Retry(String),
    Call(String, ServerCall),
}

#[derive(Clone)]
struct Board {
    reports: Arc<Mutex<Vec<ServerReport>>>,
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl Board {
    /// Sets the state of a server, unless it was changed or removed meanwhile.
    fn set(&self, config: &ServerConfig, state: ToolServerState) {
        if let Some(report) = self.reports.lock().iter_mut().find(|report| report.config == *config) {
            report.state = state;
        }
        (self.notify)();
    }
}

/// The connections to all servers. Dropping the hub ends all servers.
pub struct ToolHub {
    board: Board,
    keys: KeyStore,
    limits: ToolLimits,
    /// `None` before the first server.
    worker: Mutex<Option<HubThread>>,
}

struct HubThread {
    orders: channel::UnboundedSender<HubOrder>,
    /// Closed when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl std::fmt::Debug for ToolHub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolHub").field("reports", &*self.board.reports.lock()).finish_non_exhaustive()
    }
}

impl ToolHub {
    /// A hub without connections. `notify` is called from another thread after a change of state
    /// and after a call has ended.
    pub fn new(keys: KeyStore, limits: ToolLimits, notify: impl Fn() + Send + Sync + 'static) -> Self {
        let board = Board { reports: Arc::default(), notify: Arc::new(notify) };
        ToolHub { board, keys, limits, worker: Mutex::new(None) }
    }

    /// Connects to exactly these servers. Servers that are connected already stay connected.
    pub fn connect(&self, servers: &[ServerConfig]) {
        let mut reports = self.board.reports.lock();
        if reports.iter().map(|report| &report.config).eq(servers) {
            return;
        }
        let before = std::mem::take(&mut *reports);
        let state = |config: &ServerConfig| match before.iter().find(|report| report.config == *config) {
            Some(report) => report.state.clone(),
            None if config.enabled => ToolServerState::Connecting,
            None => ToolServerState::Off,
        };
        *reports = servers.iter().map(|config| ServerReport { config: config.clone(), state: state(config) }).collect();
        drop(reports);
        self.order(HubOrder::Servers(servers.to_vec()));
    }

    /// Reconnects to a server that failed.
    pub fn retry(&self, name: &str) {
        if let Some(report) = self.board.reports.lock().iter_mut().find(|report| report.config.name == name) {
            report.state = ToolServerState::Connecting;
        }
        self.order(HubOrder::Retry(name.to_owned()));
    }

    /// All servers, in their order.
    pub fn servers(&self) -> Vec<ServerReport> {
        self.board.reports.lock().clone()
    }

    /// `true` after the first server was added.
    pub fn has_servers(&self) -> bool {
        !self.board.reports.lock().is_empty()
    }

    /// `true` while a server is connecting.
    pub fn is_connecting(&self) -> bool {
        self.board.reports.lock().iter().any(|report| report.state == ToolServerState::Connecting)
    }

    /// Calls a tool of a server.
    pub fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> RunningCall {
        let state = self.board.reports.lock().iter().find(|it| it.config.name == server).map(|it| it.state.clone());
        match state {
            Some(ToolServerState::Ready { .. }) => {}
            Some(ToolServerState::Failed(why)) => {
                return RunningCall::ended(Err(format!("the server {server} is not connected: {why}")));
            }
            _ => return RunningCall::ended(Err(format!("the server {server} is not connected"))),
        }
        let (sender, cancelled) = oneshot::channel();
        let end = Arc::<Mutex<Option<CallEnd>>>::default();
        let call = ServerCall { tool: tool.to_owned(), arguments, end: Arc::clone(&end), cancelled };
        self.order(HubOrder::Call(server.to_owned(), call));
        RunningCall { end, _cancel: Some(sender) }
    }

    /// Sends an order to the thread. The first order starts the thread.
    fn order(&self, order: HubOrder) {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            match self.start() {
                Ok(started) => *worker = Some(started),
                Err(error) => {
                    let why = format!("the connection could not start: {error}");
                    for report in self.board.reports.lock().iter_mut().filter(|report| report.config.enabled) {
                        report.state = ToolServerState::Failed(why.clone());
                    }
                }
            }
        }
        if let Some(worker) = &*worker {
            // The thread lives as long as the sender.
            let _ = worker.orders.send(order);
        }
    }

    fn start(&self) -> std::io::Result<HubThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
        let (orders, received) = channel::unbounded_channel();
        let (alive, ended) = mpsc::channel::<()>();
        let (board, keys, limits) = (self.board.clone(), self.keys.clone(), self.limits);
        let work = move || {
            let _alive = alive;
            runtime.block_on(work(received, &board, &keys, limits));
            // Unanswered requests end by their own timeouts.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("tools".to_owned()).spawn(work)?;
        Ok(HubThread { orders, ended })
    }

    /// Ends all servers and waits for a moment.
    pub fn close(&self) {
        if let Some(HubThread { orders, ended }) = self.worker.lock().take() {
            drop(orders);
            let _ = ended.recv_timeout(FAREWELL);
        }
        self.board.reports.lock().clear();
    }
}

impl Drop for ToolHub {
    fn drop(&mut self) {
        self.close();
    }
}

/// The task of one server.
struct RunningServer {
    config: ServerConfig,
    calls: channel::UnboundedSender<ServerCall>,
    task: JoinHandle<()>,
}

/// Carries out orders until the sender is dropped.
async fn work(mut orders: channel::UnboundedReceiver<HubOrder>, board: &Board, keys: &KeyStore, limits: ToolLimits) {
    let mut running: HashMap<String, RunningServer> = HashMap::new();
    let start = |config: &ServerConfig| {
        let (calls, received) = channel::unbounded_channel();
        let task = tokio::spawn(serve(config.clone(), received, board.clone(), keys.clone(), limits));
        RunningServer { config: config.clone(), calls, task }
    };
    while let Some(order) = orders.recv().await {
        match order {
            HubOrder::Servers(wanted) => {
                running.retain(|_, server| wanted.contains(&server.config));
                for config in wanted.iter().filter(|config| config.enabled) {
                    running.entry(config.name.clone()).or_insert_with(|| start(config));
                }
            }
            HubOrder::Retry(name) => {
                if let Some(before) = running.remove(&name) {
                    running.insert(name, start(&before.config));
                }
            }
            HubOrder::Call(server, call) => match running.get(&server) {
                // The task of a server that has ended refuses the call itself.
                Some(server) => drop(server.calls.send(call)),
                None => *call.end.lock() = Some(Err(format!("the server {server} no longer exists"))),
            },
        }
    }
    let ending: Vec<JoinHandle<()>> = running.into_values().map(|server| server.task).collect();
    let all = futures_util::future::join_all(ending);
    let _ = tokio::time::timeout(FAREWELL, all).await;
}

/// Connects to a server and runs its calls until no more can arrive.
async fn serve(
    config: ServerConfig,
    mut calls: channel::UnboundedReceiver<ServerCall>,
    board: Board,
    keys: KeyStore,
    limits: ToolLimits,
) {
    let opened = tokio::select! {
        opened = open(&config, keys, limits) => opened,
        // The server was removed.
        () = refuse(&mut calls, &board, "the server is not connected yet") => return,
    };
    let why = match opened {
        Err(why) => why,
        Ok(mut connection) => {
            let (tools, remark) = (connection.tools.drain(..).map(Arc::new).collect(), connection.remark.take());
            board.set(&config, ToolServerState::Ready { tools, remark });
            let caller = connection.caller(limits);
            let gone = loop {
                tokio::select! {
                    call = calls.recv() => match call {
                        Some(call) => {
                            let (caller, board) = (caller.clone(), board.clone());
                            tokio::spawn(async move {
                                tokio::select! {
                                    end = caller.call(&call.tool, call.arguments) => {
                                        *call.end.lock() = Some(end);
                                        (board.notify)();
                                    }
                                    _ = call.cancelled => {}
                                }
                            });
                        }
                        None => break None,
                    },
                    why = connection.gone() => break Some(why),
                }
            };
            connection.close().await;
            let Some(why) = gone else { return };
            why
        }
    };
    board.set(&config, ToolServerState::Failed(why.clone()));
    refuse(&mut calls, &board, &format!("the server is not connected: {why}")).await;
}

async fn open(config: &ServerConfig, keys: KeyStore, limits: ToolLimits) -> Result<ToolConnection, String> {
    let name = config.transport.key_name().map(str::to_owned);
    // The keychain may wait for the user.
    let key = match name {
        Some(name) => tokio::task::spawn_blocking(move || keys.get(name).map_err(|error| error.to_string()))
            .await
            .map_err(|error| error.to_string())??,
        None => None,
    };
    ToolConnection::open(config, key.as_ref(), limits).await
}

/// Refuses calls with the reason `why` until no more can arrive.
async fn refuse(calls: &mut channel::UnboundedReceiver<ServerCall>, board: &Board, why: &str) {
    while let Some(call) = calls.recv().await {
        *call.end.lock() = Some(Err(why.to_owned()));
        (board.notify)();
    }
}

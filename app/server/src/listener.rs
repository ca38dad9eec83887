//! The server: a thread that accepts connections and answers their requests.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    pin::pin,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::future::{Either, select};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use socket2::SockRef;
use thermocline_engine::session::Engine;
use tokio::{runtime, sync::watch};
use tokio_io_timeout::TimeoutStream;

use super::{
    connections::Connections,
    context::{ServedModels, ServerContext, ServerEvent, ServerStatus},
    options::ServerOptions,
    routes::routes,
};
use thermocline_host::engine_handle::EndSignal;

/// Most headers of a request.
const MAX_HEADERS: usize = 100;

/// Buffer for a request's head, in bytes. The guard accepts fewer.
const HEAD_BUFFER: usize = 64 << 10;

/// Bytes of unread answer that the system buffers. The client's time limit runs while the buffer is
/// full.
const SEND_BUFFER: usize = 64 << 10;

/// Pause after the system refuses a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Interval between checks for idle models.
const IDLE_CHECK: Duration = Duration::from_millis(250);

/// Phase of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerPhase {
    /// Accepts connections.
    Listening,
    /// Completes the requests that it has received.
    Finishing,
    /// Drops everything.
    Ended,
}

/// A running server. Dropping it ends it and its current answer at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    context: Arc<ServerContext>,
    phase: watch::Sender<ServerPhase>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to listen. The server's thread calls `on_event`, which must not block.
    ///
    /// # Errors
    /// The reason in a sentence: the port is in use, the address is not this computer's, or the
    /// system refuses.
    pub fn start(
        options: ServerOptions,
        models: ServedModels,
        on_event: impl Fn(ServerEvent<'_>) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let listener =
            TcpListener::bind(&options.addresses[..]).map_err(|error| bind_error(&options.addresses, &error))?;
        let network = options.addresses.iter().any(|address| !address.ip().is_loopback());
        if network && options.key.is_none() {
            return Err("a server that other computers can reach needs a key".to_owned());
        }
        // Accepted connections inherit the size. If setting it fails, they have the system's
        // default.
        if let Err(error) = SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER) {
            tracing::debug!(%error, "the size of the send buffer cannot be set");
        }
        let prepared = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let failed = |error: io::Error| format!("the server cannot start: {error}");
        let (address, runtime) = (prepared.map_err(failed)?, runtime.map_err(failed)?);
        let context = ServerContext::new(options, models, on_event);
        let (phase, changes) = watch::channel(ServerPhase::Listening);
        let thread = {
            let context = Arc::clone(&context);
            let work = move || {
                if let Err(error) = runtime.block_on(listen(listener, context, changes)) {
                    tracing::error!(%error, "the server has ended");
                }
                // The runtime drops the open connections, which cancels their generations.
            };
            thread::Builder::new().name("http-server".to_owned()).spawn(work).map_err(failed)?
        };
        Ok(Server { address, context, phase, thread: Some(thread) })
    }

    /// Address and port that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the current load.
    pub fn status(&self) -> ServerStatus {
        self.context.status()
    }

    /// Returns the end signal of the answer that the model is generating for this server.
    pub fn active_answer(&self) -> Option<EndSignal> {
        self.context.active_answer()
    }

    /// Returns the base URL for clients on this computer.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
        format!("http://{}/v1", SocketAddr::new(ip, self.address.port()))
    }

    /// Releases every model except the model of `engine`, so that it can be closed. Its current
    /// answer ends.
    pub fn release_model_unless(&self, engine: Option<&Engine>) {
        self.context.queue.release_session_unless(engine);
    }

    /// Stops listening, refuses waiting requests, and ends the server after the current answer.
    pub fn shut_down(&self) {
        self.context.queue.close();
        self.phase.send_replace(ServerPhase::Finishing);
    }

    /// `true` when the server's thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.phase.send_replace(ServerPhase::Ended);
        if let Some(thread) = self.thread.take() {
            // Its panics have already been reported.
            let _ = thread.join();
        }
    }
}

/// Explains in a sentence why `addresses` cannot be bound.
fn bind_error(addresses: &[SocketAddr], error: &io::Error) -> String {
    let Some(address) = addresses.first() else { return "there is no address to listen at".to_owned() };
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "port {port} is taken: another program listens at {address}; choose another port, or end that program"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("the system does not let this program listen at port {port}; choose one above 1023")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{} is not an address of this computer; 127.0.0.1 and 0.0.0.0 always are", address.ip())
        }
        _ => format!("cannot listen at {address}: {error}"),
    }
}

/// Closes models that have been idle longer than they are kept. Ends with the server.
async fn close_idle_models(context: Arc<ServerContext>) {
    let Some(library) = context.library() else { return };
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let context = Arc::clone(&context);
        library.close_idle(move || context.queue.release_session_unless(None)).await;
    }
}

/// Accepts connections until the phase changes.
async fn listen(
    listener: TcpListener,
    context: Arc<ServerContext>,
    mut phase: watch::Receiver<ServerPhase>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = Connections::new(context.options.max_connections);
    let (graceful, timeout) = (GracefulShutdown::new(), context.options.timeout);
    tokio::spawn(close_idle_models(Arc::clone(&context)));
    let service = TowerToHyperService::new(routes(context));
    loop {
        let accepted = match select(pin!(listener.accept()), pin!(phase.changed())).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The client has disconnected, or the process has too many open files.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = connections.add() else {
            tracing::warn!("a connection was refused: all connections that may be open have answers in progress");
            continue;
        };
        // Pieces of an answer are small, and clients want them at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(timeout));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(timeout).max_headers(MAX_HEADERS).max_buf_size(HEAD_BUFFER);
        let (service, connection) = (service.clone(), Arc::clone(&place.connection));
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&connection));
            service.call(request)
        });
        let serving = graceful.watch(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
        tokio::spawn(async move {
            match select(pin!(serving), pin!(place.connection.closed())).await {
                Either::Left((Err(error), _)) => tracing::debug!(%error, "a connection broke off"),
                Either::Left((Ok(()), _)) => {}
                Either::Right(_) => tracing::debug!("a connection was closed to make room"),
            }
        });
    }
    drop(listener);
    if *phase.borrow() == ServerPhase::Finishing {
        // Waits until every request is answered or the server is dropped.
        select(pin!(graceful.shutdown()), pin!(phase.changed())).await;
    }
    Ok(())
}

//! A server that listens.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::future::{Either, select};
use hyper::{Method, Response, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use thermocline_engine::session::{DeviceEvent, Engine, GenerationStats, StopReason};
use tokio::{
    runtime,
    sync::{Semaphore, watch},
};
use tokio_io_timeout::TimeoutStream;

use super::{Offer, Options, Source, body::Body, error::ApiError, queue::Queue, routes};
use crate::{host::Ending, talk::Figures};

/// Connections at a time; more have to wait until one is closed.
const CONNECTIONS: usize = 128;

/// After the system has refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// What a server tells whoever started it.
#[derive(Debug)]
pub enum News<'a> {
    /// A request has come.
    Request,
    /// An answer has been made.
    Answered(&'a GenerationStats, &'a StopReason),
    /// Something happened to the device; the answer goes on.
    Device(&'a DeviceEvent),
    /// A request was refused, or an answer failed.
    Refused(&'a str),
}

/// How much a server has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Requests that have come.
    pub requests: u64,
    /// Whether one is being answered.
    pub answering: bool,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Why the last one that was refused was.
    pub last_error: Option<String>,
}

/// What all connections share.
pub struct Shared {
    /// How the server is to be.
    pub options: Options,
    /// The requests that wait.
    pub queue: Queue,
    source: Source,
    tell: Box<dyn Fn(News<'_>) + Send + Sync>,
    requests: AtomicU64,
    last: Mutex<Option<Figures>>,
    /// Of the answer that was begun last.
    ending: Mutex<Option<Ending>>,
    last_error: Mutex<Option<String>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Shared {
    /// The model there is now.
    pub fn offer(&self) -> Result<Offer, ApiError> {
        (self.source)().map_err(ApiError::unavailable)
    }

    /// A request has come.
    pub fn requested(&self) {
        self.requests.fetch_add(1, SeqCst);
        (self.tell)(News::Request);
    }

    /// An answer has been begun.
    pub fn begun(&self, ending: Ending) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
    }

    /// The end of the answer that the model is giving.
    pub fn speaking(&self) -> Option<Ending> {
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ending.filter(|ending| !ending.is_over())
    }

    /// An answer has been made.
    pub fn answered(&self, stats: &GenerationStats, reason: &StopReason) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Figures::new(stats, Some(reason)));
        (self.tell)(News::Answered(stats, reason));
    }

    /// Something happened to the device.
    pub fn device(&self, event: &DeviceEvent) {
        (self.tell)(News::Device(event));
    }

    /// The response that says why a request is refused.
    pub fn refuse(&self, method: &Method, path: &str, error: &ApiError) -> Response<Body> {
        let line = format!("{method} {path}: {} ({})", error.message, error.status.as_u16());
        tracing::info!("{line}");
        (self.tell)(News::Refused(&line));
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        Response::from(error)
    }

    /// How much there is to do.
    pub fn status(&self) -> Status {
        Status {
            requests: self.requests.load(SeqCst),
            answering: self.queue.is_busy(),
            waiting: self.queue.waiting(),
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Figures of the last answer.
    pub fn last(&self) -> Option<Figures> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How a server goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It listens.
    Listen,
    /// It answers what was asked, and then ends.
    Finish,
    /// It ends.
    End,
}

/// A server. Dropping it ends it at once, and whatever it is answering.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    course: watch::Sender<Course>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens. `tell` is called from the server's thread and must not wait.
    ///
    /// # Errors
    /// A sentence: the port is taken, the address is not this computer's, or the system refuses.
    pub fn start(
        options: Options,
        source: Source,
        tell: impl Fn(News<'_>) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let listener =
            TcpListener::bind(&options.addresses[..]).map_err(|error| refusal(&options.addresses, &error))?;
        let prepared = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let failed = |error: io::Error| format!("the server cannot start: {error}");
        let (address, runtime) = (prepared.map_err(failed)?, runtime.map_err(failed)?);
        let queue = Queue::new(options.waiting);
        let (requests, last, ending, last_error) =
            (AtomicU64::new(0), Mutex::default(), Mutex::default(), Mutex::default());
        let tell = Box::new(tell);
        let shared = Arc::new(Shared { options, queue, source, tell, requests, last, ending, last_error });
        let (course, told) = watch::channel(Course::Listen);
        let thread = {
            let shared = Arc::clone(&shared);
            let work = move || {
                if let Err(error) = runtime.block_on(listen(listener, &shared, told)) {
                    tracing::error!(%error, "the server has ended");
                }
                // What is left is dropped with the runtime, and with it what the engine does for it.
            };
            thread::Builder::new().name("http-server".to_owned()).spawn(work).map_err(failed)?
        };
        Ok(Server { address, shared, course, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How much it has to do.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// The end of the answer that the model is giving for it.
    pub fn speaking(&self) -> Option<Ending> {
        self.shared.speaking()
    }

    /// What clients on this computer take as their base URL.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip };
        format!("http://{}/v1", SocketAddr::new(ip, self.address.port()))
    }

    /// Lets go of any other model than that of `engine`, so that it can be closed; an answer that it is making ends.
    pub fn leave_unless(&self, engine: Option<&Engine>) {
        self.shared.queue.leave_unless(engine);
    }

    /// Listens no longer, and ends when what is being answered is; those that wait are sent away.
    pub fn finish(&self) {
        self.shared.queue.close();
        self.course.send_replace(Course::Finish);
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.course.send_replace(Course::End);
        if let Some(thread) = self.thread.take() {
            // Its panics were reported where they happened.
            let _ = thread.join();
        }
    }
}

/// Why there is no listening at `addresses`.
fn refusal(addresses: &[SocketAddr], error: &io::Error) -> String {
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

async fn listen(listener: TcpListener, shared: &Arc<Shared>, mut course: watch::Receiver<Course>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let open = Arc::new(Semaphore::new(CONNECTIONS));
    let (graceful, patience) = (GracefulShutdown::new(), shared.options.patience);
    loop {
        let accept = async {
            let permit = Arc::clone(&open).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = match select(pin!(accept), pin!(course.changed())).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // One that is gone already, or no more files to be had.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Pieces of an answer are small and are wanted at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(patience));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(patience);
        let service = {
            let shared = Arc::clone(shared);
            service_fn(move |request| {
                let answer = routes::answer(Arc::clone(&shared), request);
                async move { Ok::<_, std::convert::Infallible>(answer.await) }
            })
        };
        let connection = graceful.watch(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(permit);
        });
    }
    drop(listener);
    if *course.borrow() == Course::Finish {
        // Until all is answered, or there is no more patience.
        select(pin!(graceful.shutdown()), pin!(course.changed())).await;
    }
    Ok(())
}

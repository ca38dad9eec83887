//! Fetches pictures whose addresses requests name. Without `--allow-image-urls`, addresses are
//! refused. The pictures of a request share limits of bytes and time. A few requests at a time
//! fetch pictures, because each of them occupies a thread.
//!
//! A body is read twice if it may name addresses. The first reading fetches the pictures, before
//! the request takes its model. A model that waits for a web server would keep all other requests
//! waiting.

use std::{
    collections::HashMap,
    io::Read,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use thermocline_host::{network, units};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use ureq::{Agent, unversioned::transport::DefaultConnector};

use super::{
    error::ApiError,
    picture_addresses::{AllowedAddresses, PictureAddresses},
    read_body::LARGEST_BODY,
    request_message::RequestMessage,
    served_model::ServedModel,
};

/// Redirections that are followed for one picture.
const MOST_REDIRECTIONS: u32 = 3;

/// Characters of an address that errors show.
const SHOWN: usize = 100;

/// The requests that may fetch pictures at the same time.
static FETCHING: Semaphore = Semaphore::const_new(4);

/// Bytes for the fetched pictures of all requests that wait for their models.
static ROOM: Semaphore = Semaphore::const_new(256 << 20);

/// The pictures that a request may have the server fetch.
#[derive(Debug, Clone, Default)]
pub struct PictureFetch {
    /// The addresses that are fetched.
    pub addresses: PictureAddresses,
    /// Time for all pictures of a request.
    pub timeout: Duration,
    /// True if the model has no vision tower. Its requests may then have no addresses.
    pub blind: bool,
    /// True once the request takes its model. It then has only the pictures that were fetched.
    pub ended: bool,
    /// The fetched pictures of the request by their addresses. Copies share them.
    fetched: Arc<Mutex<HashMap<String, Arc<FetchedPicture>>>>,
}

/// The file of a fetched picture.
#[derive(Debug)]
struct FetchedPicture {
    bytes: Vec<u8>,
    /// Its bytes of the room for the files of all requests.
    _room: SemaphorePermit<'static>,
}

impl FetchedPicture {
    /// Takes the room of a file.
    ///
    /// # Errors
    /// 503 if the files of other requests need the room.
    fn new(bytes: Vec<u8>, room: &'static Semaphore) -> Result<Self, ApiError> {
        match room.try_acquire_many(bytes.len() as u32) {
            Ok(room) => Ok(FetchedPicture { bytes, _room: room }),
            Err(_) => Err(ApiError::unavailable("the server holds the pictures of other requests; try again later")),
        }
    }
}

impl PictureFetch {
    /// The rules of a request that has fetched nothing yet.
    pub fn new(addresses: PictureAddresses, timeout: Duration) -> Self {
        PictureFetch { addresses, timeout, ..PictureFetch::default() }
    }

    /// The pictures that requests to `model` may have the server fetch.
    pub fn for_model(self, model: &ServedModel) -> Self {
        PictureFetch { blind: model.engine.tower().is_none(), ..self }
    }

    /// True in the first reading of a body, which only fetches.
    pub fn is_first_reading(&self) -> bool {
        self.addresses != PictureAddresses::Nowhere && !self.ended
    }

    /// True if a reading of `body` may fetch pictures.
    pub fn may_fetch(&self, body: &[u8]) -> bool {
        self.addresses != PictureAddresses::Nowhere && may_name_addresses(body)
    }

    /// Waits until fewer than four other requests fetch pictures. The thread that reads the body
    /// keeps the permit.
    ///
    /// # Errors
    /// 503 if the other requests take too long.
    pub async fn permit(&self) -> Result<SemaphorePermit<'static>, ApiError> {
        match timeout(self.timeout, FETCHING.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::unavailable("the server is fetching pictures of other requests; try again later")),
        }
    }

    /// Replaces the addresses among the pictures of `messages` by the files at these addresses, in
    /// base64. Each file counts as often as its address is repeated.
    ///
    /// # Errors
    /// 400 for an address that is not allowed, that cannot be fetched within the limits, or that is
    /// not a picture's. 503 for an address that was not fetched before the fetching ended, and if
    /// other requests hold too many pictures.
    pub fn replace_addresses(&self, messages: &mut [RequestMessage]) -> Result<(), ApiError> {
        let pictures = messages.iter_mut().flat_map(|message| &mut message.pictures);
        let mut addresses = pictures.filter(|picture| scheme(picture).is_some()).peekable();
        let Some(first) = addresses.peek() else { return Ok(()) };
        if self.addresses == PictureAddresses::Nowhere {
            let why = "this server fetches no addresses (`thermocline serve --allow-image-urls` lets it)";
            return Err(refused(&format!("a data URL (data:image/png;base64,...), because {why}"), first));
        }
        if self.blind {
            return Err(refused("no picture, because the model has no vision tower", first));
        }
        let mut fetching = Fetching {
            agent: self.agent(),
            until: Instant::now() + self.timeout,
            timeout: self.timeout,
            bytes_left: LARGEST_BODY,
        };
        for picture in addresses {
            let known = self.fetched.lock().get(picture.as_str()).cloned();
            let file = match known {
                Some(file) => file,
                None if self.ended => {
                    let why = "another model was opened while the request waited for its pictures; try again";
                    return Err(ApiError::unavailable(why));
                }
                None => {
                    let file = Arc::new(FetchedPicture::new(fetching.fetch(picture)?, &ROOM)?);
                    self.fetched.lock().insert(picture.clone(), Arc::clone(&file));
                    file
                }
            };
            fetching.count(file.bytes.len(), picture)?;
            *picture = BASE64_STANDARD.encode(&file.bytes);
        }
        Ok(())
    }

    /// Creates the HTTP client of one request. It uses no proxy, which would connect to addresses
    /// that this server has not checked.
    fn agent(&self) -> Agent {
        let config = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(MOST_REDIRECTIONS)
            .user_agent(concat!("thermocline/", env!("CARGO_PKG_VERSION")))
            .build();
        Agent::with_parts(config, DefaultConnector::default(), AllowedAddresses(self.addresses))
    }
}

/// The pictures of a request while they are fetched.
struct Fetching {
    agent: Agent,
    until: Instant,
    timeout: Duration,
    bytes_left: usize,
}

impl Fetching {
    /// The file at `address`, or its beginning if it is larger than the limit.
    fn fetch(&self, address: &str) -> Result<Vec<u8>, ApiError> {
        let address = address.trim();
        if !matches!(scheme(address), Some("http" | "https")) {
            return Err(refused("http:// or https://", address));
        }
        let left = self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let request = self.agent.get(address).header("Accept", "image/*").config().timeout_global(Some(left)).build();
        let mut response = request.call().map_err(|error| self.failed(address, error))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(refused("a picture", format!("HTTP status {status} from {}", shown(address))));
        }
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if !kind.is_empty() && !kind.starts_with("image/") && !kind.ends_with("/octet-stream") {
            return Err(refused("a picture", format!("{} from {}", short(&kind), shown(address))));
        }
        let mut bytes = Vec::new();
        let mut body = response.body_mut().as_reader().take(self.bytes_left as u64 + 1);
        body.read_to_end(&mut bytes).map_err(|error| self.failed(address, error.into()))?;
        Ok(bytes)
    }

    /// Counts the bytes of a picture.
    fn count(&mut self, bytes: usize, address: &str) -> Result<(), ApiError> {
        let limit = || format!("at most {} for all pictures with addresses", units::bytes(LARGEST_BODY as u64));
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| refused(&limit(), address))?;
        Ok(())
    }

    /// Explains why `address` could not be fetched.
    fn failed(&self, address: &str, error: ureq::Error) -> ApiError {
        let why = match &error {
            ureq::Error::Other(refused) => refused.to_string(),
            ureq::Error::Timeout(_) => format!("expected all pictures within {} s", self.timeout.as_secs_f32()),
            ureq::Error::TooManyRedirects => format!("expected at most {MOST_REDIRECTIONS} redirections, got more"),
            // The error may repeat the address with a password.
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "expected a valid http or https address".to_owned(),
            error => network::why_unreachable(network::host(&shown(address)), error),
        };
        ApiError::invalid_field("messages", format!("picture at {}: {why}", shown(address)))
    }
}

/// A refusal of the address `got`.
fn refused(expected: &str, got: impl AsRef<str>) -> ApiError {
    ApiError::invalid_field("messages", format!("picture: expected {expected}, got {}", shown(got.as_ref())))
}

/// The scheme of an address. Base64 and data URLs have none.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.trim_start().split_once("://")?;
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    (is_scheme && scheme.len() <= 16).then_some(scheme)
}

/// True if a text in the JSON of `body` may contain `:/`, also in escaped form. Base64 and data
/// URLs do not contain it.
fn may_name_addresses(body: &[u8]) -> bool {
    let colon = |at: &[u8]| at.starts_with(b":/") || at.starts_with(b":\\/") || at.starts_with(b":\\u002");
    body.windows(6).any(|at| colon(at) || at.eq_ignore_ascii_case(b"\\u003a"))
}

/// An address without its query and without the user's name and password, which may be secrets.
fn shown(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or(address);
    let Some((scheme, rest)) = address.split_once("://") else { return short(address) };
    let authority = rest.split('/').next().unwrap_or(rest);
    let host = authority.rfind('@').map_or(0, |at| at + 1);
    short(&format!("{scheme}://{}", &rest[host..]))
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::Role;

    use super::*;

    /// The second reading of a body that repeats an address, whose file has half the bytes of all
    /// files.
    fn read_again(copies: usize, fetched: bool) -> Result<(), ApiError> {
        let address = "http://127.0.0.1/a.png";
        let addresses = PictureAddresses::Local;
        let rules = PictureFetch { addresses, ended: true, ..PictureFetch::default() };
        if fetched {
            let file = FetchedPicture::new(vec![0; LARGEST_BODY / 2], &ROOM)?;
            rules.fetched.lock().insert(address.to_owned(), Arc::new(file));
        }
        let pictures = vec![address.to_owned(); copies];
        rules.replace_addresses(&mut [RequestMessage { pictures, ..RequestMessage::new(Role::User, "") }])
    }

    #[test]
    fn repeated_addresses_count_every_time() {
        assert!(read_again(2, true).is_ok());
        let error = read_again(3, true).unwrap_err();
        assert_eq!(error.status, 400);
        assert!(error.message.contains("for all pictures with addresses"), "{}", error.message);
    }

    #[test]
    fn a_second_reading_fetches_nothing() {
        assert_eq!(read_again(1, false).unwrap_err().status, 503);
    }

    #[test]
    fn files_hold_their_room_until_they_are_dropped() {
        static SMALL: Semaphore = Semaphore::const_new(10);
        let first = FetchedPicture::new(vec![0; 6], &SMALL).unwrap();
        assert_eq!(FetchedPicture::new(vec![0; 6], &SMALL).unwrap_err().status, 503);
        drop(first);
        assert_eq!(FetchedPicture::new(vec![0; 10], &SMALL).unwrap().bytes.len(), 10);
    }

    #[test]
    fn shown_addresses_have_neither_passwords_nor_queries() {
        for (address, expected) in [
            ("https://anna:secret@example.org/a.png?key=secret#secret", "https://example.org/a.png"),
            ("http://secret@secret@127.0.0.1:9/@b/c@d", "http://127.0.0.1:9/@b/c@d"),
            ("http://:secret@[::1]", "http://[::1]"),
            ("HTTP status 404 from http://a:secret@b/c", "HTTP status 404 from http://b/c"),
            ("text/html", "text/html"),
        ] {
            assert_eq!((shown(address), shown(&shown(address))), (expected.to_owned(), expected.to_owned()));
        }
        let long = format!("http://anna:{}@b/c", "secret".repeat(100));
        assert_eq!(shown(&long), "http://b/c");
    }

    #[test]
    fn errors_do_not_repeat_passwords() {
        let until = Instant::now();
        let agent = PictureFetch::default().agent();
        let fetching = Fetching { agent, until, timeout: Duration::ZERO, bytes_left: 0 };
        let address = "http://anna:secret@example.org/a.png";
        for error in [
            ureq::Error::HostNotFound,
            ureq::Error::ConnectionFailed,
            ureq::Error::BadUri(format!("{address} has no host")),
            ureq::Error::Io(std::io::ErrorKind::ConnectionRefused.into()),
        ] {
            let message = fetching.failed(address, error).message;
            assert!(message.contains("http://example.org/a.png") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn bodies_without_addresses_need_no_permit() {
        for body in [
            r#"{"url":"http://a/b"}"#,
            r#"{"url":"http:\/\/a"}"#,
            r#"{"url":"http:\u002f\u002Fa"}"#,
            r#"{"url":"http\u003A//a"}"#,
        ] {
            assert!(may_name_addresses(body.as_bytes()), "{body}");
        }
        for body in ["", r#"{"url":"data:image/png;base64,//+/AA=="}"#, r#"{"content":"a: b\n","n":1}"#] {
            assert!(!may_name_addresses(body.as_bytes()), "{body}");
        }
    }
}

//! Who may ask. Any page that a browser on this computer shows can send requests to this computer, so a page's origin must be
//! allowed; and a page whose own name was made to mean this computer (DNS rebinding) has no other origin, but calls it by
//! that name.

use std::net::IpAddr;

use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{self, HeaderValue},
};

use super::{
    body::{self, Body},
    error::ApiError,
    options::Options,
};

/// How long browsers may remember that they are allowed, in seconds.
const REMEMBERED: &str = "600";

/// A page that is allowed to ask.
#[derive(Debug, Clone)]
pub struct Page(HeaderValue);

/// Whether whoever asks may; the page that asks, if it is one.
pub fn check(options: &Options, headers: &HeaderMap) -> Result<Option<Page>, ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    if let Some(host) = hosts.next() {
        let name = host.to_str().map(name_of).unwrap_or_default();
        if hosts.next().is_some() || !is_known(options, name) {
            let told = String::from_utf8_lossy(host.as_bytes()).into_owned();
            let message = format!(
                "`{told}` is not this computer: expected localhost, an IP address, its own name, or one that `thermocline serve --allow-host` was given"
            );
            return Err(ApiError::forbidden(message));
        }
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
    let allowed =
        |it: &String| it == "*" || origin.as_bytes().eq_ignore_ascii_case(it.trim_end_matches('/').as_bytes());
    if options.origins.iter().any(allowed) {
        return Ok(Some(Page(origin.clone())));
    }
    let told = String::from_utf8_lossy(origin.as_bytes()).into_owned();
    Err(ApiError::forbidden(format!(
        "pages of `{told}` may not ask; `thermocline serve --allow-origin {told}` lets them"
    )))
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_known(options: &Options, name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || options.hosts.iter().any(|it| it.eq_ignore_ascii_case(name))
}

impl Page {
    /// What a browser asks before it sends the request itself.
    pub fn preflight(&self, asked: &HeaderMap) -> Response<Body> {
        let mut response = body::empty(StatusCode::NO_CONTENT);
        let headers = response.headers_mut();
        let mut set = |name: &'static str, value| headers.insert(name, HeaderValue::from_static(value));
        set("access-control-allow-methods", "GET, POST, OPTIONS");
        set("access-control-allow-headers", "Authorization, Content-Type");
        set("access-control-max-age", REMEMBERED);
        if asked.contains_key("access-control-request-private-network") {
            set("access-control-allow-private-network", "true");
        }
        // Official clients send headers that tell about themselves.
        if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        response
    }

    /// Lets the page read a response.
    pub fn admit(&self, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
}

/// Whether this is such a question.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(options: &Options, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check(options, &headers).is_ok()
    }

    #[test]
    fn hosts_are_addresses_and_names_that_were_given() {
        let mut options = Options::at(([127, 0, 0, 1], 0).into());
        for host in ["127.0.0.1:8080", "127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8080", "192.168.1.7:80"] {
            assert!(checked(&options, host, None), "{host}");
        }
        for host in
            ["evil.example:8080", "localhost.evil.example", "", ":80", "[evil]:1", "[::1", "127.0.0.1.evil.example"]
        {
            assert!(!checked(&options, host, None), "{host}");
        }
        for own in &options.hosts {
            assert!(checked(&options, &format!("{own}:8080"), None), "{own}");
        }
        options.hosts.push("den.lan".to_owned());
        assert!(checked(&options, "Den.lan:8080", None));
        let mut twice = HeaderMap::new();
        twice.append(header::HOST, "localhost".parse().unwrap());
        twice.append(header::HOST, "evil.example".parse().unwrap());
        assert!(check(&options, &twice).is_err());
        assert!(check(&options, &HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn pages_ask_only_if_their_origin_was_given() {
        let mut options = Options::at(([127, 0, 0, 1], 0).into());
        for origin in ["http://evil.example", "null", "http://localhost:8080", "http://127.0.0.1"] {
            assert!(!checked(&options, "localhost", Some(origin)), "{origin}");
        }
        options.origins.push("http://localhost:3000/".to_owned());
        assert!(checked(&options, "localhost", Some("http://localhost:3000")));
        assert!(!checked(&options, "localhost", Some("http://localhost:30001")));
        options.origins.push("*".to_owned());
        assert!(checked(&options, "localhost", Some("null")) && !checked(&options, "evil.example", Some("null")));
    }
}

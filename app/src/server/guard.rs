//! Protection against web pages. Any page that a browser on this computer shows can send requests to this computer, so a page's
//! origin must be allowed; and a page whose own name was made to resolve to this computer (DNS rebinding) has no other origin, but
//! names that host.

use std::{net::IpAddr, time::Duration};

use axum::http::{
    HeaderMap, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::{error::ApiError, options::ServerOptions};

/// Time for which a browser may remember a permission.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Refuses a request that names a foreign host or comes from a page whose origin is not allowed, and an `OPTIONS` request that is
/// not the preflight of an allowed page.
pub fn check(options: &ServerOptions, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    if let Some(host) = hosts.next() {
        let name = host.to_str().map(host_name).unwrap_or_default();
        if hosts.next().is_some() || !is_known_host(options, name) {
            let host = String::from_utf8_lossy(host.as_bytes());
            return Err(ApiError::forbidden(format!(
                "`{host}` is not this computer: expected localhost, an IP address, its own name, or one that `thermocline serve --allow-host` was given"
            )));
        }
    }
    let origin = headers.get(ORIGIN);
    if let Some(origin) = origin.filter(|origin| !is_allowed_origin(&options.origins, origin)) {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        return Err(ApiError::forbidden(format!(
            "pages of `{origin}` may not ask; `thermocline serve --allow-origin {origin}` lets them"
        )));
    }
    if method == Method::OPTIONS && (origin.is_none() || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)) {
        return Err(ApiError::method(method, path, "GET, HEAD, POST"));
    }
    Ok(())
}

/// The layer that answers preflights and lets allowed pages read responses.
pub fn cors(options: &ServerOptions) -> CorsLayer {
    let origins = options.origins.clone();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| is_allowed_origin(&origins, origin)))
        .allow_methods([Method::GET, Method::POST, Method::OPTIONS])
        // Official clients send headers of their own.
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(true)
        .max_age(MAX_AGE)
        .vary([ORIGIN])
}

fn is_allowed_origin(origins: &[String], origin: &HeaderValue) -> bool {
    let matches =
        |it: &String| it == "*" || origin.as_bytes().eq_ignore_ascii_case(it.trim_end_matches('/').as_bytes());
    origins.iter().any(matches)
}

/// Host name of a `Host` header, without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_known_host(options: &ServerOptions, name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || options.hosts.iter().any(|it| it.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(options: &ServerOptions, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        check(options, &Method::GET, "/", &headers).is_ok()
    }

    #[test]
    fn check_accepts_ip_addresses_and_given_host_names_only() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
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
        twice.append(HOST, "localhost".parse().unwrap());
        twice.append(HOST, "evil.example".parse().unwrap());
        assert!(check(&options, &Method::GET, "/", &twice).is_err());
        assert!(check(&options, &Method::GET, "/", &HeaderMap::new()).is_ok());
    }

    #[test]
    fn check_accepts_given_origins_only() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        for origin in ["http://evil.example", "null", "http://localhost:8080", "http://127.0.0.1"] {
            assert!(!checked(&options, "localhost", Some(origin)), "{origin}");
        }
        options.origins.push("http://localhost:3000/".to_owned());
        assert!(checked(&options, "localhost", Some("http://localhost:3000")));
        assert!(!checked(&options, "localhost", Some("http://localhost:30001")));
        options.origins.push("*".to_owned());
        assert!(checked(&options, "localhost", Some("null")) && !checked(&options, "evil.example", Some("null")));
    }

    #[test]
    fn check_refuses_options_requests_that_are_no_preflight() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        options.origins.push("http://localhost:3000".to_owned());
        let mut headers = HeaderMap::new();
        let status =
            |headers: &HeaderMap| check(&options, &Method::OPTIONS, "/", headers).map_err(|it| it.status.as_u16());
        assert_eq!(status(&headers), Err(405));
        headers.insert(ACCESS_CONTROL_REQUEST_METHOD, "POST".parse().unwrap());
        assert_eq!(status(&headers), Err(405), "no page");
        headers.insert(ORIGIN, "http://localhost:3000".parse().unwrap());
        assert_eq!(status(&headers), Ok(()));
        headers.remove(ACCESS_CONTROL_REQUEST_METHOD);
        assert_eq!(status(&headers), Err(405), "no preflight");
    }
}

//! Protection against web pages. Any page in a browser on this computer can send requests to this
//! computer, so the page's origin must be allowed. DNS rebinding makes a page's own host name
//! resolve to this computer. Such a page is of the same origin, but its requests name its host.

use std::time::Duration;

use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::{error::ApiError, host, options::ServerOptions};

/// Bytes of the longest accepted headers.
pub const LARGEST_HEADERS: usize = 16 << 10;

/// Time that a browser may cache a preflight's result.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Refuses a request that names a foreign host, or whose page has an origin that is not allowed. It
/// also refuses long headers, a body that is not JSON, and an `OPTIONS` request that is not an
/// allowed page's preflight.
pub fn check(options: &ServerOptions, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if size > LARGEST_HEADERS {
        return Err(ApiError::headers_too_large(LARGEST_HEADERS));
    }
    host::check(options, uri, headers)?;
    let origin = headers.get(ORIGIN);
    if let Some(origin) = origin.filter(|origin| !is_allowed_origin(&options.origins, origin)) {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        return Err(ApiError::forbidden(format!(
            "pages of `{origin}` may not send requests; `thermocline serve --allow-origin {origin}` allows them"
        )));
    }
    // Browsers name the source of a request without an origin in this header. (Programs send
    // `sec-fetch-mode`, but never this header.)
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if origin.is_none() && site.is_some_and(|site| site == b"cross-site" || site == b"same-site") {
        return Err(ApiError::forbidden(
            "pages of other sites may not send requests; `thermocline serve --allow-origin` allows them",
        ));
    }
    if method == Method::OPTIONS && (origin.is_none() || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)) {
        return Err(ApiError::method(method, uri.path(), "GET, HEAD, POST"));
    }
    if method == Method::POST {
        check_body_form(headers)?;
    }
    Ok(())
}

/// Refuses a body that is not plain JSON. Pages can send other types without a preflight.
fn check_body_form(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: HeaderName| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let media_type = text(CONTENT_TYPE);
    let essence = media_type.as_deref().and_then(|it| it.split(';').next()).unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json");
    if !is_json {
        let got = media_type.as_deref().unwrap_or("none");
        return Err(ApiError::media_type(format!("Content-Type: expected application/json, got {got}")));
    }
    match text(CONTENT_ENCODING) {
        Some(encoding) if !encoding.trim().eq_ignore_ascii_case("identity") => Err(ApiError::media_type(format!(
            "Content-Encoding: expected none, got {encoding}: compressed bodies are not read"
        ))),
        _ => Ok(()),
    }
}

/// Builds the layer that answers preflights and lets allowed pages read responses.
pub fn cors(options: &ServerOptions) -> CorsLayer {
    let origins = options.origins.clone();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| is_allowed_origin(&origins, origin)))
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
        // Official clients send their own headers.
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

#[cfg(test)]
mod tests {
    use axum::http::header::HOST;

    use super::*;

    /// Checks a request with JSON from this computer and the headers `more`. Returns the status of
    /// a refusal.
    fn status(options: &ServerOptions, method: &Method, more: &[(&'static str, &str)]) -> Result<(), u16> {
        let mut headers = json_headers();
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        check(options, method, &Uri::from_static("/"), &headers).map_err(|it| it.status.as_u16())
    }

    fn json_headers() -> HeaderMap {
        let headers = [(HOST, "localhost"), (CONTENT_TYPE, "application/json; charset=utf-8")];
        headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn check_accepts_plain_json_bodies_only() {
        let options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        let status = |name, value: &str| status(&options, &Method::POST, &[(name, value)]);
        assert_eq!(status("accept", "*/*"), Ok(()));
        assert_eq!(status("content-type", "Application/problem+JSON"), Ok(()));
        for other in ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data; a=application/json"]
        {
            assert_eq!(status("content-type", other), Err(415), "{other}");
        }
        assert_eq!((status("content-encoding", "identity"), status("content-encoding", "gzip")), (Ok(()), Err(415)));
        let none = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost"))]);
        assert!(check(&options, &Method::POST, &Uri::from_static("/"), &none).is_err());
        assert!(check(&options, &Method::GET, &Uri::from_static("/"), &none).is_ok());
    }

    #[test]
    fn check_refuses_pages_of_other_sites_and_long_headers() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        let status = |options: &ServerOptions, more: &[_]| status(options, &Method::POST, more);
        for site in ["cross-site", "same-site"] {
            assert_eq!(status(&options, &[("sec-fetch-site", site)]), Err(403), "{site}");
        }
        assert_eq!(status(&options, &[("sec-fetch-site", "none"), ("sec-fetch-mode", "cors")]), Ok(()));
        options.origins.push("http://a.example".to_owned());
        assert_eq!(status(&options, &[("sec-fetch-site", "cross-site"), ("origin", "http://a.example")]), Ok(()));
        assert_eq!(status(&options, &[("x-long", &"x".repeat(LARGEST_HEADERS))]), Err(431));
    }

    #[test]
    fn check_accepts_given_origins_only() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        let checked = |options: &ServerOptions, host: &str, origin: &str| {
            status(options, &Method::GET, &[("host", host), ("origin", origin)]).is_ok()
        };
        for origin in ["http://evil.example", "null", "http://localhost:8080", "http://127.0.0.1"] {
            assert!(!checked(&options, "localhost", origin), "{origin}");
        }
        options.origins.push("http://localhost:3000/".to_owned());
        assert!(checked(&options, "localhost", "http://localhost:3000"));
        assert!(!checked(&options, "localhost", "http://localhost:30001"));
        options.origins.push("*".to_owned());
        assert!(checked(&options, "localhost", "null") && !checked(&options, "evil.example", "null"));
    }

    #[test]
    fn check_refuses_options_requests_that_are_no_preflight() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        options.origins.push("http://localhost:3000".to_owned());
        let status = |more: &[_]| status(&options, &Method::OPTIONS, more);
        let (method, origin) = (("access-control-request-method", "POST"), ("origin", "http://localhost:3000"));
        assert_eq!(status(&[]), Err(405));
        assert_eq!(status(&[method]), Err(405), "no page");
        assert_eq!(status(&[method, origin]), Ok(()));
        assert_eq!(status(&[origin]), Err(405), "no preflight");
    }
}

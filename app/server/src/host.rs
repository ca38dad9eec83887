//! Host names in requests: in the `Host` header, and in a target that is a whole URI.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::{HeaderMap, Uri, header::HOST};

use super::{error::ApiError, options::ServerOptions};

/// Refuses a request that does not name exactly one host, or whose host is not this computer.
pub fn check(options: &ServerOptions, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Err(ApiError::bad_request("the request has no `Host` header"));
    };
    let text = host.to_str().unwrap_or_default();
    let known = host_name(text).is_some_and(|name| is_known(options, name));
    if hosts.next().is_some() || !known {
        return Err(refusal(&String::from_utf8_lossy(host.as_bytes())));
    }
    match uri.authority() {
        Some(authority) if !authority.as_str().eq_ignore_ascii_case(text) => Err(refusal(authority.as_str())),
        _ => Ok(()),
    }
}

fn refusal(host: &str) -> ApiError {
    ApiError::forbidden(format!(
        "`{host}` is not this computer: expected localhost, an IP address, the computer's own name, or a name that `thermocline serve --allow-host` was given"
    ))
}

/// Returns the host name of `host` without its port. `None` if the host is neither a name nor an
/// address, or if the port is not a number.
fn host_name(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    port.is_none_or(is_port).then_some(name)
}

fn is_known(options: &ServerOptions, name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || options.hosts.iter().any(|it| it.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(options: &ServerOptions, uri: &str, host: &str) -> bool {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        check(options, &uri.parse().unwrap(), &headers).is_ok()
    }

    #[test]
    fn check_accepts_ip_addresses_and_given_host_names_only() {
        let mut options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:8080",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "192.168.1.7:80",
        ] {
            assert!(checked(&options, "/", host), "{host}");
        }
        for host in [
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "2130706433",
            "localhost.",
            "localhost:abc",
            "localhost:",
            "localhost:+80",
            "localhost:99999",
            "localhost:80:80",
            "me@localhost",
            "",
            ":80",
            "[evil]:1",
            "[::1",
            "[::1]evil.example",
            "[::1]:x",
            "[127.0.0.1]",
            "127.0.0.1.evil.example",
            "local host",
        ] {
            assert!(!checked(&options, "/", host), "{host}");
        }
        for own in &options.hosts {
            assert!(checked(&options, "/", &format!("{own}:8080")), "{own}");
        }
        options.hosts.push("den.lan".to_owned());
        assert!(checked(&options, "/", "Den.lan:8080"));
        let mut twice = HeaderMap::new();
        twice.append(HOST, "localhost".parse().unwrap());
        twice.append(HOST, "localhost".parse().unwrap());
        assert!(check(&options, &Uri::from_static("/"), &twice).is_err());
        assert_eq!(check(&options, &Uri::from_static("/"), &HeaderMap::new()).unwrap_err().status, 400);
    }

    #[test]
    fn target_that_is_a_whole_uri_names_the_same_host() {
        let options = ServerOptions::at(([127, 0, 0, 1], 0).into());
        assert!(checked(&options, "http://localhost:80/x", "localhost:80"));
        assert!(!checked(&options, "http://evil.example/x", "localhost"));
        assert!(!checked(&options, "http://127.0.0.1/x", "localhost"));
        assert!(!checked(&options, "http://evil.example/x", "evil.example"));
    }
}

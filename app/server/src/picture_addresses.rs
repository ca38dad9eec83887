//! The addresses from which the server fetches pictures. A client that names an address makes the
//! server connect to it, so networks that the client cannot reach itself are refused. The check is
//! part of resolving the host's name: the connection goes to an IP address that passed it, after
//! redirections too.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ureq::{
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::NextTimeout,
    },
};

/// Which addresses of pictures the server fetches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PictureAddresses {
    /// None: pictures are in the request.
    #[default]
    Nowhere,
    /// Addresses on the public internet.
    Public,
    /// Also addresses of this computer and of private networks.
    Local,
}

impl PictureAddresses {
    /// The values that allow addresses, with their names on the command line.
    pub const NAMED: [(&'static str, Self); 2] = [("public", Self::Public), ("local", Self::Local)];

    /// True if the server may connect to `ip`.
    fn allows(self, ip: IpAddr) -> bool {
        match self {
            _ if gives_out_secrets(ip) => false,
            PictureAddresses::Nowhere => false,
            PictureAddresses::Public => is_public(ip),
            PictureAddresses::Local => is_public(ip) || is_private(ip),
        }
    }
}

/// The IPv4 address in an IPv6 address, for the forms that translators and dual sockets use.
fn inner(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = ip else { return ip };
    match six.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)).into(),
        _ => six.to_canonical(),
    }
}

/// True for an address at which a cloud gives out secrets of its computers, although its range is
/// public or private: the metadata services of Azure, Amazon and Google. Others are link-local.
fn gives_out_secrets(ip: IpAddr) -> bool {
    match inner(ip) {
        IpAddr::V4(four) => four == Ipv4Addr::new(168, 63, 129, 16),
        IpAddr::V6(six) => {
            [[0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]].contains(&six.segments())
        }
    }
}

/// True for an address of this computer or of a private network. Link-local addresses are refused,
/// because clouds give out secrets at 169.254.169.254.
fn is_private(ip: IpAddr) -> bool {
    match inner(ip) {
        IpAddr::V4(four) => four.is_loopback() || four.is_private(),
        IpAddr::V6(six) => six.is_loopback() || six.is_unique_local(),
    }
}

/// True for an address of the public internet: none of the special ranges of IANA's registries.
fn is_public(ip: IpAddr) -> bool {
    match inner(ip) {
        IpAddr::V4(four) => is_public_four(four),
        IpAddr::V6(six) => is_public_six(six),
    }
}

fn is_public_four(ip: Ipv4Addr) -> bool {
    let special = match ip.octets() {
        // This network, shared addresses of providers, protocol assignments, benchmarks, relays.
        [0, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] | [100, 64..=127, ..] => true,
        // Multicast and reserved.
        [224..=255, ..] => true,
        _ => ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_documentation(),
    };
    !special
}

fn is_public_six(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        // Protocol assignments with tunnels, documentation, tunnels to IPv4.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

/// A resolver that leaves out the IP addresses to which the server may not connect.
#[derive(Debug)]
pub struct AllowedAddresses(pub PictureAddresses);

impl Resolver for AllowedAddresses {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(ureq::Error::BadUri("expected http:// or https://".to_owned()));
        }
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        let mut allowed = self.empty();
        found.iter().filter(|address| self.0.allows(address.ip())).for_each(|address| allowed.push(*address));
        if allowed.is_empty() { Err(ureq::Error::Other(Box::new(RefusedAddress(self.0)))) } else { Ok(allowed) }
    }
}

/// A host has no IP address to which the server may connect.
#[derive(Debug)]
struct RefusedAddress(PictureAddresses);

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            PictureAddresses::Local => "expected a host of the internet or of a private network, got another one",
            _ => {
                "expected a host of the internet, got one of another network \
                 (`thermocline serve --allow-image-urls=local` allows private networks)"
            }
        })
    }
}

impl Error for RefusedAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        let allowed = |text: &str, of: PictureAddresses| of.allows(text.parse().unwrap());
        for public in [
            "1.1.1.1",
            "93.184.216.34",
            "168.63.129.17",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "192.0.1.1",
            "223.255.255.255",
        ] {
            assert!(allowed(public, PictureAddresses::Public) && allowed(public, PictureAddresses::Local), "{public}");
            assert!(!allowed(public, PictureAddresses::Nowhere));
            assert!(allowed(&format!("::ffff:{public}"), PictureAddresses::Public));
            assert!(allowed(&format!("64:ff9b::{public}"), PictureAddresses::Public));
        }
        for private in ["127.0.0.1", "127.9.8.7", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"] {
            for text in [private.to_owned(), format!("::ffff:{private}"), format!("64:ff9b::{private}")] {
                assert!(!allowed(&text, PictureAddresses::Public) && allowed(&text, PictureAddresses::Local), "{text}");
            }
        }
        for never in [
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "168.63.129.16",
            "169.254.169.254",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.19.255.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            for text in [never.to_owned(), format!("::ffff:{never}"), format!("64:ff9b::{never}")] {
                assert!(!allowed(&text, PictureAddresses::Public), "{text}");
                assert!(!allowed(&text, PictureAddresses::Local), "{text}");
            }
        }
    }

    #[test]
    fn special_addresses_of_ipv6_are_not_public() {
        let allowed = |text: &str, of: PictureAddresses| of.allows(text.parse().unwrap());
        for public in ["2606:4700:4700::1111", "2001:4860:4860::8888", "2a00::1"] {
            assert!(allowed(public, PictureAddresses::Public), "{public}");
        }
        for private in ["::1", "fc00::1", "fd12::1", "fd00:ec2::253"] {
            assert!(
                !allowed(private, PictureAddresses::Public) && allowed(private, PictureAddresses::Local),
                "{private}"
            );
        }
        for never in [
            "::",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2001::1",
            "3fff::1",
            "::127.0.0.1",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert!(!allowed(never, PictureAddresses::Public) && !allowed(never, PictureAddresses::Local), "{never}");
        }
    }

    #[test]
    fn resolved_addresses_are_those_that_pass() {
        let resolve = |uri: &str, of| {
            let timeout = NextTimeout::default();
            let found = AllowedAddresses(of).resolve(&uri.parse().unwrap(), &Config::default(), timeout);
            found.map(|found| found.to_vec()).map_err(|error| error.to_string())
        };
        // Other ways to write 127.0.0.1.
        for uri in ["http://127.0.0.1:9/a", "http://127.1:9/", "http://0x7f000001:9/", "http://2130706433:9/"] {
            let refused = resolve(uri, PictureAddresses::Public).unwrap_err();
            assert!(refused.contains("expected a host of the internet") || refused.contains("lookup"), "{refused}");
        }
        assert_eq!(resolve("http://127.0.0.1:9/a", PictureAddresses::Local), Ok(vec!["127.0.0.1:9".parse().unwrap()]));
        assert_eq!(resolve("https://1.1.1.1/", PictureAddresses::Public), Ok(vec!["1.1.1.1:443".parse().unwrap()]));
        for uri in ["ftp://1.1.1.1/", "socks5://1.1.1.1:1080/", "file://a/b"] {
            assert!(resolve(uri, PictureAddresses::Local).unwrap_err().contains("expected http://"), "{uri}");
        }
    }
}

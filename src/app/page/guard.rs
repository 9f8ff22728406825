//! Which requests the standalone status server accepts. Pure.
//!
//! The server has no users and no passwords: anyone who can reach its address may view the page. The
//! threat is another page in the same browser. Such a page can reach the server under a name that it
//! owns (DNS rebinding), so only known host names are accepted. It can also make the browser send a
//! form, so a form must have our origin and a token that only our pages contain.

use std::net::{IpAddr, SocketAddr};

use sha2::{Digest as _, Sha256};

/// The host names that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    address: IpAddr,
    names: Vec<String>,
}

impl Authority {
    /// Returns the names that a server at `address` accepts: loopback, its own address, and `names`. Ports
    /// are not compared, because a forwarded port may have another number.
    pub fn of(address: SocketAddr, names: &[String]) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { address: address.ip(), names }
    }

    /// Whether a request with this `Host` is accepted.
    pub fn knows(&self, host: Option<&str>) -> bool {
        let Some(name) = host.and_then(name_of) else { return false };
        let name = name.to_ascii_lowercase();
        if self.names.contains(&name) || name == "localhost" {
            return true;
        }
        let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        ip.is_ok_and(|ip| ip.is_loopback() || (ip == self.address && !ip.is_unspecified()))
    }
}

/// Returns the name in `name:port`, or the address in `[address]:port` with its brackets.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.rfind(']') {
        Some(end) => host.split_at_checked(end + 1)?,
        None => host.split_at_checked(host.find(':').unwrap_or(host.len()))?,
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    let is_port = port.bytes().all(|b| b.is_ascii_digit());
    (is_port && !name.is_empty()).then_some(name)
}

/// Whether the browser reports that a form was sent by a page of the server with this `Host`.
pub(super) fn is_same_origin(origin: Option<&str>, site: Option<&str>, host: Option<&str>) -> bool {
    let (Some(origin), Some(host)) = (origin, host) else { return false };
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let is_ours = from.is_some_and(|from| from.eq_ignore_ascii_case(host));
    is_ours && site.is_none_or(|site| site == "same-origin")
}

/// Whether two tokens are equal. Hashing hides from timing how much of them matches.
pub(super) fn is_token(given: &str, token: &str) -> bool {
    Sha256::digest(given) == Sha256::digest(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knows(address: &str, host: &str) -> bool {
        let names = ["status.example".to_owned()];
        Authority::of(address.parse().unwrap(), &names).knows(Some(host))
    }

    #[test]
    fn only_known_names_are_accepted() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "localhost:9000",
            "LOCALHOST",
            "[::1]:80",
            "127.9.9.9",
            "status.example",
            "Status.Example:443",
        ] {
            assert!(knows("127.0.0.1:8080", host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:8080",
            "localhost:8080:evil",
            "localhost@evil.example",
            "10.0.0.5",
            "[::1]evil",
            "0.0.0.0",
            "[::]",
            "2130706433",
        ] {
            assert!(!knows("127.0.0.1:8080", host), "{host}");
        }
        assert!(knows("10.0.0.5:80", "10.0.0.5:80") && !knows("10.0.0.5:80", "10.0.0.6"));
        assert!(!knows("0.0.0.0:80", "0.0.0.0:80"), "browsers reach loopback through it");
        assert!(!Authority::of("127.0.0.1:1".parse().unwrap(), &[]).knows(None));
    }

    #[test]
    fn a_form_must_come_from_one_of_our_pages() {
        let host = Some("localhost:80");
        assert!(is_same_origin(Some("http://localhost:80"), Some("same-origin"), host));
        assert!(is_same_origin(Some("https://LOCALHOST:80"), None, host));
        for (origin, site) in [
            (None, None),
            (None, Some("same-origin")),
            (Some("null"), None),
            (Some("http://localhost"), None),
            (Some("http://localhost:81"), None),
            (Some("http://evil.example"), Some("same-origin")),
            (Some("http://localhost:80.evil.example"), None),
            (Some("ftp://localhost:80"), None),
            (Some("http://localhost:80"), Some("cross-site")),
            (Some("http://localhost:80"), Some("same-site")),
        ] {
            assert!(!is_same_origin(origin, site, host), "{origin:?} {site:?}");
        }
        assert!(!is_same_origin(Some("http://"), None, None));
    }

    #[test]
    fn a_token_must_match_completely() {
        assert!(is_token("abc", "abc"));
        for given in ["", "ab", "abcd", "ABC"] {
            assert!(!is_token(given, "abc"), "{given}");
        }
    }
}

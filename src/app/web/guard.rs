//! Which requests the servers of this process accept: the status page, the functions, and the metrics. Pure.
//!
//! The servers have no users and no passwords: anyone who can reach their address may use them. The
//! threat is a website in a browser on the same machine. Its page can reach a server under a name that it
//! owns (DNS rebinding), so only known host names are accepted. It can also make the browser send a
//! request without reading the reply, so a request that names an origin must name ours. A form of the status page
//! also needs a token that only our pages contain.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::http::{HeaderMap, StatusCode};
use sha2::{Digest as _, Sha256};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its `Host` is missing, repeated, or not one of the server's names.
    Host,
    /// A page of another website sent it.
    Origin,
}

impl Refusal {
    /// Returns the status of the reply.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the reason, for a server that has only loopback names.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Host => "this server accepts only loopback names such as `127.0.0.1` as `Host`",
            Self::Origin => "this server accepts no requests of other websites",
        }
    }
}

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

    /// Returns the names of a server that only this machine reaches.
    pub(crate) fn loopback() -> Self {
        Self { address: Ipv4Addr::LOCALHOST.into(), names: Vec::new() }
    }

    /// Decides whether a request with these headers is accepted.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if its `Host` is not one of the names, or its `Origin` is another one.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name| text(headers, name);
        let host = text("host").filter(|_| headers.get_all("host").iter().count() == 1);
        if !self.knows(host) {
            return Err(Refusal::Host);
        }
        let is_ours = is_same_origin(text("origin"), text("sec-fetch-site"), host);
        if headers.contains_key("origin") && !is_ours {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    /// Whether a request with this `Host` is accepted.
    fn knows(&self, host: Option<&str>) -> bool {
        let Some(name) = host.and_then(name_of) else { return false };
        let name = name.to_ascii_lowercase();
        if self.names.contains(&name) || name == "localhost" {
            return true;
        }
        let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        ip.is_ok_and(|ip| ip.is_loopback() || (ip == self.address && !ip.is_unspecified()))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
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
pub(crate) fn is_same_origin(origin: Option<&str>, site: Option<&str>, host: Option<&str>) -> bool {
    let (Some(origin), Some(host)) = (origin, host) else { return false };
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let is_ours = from.is_some_and(|from| from.eq_ignore_ascii_case(host));
    is_ours && site.is_none_or(|site| site == "same-origin")
}

/// Whether a browser says that a request comes from a page of this server, or from the person: explaining a row asks the
/// database, which no other website may cause. Browsers say nothing over plain http to another machine, so neither may that.
pub(crate) fn is_own_navigation(site: Option<&str>) -> bool {
    matches!(site, Some("none" | "same-origin"))
}

/// Whether two tokens are equal. Hashing hides from timing how much of them matches.
pub(crate) fn is_token(given: &str, token: &str) -> bool {
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
    fn requests_of_other_websites_are_refused() {
        let admit = |set: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in set {
                headers.append(*name, value.parse().unwrap());
            }
            Authority::loopback().admit(&headers)
        };
        // The Functions host and Prometheus send no origin.
        assert_eq!(admit(&[("host", "127.0.0.1:7071")]), Ok(()));
        assert_eq!(admit(&[("host", "localhost"), ("origin", "http://localhost")]), Ok(()));
        // A link on another website.
        assert_eq!(admit(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]), Ok(()));
        for host in ["evil.example", "10.0.0.1", "highwater:9464"] {
            assert_eq!(admit(&[("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(admit(&[]), Err(Refusal::Host));
        let twice = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert_eq!(admit(&twice), Err(Refusal::Host));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", ""]
        {
            let refused = admit(&[("host", "127.0.0.1:7071"), ("origin", origin)]);
            assert_eq!(refused, Err(Refusal::Origin), "{origin}");
        }
        let forged = [
            ("host", "127.0.0.1"),
            ("origin", "http://127.0.0.1"),
            ("sec-fetch-site", "cross-site"),
        ];
        assert_eq!(admit(&forged), Err(Refusal::Origin));
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

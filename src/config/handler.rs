//! Settings of a poller's handler.

use std::fmt;
use std::time::Duration;

use url::{Host, Url};

use super::mistake::Shown;
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings;

mod blob;
mod durable;
mod exec;
mod queue;

pub use self::blob::BlobConfig;
pub use self::durable::DurableConfig;
pub use self::exec::ExecConfig;
pub use self::queue::{MessageEncoding, QueueConfig};

/// Most tries of one batch within one tick.
const TRIES_MAX: u32 = 10;

/// Where a poller's batches go.
#[derive(Clone, Debug)]
pub enum HandlerConfig {
    /// A blob for each batch.
    Blob(BlobConfig),
    /// A Durable Functions orchestration for each batch.
    Durable(DurableConfig),
    /// A process for each batch.
    Exec(ExecConfig),
    /// POST to a URL.
    Http(HttpConfig),
    /// Messages of a queue.
    Queue(QueueConfig),
    /// One line for each event on standard output.
    Stdout,
}

/// How batches are posted.
#[derive(Clone)]
pub struct HttpConfig {
    /// Where to; its query and user may be secret.
    pub url: Url,
    /// Limit on one try, from connecting to the end of the reply.
    pub timeout: Duration,
    /// Tries of one batch within one tick; at least 1.
    pub tries_max: u32,
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpConfig")
            .field("url", &redacted(&self.url))
            .field("timeout", &self.timeout)
            .field("tries_max", &self.tries_max)
            .finish()
    }
}

/// Returns a URL without user, query and fragment, which may hold keys and signatures.
pub(crate) fn redacted(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // Both fail only for URLs that have no host, hence no user either.
    let without_user = shown.set_username("").and_then(|()| shown.set_password(None));
    without_user.map_or_else(|()| "(not shown)".to_owned(), |()| shown.into())
}

#[derive(Clone, Copy)]
enum Kind {
    Blob,
    Durable,
    Exec,
    Http,
    Queue,
    Stdout,
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<HandlerConfig> {
    let kinds = [
        ("http", Kind::Http),
        ("queue", Kind::Queue),
        ("blob", Kind::Blob),
        ("durable", Kind::Durable),
        ("exec", Kind::Exec),
        ("stdout", Kind::Stdout),
    ];
    match reader.read(&settings::HANDLER_KIND, Some(segment), parse::one_of(&kinds))? {
        Kind::Http => read_http(reader, segment).map(HandlerConfig::Http),
        Kind::Blob => blob::read(reader, segment).map(HandlerConfig::Blob),
        Kind::Durable => durable::read(reader, segment).map(HandlerConfig::Durable),
        Kind::Exec => exec::read(reader, segment).map(HandlerConfig::Exec),
        Kind::Queue => queue::read(reader, segment).map(HandlerConfig::Queue),
        Kind::Stdout => Some(HandlerConfig::Stdout),
    }
}

fn read_http(reader: &mut Reader<'_>, segment: &str) -> Option<HttpConfig> {
    let url = read_url(reader, segment);
    let timeout = read_timeout(reader, segment);
    let tries_max = read_tries_max(reader, segment);
    Some(HttpConfig { url: url?, timeout: timeout?, tries_max: tries_max? })
}

fn read_url(reader: &mut Reader<'_>, segment: &str) -> Option<Url> {
    let at = Some(segment);
    let allow_http = reader.read(&settings::HANDLER_ALLOW_HTTP, at, parse::boolean);
    // With a mistake in the permission, its lack is not held against the URL.
    reader.read(&settings::HANDLER_URL, at, |text| {
        target_url(text, allow_http.unwrap_or(true), &settings::HANDLER_ALLOW_HTTP.name_for(at))
    })
}

fn read_timeout(reader: &mut Reader<'_>, segment: &str) -> Option<Duration> {
    let min = Duration::from_millis(1);
    reader.read(&settings::HANDLER_TIMEOUT, Some(segment), parse::duration_from(min))
}

fn read_tries_max(reader: &mut Reader<'_>, segment: &str) -> Option<u32> {
    reader.read(&settings::HANDLER_TRIES_MAX, Some(segment), parse::number(1..=TRIES_MAX))
}

fn target_url(text: &str, allow_http: bool, permission: &str) -> Result<Url, Expected> {
    let expected = || Expected::new("an absolute URL such as `https://example.org/changes`");
    let url = Url::parse(text).map_err(|error: url::ParseError| {
        expected().hint(error.to_string()).shown(shown_unparsed(text))
    })?;
    let shown = || Shown::Value(redacted(&url));
    match url.scheme() {
        "https" => Ok(url),
        "http" if allow_http || is_loopback(&url) => Ok(url),
        "http" => Err(Expected::new("an `https` URL, as the host is not this machine")
            .hint(format!("set `{permission}` to `true` to send rows without encryption"))
            .shown(shown())),
        _ => Err(expected().shown(shown_unparsed(text))),
    }
}

/// Whether a URL leads to this machine.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Returns what may be shown of a text that should have been a URL.
fn shown_unparsed(text: &str) -> Shown {
    match text.split(['?', '#']).next() {
        Some(start) if !start.contains('@') => Shown::Value(start.to_owned()),
        Some(_) | None => Shown::Secret,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redacted_url_shows_neither_user_nor_query() {
        let url: Url =
            "https://me:hunter22@example.org:8443/a/b?code=abcdefgh1234&v=1#part".parse().unwrap();
        assert_eq!(redacted(&url), "https://example.org:8443/a/b");
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_allowed() {
        for (text, fits) in [
            ("http://localhost:7071/api/x", true),
            ("http://127.1.2.3/", true),
            ("http://[::1]:80/", true),
            ("http://app.localhost/", true),
            ("http://localhost.example.org/", false),
            ("http://10.0.0.1/", false),
            ("https://10.0.0.1/", true),
        ] {
            assert_eq!(target_url(text, false, "X").is_ok(), fits, "{text}");
            assert!(target_url(text, true, "X").is_ok(), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_without_their_secrets() {
        for text in
            ["/api/x?code=secret", "ftp://example.org?secret", "https://?secret", "secret@host:x"]
        {
            let expected = target_url(text, true, "X").unwrap_err();
            assert!(!format!("{expected:?}").contains("secret"), "{expected:?}");
        }
    }
}

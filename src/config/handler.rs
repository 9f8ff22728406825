//! Settings of a poller's handler.

mod http;

pub(crate) use self::http::redacted;
pub use self::http::{Authorities, BodyForm, HttpAuth, HttpConfig};
use super::parse;
use super::read::Reader;
use super::settings;

/// Where a poller's batches go.
#[derive(Clone, Debug)]
pub enum HandlerConfig {
    /// POST to a URL.
    Http(Box<HttpConfig>),
    /// One line for each event on standard output.
    Stdout,
}

#[derive(Clone, Copy)]
enum Kind {
    Http,
    Stdout,
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<HandlerConfig> {
    let kinds = [("http", Kind::Http), ("stdout", Kind::Stdout)];
    match reader.read(&settings::HANDLER_KIND, Some(segment), parse::one_of(&kinds))? {
        Kind::Http => http::read(reader, segment).map(|http| HandlerConfig::Http(Box::new(http))),
        Kind::Stdout => Some(HandlerConfig::Stdout),
    }
}

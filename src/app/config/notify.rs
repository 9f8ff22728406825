//! Settings of notifications.

use std::fmt;

use secrecy::SecretSlice;
use url::Url;

use super::handler::{read_signing_secrets, target_url};
use super::mistake::Shown;
use super::parse::Expected;
use super::read::Reader;
use super::{settings, shown_url};

/// Where operators are notified.
#[derive(Clone)]
pub struct NotifyConfig {
    /// The endpoint; everything after its origin may be secret.
    pub url: Url,
    /// Keys for signatures, one signature per key; empty for no signature.
    pub signing_secrets: Vec<SecretSlice<u8>>,
}

impl fmt::Debug for NotifyConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, signing_secrets } = self;
        formatter
            .debug_struct("NotifyConfig")
            .field("url", &shown_url(url))
            .field("signing_secrets", signing_secrets)
            .finish()
    }
}

/// Reads the settings; `None` if notifications are off, or after a mistake, which is recorded.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<NotifyConfig> {
    let url = reader.read_if_set(&settings::NOTIFY_URL, None, endpoint);
    let signing_secrets = read_signing_secrets(reader, &settings::NOTIFY_SIGNING_SECRETS, None);
    Some(NotifyConfig { url: url?, signing_secrets: signing_secrets? })
}

/// Parses the endpoint. Nothing but the scheme of an invalid one is shown.
fn endpoint(text: &str) -> Result<Url, Expected> {
    target_url(text, false, settings::NOTIFY_URL.name).map_err(|expected| {
        let expected = expected.shown(Shown::of_address(text));
        if text.to_ascii_lowercase().starts_with("http://") {
            return expected.hint("notifications are sent without encryption only to this machine");
        }
        expected
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "T024F00B4R/B0123456789/x1y2z3";

    #[test]
    fn the_path_is_not_shown() {
        let url = format!("https://me:hunter22@hooks.contoso.com:8443/services/{SECRET}?sig=abc");
        let config = NotifyConfig { url: endpoint(&url).unwrap(), signing_secrets: Vec::new() };
        let shown = format!("{config:?}");
        assert!(shown.contains("\"https://hooks.contoso.com:8443/…#"), "{shown}");
        assert!(!shown.contains("services") && !shown.contains("hunter22"), "{shown}");
    }

    #[test]
    fn a_mistake_does_not_turn_notifications_off() {
        let secret = "HIGHWATER__NOTIFY__SIGNING_SECRETS";
        for (name, value) in [(settings::NOTIFY_URL.name, "hooks"), (secret, "MISSING")] {
            let mut vars = std::collections::BTreeMap::new();
            vars.insert(settings::NOTIFY_URL.name.to_owned(), "https://a.contoso.com".to_owned());
            vars.insert(name.to_owned(), value.to_owned());
            let mut reader = Reader::new(&vars);
            let read = read(&mut reader);
            assert!(read.is_none() && reader.finish(Some(())).is_err(), "{name}");
        }
    }

    #[test]
    fn an_invalid_url_is_rejected_without_showing_its_path() {
        for url in [
            format!("http://hooks.contoso.com/services/{SECRET}"),
            format!("https://hooks.example.com/services/{SECRET}"),
            format!("https://hooks.contoso.com/services/{SECRET}#part"),
            format!("ftp://hooks.contoso.com/services/{SECRET}"),
            format!("hooks.contoso.com/services/{SECRET}"),
            format!("https://?{SECRET}"),
        ] {
            let error = format!("{:?}", endpoint(&url).unwrap_err());
            assert!(!error.contains("B0123456789") && !error.contains("services"), "{error}");
        }
        assert!(endpoint("http://127.0.0.1:8080/hook").is_ok());
        assert!(endpoint("https://hooks.contoso.com/hook").is_ok());
    }
}

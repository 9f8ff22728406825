//! Settings of the handler that starts orchestrations.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use crate::config::mistake::Shown;
use crate::config::parse::Expected;
use crate::config::read::Reader;
use crate::config::{settings, shown_url};

/// Where orchestrations are started.
#[derive(Clone)]
pub struct DurableConfig {
    /// Address of the function app; its query may be secret.
    pub url: Url,
    /// Name of the orchestrator function.
    pub orchestrator: String,
    /// The system key of the Durable Task extension, if one is needed.
    pub system_key: Option<SecretString>,
    /// Limit on one request.
    pub timeout: Duration,
    /// Tries of one batch within one tick; at least 1.
    pub tries_max: u32,
}

impl fmt::Debug for DurableConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DurableConfig")
            .field("url", &shown_url(&self.url))
            .field("orchestrator", &self.orchestrator)
            .field("timeout", &self.timeout)
            .field("tries_max", &self.tries_max)
            .finish_non_exhaustive()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<DurableConfig> {
    let at = Some(segment);
    let url = super::read_url(reader, segment);
    let orchestrator = reader.read(&settings::HANDLER_ORCHESTRATOR, at, function_name);
    let key_is_set = reader.text(&settings::HANDLER_SYSTEM_KEY.name_for(at)).is_some();
    let system_key = reader.read_if_set(&settings::HANDLER_SYSTEM_KEY, at, system_key);
    let timeout = super::read_timeout(reader, segment);
    let tries_max = super::read_tries_max(reader, segment);
    if key_is_set && system_key.is_none() {
        return None;
    }
    Some(DurableConfig {
        url: url?,
        orchestrator: orchestrator?,
        system_key,
        timeout: timeout?,
        tries_max: tries_max?,
    })
}

/// Parses the name of a function by the host's rules; it becomes part of a URL.
fn function_name(text: &str) -> Result<String, Expected> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let fits = text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(is_plain);
    let expected = || Expected::new("a function's name: a letter, then letters, digits, `_`, `-`");
    fits.then(|| text.to_owned()).ok_or_else(expected)
}

fn system_key(text: &str) -> Result<SecretString, Expected> {
    let fits = text.chars().all(|c| c.is_ascii_graphic()) && !text.contains("://");
    let expected = || Expected::new("only the key `durabletask_extension`").shown(Shown::Secret);
    fits.then(|| text.into()).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_safe_in_a_url() {
        for (name, fits) in
            [("Orders", true), ("o-1_b", true), ("1a", false), ("a/b", false), ("a?b", false)]
        {
            assert_eq!(function_name(name).is_ok(), fits, "{name}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(!format!("{:?}", system_key("s3cret==").unwrap()).contains("s3cret"));
        for text in ["https://example.org?code=s3cret", "two s3crets"] {
            assert!(!format!("{:?}", system_key(text).unwrap_err()).contains("s3cret"));
        }
    }
}

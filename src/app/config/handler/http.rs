//! Settings of the `http` handler.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{SecretSlice, SecretString};
use url::{Host, Url};

use crate::config::mistake::{Mistake, Shown};
use crate::config::parse::{self, Expected};
use crate::config::read::Reader;
use crate::config::settings::{self, Setting};
use crate::config::shown_url;

/// Parallel requests for one batch, unless the setting says otherwise: a receiver sees all rows in order.
const CONCURRENCY: u32 = 1;
/// Prefix of a signing secret.
const SIGNING_PREFIX: &str = "whsec_";
/// Lengths of a signing secret, in bytes.
/// <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>
const SIGNING_SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Maximum signatures of one request: an old and a new secret, with some reserve.
const SIGNING_SECRETS_MAX: usize = 5;

/// How batches are posted.
#[derive(Clone)]
pub struct HttpConfig {
    /// The target; everything after its origin may be secret.
    pub url: Url,
    /// Limit on one try, from connecting to the end of the reply.
    pub timeout: Duration,
    /// Tries of one batch within one tick; at least 1.
    pub tries_max: u32,
    /// Maximum number of parallel requests for one batch; at least 1.
    pub concurrency: usize,
    /// Format of bodies.
    pub body: BodyForm,
    /// Whether bodies are compressed.
    pub gzip: bool,
    /// Whether a web page counts as success.
    pub accept_html: bool,
    /// Keys for signatures, one signature per key; empty for no signature.
    pub signing_secrets: Vec<SecretSlice<u8>>,
    /// How requests authenticate.
    pub auth: HttpAuth,
    /// Certificate authorities to trust, in addition to the system's.
    pub authorities: Option<Authorities>,
}

/// CA certificates in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorities {
    /// The text itself.
    Pem(String),
    /// A file with the text.
    File(PathBuf),
}

/// Format of the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    /// One JSON object around the events.
    Highwater,
    /// A JSON array of CloudEvents 1.0.
    CloudEvents,
    /// A JSON array of Debezium envelopes.
    Debezium,
}

/// How requests authenticate, in addition to their signature.
#[derive(Clone, Debug)]
pub enum HttpAuth {
    /// Not at all.
    None,
    /// The function key for the URL.
    FunctionKey(SecretString),
    /// A header with a fixed value.
    Header {
        /// Its name; valid, and not one that Highwater sets.
        name: String,
        /// Its value: printable ASCII.
        value: SecretString,
    },
    /// A bearer token of this app's identity.
    Identity {
        /// Application that the token is issued for.
        audience: String,
        /// Client id of a user-assigned identity.
        client_id: Option<String>,
    },
}

impl HttpConfig {
    /// Returns the defaults for `url`.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            timeout: Duration::from_secs(60),
            tries_max: 3,
            concurrency: 1,
            body: BodyForm::Highwater,
            gzip: false,
            accept_html: false,
            signing_secrets: Vec::new(),
            auth: HttpAuth::None,
            authorities: None,
        }
    }
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url,
            timeout,
            tries_max,
            concurrency,
            body,
            gzip,
            accept_html,
            signing_secrets,
            auth,
            authorities,
        } = self;
        formatter
            .debug_struct("HttpConfig")
            .field("url", &shown_url(url))
            .field("timeout", timeout)
            .field("tries_max", tries_max)
            .field("concurrency", concurrency)
            .field("body", body)
            .field("gzip", gzip)
            .field("accept_html", accept_html)
            .field("signing_secrets", signing_secrets)
            .field("auth", auth)
            .field("authorities", authorities)
            .finish()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<HttpConfig> {
    let at = Some(segment);
    let url = super::read_url(reader, segment);
    let timeout = super::read_timeout(reader, segment);
    let tries_max = super::read_tries_max(reader, segment);
    let concurrency = super::read_concurrency(reader, segment, CONCURRENCY);
    let forms = [
        ("highwater", BodyForm::Highwater),
        ("cloudevents", BodyForm::CloudEvents),
        ("debezium", BodyForm::Debezium),
    ];
    let body = reader.read(&settings::HANDLER_BODY, at, parse::one_of(&forms));
    let gzip = reader.read(&settings::HANDLER_GZIP, at, parse::boolean);
    let accept_html = reader.read(&settings::HANDLER_ACCEPT_HTML, at, parse::boolean);
    let signing_secrets = read_signing_secrets(reader, &settings::HANDLER_SIGNING_SECRETS, at);
    let auth = read_auth(reader, segment);
    let authorities = reader.read_if_set(&settings::HANDLER_CA, at, authorities);
    Some(HttpConfig {
        url: url?,
        timeout: timeout?,
        tries_max: tries_max?,
        concurrency,
        body: body?,
        gzip: gzip?,
        accept_html: accept_html?,
        signing_secrets: signing_secrets?,
        auth: auth?,
        authorities,
    })
}

/// Reads the secrets that one setting refers to; `None` after a mistake.
pub(in crate::config) fn read_signing_secrets(
    reader: &mut Reader<'_>,
    setting: &Setting,
    at: Option<&str>,
) -> Option<Vec<SecretSlice<u8>>> {
    if reader.text(&setting.name_for(at)).is_none() {
        return Some(Vec::new());
    }
    let names = reader.read_if_set(setting, at, |text| {
        let names: Result<Vec<String>, Expected> =
            text.split(',').map(|name| secret_name(name.trim())).collect();
        names.and_then(|names| match names.len() {
            1..=SIGNING_SECRETS_MAX => Ok(names),
            _ => Err(Expected::new(format!("at most {SIGNING_SECRETS_MAX} names of settings"))),
        })
    })?;
    // Read all of them before failing, so that every mistake is reported.
    let secrets: Vec<Option<SecretSlice<u8>>> =
        names.iter().map(|name| read_named(reader, name, setting, at, signing_secret)).collect();
    secrets.into_iter().collect()
}

#[derive(Clone, Copy)]
enum AuthKind {
    None,
    FunctionKey,
    Header,
    Identity,
}

fn read_auth(reader: &mut Reader<'_>, segment: &str) -> Option<HttpAuth> {
    let at = Some(segment);
    let kinds = [
        ("none", AuthKind::None),
        ("function_key", AuthKind::FunctionKey),
        ("identity", AuthKind::Identity),
        ("header", AuthKind::Header),
    ];
    let kind = reader.read(&settings::HANDLER_AUTH, at, parse::one_of(&kinds))?;
    let secret = |reader: &mut Reader<'_>| {
        let setting = &settings::HANDLER_AUTH_SECRET;
        let name = reader.read(setting, at, secret_name)?;
        read_named(reader, &name, setting, at, header_value)
    };
    match kind {
        AuthKind::None => Some(HttpAuth::None),
        AuthKind::FunctionKey => secret(reader).map(HttpAuth::FunctionKey),
        AuthKind::Header => {
            let name = reader.read(&settings::HANDLER_AUTH_HEADER, at, header_name);
            let value = secret(reader);
            Some(HttpAuth::Header { name: name?, value: value? })
        }
        AuthKind::Identity => {
            let audience = reader.read(&settings::HANDLER_AUTH_AUDIENCE, at, audience);
            let client_id = reader.read_if_set(&settings::HANDLER_AUTH_CLIENT_ID, at, parse::any);
            Some(HttpAuth::Identity { audience: audience?, client_id })
        }
    }
}

/// Whether a text is a reference that App Service has not replaced by a secret. It leaves the reference as the value if
/// the app's identity may not read the secret: <https://learn.microsoft.com/azure/app-service/app-service-key-vault-references>.
fn is_unresolved(text: &str) -> bool {
    ["@Microsoft.KeyVault(", "@Microsoft.AppConfiguration("]
        .iter()
        .any(|start| text.trim_start().starts_with(start))
}

fn unresolved() -> Expected {
    Expected::new(
        "the secret itself: the platform has not resolved the reference, so check that the app's identity may read it",
    )
}

/// Reads the setting `name`, to which the setting `named_by` refers.
pub(in crate::config) fn read_named<T>(
    reader: &mut Reader<'_>,
    name: &str,
    named_by: &Setting,
    at: Option<&str>,
    parse: impl Fn(&str) -> Result<T, Expected>,
) -> Option<T> {
    let hint = format!("`{}` refers to this setting", named_by.name_for(at));
    let parse = |text: &str| if is_unresolved(text) { Err(unresolved()) } else { parse(text) };
    match reader.text(name).as_deref().map(parse) {
        Some(Ok(value)) => Some(value),
        Some(Err(expected)) => {
            reader.wrong(name, "", expected.hint(hint).shown(Shown::Secret));
            None
        }
        None => {
            let expected = "a value".to_owned();
            let hint = Some(hint);
            reader.note(Mistake {
                setting: name.to_owned(),
                shown: Shown::Missing,
                expected,
                hint,
            });
            None
        }
    }
}

/// Parses the name of a setting with a secret.
///
/// The most likely mistake is to put the secret itself here, so a text that could be one is not shown: function keys
/// and signing secrets are longer than usual names, or have a prefix that names do not have.
pub(in crate::config) fn secret_name(text: &str) -> Result<String, Expected> {
    const LENGTH_MAX: usize = 40;
    let name = parse::setting_name(text).ok();
    let name = name.filter(|name| name.len() <= LENGTH_MAX && !name.starts_with(SIGNING_PREFIX));
    name.ok_or_else(|| {
        Expected::new(format!("the name of a setting, of at most {LENGTH_MAX} characters"))
            .hint("put the secret into another setting, and the name of that setting here")
            .shown(Shown::Secret)
    })
}

/// Parses a secret in the format of Standard Webhooks.
fn signing_secret(text: &str) -> Result<SecretSlice<u8>, Expected> {
    let key = text.strip_prefix(SIGNING_PREFIX).and_then(|encoded| STANDARD.decode(encoded).ok());
    let fits = key.filter(|key| SIGNING_SECRET_BYTES.contains(&key.len()));
    fits.map(SecretSlice::from)
        .ok_or_else(|| Expected::new("`whsec_` and the base64 of 24 to 64 random bytes"))
}

fn header_value(text: &str) -> Result<SecretString, Expected> {
    let fits = text.chars().all(|c| matches!(c, ' '..='~'));
    fits.then(|| text.into()).ok_or_else(|| Expected::new("printable ASCII characters"))
}

/// Parses the name of a header that neither Highwater nor HTTP sets.
fn header_name(text: &str) -> Result<String, Expected> {
    const RESERVED: [&str; 12] = [
        "accept",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "te",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "upgrade",
    ];
    let name = text.to_ascii_lowercase();
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let is_reserved = RESERVED.contains(&name.as_str())
        || name.starts_with("webhook-")
        || name.starts_with("x-highwater-");
    (is_name && !is_reserved).then_some(name).ok_or_else(|| {
        Expected::new("the name of a header that Highwater and HTTP do not set themselves")
    })
}

/// Parses certificates or the path of a file with them. Line breaks may be written as a literal `\n`.
fn authorities(text: &str) -> Result<Authorities, Expected> {
    if text.contains("PRIVATE KEY") {
        let expected = Expected::new("certificates without a private key");
        return Err(expected.shown(Shown::Secret));
    }
    if text.contains("-----BEGIN CERTIFICATE-----") {
        return Ok(Authorities::Pem(text.replace("\\n", "\n")));
    }
    let is_path = !text.contains(['\n', '\r']) && text.len() <= 1024;
    is_path.then(|| Authorities::File(text.into())).ok_or_else(|| {
        Expected::new("certificates in PEM, or the path of a file with them").shown(Shown::Secret)
    })
}

/// Parses the audience of a token.
fn audience(text: &str) -> Result<String, Expected> {
    let is_plain = text.chars().all(|c| c.is_ascii_graphic());
    (is_plain && !text.ends_with("/.default")).then(|| text.to_owned()).ok_or_else(|| {
        Expected::new("an application id URI such as `api://my-app`, without `/.default`")
    })
}

pub(in crate::config) fn target_url(
    text: &str,
    allow_http: bool,
    permission: &str,
) -> Result<Url, Expected> {
    let expected = || Expected::new("an absolute URL such as `https://hooks.contoso.com/changes`");
    let url = Url::parse(text).map_err(|error: url::ParseError| {
        let has_other_letters = error == url::ParseError::IdnaError && !text.is_ascii();
        let hint = if has_other_letters {
            "write a host name with non-ASCII letters as `xn--…`".to_owned()
        } else if is_cut_in_user_info(text) {
            "in a user name or password, write `#` as `%23`, `/` as `%2F`, `?` as `%3F` and `@` as `%40`"
                .to_owned()
        } else {
            error.to_string()
        };
        expected().hint(hint).shown(Shown::of_address(text))
    })?;
    let shown = || Shown::Value(shown_url(&url));
    if url.fragment().is_some() {
        // If a password contains `#`, the apparent host is part of the password.
        return Err(Expected::new("a URL without a fragment (`#…`), which is never sent")
            .hint("write a `#` in a password or parameter as `%23`")
            .shown(Shown::of_address(text)));
    }
    if is_documentation(&url) {
        return Err(Expected::new("the URL of your own endpoint")
            .hint("this name is reserved for documentation; rows must not be sent there")
            .shown(shown()));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if allow_http || is_loopback(&url) => Ok(url),
        "http" => Err(Expected::new("an `https` URL, since the host is not this machine")
            .hint(format!("set `{permission}` to `true` to send rows without encryption"))
            .shown(shown())),
        _ => Err(expected().shown(Shown::of_address(text))),
    }
}

/// Whether a character that ends the host occurs before an `@`: it may belong to a password.
fn is_cut_in_user_info(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.rsplit_once('@').is_some_and(|(before, _)| before.contains(['#', '/', '?', '@']))
}

/// Whether the host of a URL is reserved for documentation.
/// <https://www.rfc-editor.org/rfc/rfc6761>
fn is_documentation(url: &Url) -> bool {
    let Some(Host::Domain(name)) = url.host() else { return false };
    let name = name.trim_end_matches('.');
    ["example.com", "example.org", "example.net", "invalid"].into_iter().any(|reserved| {
        name.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Whether a URL refers to this machine.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_ascii_host_must_be_written_in_its_ascii_form() {
        let read = |text| target_url(text, false, "ALLOW_HTTP");
        assert!(read("https://xn--bcher-kva.example/changes").is_ok());
        let error = format!("{:?}", read("https://bücher.example/changes").unwrap_err());
        assert!(error.contains("letters as `xn--…`"), "{error}");
    }

    #[test]
    fn a_fragment_is_rejected_and_only_the_scheme_is_shown() {
        for text in ["https://hunter22#x@contoso.com/a", "https://contoso.com/a#hunter22"] {
            let error = target_url(text, false, "X").unwrap_err();
            assert_eq!(error.shown, Some(Shown::Scheme("https".to_owned())));
            assert!(!format!("{error:?}").contains("hunter22"), "{error:?}");
        }
        assert!(target_url("https://contoso.com/a?b=%23", false, "X").is_ok());
    }

    #[test]
    fn hosts_reserved_for_documentation_are_rejected() {
        for (host, fits) in [
            ("example.com", false),
            ("www.example.org", false),
            ("EXAMPLE.NET.", false),
            ("hooks.invalid", false),
            ("myexample.com", true),
            ("example.com.contoso.com", true),
        ] {
            let url = format!("https://{host}:8443/orders?code=hunter22");
            assert_eq!(target_url(&url, false, "X").is_ok(), fits, "{host}");
        }
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_allowed() {
        for (text, fits) in [
            ("http://localhost:7071/api/x", true),
            ("http://127.1.2.3/", true),
            ("http://[::1]:80/", true),
            ("http://app.localhost/", true),
            ("http://localhost.contoso.com/", false),
            ("http://10.0.0.1/", false),
            ("https://10.0.0.1/", true),
        ] {
            assert_eq!(target_url(text, false, "X").is_ok(), fits, "{text}");
            assert!(target_url(text, true, "X").is_ok(), "{text}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected_without_showing_secrets() {
        for text in
            ["/api/x?code=secret", "ftp://contoso.com?secret", "https://?secret", "secret@host:x"]
        {
            let expected = target_url(text, true, "X").unwrap_err();
            assert!(!format!("{expected:?}").contains("secret"), "{expected:?}");
        }
    }
}

//! Classifies errors of the driver and the server by what the operator has to do.

use std::time::Duration;

use highwater_engine::error::{ErrorKind, chain};
use highwater_engine::redaction::scrub;
use thiserror::Error;

use crate::connection_string::Encrypt;

use super::dial::DialError;
use super::number::{ReadRetry, class};

/// A connection that failed to open, or a statement that failed.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct SqlError {
    /// What the operator has to do.
    pub kind: ErrorKind,
    /// What was attempted and how to fix it, without secrets.
    pub reason: String,
    /// Whether no connection could be opened, so the statement was never sent.
    unsent: bool,
    /// Whether the error came from requesting a token, before contacting the server.
    token: bool,
    /// Whether the same read may succeed soon.
    read_retry: Option<ReadRetry>,
    /// The error of the driver or the credential.
    #[source]
    source: Option<Box<Cause>>,
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// Making a connection took too long.
    Connect(Duration),
    /// A statement took too long.
    Command(Duration),
}

impl Limit {
    fn advice(self) -> String {
        let keyword = match self {
            Self::Connect(_) => "Connect Timeout",
            Self::Command(_) => "Command Timeout",
        };
        format!("if that is too short, raise `{keyword}` in the connection string")
    }
}

/// Requirement of `Encrypt=Strict`; a server that does not support it may not answer at all.
pub(super) const STRICT: &str = "`Encrypt=Strict` needs a server with TDS 8.0 (SQL Server 2022 or later, Azure \
     SQL); with an older one, set `Encrypt=Mandatory` in the connection string";

/// Errors of reads whose message contains no value of a column: names, rights, logins, locks, limits and outages. Any other
/// message may, such as "Conversion failed when converting the nvarchar value '…' to data type int".
/// <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>
const WITHOUT_VALUE: &[u32] = &[
    64, 102, 156, 207, 208, 209, 229, 230, 233, 241, 242, 262, 297, 300, 701, 802, 911, 916, 922,
    923, 924, 945, 976, 978, 983, 1204, 1205, 1222, 3906, 3960, 4060, 4062, 4064, 8115, 8134, 8645,
    8651, 9002, 10053, 10054, 10060, 10922, 10928, 10929, 18452, 18456, 18488, 22105, 40197, 40501,
    40544, 40549, 40550, 40551, 40552, 40553, 40613, 40615, 40914, 49918, 49919, 49920,
];

/// Shown instead of another message.
const HIDDEN: &str =
    "the message may contain a value, and is not shown because `SOURCE__MASK` is set";

#[derive(Debug, Error)]
enum Cause {
    #[error("{}", .0.message())]
    Server(tiberius::error::TokenError),
    /// An error whose message may contain a value that must not be shown.
    #[error("{HIDDEN}")]
    Hidden { number: u32, severity: u8 },
    #[error("{0}")]
    Driver(tiberius::error::Error),
    #[error("{0}")]
    Elapsed(tokio::time::error::Elapsed),
    #[error("{0}")]
    Io(std::io::Error),
    /// The credential's error, with its causes.
    #[error("{0}")]
    Token(String),
}

impl SqlError {
    /// Returns an error without a cause.
    pub(crate) fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            unsent: false,
            token: false,
            read_retry: None,
            source: None,
        }
    }

    /// Marks the error as one of a statement that was never sent.
    pub(crate) fn before_sending(self) -> Self {
        Self { unsent: true, ..self }
    }

    /// Converts a driver error that occurred during `action`.
    pub(super) fn of(action: &str, error: tiberius::error::Error) -> Self {
        use tiberius::error::{
            Error as Driver,
            IoErrorKind::{InvalidData, InvalidInput, TimedOut},
        };
        match error {
            Driver::Server(token) => {
                let (kind, retry, words) = class(token.code());
                let reason = format!("{action}: error {}{words}", token.code());
                Self::caused(kind, &reason, Cause::Server(token)).with_read_retry(retry)
            }
            Driver::Tls(text) if text.contains("certificate") => {
                certificate(action, &text, Encrypt::Mandatory)
            }
            Driver::Io { kind: InvalidData | InvalidInput, message }
                if message.contains("ertificate") || message.contains("CA ") =>
            {
                // The file that `ServerCertificate` names.
                Self::new(
                    ErrorKind::Configuration,
                    format!("{action}: `ServerCertificate`: {message}"),
                )
            }
            // The driver limits only statements; connecting is limited as a whole.
            Driver::Io { kind: TimedOut, message } => {
                // The rest of the driver's message is advice about its own API.
                let what = message.split(" (it may").next().unwrap_or(&message);
                let advice = Limit::Command(Duration::ZERO).advice();
                Self::new(ErrorKind::Transient, format!("{action}: {what}; {advice}"))
            }
            Driver::Routing { .. } => {
                Self::caused(ErrorKind::Transient, action, Cause::Driver(error))
            }
            Driver::Io { .. } | Driver::Tls(_) => {
                Self::caused(ErrorKind::Transient, action, Cause::Driver(error))
                    .with_read_retry(Some(ReadRetry::NewConnection))
            }
            Driver::Protocol(_)
            | Driver::Encoding(_)
            | Driver::Conversion(_)
            | Driver::Utf8
            | Driver::Utf16
            | Driver::ParseInt(_)
            | Driver::BulkInput(_) => {
                Self::caused(ErrorKind::Internal, action, Cause::Driver(error))
            }
        }
    }

    /// Converts a driver error that occurred during a login with this level of encryption.
    pub(super) fn of_login(action: &str, error: tiberius::error::Error, encrypt: Encrypt) -> Self {
        if let tiberius::error::Error::Tls(text) = &error
            && text.contains("certificate")
        {
            return certificate(action, text, encrypt);
        }
        let is_about_encryption =
            matches!(error, tiberius::error::Error::Io { .. } | tiberius::error::Error::Tls(_));
        if encrypt == Encrypt::Strict && is_about_encryption {
            return Self::of(&format!("{action}: {STRICT}"), error);
        }
        Self::of(action, error)
    }

    /// Returns the error without advice about a source, for callers that are not one: for a statement that
    /// was sent, the advice is about reading rows.
    pub(crate) fn without_advice(&self) -> String {
        match (self.number(), self.message()) {
            (Some(number), Some(message)) if !self.is_unsent() => {
                format!("error {number}: {}", message.trim_end_matches('.'))
            }
            _ => chain(self),
        }
    }

    /// Returns the error of a limit that was exceeded during `action`.
    pub(super) fn timeout(
        action: &str,
        limit: Limit,
        elapsed: tokio::time::error::Elapsed,
    ) -> Self {
        let (Limit::Connect(time) | Limit::Command(time)) = limit;
        let reason = format!("{action}: no complete answer within {time:?}; {}", limit.advice());
        Self::caused(ErrorKind::Transient, &reason, Cause::Elapsed(elapsed))
    }

    /// Returns the error of a server that does not answer a client that starts with TLS.
    pub(super) fn silent(action: &str, patience: Duration) -> Self {
        let reason = format!("{action}: no answer to a TLS hello within {patience:?}: {STRICT}");
        Self::new(ErrorKind::Transient, reason)
    }

    /// Returns the error of a failed network connection.
    pub(super) fn dial(action: &str, error: DialError) -> Self {
        match error {
            DialError::Lookup(error) => {
                let reason = format!("{action}: name not found, check `Server`");
                Self::caused(ErrorKind::Transient, &reason, Cause::Io(error))
            }
            DialError::Connect(error) => {
                Self::caused(ErrorKind::Transient, action, Cause::Io(error))
                    .with_read_retry(Some(ReadRetry::NewConnection))
            }
        }
    }

    /// Returns the error of a credential that returned no token during `action`.
    pub(super) fn token(action: &str, error: &azure_core::Error) -> Self {
        let kind = if is_refusal(error) { ErrorKind::Configuration } else { ErrorKind::Transient };
        Self::caused(kind, action, Cause::Token(describe(error))).about_token()
    }

    /// Marks the error as one of requesting a token.
    pub(super) fn about_token(self) -> Self {
        Self { token: true, ..self }
    }

    /// Returns whether requesting a token failed, before contacting the server.
    pub fn is_about_token(&self) -> bool {
        self.token
    }

    /// Returns whether and how the same read may succeed soon.
    pub fn read_retry(&self) -> Option<ReadRetry> {
        self.read_retry
    }

    pub(super) fn with_read_retry(self, read_retry: Option<ReadRetry>) -> Self {
        Self { read_retry, ..self }
    }

    /// Returns the server's error number.
    pub fn number(&self) -> Option<u32> {
        match self.source.as_deref() {
            Some(Cause::Hidden { number, .. }) => Some(*number),
            Some(_) | None => self.server().map(tiberius::error::TokenError::code),
        }
    }

    /// Returns the server's error message.
    pub fn message(&self) -> Option<&str> {
        match self.source.as_deref() {
            Some(Cause::Hidden { .. }) => Some(HIDDEN),
            Some(_) | None => self.server().map(tiberius::error::TokenError::message),
        }
    }

    /// Removes the server's message if it may contain a value of a column.
    pub(super) fn without_value(self) -> Self {
        let hidden = match self.server() {
            Some(token) if !WITHOUT_VALUE.contains(&token.code()) => {
                Cause::Hidden { number: token.code(), severity: token.class() }
            }
            Some(_) | None => return self,
        };
        Self { source: Some(Box::new(hidden)), ..self }
    }

    /// Returns whether the statement was never sent, because no connection could be opened.
    ///
    /// Otherwise it may have run, unless the server's own error rules that out.
    pub fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Returns the server's severity of the error, from 0 to 25.
    pub(super) fn severity(&self) -> Option<u8> {
        match self.source.as_deref() {
            Some(Cause::Hidden { severity, .. }) => Some(*severity),
            Some(_) | None => self.server().map(tiberius::error::TokenError::class),
        }
    }

    /// Whether the server rejected the statement itself, so that a retry would be rejected too.
    pub(crate) fn is_rejected(&self) -> bool {
        !self.unsent
            && self.read_retry.is_none()
            && self.severity().is_some_and(|severity| severity <= super::SEVERITY_KEPT_MAX)
    }

    /// Whether the peer closed the connection; a time-out does not show that.
    pub(super) fn is_broken_connection(&self) -> bool {
        use tiberius::error::IoErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        matches!(
            self.source.as_deref(),
            Some(Cause::Driver(tiberius::error::Error::Io {
                kind: BrokenPipe
                    | ConnectionAborted
                    | ConnectionReset
                    | NotConnected
                    | UnexpectedEof,
                ..
            }))
        )
    }

    fn server(&self) -> Option<&tiberius::error::TokenError> {
        match self.source.as_deref() {
            Some(Cause::Server(token)) => Some(token),
            Some(
                Cause::Hidden { .. }
                | Cause::Driver(_)
                | Cause::Elapsed(_)
                | Cause::Io(_)
                | Cause::Token(_),
            )
            | None => None,
        }
    }

    fn caused(kind: ErrorKind, reason: &str, cause: Cause) -> Self {
        let source = Some(Box::new(cause));
        Self {
            kind,
            reason: reason.to_owned(),
            unsent: false,
            token: false,
            read_retry: None,
            source,
        }
    }
}

/// Whether the identity service answered with a refusal, as opposed to not answering.
fn is_refusal(error: &azure_core::Error) -> bool {
    // 408 and 429 ask for a retry.
    let refuses = |status: u16| matches!(status, 400..=499) && status != 408 && status != 429;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let status = error.downcast_ref().and_then(azure_core::Error::http_status);
        if status.is_some_and(|status| refuses(status.into())) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Context that the HTTP client's adapter adds to every cause.
const CRATE_NOISE: &str = "failed to execute `reqwest` request: ";

/// Returns the credential's error and its causes, without the queries of URLs.
fn describe(error: &azure_core::Error) -> String {
    scrub(&chain(error).replace(CRATE_NOISE, ""))
}

fn certificate(action: &str, text: &str, encrypt: Encrypt) -> SqlError {
    // The rest of the driver's message is advice about its own API.
    let what = text.split(" To connect anyway").next().unwrap_or(text).trim_end_matches('.');
    let trust = match encrypt {
        // Strict mode always checks the certificate, and rejects the setting.
        Encrypt::Strict => "",
        Encrypt::Mandatory | Encrypt::Optional | Encrypt::Plain => {
            ", or, on a network you trust, set `TrustServerCertificate=true`"
        }
    };
    SqlError::new(
        ErrorKind::Configuration,
        format!(
            "{action}: {what}; in the connection string name the authority's file as \
             `ServerCertificate`, or the certificate's name as `HostNameInCertificate`{trust}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_problem_is_a_setting_and_a_lost_connection_is_not() {
        let text =
            "the server's certificate was rejected: UnknownIssuer. To connect anyway you can";
        let error = SqlError::of("connect", tiberius::error::Error::Tls(text.to_owned()));
        assert_eq!(error.kind, ErrorKind::Configuration);
        assert!(error.reason.contains("UnknownIssuer; in the connection string"), "{error}");
        let lost = tiberius::error::Error::Io {
            kind: tiberius::error::IoErrorKind::ConnectionReset,
            message: "reset".to_owned(),
        };
        let error = SqlError::of("run a statement", lost);
        assert_eq!(error.kind, ErrorKind::Transient);
        assert!(error.is_broken_connection());
        assert_eq!(error.read_retry(), Some(ReadRetry::NewConnection));
        assert!(chain(&error).starts_with("run a statement: An error occurred"));
    }

    #[test]
    fn a_limit_has_the_name_of_its_connection_string_key() {
        // The driver's message.
        let message = "the server did not send the next part of the command result within 30s (it may have \
                       stalled, or be responding too slowly for the configured bound); the connection is now \
                       out of sync and must be dropped. Adjust the bound with `Config::command_timeout`, or \
                       pass `None` to wait indefinitely.";
        let error = tiberius::error::Error::Io {
            kind: tiberius::error::IoErrorKind::TimedOut,
            message: message.to_owned(),
        };
        let error = SqlError::of("run a statement", error);
        assert_eq!((error.kind, error.read_retry()), (ErrorKind::Transient, None));
        assert_eq!(
            chain(&error),
            "run a statement: the server did not send the next part of the command result within 30s; if \
             that is too short, raise `Command Timeout` in the connection string"
        );
    }

    #[test]
    fn strict_encryption_gets_no_advice_to_trust_any_certificate() {
        let error = |encrypt| {
            let text = "the server's certificate was rejected: UnknownIssuer";
            SqlError::of_login("connect", tiberius::error::Error::Tls(text.to_owned()), encrypt)
        };
        let strict = error(Encrypt::Strict);
        assert!(strict.reason.ends_with("as `HostNameInCertificate`"), "{strict}");
        assert_eq!(strict.kind, ErrorKind::Configuration);
        let other = error(Encrypt::Mandatory);
        assert!(other.reason.ends_with("set `TrustServerCertificate=true`"), "{other}");
    }

    #[test]
    fn a_failed_token_request_says_why_without_secrets() {
        use azure_core::error::ErrorKind as Azure;
        let refused = std::io::Error::other("connection refused");
        let inner = azure_core::Error::with_error(
            Azure::Io,
            refused,
            "sending to (https://login.example/token?client_secret=s3cret)",
        );
        let error = azure_core::Error::with_error(
            Azure::Credential,
            inner,
            "failed to execute `reqwest` request",
        );
        let error = SqlError::token("get a token", &error);
        assert!(error.is_about_token());
        assert_eq!(
            chain(&error),
            "get a token: sending to (https://login.example/token[redacted]): connection refused"
        );
        assert!(!SqlError::new(ErrorKind::Transient, "x").is_about_token());
    }

    #[test]
    fn a_refused_token_is_a_setting_and_an_unavailable_service_is_not() {
        use azure_core::error::ErrorKind as Azure;
        for (status, kind) in [
            (400, ErrorKind::Configuration),
            (401, ErrorKind::Configuration),
            (429, ErrorKind::Transient),
            (503, ErrorKind::Transient),
        ] {
            let answer =
                Azure::HttpResponse { status: status.into(), error_code: None, raw_response: None };
            let inner = azure_core::Error::with_message(answer, "no");
            let error = azure_core::Error::with_error(Azure::Credential, inner, "no token");
            assert_eq!(SqlError::token("get a token", &error).kind, kind, "{status}");
        }
        let lost = azure_core::Error::with_message(Azure::Io, "no answer");
        assert_eq!(SqlError::token("get a token", &lost).kind, ErrorKind::Transient);
    }
}

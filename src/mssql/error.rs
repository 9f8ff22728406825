//! What an error of the driver or the server means for the operator.

use std::time::Duration;

use thiserror::Error;

use crate::error::ErrorKind;

/// A connection that could not be made, or a statement that failed.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct SqlError {
    /// What the operator has to do.
    pub kind: ErrorKind,
    /// What was tried and what to do about it, without secrets.
    pub reason: String,
    /// Whether no connection could be made, so that the statement was never sent.
    unsent: bool,
    /// What the driver or the credential says.
    #[source]
    source: Option<Box<Cause>>,
}

#[derive(Debug, Error)]
enum Cause {
    #[error("{}", .0.message())]
    Server(tiberius::error::TokenError),
    #[error("{0}")]
    Driver(tiberius::error::Error),
    #[error("{0}")]
    Elapsed(tokio::time::error::Elapsed),
    #[error("{0}")]
    Io(std::io::Error),
    #[error("{0}")]
    Token(azure_core::Error),
}

impl SqlError {
    /// Returns an error without a cause.
    pub(crate) fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), unsent: false, source: None }
    }

    /// Returns the same error, as one of a statement that was never sent.
    pub(crate) fn before_sending(self) -> Self {
        Self { unsent: true, ..self }
    }

    /// Returns what an error of the driver means, met while doing `action`.
    pub(super) fn of(action: &str, error: tiberius::error::Error) -> Self {
        use tiberius::error::{
            Error as Driver,
            IoErrorKind::{InvalidData, InvalidInput},
        };
        match error {
            Driver::Server(token) => {
                let (kind, advice) = class(token.code());
                let reason = format!("{action}: error {}{advice}", token.code());
                let source = Some(Box::new(Cause::Server(token)));
                Self { kind, reason, unsent: false, source }
            }
            Driver::Tls(text) if text.contains("certificate") => certificate(action, &text),
            Driver::Io { kind: InvalidData | InvalidInput, message }
                if message.contains("ertificate") || message.contains("CA ") =>
            {
                // The file that `ServerCertificate` names.
                Self::new(
                    ErrorKind::Configuration,
                    format!("{action}: `ServerCertificate`: {message}"),
                )
            }
            Driver::Io { .. } | Driver::Tls(_) | Driver::Routing { .. } => {
                Self::caused(ErrorKind::Transient, action, Cause::Driver(error))
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

    /// Returns the error of a limit that was reached while doing `action`.
    pub(super) fn timeout(
        action: &str,
        limit: Duration,
        elapsed: tokio::time::error::Elapsed,
    ) -> Self {
        let reason = format!("{action}: no complete answer within {limit:?}");
        let source = Some(Box::new(Cause::Elapsed(elapsed)));
        Self { kind: ErrorKind::Transient, reason, unsent: false, source }
    }

    /// Returns the error of a network connection that could not be made.
    pub(super) fn network(action: &str, error: std::io::Error) -> Self {
        Self::caused(ErrorKind::Transient, action, Cause::Io(error))
    }

    /// Returns the error of a credential that gave no token.
    pub(super) fn token(error: azure_core::Error) -> Self {
        let reason = "get a token for the database: check that the app has the identity that the \
                      connection string names";
        Self::caused(ErrorKind::Transient, reason, Cause::Token(error))
    }

    /// Returns the server's error number.
    pub fn number(&self) -> Option<u32> {
        self.server().map(tiberius::error::TokenError::code)
    }

    /// Returns the server's own words.
    pub fn message(&self) -> Option<&str> {
        self.server().map(tiberius::error::TokenError::message)
    }

    /// Returns whether the statement was never sent, as no connection could be made.
    ///
    /// Otherwise it may have run, unless the server's own error says that it did not.
    pub fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Returns how severe the server calls the error, from 0 to 25.
    pub(super) fn severity(&self) -> Option<u8> {
        self.server().map(tiberius::error::TokenError::class)
    }

    /// Whether the other end has gone, which a time-out does not tell.
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
            Some(Cause::Driver(_) | Cause::Elapsed(_) | Cause::Io(_) | Cause::Token(_)) | None => {
                None
            }
        }
    }

    fn caused(kind: ErrorKind, reason: &str, cause: Cause) -> Self {
        Self { kind, reason: reason.to_owned(), unsent: false, source: Some(Box::new(cause)) }
    }
}

fn certificate(action: &str, text: &str) -> SqlError {
    // The driver goes on with advice on its own functions.
    let what = text.split(" To connect anyway").next().unwrap_or(text).trim_end_matches('.');
    SqlError::new(
        ErrorKind::Configuration,
        format!(
            "{action}: {what}; in the connection string name the authority's file as \
             `ServerCertificate`, or the certificate's name as `HostNameInCertificate`, or, on a \
             network you trust, set `TrustServerCertificate=true`"
        ),
    )
}

/// Returns who has to act on a server's error number, and how.
///
/// Numbers: <https://learn.microsoft.com/azure/azure-sql/database/troubleshoot-common-errors-issues>
/// and <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>.
fn class(number: u32) -> (ErrorKind, &'static str) {
    use ErrorKind::{Configuration, Data, Transient};
    match number {
        1205 => (Transient, " (deadlock)"),
        1222 => (Transient, " (waited too long for a lock)"),
        3960 => (Transient, " (changed since its snapshot)"),
        701 | 802 | 8645 | 8651 | 8628 => (Transient, " (the server is short of memory)"),
        18456 | 18452 | 18488 | 18487 => (
            Configuration,
            " (login refused): check user and password, or the identity's database user",
        ),
        4060 | 4064 | 911 | 916 => (
            Configuration,
            " (database not opened): check the database's name, and that the login has a user in it",
        ),
        40615 | 40914 => {
            (Configuration, " (blocked by the server's firewall): allow this app's address")
        }
        208 | 4902 => {
            (Configuration, " (object not found): check the table's name, and the filter")
        }
        207 | 4104 => {
            (Configuration, " (column not found): check the column settings, and the filter")
        }
        229 | 230 | 262 | 297 | 300 | 371 => {
            (Configuration, " (right missing): grant SELECT on the object to this user")
        }
        102 | 105 | 156 | 319 | 137 | 195 | 4145 | 2715 | 8622 => {
            (Configuration, " (statement refused): check the filter")
        }
        206 | 220 | 232 | 241 | 242 | 244 | 245 | 248 | 8114 | 8115 | 8134 | 8152 | 8169 => (
            Data,
            " (value not convertible): check the filter, and that the state belongs to this table",
        ),
        // 40197, 40501, 40613, 49918 to 49920, 10928, 10929, …: fail-over, throttling, a moved database.
        // What is not known is taken for such, since trying again does no harm.
        _ => (Transient, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::chain;

    #[test]
    fn numbers_say_who_has_to_act() {
        for (number, kind) in [
            (40613, ErrorKind::Transient),
            (49919, ErrorKind::Transient),
            (1205, ErrorKind::Transient),
            (1222, ErrorKind::Transient),
            (18456, ErrorKind::Configuration),
            (4060, ErrorKind::Configuration),
            (208, ErrorKind::Configuration),
            (207, ErrorKind::Configuration),
            (229, ErrorKind::Configuration),
            (241, ErrorKind::Data),
            (50000, ErrorKind::Transient),
        ] {
            assert_eq!(class(number).0, kind, "{number}");
        }
    }

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
        assert!(chain(&error).starts_with("run a statement: An error occurred"));
    }
}

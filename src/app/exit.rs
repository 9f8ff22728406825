//! Exit codes and error messages of a process.

use std::io;
use std::process::ExitCode;

use crate::builder::BuildError;
use crate::document::LoadError;
use crate::error::{ErrorKind, chain};
use crate::explain::TraceError;
use crate::lease::LeaseError;
use crate::poller::TickError;
use crate::printable::printable;
use crate::recovery::RecoveryError;
use crate::redaction::redact;
use crate::state::{FormatError, Refusal, StoreError};
use crate::status::StatusError;
use crate::suggestion::with_settings;
use crate::telemetry::{flush_lines, write_stderr};

/// Exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success, or nothing to do.
    Done = 0,
    /// Failure.
    Failed = 1,
    /// Wrong usage, or a missing confirmation.
    Usage = 2,
    /// Invalid settings.
    Settings = 3,
    /// Permission denied.
    Denied = 4,
    /// Another instance holds the lease, or made a conflicting change.
    Conflict = 5,
    /// A required service is unreachable.
    Unavailable = 6,
    /// The handler did not accept the rows.
    NotAccepted = 7,
    /// `status --check`: a poller needs attention.
    NeedsAttention = 8,
    /// `status --check`: a poller delivers nothing until an operator acts.
    NotDelivering = 9,
    /// Stopped by SIGHUP, such as on a closed terminal. 128 plus the signal's number, as in shells.
    HungUp = 129,
    /// Stopped by SIGINT, such as Ctrl-C.
    Interrupted = 130,
    /// Stopped by SIGTERM.
    Terminated = 143,
    /// Makes the Functions host restart the process without counting an error. The host never restarts a process that
    /// exited with 0 (observed in host 4.1037).
    Restart = 200,
}

impl Exit {
    /// Returns the number.
    #[expect(clippy::as_conversions, reason = "the numbers are declared with the variants")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed {
    /// The exit code.
    pub exit: Exit,
    /// The error message.
    pub text: String,
}

impl Failed {
    /// Returns a failure.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }
}

impl From<BuildError> for Failed {
    fn from(error: BuildError) -> Self {
        Self::new(Exit::Settings, chain(&error))
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::new(exit_of_store(&error), chain(&error))
    }
}

impl From<FormatError> for Failed {
    fn from(error: FormatError) -> Self {
        Self::new(Exit::Failed, chain(&error))
    }
}

impl From<TickError> for Failed {
    fn from(error: TickError) -> Self {
        Self::new(exit_of(&error), chain(&error))
    }
}

impl From<RecoveryError> for Failed {
    fn from(error: RecoveryError) -> Self {
        match error {
            RecoveryError::Store(error) | RecoveryError::Lease(LeaseError::Store(error)) => {
                error.into()
            }
            RecoveryError::Lease(LeaseError::Lost(_)) => Self::new(Exit::Conflict, chain(&error)),
            RecoveryError::Lease(_) | RecoveryError::Document(_) => {
                Self::new(Exit::Failed, chain(&error))
            }
        }
    }
}

impl From<StatusError> for Failed {
    fn from(error: StatusError) -> Self {
        match error {
            StatusError::NoPoller(_) => Self::new(Exit::Usage, error.text()),
            StatusError::Store(error) => error.into(),
        }
    }
}

impl From<TraceError> for Failed {
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::NoPoller(_) | TraceError::Key(_) => {
                Self::new(Exit::Usage, error.to_string())
            }
            TraceError::Busy => Self::new(Exit::Conflict, error.to_string()),
            TraceError::Load(error) => TickError::Load(error).into(),
            TraceError::Fetch(error) => TickError::Fetch(error).into(),
        }
    }
}

fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Conflict { .. } => Exit::Conflict,
        StoreError::Refused { .. } => Exit::Denied,
        StoreError::Unreachable { .. } | StoreError::Unknown { .. } => Exit::Unavailable,
    }
}

fn exit_of(error: &TickError) -> Exit {
    match error {
        TickError::Load(LoadError::Store(error))
        | TickError::Acquire(LeaseError::Store(error))
        | TickError::Commit(LeaseError::Store(error)) => exit_of_store(error),
        TickError::Acquire(LeaseError::Refused(Refusal::Held { .. }))
        | TickError::LeaseLost(_)
        | TickError::Commit(_) => Exit::Conflict,
        TickError::Fetch(error) => match error.kind {
            ErrorKind::Transient => Exit::Unavailable,
            ErrorKind::Configuration => Exit::Settings,
            ErrorKind::Data | ErrorKind::Internal => Exit::Failed,
        },
        TickError::Handler(_)
        | TickError::FenceAhead { .. }
        | TickError::OutOfTime
        | TickError::Aborted => Exit::NotAccepted,
        TickError::Load(LoadError::Format(_))
        | TickError::Entry(_)
        | TickError::Acquire(_)
        | TickError::Fingerprint { .. }
        | TickError::OtherPartitionCount { .. }
        | TickError::StateVanished { .. }
        | TickError::NotStarted { .. }
        | TickError::FirstRunElsewhere { .. }
        | TickError::OtherPartitionCountElsewhere { .. }
        | TickError::Normalize(_) => Exit::Failed,
    }
}

/// Prints a message that is not data, such as a warning or a question, to standard error.
pub fn print_message(text: &str) {
    flush_lines();
    write_line(&mut io::stderr(), &printable(&redact(&with_settings(text))));
}

/// Like [`print_message`], for messages while a lease is held: a stalled reader does not block.
pub fn print_message_nonblocking(text: &str) {
    write_stderr(&format!("{}\n", printable(&redact(&with_settings(text)))));
}

/// Prints the error of a command, if any, and returns its exit code.
pub fn end(ended: Result<Exit, Failed>) -> ExitCode {
    match ended {
        Ok(exit) => exit.into(),
        Err(Failed { exit, text }) => {
            print_message(&format!("highwater: {text}"));
            exit.into()
        }
    }
}

/// Writes a line to a stream; errors are ignored.
pub fn write_line(stream: &mut impl io::Write, text: &str) {
    // If the reader is gone, there is nowhere to report it.
    let mut write = || writeln!(stream, "{text}").and_then(|()| stream.flush());
    write().unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_exit_code() {
        let unreachable = || StoreError::Unreachable { key: "k".into(), reason: "r".into() };
        let held = Refusal::Held { owner_id: "other".into() };
        for (error, expected) in [
            (TickError::Load(LoadError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Refused(held)), Exit::Conflict),
            (TickError::NotStarted { poller: "p".into() }, Exit::Failed),
            (TickError::OutOfTime, Exit::NotAccepted),
        ] {
            assert_eq!(exit_of(&error), expected, "{error}");
        }
        let denied = StoreError::Refused { key: "k".into(), reason: "r".into() };
        assert_eq!(exit_of_store(&denied), Exit::Denied);
    }
}

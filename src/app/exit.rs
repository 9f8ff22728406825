//! How a process ends, and what it says of that.

use std::io;
use std::process::ExitCode;

use crate::builder::BuildError;
use crate::document::LoadError;
use crate::error::{ErrorKind, chain};
use crate::lease::LeaseError;
use crate::poller::TickError;
use crate::recovery::RecoveryError;
use crate::redaction::redact;
use crate::state::{FormatError, Refusal, StoreError};
use crate::status::StatusError;
use crate::suggestion::with_settings;
use crate::telemetry::{flush_lines, write_stderr};

/// What a command's exit code tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It is done, or there was nothing to do.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// It was called wrongly, or a confirmation is missing.
    Usage = 2,
    /// The settings are wrong.
    Settings = 3,
    /// Something refuses for want of rights.
    Denied = 4,
    /// Somebody else holds the lease, or was faster.
    Conflict = 5,
    /// Something that is needed cannot be reached.
    Unavailable = 6,
    /// The handler did not take what it was given.
    NotTaken = 7,
    /// `status --check`: a poller needs attention.
    NeedsAttention = 8,
    /// `status --check`: a poller delivers nothing until someone acts.
    NotDelivering = 9,
    /// SIGHUP, such as by a closed terminal, came before it was done: 128 and the signal's number, as shells have it.
    HungUp = 129,
    /// SIGINT, such as by Ctrl-C, came before it was done.
    Interrupted = 130,
    /// SIGTERM came before it was done.
    Terminated = 143,
    /// The Functions host is to start the process again, and not to count an error. It never starts again a process that
    /// exited with 0 (seen in host 4.1037).
    Restart = 200,
}

impl Exit {
    /// Returns the number.
    #[expect(clippy::as_conversions, reason = "the numbers stand beside the names")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command ends without having done what it was asked to.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed {
    /// What the caller is told by number.
    pub exit: Exit,
    /// What the reader is told.
    pub text: String,
}

impl Failed {
    /// Returns an end of this kind.
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
        | TickError::Aborted => Exit::NotTaken,
        TickError::Load(LoadError::Format(_))
        | TickError::Acquire(_)
        | TickError::Fingerprint { .. }
        | TickError::Divided { .. }
        | TickError::StateVanished { .. }
        | TickError::NotStarted { .. }
        | TickError::FirstRunElsewhere { .. }
        | TickError::DividedElsewhere { .. }
        | TickError::Normalize(_) => Exit::Failed,
    }
}

/// Prints what is not data: warnings, questions.
pub fn tell(text: &str) {
    flush_lines();
    write_line(&mut io::stderr(), &redact(&with_settings(text)));
}

/// As [`tell`], for what is said while a lease is held: a reader that stands still delays nothing.
pub fn tell_aside(text: &str) {
    write_stderr(&format!("{}\n", redact(&with_settings(text))));
}

/// Prints why a command ends, and returns its exit code.
pub fn end(ended: Result<Exit, Failed>) -> ExitCode {
    match ended {
        Ok(exit) => exit.into(),
        Err(Failed { exit, text }) => {
            tell(&format!("highwater: {text}"));
            exit.into()
        }
    }
}

/// Writes a line to a stream, if anybody reads it.
pub fn write_line(stream: &mut impl io::Write, text: &str) {
    // Nobody is left who could be told of an error.
    let mut write = || writeln!(stream, "{text}").and_then(|()| stream.flush());
    write().unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_tells_what_to_do_next() {
        let unreachable = || StoreError::Unreachable { key: "k".into(), reason: "r".into() };
        let held = Refusal::Held { owner_id: "other".into() };
        for (error, expected) in [
            (TickError::Load(LoadError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Refused(held)), Exit::Conflict),
            (TickError::NotStarted { poller: "p".into() }, Exit::Failed),
            (TickError::OutOfTime, Exit::NotTaken),
        ] {
            assert_eq!(exit_of(&error), expected, "{error}");
        }
        let denied = StoreError::Refused { key: "k".into(), reason: "r".into() };
        assert_eq!(exit_of_store(&denied), Exit::Denied);
    }
}

//! The findings of `highwater doctor`: one per check, and the overall verdict. Pure, except for [`state`], which
//! reads through the store's port.
//!
//! # Reason
//!
//! Each component of a poller checks itself, since only it knows its statements; this module has what they share. A
//! bad finding suggests a fix. Something that cannot be checked is also a finding, never an error and never omitted:
//! an omitted check would look like a passed one.

pub mod clock;
pub mod sizing;
pub mod state;

use std::fmt;

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It cannot be checked here; the finding explains why.
    Unknown,
    /// It works, but not as well or not as safely as it could.
    Warning,
    /// The poller will not work, or can miss rows.
    Error,
}

impl Level {
    /// Returns the name used in every output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// The finding of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, as in `docs/reference/doctor.md`.
    pub check: &'static str,
    /// How it ended.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// How to fix it; `None` if there is nothing to fix.
    pub fix: Option<String>,
    /// Whether something the poller needs could not be reached at all.
    #[serde(skip)]
    pub unreachable: bool,
}

impl Finding {
    /// Returns a finding that all is well.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), fix: None, unreachable: false }
    }

    /// Returns a finding of something that cannot be checked; `fix` says how to make that possible.
    pub fn unknown(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Unknown, fix: Some(fix.into()), ..Self::ok(check, found) }
    }

    /// Returns a finding for a check that only a real SQL Server can answer, not the embedded one.
    pub fn needs_real_server(check: &'static str) -> Self {
        let found = "only a real server answers this; the embedded development server does not";
        Self { level: Level::Unknown, ..Self::ok(check, found) }
    }

    /// Returns a finding of something that works, but could be better.
    pub fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warning, fix: Some(fix.into()), ..Self::ok(check, found) }
    }

    /// Returns a finding of something that will not work, or can lose rows.
    pub fn error(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Error, fix: Some(fix.into()), ..Self::ok(check, found) }
    }

    /// Returns the finding of something that could not be reached.
    pub fn unreachable(check: &'static str, found: impl Into<String>, fix: &str) -> Self {
        Self { unreachable: true, ..Self::error(check, found, fix) }
    }
}

/// The overall verdict of all findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No error; there may be warnings.
    Healthy,
    /// At least one error.
    Unhealthy,
    /// Something needed could not be reached, so not everything was checked.
    Unreachable,
}

/// Returns the verdict on `findings`: something unreachable outweighs an error.
pub fn verdict(findings: &[Finding]) -> Verdict {
    let judge = |finding: &Finding| match finding.level {
        Level::Error if finding.unreachable => Verdict::Unreachable,
        Level::Error => Verdict::Unhealthy,
        Level::Ok | Level::Unknown | Level::Warning => Verdict::Healthy,
    };
    findings.iter().map(judge).max().unwrap_or(Verdict::Healthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_and_unreachable_is_worst() {
        let ok = Finding::ok("a", "fine");
        let unknown = Finding::unknown("b", "not readable", "grant it");
        let warning = Finding::warning("c", "slow", "index it");
        let error = Finding::error("d", "gone", "fix it");
        let lost = Finding::unreachable("e", "silent", "start it");
        assert_eq!(verdict(&[]), Verdict::Healthy);
        assert_eq!(verdict(&[ok.clone(), unknown, warning.clone()]), Verdict::Healthy);
        assert_eq!(verdict(&[warning, error.clone(), ok]), Verdict::Unhealthy);
        assert_eq!(verdict(&[error.clone(), lost, error]), Verdict::Unreachable);
    }

    #[test]
    fn every_bad_finding_suggests_a_fix() {
        for finding in [
            Finding::unknown("b", "not readable", "grant it"),
            Finding::warning("c", "slow", "index it"),
            Finding::error("d", "gone", "fix it"),
            Finding::unreachable("e", "silent", "start it"),
        ] {
            assert!(finding.fix.is_some(), "{finding:?}");
        }
        let json = serde_json::to_string(&Finding::error("d", "gone", "fix it")).unwrap();
        assert_eq!(json, r#"{"check":"d","level":"error","found":"gone","fix":"fix it"}"#);
    }
}

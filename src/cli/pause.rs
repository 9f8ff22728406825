//! `highwater pause` and `highwater resume`.

use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use time::OffsetDateTime;

use super::output::{Exit, Failed, OutputOption, print_text, time_text};
use super::parts;
use highwater::admin::{PauseOutcome, ResumeOutcome};
use highwater::config::Vars;
use highwater::poller::{Operator, Poller};

#[derive(Debug, Args)]
pub(super) struct PauseOptions {
    /// Name of the poller.
    poller: String,
    /// The reason, which is shown while the poller is paused.
    #[arg(long, value_name = "TEXT", value_parser = some_text)]
    reason: String,
    #[command(flatten)]
    who: WhoOption,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct ResumeOptions {
    /// Name of the poller.
    poller: String,
    /// The reason, which is recorded in the recent ticks.
    #[arg(long, value_name = "TEXT", value_parser = some_text)]
    reason: Option<String>,
    #[command(flatten)]
    who: WhoOption,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Default, Args)]
pub(super) struct WhoOption {
    /// Who runs the command; by default, user and machine.
    #[arg(long, value_name = "TEXT", value_parser = some_text)]
    by: Option<String>,
}

impl WhoOption {
    /// Returns the recorded name of who runs the command.
    pub(super) fn name(&self, vars: &dyn Vars) -> String {
        self.by.clone().unwrap_or_else(|| {
            let user = vars.get("USER").or_else(|| vars.get("LOGNAME"));
            let user = user
                .filter(|name| !name.trim().is_empty())
                .unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
            let host = rustix::system::uname();
            format!("{user}@{}", host.nodename().to_string_lossy())
        })
    }
}

/// Longest text that is kept of an operator.
const TEXT_CHARS_MAX: usize = 1000;

/// Reads a text that people will read.
pub(super) fn some_text(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > TEXT_CHARS_MAX {
        return Err(format!("expected a text of 1 to {TEXT_CHARS_MAX} characters"));
    }
    Ok(text.to_owned())
}

/// What the two commands print.
#[derive(Serialize)]
struct Report {
    poller: String,
    /// Whether the poller is paused now.
    paused: bool,
    /// Whether the command changed that.
    changed: bool,
    /// Who paused it; `null` if it was not paused.
    by: Option<String>,
    reason: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    at: Option<OffsetDateTime>,
    /// The instance whose tick ends after its in-flight batch.
    running: Option<String>,
    /// Human-readable text.
    #[serde(skip)]
    text: String,
}

/// Applies `act` to each partition of a poller until one fails, and prints the results.
async fn each(
    parts: &[Arc<Poller>],
    form: OutputOption,
    act: impl AsyncFn(&Poller) -> Result<Report, Failed>,
) -> Result<Exit, Failed> {
    let (mut reports, mut ended) = (Vec::new(), Ok(Exit::Done));
    for poller in parts {
        match act(poller).await {
            Ok(report) => reports.push(report),
            Err(failed) => {
                ended = Err(failed);
                break;
            }
        }
    }
    print_text(&form.output.parts(&reports, parts.len() == 1, |report| report.text.clone()));
    ended
}

pub(super) async fn pause(vars: &dyn Vars, options: &PauseOptions) -> Result<Exit, Failed> {
    let by = options.who.name(vars);
    let operator = Operator { by: &by, reason: &options.reason };
    let parts = parts(vars, &options.poller)?;
    let pause =
        async |poller: &Poller| Ok(paused(poller.name(), poller.admin().pause(operator).await?));
    each(&parts, options.form, pause).await
}

fn paused(name: &str, pausing: PauseOutcome) -> Report {
    let (paused, running, changed) = match pausing {
        PauseOutcome::Paused { paused, running } => (paused, running, true),
        PauseOutcome::AlreadyPaused(paused) => (paused, None, false),
    };
    let since = time_text(paused.at);
    let text = if changed {
        let ends =
            |owner| format!("\n{name}: the tick of `{owner}` ends after its in-flight batch");
        format!("{name}: paused at {since}{}", running.as_ref().map(ends).unwrap_or_default())
    } else {
        let (by, reason) = (&paused.by, &paused.reason);
        format!("{name}: already paused since {since} by {by}: {reason}")
    };
    Report {
        poller: name.to_owned(),
        paused: true,
        changed,
        by: Some(paused.by),
        reason: Some(paused.reason),
        at: Some(paused.at),
        running,
        text,
    }
}

pub(super) async fn resume(vars: &dyn Vars, options: &ResumeOptions) -> Result<Exit, Failed> {
    let by = options.who.name(vars);
    let reason = options.reason.as_deref().unwrap_or_default();
    let operator = Operator { by: &by, reason };
    let parts = parts(vars, &options.poller)?;
    let resume =
        async |poller: &Poller| Ok(resumed(poller.name(), poller.admin().resume(operator).await?));
    each(&parts, options.form, resume).await
}

fn resumed(name: &str, resuming: ResumeOutcome) -> Report {
    let text = match &resuming {
        ResumeOutcome::Resumed { was } => format!(
            "{name}: resumed; it had been paused since {} by {}: {}",
            time_text(was.at),
            was.by,
            was.reason
        ),
        ResumeOutcome::BackoffEnded { until } => format!(
            "{name}: backoff ended (it was to last until {}); the next tick retries the failed batch",
            time_text(*until)
        ),
        ResumeOutcome::NotPaused => format!("{name}: not paused"),
    };
    let changed = resuming != ResumeOutcome::NotPaused;
    let was = match resuming {
        ResumeOutcome::Resumed { was } => Some(was),
        ResumeOutcome::BackoffEnded { .. } | ResumeOutcome::NotPaused => None,
    };
    let (at, (by, reason)) =
        (was.as_ref().map(|was| was.at), was.map(|was| (was.by, was.reason)).unzip());
    Report { poller: name.to_owned(), paused: false, changed, by, reason, at, running: None, text }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_operator_is_a_user_on_a_machine_unless_a_name_is_given() {
        let mut vars = BTreeMap::new();
        let who = WhoOption { by: None };
        assert!(who.name(&vars).starts_with("uid-"), "{}", who.name(&vars));
        vars.insert("LOGNAME".to_owned(), "ann".to_owned());
        assert!(who.name(&vars).starts_with("ann@"), "{}", who.name(&vars));
        let named = WhoOption { by: Some("on call".to_owned()) };
        assert_eq!(named.name(&vars), "on call");
    }

    #[test]
    fn a_reason_must_not_be_blank_or_too_long() {
        assert!(some_text("  ").is_err());
        assert!(some_text(&"x".repeat(TEXT_CHARS_MAX + 1)).is_err());
        assert_eq!(some_text(" why ").unwrap(), "why");
    }
}

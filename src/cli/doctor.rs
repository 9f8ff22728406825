//! `highwater doctor`.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::findings;
use super::from::beside;
use super::output::{Exit, Failed, Output, OutputOption, Record, say};
use super::{is_of, unknown};
use highwater::builder::doctor::Patient;
use highwater::builder::{App, board};
use highwater::config::Vars;
use highwater::doctor::Finding;
use highwater::status::StatusQuery;
use highwater::status::health::{Health, PollerState, Severity};

/// Name of the check of the poller's state.
const STATE: &str = "poller state";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller; all if not given.
    #[arg(long, value_name = "NAME")]
    poller: Option<String>,
    #[command(flatten)]
    form: OutputOption,
}

/// A finding, and whose it is.
#[derive(Debug, Serialize)]
struct Diagnosis {
    poller: String,
    #[serde(flatten)]
    finding: Finding,
}

impl Record for Diagnosis {
    const COLUMNS: &'static [&'static str] = &["poller", "level", "check", "found", "fix"];

    fn cells(&self) -> Vec<String> {
        let Finding { check, level, found, fix, .. } = &self.finding;
        let fix = fix.clone().unwrap_or_default();
        vec![self.poller.clone(), level.to_string(), (*check).to_owned(), found.clone(), fix]
    }
}

/// Examines one poller or all, and prints what was found. Nothing is written, and no handler called.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let patients = Patient::all(vars)?;
    let root = beside(settings).unwrap_or_else(|| board::root(vars));
    let board = App::build(vars)?.board(vars, &root);
    let asked = options.poller.as_deref();
    if let Some(name) = asked.filter(|name| !patients.keys().any(|known| is_of(known, name))) {
        return Err(unknown(name, &patients));
    }
    let mut found = Vec::new();
    for (name, patient) in &patients {
        if asked.is_none_or(|asked| is_of(name, asked)) {
            let mut findings = patient.examine().await;
            // Where the store cannot be read, other checks say so.
            if let Ok(report) = board.read(StatusQuery::One(name)).await {
                findings.extend(report.pollers.iter().map(|status| state(&status.health)));
            }
            // Problems first; the order of the checks stays within a level.
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
            found.extend(
                findings.into_iter().map(|finding| Diagnosis { poller: name.clone(), finding }),
            );
        }
    }
    say(&match options.form.output {
        Output::Table => text(&found),
        form @ (Output::Json | Output::Jsonl) => form.list(&found),
    });
    Ok(findings::exit(&found, |diagnosis| diagnosis.finding.clone()))
}

/// Returns the finding of a poller's state.
fn state(health: &Health) -> Finding {
    let name = health.state.as_str();
    let found = match &health.cause {
        Some(cause) => format!("{name}: {cause}"),
        None => name.to_owned(),
    };
    let fix = match health.runbook {
        Some(page) => format!("see docs/{page}"),
        None => "see docs/reference/status.md".to_owned(),
    };
    match (health.severity, health.state) {
        // The checks of the state document say so, and what to do.
        (Severity::Ok, _) | (_, PollerState::NeverRan | PollerState::Paused) => {
            Finding::ok(STATE, found)
        }
        (Severity::Warning, _) => Finding::warning(STATE, found, fix),
        (Severity::Error, _) => Finding::error(STATE, found, fix),
    }
}

/// Returns what people read.
fn text(found: &[Diagnosis]) -> String {
    let under = |diagnosis: &Diagnosis| format!("poller {}", diagnosis.poller);
    findings::text(found.iter().map(|diagnosis| (under(diagnosis), &diagnosis.finding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_every_finding_whole_and_a_sum() {
        let of = |poller: &str, finding| Diagnosis { poller: poller.to_owned(), finding };
        let found = [
            of("a", Finding::ok("edition", "Developer")),
            of("a", Finding::warning("index", "none\n\u{1b}[2J", "CREATE INDEX x".repeat(10))),
            of("b", Finding::only_real("plan")),
            of("b", Finding::error("rights", "none", "GRANT")),
        ];
        expect_test::expect![[r#"
            poller a
              ok      edition: Developer
              warning index: none  [2J
                      fix: CREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX xCREATE INDEX x

            poller b
              unknown plan: only a real server answers this; the embedded development server does not
              error   rights: none
                      fix: GRANT

            1 error, 1 warning, 1 unknown, 1 ok"#]]
        .assert_eq(&text(&found));
        let line = Output::Jsonl.list(&found[3..]);
        assert_eq!(
            line,
            r#"{"poller":"b","check":"rights","level":"error","found":"none","fix":"GRANT"}"#
        );
    }
}

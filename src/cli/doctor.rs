//! `highwater doctor`.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::findings::{self, Passed};
use super::from::app_folder;
use super::output::{Exit, Failed, Output, OutputOption, Record, print_text};
use super::{is_of, unknown};
use highwater::builder::App;
use highwater::builder::doctor::ExaminedPoller;
use highwater::config::Vars;
use highwater::doctor::Finding;
use highwater::status::StatusQuery;
use highwater::status::health::{Health, PollerState, Severity};

/// Name of the check of the poller's state.
const STATE: &str = "poller state";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller; by default, all.
    #[arg(long, value_name = "NAME")]
    poller: Option<String>,
    /// Also print the checks that passed.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    form: OutputOption,
}

/// A finding and its poller.
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

/// Examines one poller or all, and prints the findings. Writes nothing and calls no handler.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let pollers = ExaminedPoller::all(vars)?;
    let root = app_folder(settings, vars);
    let board = App::build(vars)?.board(vars, &root);
    let requested = options.poller.as_deref();
    if let Some(name) = requested.filter(|name| !pollers.keys().any(|known| is_of(known, name))) {
        return Err(unknown(name, &pollers));
    }
    let mut found = Vec::new();
    for (name, poller) in &pollers {
        if requested.is_none_or(|requested| is_of(name, requested)) {
            let mut findings = Vec::new();
            // If the store cannot be read, other checks report it.
            if let Ok(report) = board.read(StatusQuery::One(name)).await {
                findings.extend(report.pollers.iter().map(|status| state(&status.health)));
            }
            findings.extend(poller.examine().await);
            // Problems first, and of these the state. The sort is stable, so checks keep their order within a level.
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
            found.extend(
                findings.into_iter().map(|finding| Diagnosis { poller: name.clone(), finding }),
            );
        }
    }
    print_text(&match options.form.output {
        Output::Table => {
            text(&found, if options.verbose { Passed::Listed } else { Passed::Counted })
        }
        form @ (Output::Json | Output::Jsonl) => form.list(&found),
    });
    Ok(findings::exit(&found, |diagnosis| diagnosis.finding.clone()))
}

/// Returns the finding for a poller's state.
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
        // The checks of the state document report these, with a fix.
        (Severity::Ok, _) | (_, PollerState::NeverRan | PollerState::Paused) => {
            Finding::ok(STATE, found)
        }
        (Severity::Warning, _) => Finding::warning(STATE, found, fix),
        (Severity::Error, _) => Finding::error(STATE, found, fix),
    }
}

/// Returns human-readable text.
fn text(found: &[Diagnosis], passed: Passed) -> String {
    let under = |diagnosis: &Diagnosis| format!("poller {}", diagnosis.poller);
    findings::text(found.iter().map(|diagnosis| (under(diagnosis), &diagnosis.finding)), passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_finding_in_full_and_a_total() {
        let of = |poller: &str, finding| Diagnosis { poller: poller.to_owned(), finding };
        let found = [
            of("a", Finding::ok("edition", "Developer")),
            of("a", Finding::warning("index", "none\n\u{1b}[2J", "CREATE INDEX x".repeat(10))),
            of("b", Finding::needs_real_server("plan")),
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
        .assert_eq(&text(&found, Passed::Listed));
        let short = text(&found, Passed::Counted);
        assert!(!short.contains("Developer") && short.contains("warning index"), "{short}");
        assert!(
            short.ends_with("1 error, 1 warning, 1 unknown, 1 check passed (`--verbose`)"),
            "{short}"
        );
        let line = Output::Jsonl.list(&found[3..]);
        assert_eq!(
            line,
            r#"{"poller":"b","check":"rights","level":"error","found":"none","fix":"GRANT"}"#
        );
    }
}

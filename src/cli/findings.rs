//! Prints the findings of `doctor` and `validate`.

use super::output::Exit;
use highwater::doctor::{Finding, Level, Verdict, verdict};
use highwater::event::counted;
use highwater::printable::printable_line;
use highwater::redaction::redact;

/// Whether checks that passed are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// One line each.
    Listed,
    /// Only their number.
    Counted,
}

/// Formats findings under headings: one line each, the fix below it, and a last line with the totals.
///
/// This is not a table: a fix is a statement to copy, so it must not be cut.
#[expect(single_use_lifetimes, reason = "an elided one is not stable there")]
pub(super) fn text<'a>(
    found: impl IntoIterator<Item = (String, &'a Finding)>,
    passed: Passed,
) -> String {
    let mut lines = Vec::new();
    let mut current = None;
    let mut counts = [0; 4];
    for (heading, finding) in found {
        if current.as_ref() != Some(&heading) {
            lines.extend(current.map(|_| String::new()));
            lines.push(heading.clone());
            current = Some(heading);
        }
        let Finding { check, level, found, fix, .. } = finding;
        if *level != Level::Ok || passed == Passed::Listed {
            lines.push(format!("  {level:<8}{check}: {}", plain(found)));
            lines.extend(fix.iter().map(|fix| format!("          fix: {}", plain(fix))));
        }
        let place = [Level::Error, Level::Warning, Level::Unknown, Level::Ok];
        if let Some((count, _)) = counts.iter_mut().zip(place).find(|(_, of)| of == level) {
            *count += 1;
        }
    }
    let [errors, warnings, unknown, ok] = counts;
    let (errors, warnings) = (counted(errors, "error"), counted(warnings, "warning"));
    let ok = match passed {
        Passed::Listed => format!("{ok} ok"),
        Passed::Counted => format!("{} passed (`--verbose`)", counted(ok, "check")),
    };
    lines.push(format!("\n{errors}, {warnings}, {unknown} unknown, {ok}"));
    lines.join("\n")
}

/// Returns the text of a finding on one line: it contains text of a server.
fn plain(text: &str) -> String {
    printable_line(&redact(text)).into_owned()
}

/// Returns the exit code for findings.
pub(super) fn exit<T>(found: &[T], of: impl Fn(&T) -> Finding) -> Exit {
    match verdict(&found.iter().map(of).collect::<Vec<_>>()) {
        Verdict::Healthy => Exit::Done,
        Verdict::Unhealthy => Exit::Failed,
        Verdict::Unreachable => Exit::Unavailable,
    }
}

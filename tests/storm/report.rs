//! The printed report.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::judge::{Cause, Judgement};
use crate::ledger::{Kind, Ledger};
use crate::table::Copied;

pub(crate) struct Report<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) judgement: &'a Judgement,
    pub(crate) copied: &'a Copied,
    pub(crate) written: u64,
    pub(crate) drained: Duration,
    pub(crate) took: Duration,
    pub(crate) seed: u64,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ledger, judgement, copied, written, drained, took, seed } = self;
        let mut line =
            |name: &str, what: &dyn fmt::Display| writeln!(formatter, "{name:<38}{what:>12}");
        let count = |fits: fn(Kind) -> bool| ledger.count(fits);
        line("processes killed (kill -9)", &ledger.kills())?;
        line("processes stopped (SIGTERM)", &count(|kind| matches!(kind, Kind::Terminate(_))))?;
        line("storage frozen (SIGSTOP)", &count(|kind| kind == Kind::Freeze))?;
        line("storage restarted (SIGTERM)", &count(|kind| kind == Kind::Restart))?;
        line("database connections cut", &cut(ledger))?;
        line("invocations", &ledger.invocations)?;
        line("  answered with an error", &ledger.failed.len())?;
        for (error, count) in errors(ledger) {
            line(&format!("    {error}"), &count)?;
        }
        line("handler calls", &ledger.calls.len())?;
        line("state documents sampled", &ledger.samples)?;
        line("rows written", written)?;
        line("row states delivered", &ledger.accepted.len())?;
        line("delivered again", &judgement.again.values().sum::<u64>())?;
        let causes = [
            ("  killed in the call", Cause::KilledInCall),
            ("  killed before the commit", Cause::KilledBeforeCommit),
            ("  storage frozen", Cause::Frozen),
            ("  storage restarted", Cause::Restarted),
            ("  storage slow, commit not known", Cause::NotKnown),
        ];
        for (name, cause) in causes {
            line(name, judgement.again.get(&cause).unwrap_or(&0))?;
        }
        line("lost", &judgement.lost.len())?;
        line("otherwise wrong", &judgement.violations.len())?;
        line("copy: invocations", &ledger.copying.invocations)?;
        line("  answered with an error", &ledger.copying.failed)?;
        line("  stale writes blocked", &ledger.copying.stale)?;
        line("copy: row states applied", &copied.applied)?;
        line("  events in its ledger", &copied.noted)?;
        line("  applied more than once", &copied.again.len())?;
        line("  rows unlike the source", &copied.unlike.len())?;
        line("takeover after a kill, seconds", &spread(&judgement.after_kill))?;
        line("takeover after SIGTERM, seconds", &spread(&judgement.after_terminate))?;
        line("seconds until all was done", &format!("{:.1}", drained.as_secs_f64()))?;
        line("seconds in all", &took.as_secs())?;
        line("seed", seed)
    }
}

/// Counts errors by their names, as in the replies.
fn errors(ledger: &Ledger) -> BTreeMap<&str, u64> {
    let is_name = |word: &&str| word.ends_with("Error");
    let mut counts = BTreeMap::new();
    for failed in &ledger.failed {
        let words = failed.text.split([':', ' ', '(']).filter(|word| !word.is_empty());
        *counts.entry(words.clone().find(is_name).unwrap_or("other")).or_default() += 1;
    }
    counts
}

fn cut(ledger: &Ledger) -> u64 {
    let connections = |kind: Kind| if let Kind::Cut(connections) = kind { connections } else { 0 };
    ledger.faults.iter().map(|fault| connections(fault.kind)).sum()
}

/// Returns number, median and maximum.
fn spread(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort();
    let Some(max) = times.last() else { return "not met".to_owned() };
    let (median, max) = (times[times.len() / 2].as_secs_f64(), max.as_secs_f64());
    format!("{} times, median {median:.1}, max {max:.1}", times.len())
}

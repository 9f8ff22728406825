//! Status of the pollers, drawn on a terminal. Pure.

use highwater::page::words;
use highwater::printable::printable_line;
use highwater::status::{Report, Status, Tick, Tone};

/// Widest line, which fits any terminal.
const COLUMNS: usize = 79;
/// Ticks in the strip.
const TICKS: usize = 50;
/// Bars for the rows of a tick, on a logarithmic scale.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the lines of one drawing.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let at = report.at.map(|at| format!(" · {} UTC", words::clock(at))).unwrap_or_default();
    let mut lines = vec![format!("Highwater {} · app {}{at}", report.version, report.app)];
    lines.push(summary(report));
    for status in &report.pollers {
        lines.push(String::new());
        lines.extend(poller(status, report));
    }
    lines.iter().map(|line| cut(line)).collect()
}

fn cut(line: &str) -> String {
    let line = printable_line(line);
    if line.chars().count() <= COLUMNS {
        return line.trim_end().to_owned();
    }
    line.chars().take(COLUMNS - 1).chain(['…']).collect()
}

fn summary(report: &Report) -> String {
    let pollers = &report.pollers;
    let running = pollers.iter().filter(|status| status.health.running).count();
    let attention = pollers.iter().filter(|status| status.needs_attention()).count();
    let rate: f64 = pollers.iter().map(|status| status.rows_per_minute).sum();
    let quarantined: u64 = pollers.iter().map(|status| status.quarantined).sum();
    format!(
        "{}, {running} running, {attention} need attention, {} rows/min, {} quarantined",
        words::counted(u64::try_from(pollers.len()).unwrap_or(u64::MAX), "poller"),
        words::rate(rate),
        words::count(quarantined)
    )
}

fn poller(status: &Status, report: &Report) -> Vec<String> {
    let (word, _) = words::state(&status.health);
    let lag = words::lag(status).map(|lag| format!("lag {lag}")).unwrap_or_default();
    let next = next(status, report).unwrap_or_default();
    let mut lines = vec![format!("{:<26}  {word:<12}  {lag:<18}  {next}", status.poller)];
    let mut line = |name: &str, text: String| lines.push(format!("  {name:<10}  {text}"));
    if let Some(cause) = &status.health.cause {
        line("cause", cause.clone());
    }
    if let Some(failure) = &status.health.last_failure {
        line("failed", words::failures(failure));
    }
    if let Some(success) = words::last_success(&status.health, report.at) {
        line("success", success);
    }
    if let Some(checkpoint) = &status.checkpoint {
        let age = status.checkpoint_age_seconds.map(|age| format!(", {}", words::ago(age)));
        line("checkpoint", format!("{checkpoint}{}", age.unwrap_or_default()));
    }
    let quarantined = match status.quarantined {
        0 => String::new(),
        rows => format!(", {} quarantined", words::count(rows)),
    };
    let pending = words::backlog(status).map(|rows| format!(", {rows}")).unwrap_or_default();
    line("rows", format!("{}/min{pending}{quarantined}", words::rate(status.rows_per_minute)));
    line("lease", lease(status));
    if !status.recent.is_empty() {
        line("ticks", strip(&status.recent));
    }
    lines
}

fn next(status: &Status, report: &Report) -> Option<String> {
    let next = words::next_tick(status)?;
    let seconds = u64::try_from((next.at - report.at?).whole_seconds()).unwrap_or(0);
    Some(format!("{} {}", if next.is_retry { "retry" } else { "next" }, words::due_in(seconds)))
}

fn lease(status: &Status) -> String {
    let token = status.token;
    match (&status.owner, &status.lease) {
        (Some(owner), Some(lease)) => {
            // The end of an owner's id tells processes of one app apart.
            let skipped = owner.chars().count().saturating_sub(32);
            let dots = if skipped == 0 { "" } else { "…" };
            let owner: String = owner.chars().skip(skipped).collect();
            let left = words::span(lease.left_seconds);
            format!("{dots}{owner}, {left} left, token {token}")
        }
        _ => format!("free, token {token}"),
    }
}

fn strip(ticks: &[Tick]) -> String {
    let ticks = ticks.get(ticks.len().saturating_sub(TICKS)..).unwrap_or_default();
    ticks.iter().map(bar).collect()
}

fn bar(tick: &Tick) -> char {
    match tick.tone {
        Tone::Good => {
            let doubles = usize::try_from(u64::BITS - tick.rows.leading_zeros()).unwrap_or(0);
            BARS.get(doubles / 2).or(BARS.last()).copied().unwrap_or('▁')
        }
        Tone::Warning => '!',
        Tone::Bad => 'x',
        Tone::Note => '·',
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use time::macros::datetime;

    use super::*;
    use highwater::status::Lease;
    use highwater::status::health::{Failure, Health, PollerState, Severity};

    fn tick(rows: u64, tone: Tone) -> Tick {
        Tick {
            at: datetime!(2026-01-01 1:00 UTC),
            outcome: "tick_complete".to_owned(),
            tone,
            rows,
            batches: 1,
            duration_ms: 10,
            idle_before: 0,
            longest_ms: BTreeMap::new(),
            note: None,
        }
    }

    #[test]
    fn the_terminal_shows_what_the_page_shows() {
        let at = datetime!(2026-01-01 2:00 UTC);
        let orders = Status {
            poller: "orders".to_owned(),
            health: Health { running: true, state: PollerState::Running, ..Health::default() },
            checkpoint: Some("0x0000000000000008".to_owned()),
            checkpoint_age_seconds: Some(3),
            lag_seconds: Some(1.2),
            rows_per_minute: 120.0,
            owner: Some("shop/0123456789ab-00112233445566778899aabbccddeeff".to_owned()),
            token: 4,
            lease: Some(Lease { ttl_seconds: 120, left_seconds: 87, acquired_at: None }),
            next_tick_at: Some(at + time::Duration::seconds(4)),
            quarantined: 2,
            recent: vec![
                tick(1, Tone::Good),
                tick(1000, Tone::Good),
                tick(0, Tone::Bad),
                tick(0, Tone::Note),
                tick(u64::MAX, Tone::Good),
            ],
            ..Status::default()
        };
        let failure = Failure {
            at,
            since: at - time::Duration::HOUR,
            count: 12,
            kind: "fetch_failed".to_owned(),
            error: "x".repeat(200),
        };
        let health = Health {
            state: PollerState::Failing,
            severity: Severity::Error,
            cause: Some("a\u{1b}[2Jb".to_owned() + &failure.error),
            last_success_at: Some(at - time::Duration::DAY),
            last_failure: Some(failure),
            ..Health::default()
        };
        let returns = Status { poller: "returns".to_owned(), health, ..Status::default() };
        let pollers = vec![orders, returns];
        let report = Report { app: "shop".to_owned(), version: "1.2.3", at: Some(at), pollers };
        expect_test::expect![[r"
            Highwater 1.2.3 · app shop · 2026-01-01 02:00:00 UTC
            2 pollers, 1 running, 1 need attention, 120 rows/min, 2 quarantined

            orders                      Running       lag 1.2 s           next in 4 s
              checkpoint  0x0000000000000008, 3 s ago
              rows        120/min, 2 quarantined
              lease       …00112233445566778899aabbccddeeff, 87 s left, token 4
              ticks       ▁▆x·█

            returns                     Failing
              cause       a [2Jbxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
              failed      12 failed ticks since 2026-01-01 01:00:00 UTC
              success     24 h ago
              rows        0/min
              lease       free, token 0"]]
        .assert_eq(&lines(&report).join("\n"));
    }
}

//! The overview of all pollers.

use super::markup::Html;
use super::parts::{
    STRIP_TICKS, badge, cell, countdown, due, lease_bar, nothing, strip, table, time,
};
use super::words;
use super::{View, runbook};
use crate::status::health::PollerState;
use crate::status::{Report, Status, Tone};

const COLUMNS: [&str; 8] = [
    "Poller",
    "State",
    "Lag",
    "Checkpoint",
    "Lease",
    "Rows per minute",
    "Recent ticks",
    "Next tick",
];

/// Errors and reasons are cut to this length; the poller's own view shows them in full.
const TEXT_CHARS_MAX: usize = 160;

/// Adds the view.
pub(super) fn show(html: &mut Html, report: &Report, view: &View<'_>) {
    html.element("h1", &[("class", "unseen")], "Pollers");
    tiles(html, report);
    if report.pollers.is_empty() {
        html.raw(
            "<p class=\"empty\">No pollers in the settings or in the state store. Write a project for a table with \
            <code>highwater init --table dbo.orders</code>, then run it with <code>highwater run</code>.</p>",
        );
        return;
    }
    html.within("div", &[("class", "card pollers")], |html| {
        table(html, "Pollers, by name", &COLUMNS, |html| {
            for status in &report.pollers {
                row(html, status, report, view);
            }
        });
    });
}

fn tiles(html: &mut Html, report: &Report) {
    let pollers = &report.pollers;
    let of = |fits: &dyn Fn(&&Status) -> bool| pollers.iter().filter(fits).count();
    let attention = of(&|status| status.needs_attention());
    let quarantined: u64 = pollers.iter().map(|status| status.quarantined).sum();
    let rate: f64 = pollers.iter().map(|status| status.rows_per_minute).sum();
    let number = |number: usize| words::count(u64::try_from(number).unwrap_or(u64::MAX));
    let calm = |is_calm: bool, class: &'static str| if is_calm { "" } else { class };
    let tiles = [
        ("Pollers", number(pollers.len()), ""),
        ("Ticks in progress", number(of(&|status| status.health.running)), ""),
        ("Need attention", number(attention), calm(attention == 0, "bad")),
        ("Rows per minute", words::rate(rate), ""),
        ("Parked keys", words::count(quarantined), calm(quarantined == 0, "warning")),
    ];
    html.within("dl", &[("class", "tiles")], |html| {
        for (name, value, class) in tiles {
            html.within("div", &[("class", "card tile")], |html| {
                html.element("dt", &[], name);
                html.element("dd", &[("class", class)], &value);
            });
        }
    });
}

fn row(html: &mut Html, status: &Status, report: &Report, view: &View<'_>) {
    html.within("tr", &[("role", "row")], |html| {
        html.within("th", &[("scope", "row"), ("role", "rowheader")], |html| {
            let link = view.link(Some(&status.poller));
            html.within("a", &[("href", &link)], |html| html.foreign(&status.poller));
            if !status.configured {
                html.raw("<small>not configured</small>");
            }
        });
        cell(html, "State", |html| state(html, status, report, view));
        cell(html, "Lag", |html| {
            match words::lag(status) {
                Some(lag) => html.text(&lag),
                None => nothing(html),
            }
            if let Some(rows) = words::backlog(status) {
                html.element("small", &[], &rows);
            }
        });
        cell(html, "Checkpoint", |html| checkpoint(html, status));
        cell(html, "Lease", |html| lease(html, status));
        cell(html, "Rows per minute", |html| {
            html.text(&words::rate(status.rows_per_minute));
            if status.quarantined > 0 {
                let text = format!("{} parked", words::count(status.quarantined));
                html.element("small", &[("class", "warning")], &text);
            }
        });
        cell(html, "Recent ticks", |html| strip(html, &status.recent, STRIP_TICKS));
        cell(html, "Next tick", |html| next_tick(html, status, report));
    });
}

fn state(html: &mut Html, status: &Status, report: &Report, view: &View<'_>) {
    let health = &status.health;
    let (word, tone) = words::state(health);
    let key = [("data-poller", status.poller.as_str()), ("data-word", word)];
    html.within("span", &key, |html| badge(html, status));
    if let Some(cause) = &health.cause {
        let class = if tone == Tone::Bad { "bad" } else { "dim" };
        html.within("small", &[("class", class)], |html| html.foreign(&cut(cause)));
    }
    if let Some(name) = health.runbook.and_then(runbook::name) {
        let link = view.link_with(Some(&status.poller), Some(("runbook", name)));
        html.within("small", &[], |html| {
            html.element("a", &[("href", &link)], &format!("Runbook: {name}"));
        });
    }
    if let Some(failure) = &health.last_failure {
        html.element("small", &[], &words::failures(failure));
    }
    if health.running && health.state != PollerState::Running {
        html.element("small", &[("class", "dim")], "tick in progress");
    }
    if let Some(success) = words::last_success(health, report.at) {
        html.element("small", &[("class", "dim")], &format!("last success {success}"));
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() <= TEXT_CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(TEXT_CHARS_MAX - 1).chain(['…']).collect()
}

fn checkpoint(html: &mut Html, status: &Status) {
    let Some(checkpoint) = &status.checkpoint else { return nothing(html) };
    let shown = words::position(checkpoint);
    html.within("code", &[("title", checkpoint)], |html| html.foreign(&shown));
    if let (Some(at), Some(age)) = (status.checkpoint_at, status.checkpoint_age_seconds) {
        html.within("small", &[], |html| time(html, at, &words::ago(age)));
    }
}

fn lease(html: &mut Html, status: &Status) {
    if let (Some(owner), Some(lease)) = (&status.owner, &status.lease) {
        html.within("code", &[("class", "owner"), ("title", owner)], |html| {
            html.foreign(&words::owner(owner));
        });
        lease_bar(html, lease);
        html.within("small", &[], |html| {
            countdown(html, lease.left_seconds);
            html.text(&format!(" left, token {}", status.token));
        });
    } else {
        html.raw("<span class=\"dim\">free</span>");
        html.element("small", &[], &format!("token {}", status.token));
    }
}

/// Adds the time of the poller's next tick; the poller's own view uses it too.
pub(super) fn next_tick(html: &mut Html, status: &Status, report: &Report) {
    let (Some(next), Some(now)) = (words::next_tick(status), report.at) else {
        return nothing(html);
    };
    let at = next.at;
    let seconds = u64::try_from((at - now).whole_seconds()).unwrap_or(0);
    due(html, seconds);
    // Within a day, the time alone is unambiguous.
    let text = words::clock(at);
    let short = text.split(' ').next_back().filter(|_| seconds < 86_400);
    html.within("small", &[], |html| {
        time(html, at, short.unwrap_or(&text));
        html.text(" UTC");
    });
    if next.is_retry {
        html.element("small", &[], "retries the batch");
    }
}

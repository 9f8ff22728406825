//! The view of one poller, with everything in its state document.

use time::OffsetDateTime;

use super::markup::Html;
use super::overview::next_tick;
use super::parts::{badge, cell, countdown, lease_bar, nothing, strip, table, time};
use super::trace::Traced;
use super::{PageActions, View, charts, keys, runbook, trace, words};
use crate::cursor::Cursor;
use crate::state::RECENT_MAX;
use crate::status::health::PollerState;
use crate::status::{Batch, Event, Report, Status, Tick};

const TICKS: [&str; 8] =
    ["Ended (UTC)", "Outcome", "Rows", "Batches", "Duration", "Longest steps", "Lag", "Idle ticks"];
const EVENTS: [&str; 7] = ["At (UTC)", "Event", "Write", "Token", "Rows", "By", "Batch or reason"];

/// Adds the view.
pub(super) fn show(
    html: &mut Html,
    status: &Status,
    report: &Report,
    view: &View<'_>,
    traced: Option<&Traced>,
) {
    html.within("nav", &[("aria-label", "Breadcrumb")], |html| {
        let link = view.link(None);
        html.within("a", &[("href", &link)], |html| {
            html.raw("<span aria-hidden=\"true\">←</span> All pollers");
        });
    });
    html.within("div", &[("class", "head")], |html| {
        html.within("h1", &[], |html| html.foreign(&status.poller));
        let (word, _) = words::state(&status.health);
        let key = [("data-poller", status.poller.as_str()), ("data-word", word)];
        html.within("span", &key, |html| badge(html, status));
    });
    notices(html, status, report.at, view);
    facts(html, status, report);
    if let Some(actions) = &view.actions {
        show_actions(html, status, actions, report.at);
    }
    if let Some(batch) = &status.in_flight {
        in_flight(html, batch);
    }
    keys::show(html, status, view);
    trace::show(html, status, traced, view);
    charts::show(html, status, report.at);
    ticks(html, &status.recent);
    journal(html, status.journal.as_deref());
}

fn notices(html: &mut Html, status: &Status, now: Option<OffsetDateTime>, view: &View<'_>) {
    let health = &status.health;
    if let Some(cause) = &health.cause {
        let (word, tone) = words::state(health);
        let class = format!("card notice {}", words::class(tone));
        html.within("div", &[("class", &class)], |html| {
            html.element("h2", &[], word);
            html.within("pre", &[], |html| html.foreign(cause));
            if let Some(since) = health.since {
                html.within("p", &[], |html| {
                    html.text("Since ");
                    utc(html, since);
                });
            }
            if let Some(name) = health.runbook.and_then(runbook::name) {
                html.within("p", &[], |html| {
                    html.text("What to do: runbook ");
                    html.element("a", &[("href", &view.runbook(name))], name);
                });
            }
            if let Some(command) = command(status, now).filter(|_| view.actions.is_none()) {
                html.within("p", &[], |html| {
                    html.text("Afterwards: ");
                    html.element("code", &[("class", "command")], &command);
                });
            }
        });
    }
    let failure = health.last_failure.as_ref();
    if let Some(failure) = failure {
        html.within("div", &[("class", "card notice bad")], |html| {
            html.element("h2", &[], &format!("Last error: {}", words::failures(failure)));
            // Do not repeat an error that is shown as the cause.
            if health.cause.as_ref() != Some(&failure.error) {
                html.within("pre", &[], |html| html.foreign(&failure.error));
            }
            html.within("p", &[], |html| {
                html.text("Last failed tick ");
                utc(html, failure.at);
            });
        });
    }
    for warning in &status.warnings {
        html.within("p", &[("class", "card notice note")], |html| html.foreign(warning));
    }
}

fn facts(html: &mut Html, status: &Status, report: &Report) {
    html.within("section", &[("aria-label", "Now")], |html| {
        html.within("dl", &[("class", "card facts")], |html| {
            fact(html, "Last success", |html| match status.health.last_success_at {
                Some(at) => {
                    let ago = words::last_success(&status.health, report.at);
                    html.text(&ago.unwrap_or_default());
                    html.within("small", &[], |html| utc(html, at));
                }
                None => nothing(html),
            });
            fact(html, "Last tick", |html| match status.health.last_tick_at {
                Some(at) => utc(html, at),
                None => nothing(html),
            });
            fact(html, "Lag", |html| lag(html, status));
            fact(html, "Checkpoint", |html| checkpoint(html, status));
            fact(html, "Lease", |html| lease(html, status));
            fact(html, "Rows per minute", |html| html.text(&words::rate(status.rows_per_minute)));
            fact(html, "Parked keys", |html| html.text(&words::parked(status)));
            fact(html, "Next tick", |html| {
                next_tick(html, status, report);
                if let Some(schedule) = &status.schedule {
                    html.within("small", &[], |html| {
                        if let Some(words) = words::schedule(schedule) {
                            html.text(&format!("{words}: "));
                        }
                        html.within("code", &[], |html| html.foreign(schedule));
                        if let Some(zone) = &status.time_zone {
                            html.text(" in ");
                            html.foreign(zone);
                        }
                    });
                }
            });
        });
    });
}

/// Returns the command that lets the poller continue, where it needs one.
fn command(status: &Status, now: Option<OffsetDateTime>) -> Option<String> {
    let poller = &status.poller;
    match status.health.state {
        PollerState::Failing if awaits_retry(status, now) => {
            Some(format!("highwater resume {poller}"))
        }
        PollerState::Paused | PollerState::BackingOff => Some(format!("highwater resume {poller}")),
        PollerState::Stopped if status.paused.is_some() => {
            Some(format!("highwater resume {poller}"))
        }
        PollerState::Silent | PollerState::NeverRan | PollerState::Failing => {
            Some(format!("highwater tick {poller}"))
        }
        PollerState::Stopped
        | PollerState::Running
        | PollerState::Idle
        | PollerState::Unknown
        | PollerState::Vanished
        | PollerState::Disabled
        | PollerState::Done
        | PollerState::Cancelled
        | PollerState::TakenOver => None,
    }
}

/// Whether the batch in flight is not retried before a later time, so that a tick now would do nothing.
fn awaits_retry(status: &Status, now: Option<OffsetDateTime>) -> bool {
    let retry = status.in_flight.as_ref().and_then(|batch| batch.next_attempt_at);
    retry.is_some_and(|retry| now.is_none_or(|now| retry > now))
}

fn fact(html: &mut Html, name: &'static str, inside: impl FnOnce(&mut Html)) {
    html.within("div", &[], |html| {
        html.element("dt", &[], name);
        html.within("dd", &[], inside);
    });
}

fn lag(html: &mut Html, status: &Status) {
    match words::lag(status) {
        Some(lag) => html.text(&lag),
        None => nothing(html),
    }
    if let Some(rows) = words::backlog(status) {
        html.element("small", &[], &format!("{rows} at the last count"));
    }
    let Some(seen) = &status.observed else { return };
    if let Some(held_back) = seen.held_back.filter(|held_back| *held_back > 0) {
        let text =
            format!("{} held back by open transactions", words::counted(held_back, "position"));
        html.element("small", &[], &text);
    }
    if let Some(left) = seen.retention_left {
        let text =
            format!("{} until tracked changes are cleaned up", words::counted(left, "version"));
        html.element("small", &[], &text);
    }
    html.within("small", &[], |html| {
        html.text("recorded ");
        utc(html, seen.at);
    });
}

fn checkpoint(html: &mut Html, status: &Status) {
    let Some(position) = &status.cursor else { return nothing(html) };
    cursor(html, position);
    if let (Some(at), Some(age)) = (status.checkpoint_at, status.checkpoint_age_seconds) {
        html.within("small", &[], |html| time(html, at, &words::ago(age)));
    }
    if let Some(batch) = &status.last_batch_id {
        html.within("small", &[], |html| {
            html.text("batch ");
            html.within("code", &[], |html| html.foreign(batch));
        });
    }
}

fn cursor(html: &mut Html, position: &Cursor) {
    let short = words::position(&position.value);
    html.within("code", &[("title", &position.value)], |html| html.foreign(&short));
    // A key that has no JSON form is shown as nothing.
    let key = serde_json::to_string(&position.key).unwrap_or_default();
    html.within("small", &[], |html| {
        html.text("key ");
        html.within("code", &[], |html| html.foreign(&key));
    });
}

fn lease(html: &mut Html, status: &Status) {
    match (&status.owner, &status.lease) {
        (Some(owner), Some(lease)) => {
            html.within("code", &[("title", owner)], |html| html.foreign(&words::owner(owner)));
            lease_bar(html, lease);
            html.within("small", &[], |html| {
                countdown(html, lease.left_seconds);
                html.text(&format!(" of {} s left", lease.ttl_seconds));
            });
        }
        _ => html.text("free"),
    }
    let (token, generation) = (status.token, status.generation);
    html.element("small", &[], &format!("token {token}, generation {generation}"));
}

fn in_flight(html: &mut Html, batch: &Batch) {
    html.within("section", &[("class", "card"), ("aria-labelledby", "batch")], |html| {
        html.raw("<h2 id=\"batch\">Batch in flight</h2>");
        html.within("dl", &[("class", "facts")], |html| {
            fact(html, "Batch", |html| {
                html.within("code", &[], |html| html.foreign(&batch.batch_id));
                let late = if batch.late { ", found late" } else { "" };
                let alone = if batch.rows == 1 { ": its key is below" } else { "" };
                let rows = words::counted(batch.rows, "row");
                html.element("small", &[], &format!("{rows}{late}{alone}"));
            });
            fact(html, "After", |html| match &batch.after {
                Some(after) => cursor(html, after),
                None => html.text("the beginning"),
            });
            fact(html, "Up to", |html| cursor(html, &batch.upto));
            fact(html, "Failed attempts", |html| {
                html.text(&batch.attempt.to_string());
                if batch.crashes > 0 {
                    html.element("small", &[], &format!("process crashes: {}", batch.crashes));
                }
                for step in &batch.steps_done {
                    html.within("small", &[], |html| {
                        html.text("step done: ");
                        html.foreign(step);
                    });
                }
            });
            moment(html, "Started", batch.started_at);
            moment(html, "First failed", batch.first_failed_at);
            moment(html, "Next retry", batch.next_attempt_at);
        });
        if let Some(error) =
            batch.first_error.as_ref().filter(|_| batch.first_error != batch.last_error)
        {
            html.raw("<h3>First error</h3>");
            html.within("pre", &[], |html| html.foreign(error));
        }
    });
}

fn moment(html: &mut Html, name: &'static str, at: Option<OffsetDateTime>) {
    if let Some(at) = at {
        fact(html, name, |html| utc(html, at));
    }
}

/// Adds a time with its zone.
fn utc(html: &mut Html, at: OffsetDateTime) {
    time(html, at, &format!("{} UTC", words::clock(at)));
}

fn ticks(html: &mut Html, recent: &[Tick]) {
    html.within("section", &[("class", "card"), ("aria-labelledby", "ticks")], |html| {
        html.raw("<h2 id=\"ticks\">Recent ticks</h2>");
        strip(html, recent, RECENT_MAX);
        if recent.is_empty() {
            html.raw(
                "<p class=\"empty\">No deliveries yet. Idle ticks are not listed. Write a row to the table, or ask above \
                why a row was not delivered.</p>",
            );
            return;
        }
        scroll(html, "Table of recent ticks", |html| {
            table(html, "Ticks except idle ones, newest first", &TICKS, |html| {
                for tick in recent.iter().rev() {
                    tick_row(html, tick);
                }
            });
        });
    });
}

/// Adds content that may be wider than the page; it scrolls by itself, also with the keyboard.
pub(super) fn scroll(html: &mut Html, label: &str, inside: impl FnOnce(&mut Html)) {
    let region =
        [("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", label)];
    html.within("div", &region, inside);
}

fn tick_row(html: &mut Html, tick: &Tick) {
    html.within("tr", &[("role", "row")], |html| {
        cell(html, "Ended (UTC)", |html| time(html, tick.at, &words::clock(tick.at)));
        cell(html, "Outcome", |html| {
            let class = format!("word {}", words::class(tick.tone));
            html.within("span", &[("class", &class)], |html| html.foreign(&tick.outcome));
            if let Some(note) = &tick.note {
                html.within("small", &[], |html| html.foreign(note));
            }
        });
        cell(html, "Rows", |html| html.text(&words::count(tick.rows)));
        cell(html, "Batches", |html| html.text(&words::count(tick.batches)));
        cell(html, "Duration", |html| html.text(&words::milliseconds(tick.duration_ms)));
        cell(html, "Longest steps", |html| {
            for step in ["fetch", "handler", "commit", "heartbeat"] {
                if let Some(ms) = tick.longest_ms.get(step) {
                    let text = format!("{step} {}", words::milliseconds(*ms));
                    html.element("span", &[("class", "step")], &text);
                }
            }
        });
        cell(html, "Lag", |html| match tick.longest_ms.get("lag") {
            Some(lag) => html.text(&words::milliseconds(*lag)),
            None => nothing(html),
        });
        cell(html, "Idle ticks", |html| html.text(&words::count(tick.idle_before)));
    });
}

fn journal(html: &mut Html, events: Option<&[Event]>) {
    html.within("section", &[("class", "card"), ("aria-labelledby", "journal")], |html| {
        html.raw("<h2 id=\"journal\">Journal</h2>");
        let Some(events) = events else {
            html.raw(
                "<p class=\"empty\">No journal: it is off, or this process does not have the poller's settings. \
                The setting <code>JOURNAL</code> turns it on.</p>",
            );
            return;
        };
        if events.is_empty() {
            html.raw("<p class=\"empty\">No events recorded yet.</p>");
            return;
        }
        scroll(html, "Table of the journal", |html| {
            table(html, "Newest events of the last recorded day, newest first", &EVENTS, |html| {
                for event in events {
                    event_row(html, event);
                }
            });
        });
    });
}

fn event_row(html: &mut Html, event: &Event) {
    html.within("tr", &[("role", "row")], |html| {
        cell(html, "At (UTC)", |html| time(html, event.at, &words::clock(event.at)));
        cell(html, "Event", |html| html.text(event.event));
        cell(html, "Write", |html| html.text(&event.seq.to_string()));
        cell(html, "Token", |html| html.text(&event.token.to_string()));
        cell(html, "Rows", |html| match event.rows {
            Some(rows) => html.text(&words::count(rows)),
            None => nothing(html),
        });
        cell(html, "By", |html| match &event.who {
            Some(who) => html.foreign(who),
            None => nothing(html),
        });
        cell(html, "Batch or reason", |html| {
            if let Some(batch) = &event.batch_id {
                html.within("code", &[("class", "id"), ("title", batch)], |html| {
                    html.foreign(batch);
                });
            }
            if let Some(text) = &event.text {
                html.within("small", &[], |html| html.foreign(text));
            }
        });
    });
}

/// Adds the actions for a poller. Each takes three steps: open it, confirm it, send it.
fn show_actions(
    html: &mut Html,
    status: &Status,
    actions: &PageActions<'_>,
    now: Option<OffsetDateTime>,
) {
    if !status.configured {
        return;
    }
    html.within("section", &[("class", "card actions"), ("aria-labelledby", "actions")], |html| {
        html.raw("<h2 id=\"actions\">Actions</h2>");
        if let Some(result) = actions.result {
            html.within("p", &[("class", "said"), ("role", "status")], |html| html.foreign(result));
        }
        let name = status.poller.as_str();
        if status.paused.is_some() {
            action(html, name, actions, &RESUME);
        } else {
            if status.health.state == PollerState::BackingOff || awaits_retry(status, now) {
                action(html, name, actions, &RETRY);
            }
            action(html, name, actions, &PAUSE);
        }
        action(html, name, actions, &TICK);
    });
}

/// An action on a poller.
pub(super) struct Action {
    name: &'static str,
    title: &'static str,
    /// What it does.
    what: &'static str,
    /// Label of the confirmation checkbox.
    sure: &'static str,
    /// Whether it requires a reason.
    reason: bool,
}

const PAUSE: Action = Action {
    name: "pause",
    title: "Pause…",
    what: "No process starts a tick until you resume the poller. A running tick stops after its current batch.",
    sure: "Yes, pause this poller",
    reason: true,
};
const RESUME: Action = Action {
    name: "resume",
    title: "Resume…",
    what: "The next tick runs. The attempts of the failing batch are reset.",
    sure: "Yes, resume this poller",
    reason: true,
};
const RETRY: Action = Action {
    name: "resume",
    title: "Retry now…",
    what: "Ends the backoff: the next tick retries the failed batch. Its attempts are reset.",
    sure: "Yes, end the backoff",
    reason: true,
};
pub(super) const REDRIVE: Action = Action {
    name: "redrive",
    title: "Redrive all…",
    what: "Delivers the current version of each parked and quarantined row. No tick runs meanwhile.",
    sure: "Yes, deliver these rows again",
    reason: true,
};
const TICK: Action = Action {
    name: "tick",
    title: "Tick now…",
    what: "Runs one tick in this process, as if its timer had fired.",
    sure: "Yes, run a tick now",
    reason: false,
};

pub(super) fn action(html: &mut Html, poller: &str, actions: &PageActions<'_>, action: &Action) {
    let id = |part: &str| format!("{}-{part}", action.name);
    html.within("details", &[("id", &id("action"))], |html| {
        html.element("summary", &[], action.title);
        let target = format!("../../actions/{}", action.name);
        html.within("form", &[("method", "post"), ("action", &target)], |html| {
            html.element("p", &[], action.what);
            html.void("input", &[("type", "hidden"), ("name", "poller"), ("value", poller)]);
            html.void("input", &[("type", "hidden"), ("name", "token"), ("value", actions.token)]);
            if action.reason {
                let reason = id("reason");
                html.element(
                    "label",
                    &[("for", &reason)],
                    if action.name == REDRIVE.name {
                        "Reason (logged)"
                    } else {
                        "Reason (recorded in the state)"
                    },
                );
                html.void(
                    "input",
                    &[
                        ("id", &reason),
                        ("name", "reason"),
                        ("required", ""),
                        ("maxlength", "1000"),
                        ("autocomplete", "off"),
                    ],
                );
            }
            html.within("label", &[("class", "sure")], |html| {
                html.void(
                    "input",
                    &[
                        ("type", "checkbox"),
                        ("name", "confirm"),
                        ("value", "yes"),
                        ("required", ""),
                    ],
                );
                html.text(action.sure);
            });
            let button = action.title.trim_end_matches('…');
            html.element("button", &[("type", "submit")], button);
        });
    });
}

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::cursor::Cursor;
use crate::status::health::{Failure, Health, PollerState};
use crate::status::{
    Activity, BacklogStatus, Batch, Event, Lease, LoadProgress, ParkedEntry, ParkedStatus, Pause,
    Status, Tick, Tone,
};

/// Texts that would become markup or code if they were not escaped.
const HOSTILE: [&str; 8] = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></style></textarea><!--",
    "\u{202e}txt.exe\u{2066}",
    "&lt;b&gt; & \u{0}",
];

fn tick(text: &str, at: OffsetDateTime) -> Tick {
    Tick {
        at,
        outcome: text.to_owned(),
        tone: Tone::Note,
        rows: 7,
        batches: 1,
        duration_ms: 40,
        idle_before: 2,
        longest_ms: BTreeMap::from([("fetch".to_owned(), 3), (text.to_owned(), 4)]),
        note: Some(text.to_owned()),
    }
}

fn event(text: &str, at: OffsetDateTime) -> Event {
    let own = || Some(text.to_owned());
    Event {
        at,
        seq: 9,
        event: "paused",
        token: 4,
        batch_id: own(),
        rows: Some(1),
        text: own(),
        who: own(),
    }
}

fn health(text: &str, at: OffsetDateTime) -> Health {
    let failure = Failure {
        at,
        since: at,
        count: 2,
        kind: "fetch_failed".to_owned(),
        error: format!("{text}2"),
    };
    Health {
        state: PollerState::Failing,
        severity: Severity::Error,
        running: true,
        cause: Some(text.to_owned()),
        since: Some(at),
        last_failure: Some(failure),
        last_success_at: Some(at),
        last_tick_at: Some(at),
        runbook: Some("runbooks/failures.md"),
    }
}

/// Returns a report of two pollers in which every foreign text is `text`.
fn report(text: &str) -> Report {
    let at = datetime!(2026-01-01 2:00 UTC);
    let own = || Some(text.to_owned());
    let cursor: Cursor = serde_json::from_value(json!({
        "kind": "timestamp+pk", "value": text, "tiebreaker": { text: text },
    }))
    .unwrap();
    let full = Status {
        poller: text.to_owned(),
        health: health(text, at),
        configured: true,
        checkpoint: own(),
        cursor: Some(cursor.clone()),
        checkpoint_at: Some(at),
        checkpoint_age_seconds: Some(3),
        last_batch_id: own(),
        observed: Some(BacklogStatus {
            at,
            lag_seconds: Some(1.5),
            positions: Some(3),
            rows: Some(2),
            held_back: Some(2),
            retention_left: Some(1),
            idle_ticks: 4,
        }),
        owner: own(),
        token: 4,
        lease: Some(Lease { ttl_seconds: 120, left_seconds: 87, acquired_at: Some(at) }),
        schedule: own(),
        time_zone: own(),
        next_tick_at: Some(at + time::Duration::seconds(4)),
        paused: Some(Pause { by: text.to_owned(), reason: text.to_owned(), at }),
        quarantined: 2,
        attempts: 3,
        last_error: own(),
        in_flight: Some(Batch {
            batch_id: text.to_owned(),
            rows: 1000,
            after: Some(cursor.clone()),
            upto: cursor,
            late: true,
            attempt: 3,
            crashes: 1,
            started_at: Some(at),
            first_failed_at: Some(at),
            next_attempt_at: Some(at),
            first_error: Some(format!("{text}2")),
            last_error: own(),
            steps_done: vec![text.to_owned()],
        }),
        recent: vec![tick(text, at)],
        journal: Some(vec![event(text, at)]),
        warnings: vec![text.to_owned()],
        lag_seconds: Some(1.5),
        first_load: Some(LoadProgress { started_at: at, rows: 7, rows_per_second: 0.5 }),
        activity: vec![Activity { at, ticks: 1, failed: 1, rows: 7, lag_ms: 3, duration_ms: 4 }],
        parked: Some(ParkedStatus { retrying: 1, quarantined: 1, next_retry_at: Some(at) }),
        keys: Some(vec![ParkedEntry {
            key_id: text.to_owned(),
            key: text.to_owned(),
            state: Some(crate::quarantine::EntryState::Retrying),
            reason: Some("refused"),
            since: Some(at),
            versions: 1,
            retries: 2,
            next_retry_at: Some(at),
            error: own(),
        }]),
        ..Status::default()
    };
    let broken = Status {
        poller: text.to_owned(),
        health: Health { last_failure: None, ..health(text, at) },
        ..Status::default()
    };
    let (app, version, pollers) = (text.to_owned(), "1.2.3", vec![full, broken]);
    Report { app, version, at: Some(at), pollers }
}

fn question(page: bool) -> PageRequest<'static> {
    PageRequest { page, refresh_seconds: 5, ..PageRequest::default() }
}

/// Returns every page that shows `text`: all pollers, one of them with actions, and an error.
fn pages(text: &str) -> Vec<String> {
    let report = report(text);
    let actions = PageActions { token: text, result: Some(text) };
    let traced = Traced { key: text.to_owned(), explanation: Err(text.to_owned()) };
    let one = PageRequest {
        poller: Some(text),
        code: Some(text),
        actions: Some(actions),
        ..question(true)
    };
    let answers = [
        render(&report, question(true), None),
        render(&report, one, Some(&traced)),
        failed(503, text, question(true)),
    ];
    answers.map(|answer| answer.body).to_vec()
}

/// Returns the elements of a page with the names of their attributes, without any text or value.
fn skeleton(page: &str) -> Vec<String> {
    let mut shape = Vec::new();
    let mut rest = page;
    while let Some((_, tag)) = rest.split_once('<') {
        // Values are escaped, so they contain neither a quote nor a bracket.
        let (tag, after) = tag.split_once('>').unwrap();
        let names = tag.split('"').step_by(2).collect::<String>();
        shape.push(names);
        let body = tag.split(' ').next().unwrap();
        // Their content is not markup; other tests check the constants.
        rest = match body {
            "script" | "style" => after.split_once(&format!("</{body}>")).unwrap().1,
            _ => after,
        };
    }
    shape
}

#[test]
fn hostile_text_does_not_change_the_structure_of_a_page() {
    let harmless: Vec<_> = pages("text").iter().map(|page| skeleton(page)).collect();
    assert!(harmless[1].len() > 150, "the page of one poller has {} elements", harmless[1].len());
    for text in HOSTILE {
        let hostile: Vec<_> = pages(text).iter().map(|page| skeleton(page)).collect();
        for (harmless, hostile) in harmless.iter().zip(&hostile) {
            assert_eq!(harmless, hostile, "{text:?}");
        }
    }
}

#[test]
fn hostile_text_is_shown_escaped() {
    for text in HOSTILE {
        let mut escaped = String::new();
        markup::escape(&mut escaped, text);
        for page in pages(text) {
            assert!(page.contains(&escaped), "{text:?} is shown");
            assert!(!page.contains(text) || escaped == text, "{text:?} is not shown as it is");
            assert_eq!(page.matches("<script").count(), 1, "{text:?}");
        }
    }
}

#[test]
fn style_and_script_cannot_close_their_element() {
    for text in [STYLE, SCRIPT] {
        let text = text.to_lowercase();
        for end in ["</style", "</script", "<!--", "<script"] {
            assert!(!text.contains(end), "`{end}` would close the element");
        }
    }
    for word in ["http:", "https:", "url(", "@import", "eval(", "innerHTML"] {
        assert!(!STYLE.contains(word) && !SCRIPT.contains(word), "{word}");
    }
}

#[test]
fn the_policy_allows_only_the_style_and_script_of_the_page() {
    let answer = render(&report("x"), question(true), None);
    let headers = answer.headers();
    let policy = &headers.iter().find(|(name, _)| *name == "Content-Security-Policy").unwrap().1;
    for (element, directive) in [("style", "style-src"), ("script", "script-src")] {
        let (_, rest) = answer.body.split_once(&format!("<{element}>")).unwrap();
        let (text, _) = rest.split_once(&format!("</{element}>")).unwrap();
        let hash = STANDARD.encode(Sha256::digest(text));
        assert!(policy.contains(&format!("{directive} 'sha256-{hash}';")), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    for tag in skeleton(&pages("x")[1]) {
        let inline =
            tag.split(' ').any(|name| name.starts_with("on") || name.starts_with("style="));
        assert!(!inline, "<{tag}> would be blocked");
    }
}

#[test]
fn links_carry_the_key_and_any_name() {
    let view = View { poller: None, code: Some("a+b/c=="), actions: None };
    assert_eq!(view.link(Some("x&y=\"z")), "page?poller=x%26y%3D%22z&code=a%2Bb%2Fc%3D%3D");
    assert_eq!(view.link(None), "page?code=a%2Bb%2Fc%3D%3D");
    let view = View { poller: None, code: None, actions: None };
    assert_eq!(view.link(None), "page");
}

#[test]
fn actions_are_shown_only_if_they_are_offered() {
    let report = report("orders");
    let one = PageRequest { poller: Some("orders"), ..question(true) };
    assert!(!render(&report, one, None).body.contains("<form method=\"post\""));
    let actions = Some(PageActions { token: "secret", result: None });
    let body = render(&report, PageRequest { actions, ..one }, None).body;
    assert_eq!(body.matches("<form method=\"post\"").count(), 3);
    assert_eq!(body.matches("name=\"token\" value=\"secret\"").count(), 3);
    assert_eq!(body.matches("name=\"confirm\" value=\"yes\" required").count(), 3);
    assert!(body.contains("../../actions/resume") && !body.contains("../../actions/pause"));
    let overview = render(&report, PageRequest { actions, ..question(true) }, None).body;
    assert!(!overview.contains("<form"), "actions are on the poller's own view");
}

#[test]
fn a_rejected_batch_that_backs_off_is_retried_by_resume() {
    let page = |seconds, actions| {
        let mut report = report("orders");
        report.at = report.at.map(|at| at - time::Duration::seconds(seconds));
        report.pollers[0].paused = None;
        let one = PageRequest { poller: Some("orders"), actions, ..question(true) };
        render(&report, one, None).body
    };
    // The next attempt is later, so that a tick would do nothing.
    assert!(page(60, None).contains("highwater resume orders"));
    assert!(page(0, None).contains("highwater tick orders"));
    let actions = Some(PageActions { token: "t", result: None });
    assert!(page(60, actions).contains("Retry now") && !page(0, actions).contains("Retry now"));
}

#[test]
fn the_json_is_the_report_and_includes_the_page_on_request() {
    let answer = render(&report("orders"), question(false), None);
    assert_eq!((answer.status, answer.content_type), (200, JSON));
    let json: Json = serde_json::from_str(&answer.body).unwrap();
    let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["app", "version", "at", "pollers"]);
    assert_eq!(json["at"], "2026-01-01T02:00:00Z");
    assert_eq!(json["pollers"][0]["lease"]["left_seconds"], 87);
    let answer = render(&report("orders"), PageRequest { html: true, ..question(false) }, None);
    let json: Json = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(json["title"], "(2) orders · Highwater");
    let page = render(&report("orders"), question(true), None).body;
    assert!(page.contains(&format!("tabindex=\"-1\">{}</main>", json["html"].as_str().unwrap())));
}

#[test]
fn an_error_has_the_format_that_was_requested() {
    let answer = failed(503, "read state: no answer", question(false));
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (503, "{\"error\":\"read state: no answer\"}")
    );
    let answer = failed(404, "there is no poller `x`", question(true));
    assert!(answer.status == 404 && answer.body.contains("there is no poller &#96;x&#96;"));
}

#[test]
fn every_field_of_the_json_is_documented() {
    let page = include_str!("../../../docs/reference/status.md");
    let json = serde_json::to_value(report("orders")).unwrap();
    let mut missing = Vec::new();
    let mut look = vec![json];
    while let Some(value) = look.pop() {
        match value {
            Json::Object(fields) => {
                for (name, value) in fields {
                    // The keys below these are data.
                    if name != "longest_ms" && name != "tiebreaker" {
                        look.push(value);
                    }
                    if !page.contains(&format!("`{name}`")) {
                        missing.push(name);
                    }
                }
            }
            Json::Array(values) => look.extend(values),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

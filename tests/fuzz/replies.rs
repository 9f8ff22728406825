//! Replies of handlers: of an `http` target, of the Durable Functions extension, and the output of an `exec` process.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use highwater::cursor::{Cursor, KeyValues, RowVersion};
use highwater::event::{ChangeEvent, Operation, SourceLabel};
use highwater::handler::{HandlerError, durable, exec, http};

/// Events of a batch of three rows.
fn events() -> &'static [ChangeEvent] {
    static EVENTS: OnceLock<Vec<ChangeEvent>> = OnceLock::new();
    EVENTS.get_or_init(|| {
        let source = SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        };
        let event = |at: u64| {
            let key = KeyValues::from_iter([("id", serde_json::Value::from(at))]);
            let cursor = Cursor::row_version(RowVersion(at), key);
            ChangeEvent::encode(&source, Operation::Upsert, cursor, &[])
        };
        (1..=3).map(event).collect()
    })
}

/// The first line is the status, `name: value` lines are headers, and the body follows an empty line. In the body, `ID1`
/// stands for the id of the first event, and so on.
pub(crate) fn replies(input: &[u8]) {
    let events = events();
    let (head, body) = split(input);
    let mut lines = head.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
    let status = lines.next().and_then(|line| line.trim().parse().ok()).unwrap_or(200);
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let mut body = body.to_vec();
    for (place, event) in ["ID1", "ID2", "ID3"].iter().zip(events) {
        body = replaced(&body, place.as_bytes(), event.id.as_str().as_bytes());
    }
    let all: Vec<&ChangeEvent> = events.iter().collect();
    check(&http::judge_reply(status, &headers, &body, &all));
    let at_once = exec::judge_output(&body, body.len(), events);
    check(&at_once);
    // Where a pipe divides the output makes no difference.
    let in_pieces = exec::judge_output(&body, 7, events);
    assert_eq!(format!("{at_once:?}"), format!("{in_pieces:?}"));
    drop(durable::judge_replies(status, &body));
}

/// A reply never accepts more than the batch, and an error has a reason.
fn check(judged: &Result<(), HandlerError>) {
    let Err(error) = judged else { return };
    assert!(!error.to_string().is_empty());
    if let HandlerError::Partial { accepted, .. } = error {
        assert!(*accepted < events().len(), "{error:?}");
    }
    if let HandlerError::Fenced(stale) = error {
        assert!(!format!("{stale:?}").is_empty());
    }
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    end.map_or((input, &[]), |end| (&input[..end], &input[end + 2..]))
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    result.extend_from_slice(rest);
    result
}

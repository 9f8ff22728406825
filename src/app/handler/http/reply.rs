//! Meaning of a reply. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};
use url::Url;

use crate::config::shown_url;
use crate::event::ChangeEvent;
use crate::handler::HandlerError;
use crate::redaction;
use crate::state::{Fence, FencingToken, Generation, StaleWrite};

/// Longest part of a reply's body that is quoted in an error.
const EXCERPT_CHARS_MAX: usize = 200;

/// The target of a request, without secrets.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The URL without user and query.
    pub(super) shown: String,
    /// Whether an HTML page counts as success.
    pub(super) accepts_html: bool,
}

/// A received reply.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) status: u16,
    pub(super) retry_after: Option<String>,
    pub(super) date: Option<String>,
    pub(super) location: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// Why the body is incomplete, if it is.
    pub(super) cut: Option<String>,
}

/// A reply that accepts a part of a batch, in the format of AWS Lambda.
/// <https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html>
#[derive(Deserialize)]
struct Partial {
    /// `None` if the object has no such member; the member may be `null`.
    #[serde(rename = "batchItemFailures", default, deserialize_with = "member")]
    failures: Option<Failures>,
}

#[derive(Deserialize)]
struct Failures(Option<Vec<Failure>>);

fn member<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Failures>, D::Error> {
    Failures::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "itemIdentifier")]
    id: Option<String>,
}

/// The body of a 409 from a receiver that has accepted a newer grant.
#[derive(Deserialize)]
struct Fenced {
    fence: AcceptedGrant,
}

/// A grant, with the field names of a delivery.
#[derive(Deserialize)]
struct AcceptedGrant {
    generation: Generation,
    fencing_token: FencingToken,
}

/// Interprets the reply to a delivery of `events` under `grant`.
///
/// `now` replaces the target's clock if the reply has no `Date`.
pub(super) fn judge(
    target: &Target,
    received: &Received,
    (events, grant): (&[&ChangeEvent], Fence),
    now: OffsetDateTime,
) -> Result<(), HandlerError> {
    let reason = || target.reason(received);
    match received.status {
        200..=299 => judge_success(target, received, events),
        300..=399 => {
            let to = received.location.as_deref().map(host_of).unwrap_or_default();
            let reason =
                format!("{}, a redirect{to}; redirects are not followed", target.said(received));
            Err(HandlerError::Misconfigured(reason))
        }
        401 | 403 | 404 => Err(HandlerError::Misconfigured(reason())),
        410 => Err(HandlerError::Gone(reason())),
        413 => Err(HandlerError::TooLarge(reason())),
        429 => Err(HandlerError::Throttled {
            reason: reason(),
            retry_after: received.requested_delay(now),
        }),
        409 => Err(stale_write(received, grant)
            .map_or_else(|| HandlerError::Retryable(reason()), HandlerError::Fenced)),
        400 | 422 => Err(HandlerError::Rejected(reason())),
        503 => match received.requested_delay(now) {
            None => Err(HandlerError::Retryable(reason())),
            retry_after => Err(HandlerError::Throttled { reason: reason(), retry_after }),
        },
        // 408 and 5xx; and other 4xx, which a gateway may return regardless of the rows.
        _ => Err(HandlerError::Retryable(reason())),
    }
}

/// Returns the refusal of `grant` if the reply names a higher one. Any other 409 has no such meaning: a
/// gateway may return it.
fn stale_write(received: &Received, grant: Fence) -> Option<StaleWrite> {
    if received.cut.is_some() {
        return None;
    }
    let Fenced { fence } = serde_json::from_slice(&received.body).ok()?;
    let accepted = Fence { generation: fence.generation, token: fence.fencing_token };
    accepted.admit(grant.generation, grant.token).err()
}

fn judge_success(
    target: &Target,
    received: &Received,
    events: &[&ChangeEvent],
) -> Result<(), HandlerError> {
    let retryable = |why: &str| {
        HandlerError::Retryable(redaction::redacted(format!(
            "{}, but {why}",
            target.said(received)
        )))
    };
    if !target.accepts_html && received.is_html_page() {
        let page = redaction::excerpt(received.first_line(), EXCERPT_CHARS_MAX);
        return Err(HandlerError::Misconfigured(format!(
            "{} with a web page, so this may not be the receiver; the page starts with \
             `{page}`; correct `HANDLER__URL`, or set `HANDLER__ACCEPT_HTML` to `true` if the receiver replies with HTML",
            target.said(received)
        )));
    }
    if let Some(cut) = &received.cut {
        return Err(retryable(cut));
    }
    let failures = match serde_json::from_slice::<Partial>(&received.body) {
        Ok(Partial { failures: Some(Failures(failures)) }) => failures.unwrap_or_default(),
        Ok(Partial { failures: None }) if mentions_failures(&received.body) => {
            return Err(retryable(
                "its `batchItemFailures` is not a top-level field spelled exactly so",
            ));
        }
        // A body that is not our JSON is ignored, unless it mentions failures.
        Err(error) if mentions_failures(&received.body) => {
            return Err(retryable(&format!("its `batchItemFailures` cannot be read: {error}")));
        }
        Ok(Partial { failures: None }) | Err(_) => return Ok(()),
    };
    if failures.is_empty() {
        return Ok(());
    }
    let indexes: BTreeMap<&str, usize> =
        events.iter().enumerate().map(|(index, event)| (event.id.as_str(), index)).collect();
    let failed: Option<Vec<usize>> = failures
        .iter()
        .map(|Failure { id }| indexes.get(id.as_deref().unwrap_or_default()).copied())
        .collect();
    match failed.and_then(|failed| failed.into_iter().min()) {
        Some(accepted) => {
            let count = failures.len();
            let reason = format!(
                "{}, but {count} of {} events failed, the first at index {accepted}",
                target.said(received),
                events.len()
            );
            Err(HandlerError::Partial { accepted, reason })
        }
        None => Err(retryable("its `batchItemFailures` names an event that is not in the batch")),
    }
}

impl Target {
    pub(super) fn of(url: &Url, accepts_html: bool) -> Self {
        Self { shown: shown_url(url), accepts_html }
    }

    fn said(&self, received: &Received) -> String {
        format!("{} answered {}", self.shown, received.status)
    }

    /// Returns the reason that a target gave for not accepting the batch.
    fn reason(&self, received: &Received) -> String {
        let excerpt = redaction::excerpt(&received.body, EXCERPT_CHARS_MAX);
        if excerpt.is_empty() {
            return self.said(received);
        }
        format!("{}: {excerpt}", self.said(received))
    }
}

impl Received {
    /// Whether this is a page for a browser, such as a login page or a hosting placeholder. These return 200
    /// for every request.
    pub(super) fn is_html_page(&self) -> bool {
        let content_type = self.content_type.as_deref().unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        media_type.eq_ignore_ascii_case("text/html") && self.text().starts_with(b"<")
    }

    fn first_line(&self) -> &[u8] {
        self.text().split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default()
    }

    /// Returns the body without a leading byte order mark and spaces.
    fn text(&self) -> &[u8] {
        let body = self.body.as_slice();
        body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body).trim_ascii_start()
    }

    /// Returns the delay that the target asks for.
    /// <https://www.rfc-editor.org/rfc/rfc9110#name-retry-after>
    fn requested_delay(&self, now: OffsetDateTime) -> Option<Duration> {
        let text = self.retry_after.as_deref()?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let until = http_date(text)?;
        // Use the target's own clock, so that ours need not agree with it.
        let from = self.date.as_deref().and_then(http_date).unwrap_or(now);
        Some(Duration::try_from(until - from).unwrap_or_default())
    }
}

/// Parses an HTTP date, `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<OffsetDateTime> {
    let form = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    PrimitiveDateTime::parse(text, form).ok().map(PrimitiveDateTime::assume_utc)
}

/// Whether a body contains the name of the failure list in quotes, in any case, even in invalid JSON. Escaped
/// quotes inside a string do not count.
fn mentions_failures(body: &[u8]) -> bool {
    let word = b"\"batchItemFailures\"";
    body.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word))
}

/// Describes a `Location` for an error, without its path, which may be secret.
fn host_of(location: &str) -> String {
    let url = Url::parse(location).ok();
    let host = url.as_ref().and_then(Url::host_str).map(|host| format!(" to host `{host}`"));
    host.unwrap_or_else(|| " within the same host".to_owned())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use time::macros::datetime;

    use super::*;
    use crate::handler::testing::Sample;

    const NOW: OffsetDateTime = datetime!(2026-11-20 12:00:00 UTC);
    const URL: &str = "https://me:hunter22@example.org/hook?code=s3cret%2Fs3cret&v=1";

    const GRANT: Fence = Fence { generation: Generation(7), token: FencingToken(4) };

    fn judge_reply(received: &Received) -> Result<(), HandlerError> {
        let sample = Sample::new(3);
        let events: Vec<&ChangeEvent> = sample.events.iter().collect();
        judge(&Target::of(&URL.parse().unwrap(), false), received, (&events, GRANT), NOW)
    }

    fn page(content_type: &str, body: &str) -> Received {
        Received { content_type: Some(content_type.to_owned()), ..reply(200, body) }
    }

    fn reply(status: u16, body: &str) -> Received {
        Received { status, body: body.into(), ..Received::default() }
    }

    fn name_of(result: &Result<(), HandlerError>) -> String {
        match result {
            Ok(()) => "ok".to_owned(),
            Err(HandlerError::Retryable(_)) => "retryable".to_owned(),
            Err(HandlerError::Throttled { retry_after, .. }) => {
                format!("throttled {retry_after:?}")
            }
            Err(HandlerError::Rejected(_)) => "rejected".to_owned(),
            Err(HandlerError::TooLarge(_)) => "too large".to_owned(),
            Err(HandlerError::Misconfigured(_)) => "misconfigured".to_owned(),
            Err(HandlerError::Gone(_)) => "gone".to_owned(),
            Err(HandlerError::Partial { accepted, .. }) => format!("partial {accepted}"),
            Err(HandlerError::Stalled(_)) => "stalled".to_owned(),
            Err(HandlerError::Fenced(_)) => "fenced".to_owned(),
        }
    }

    #[test]
    fn each_status_has_one_meaning() {
        for (meaning, statuses) in [
            ("ok", [200, 201, 202, 204, 207, 299].as_slice()),
            ("misconfigured", &[300, 301, 302, 304, 307, 308, 401, 403, 404]),
            ("rejected", &[400, 422]),
            // A gateway may return these regardless of the rows.
            (
                "retryable",
                &[
                    402, 405, 407, 409, 415, 421, 423, 451, 499, 408, 500, 501, 502, 503, 504, 511,
                    599, 600, 999,
                ],
            ),
            ("gone", &[410]),
            ("too large", &[413]),
            ("throttled None", &[429]),
        ] {
            for status in statuses {
                assert_eq!(name_of(&judge_reply(&reply(*status, ""))), meaning, "{status}");
            }
        }
    }

    #[test]
    fn only_a_conflict_that_names_a_higher_grant_is_a_fence() {
        let fence = |generation: u64, token: u64| {
            serde_json::json!({
                "error": "a newer lease has written",
                "fence": { "generation": generation, "fencing_token": token },
            })
            .to_string()
        };
        for (generation, token, meaning) in [
            (7, 5, "fenced"),
            (8, 1, "fenced"),
            // A receiver that names no higher grant than this one has no reason to refuse it.
            (7, 4, "retryable"),
            (7, 3, "retryable"),
            (6, 9, "retryable"),
        ] {
            let result = judge_reply(&reply(409, &fence(generation, token)));
            assert_eq!(name_of(&result), meaning, "{generation}.{token}");
            if let Err(HandlerError::Fenced(refused)) = result {
                let current =
                    Fence { generation: Generation(generation), token: FencingToken(token) };
                assert_eq!(refused, StaleWrite { stale: GRANT, current });
            }
        }
        for body in ["", "{}", r#"{"fence":null}"#, r#"{"fence":{"generation":9}}"#, "[]"] {
            assert_eq!(name_of(&judge_reply(&reply(409, body))), "retryable", "{body}");
        }
        let cut = Received { cut: Some("cut".to_owned()), ..reply(409, &fence(8, 1)) };
        assert_eq!(name_of(&judge_reply(&cut)), "retryable");
        // Only with that status: a 200 has accepted the rows, whatever its body says.
        assert_eq!(name_of(&judge_reply(&reply(200, &fence(8, 1)))), "ok");
    }

    #[test]
    fn retry_after_is_honored() {
        for (requested, date, meaning) in [
            ("0", None, "throttled Some(0ns)"),
            (" 120 ", None, "throttled Some(120s)"),
            ("99999999999", None, "throttled Some(99999999999s)"),
            ("Fri, 20 Nov 2026 12:00:30 GMT", None, "throttled Some(30s)"),
            ("Fri, 20 Nov 2026 11:00:00 GMT", None, "throttled Some(0ns)"),
            (
                "Fri, 20 Nov 2026 09:00:07 GMT",
                Some("Fri, 20 Nov 2026 09:00:00 GMT"),
                "throttled Some(7s)",
            ),
            ("-1", None, "retryable"),
            ("soon", None, "retryable"),
        ] {
            let (retry_after, date) = (Some(requested.to_owned()), date.map(str::to_owned));
            let received = Received { status: 503, retry_after, date, ..Received::default() };
            assert_eq!(name_of(&judge_reply(&received)), meaning, "503 {requested}");
            let received = Received { status: 429, ..received };
            let meaning = meaning.replace("retryable", "throttled None");
            assert_eq!(name_of(&judge_reply(&received)), meaning, "429 {requested}");
        }
    }

    #[test]
    fn a_batch_is_accepted_up_to_the_first_failure() {
        let ids: Vec<String> =
            Sample::new(3).events.iter().map(|event| event.id.to_string()).collect();
        let item = |id: &str| format!(r#"{{"itemIdentifier":"{id}","more":1}}"#);
        let list = |items: &[String]| format!(r#"{{"batchItemFailures":[{}]}}"#, items.join(","));
        for (body, meaning) in [
            (String::new(), "ok"),
            ("OK".to_owned(), "ok"),
            ("[]".to_owned(), "ok"),
            (r#"{"taken":3}"#.to_owned(), "ok"),
            (r#"{"batchItemFailures":null}"#.to_owned(), "ok"),
            (list(&[]), "ok"),
            (list(&[item(&ids[0])]), "partial 0"),
            (list(&[item(&ids[2])]), "partial 2"),
            (list(&[item(&ids[2]), item(&ids[1]), item(&ids[1])]), "partial 1"),
            (list(&[item(&ids[1]), item("other")]), "retryable"),
            (list(&[item("")]), "retryable"),
            (list(&["{}".to_owned()]), "retryable"),
            (list(&[r#"{"itemIdentifier":null}"#.to_owned()]), "retryable"),
            (list(&[r#"{"itemIdentifier":7}"#.to_owned()]), "retryable"),
            (r#"{"batchItemFailures":true}"#.to_owned(), "retryable"),
            (list(&[item(&ids[1])]).replace("batch", "Batch"), "retryable"),
            (format!("{{\"body\":{}}}", list(&[])), "retryable"),
            (r#"{"echo":"{\"batchItemFailures\":1}"}"#.to_owned(), "ok"),
            (r#"{"batchItemFailures":[{"#.to_owned(), "retryable"),
        ] {
            assert_eq!(name_of(&judge_reply(&reply(200, &body))), meaning, "{body}");
        }
    }

    #[test]
    fn a_web_page_is_not_a_success() {
        for (content_type, body, meaning) in [
            ("text/html", "<html>", "misconfigured"),
            ("Text/HTML; charset=utf-8", "\u{feff}\r\n <!DOCTYPE html>", "misconfigured"),
            ("text/html", r#"<p>{"batchItemFailures":[]}"#, "misconfigured"),
            // Some frameworks label every text as HTML.
            ("text/html", "OK", "ok"),
            ("text/html", "", "ok"),
            ("text/html", r#"{"batchItemFailures":[]}"#, "ok"),
            ("text/html5", "<html>", "ok"),
            ("application/xml", "<ok/>", "ok"),
            ("text/plain", "<ok>", "ok"),
        ] {
            let received = page(content_type, body);
            assert_eq!(name_of(&judge_reply(&received)), meaning, "{content_type} {body}");
        }
        let untyped = reply(200, "<html>");
        assert_eq!(name_of(&judge_reply(&untyped)), "ok");
        let cut = Received { cut: Some("longer".to_owned()), ..page("text/html", "<html>") };
        assert_eq!(name_of(&judge_reply(&cut)), "misconfigured");
        let accepting = Target::of(&URL.parse().unwrap(), true);
        let accepted = judge(&accepting, &page("text/html", "<html>"), (&[], GRANT), NOW);
        assert_eq!(name_of(&accepted), "ok");
    }

    #[test]
    fn a_success_that_is_cut_short_is_retryable() {
        let cut = Some("the reply is cut short".to_owned());
        let received = Received { cut: cut.clone(), ..reply(200, "{}") };
        assert_eq!(name_of(&judge_reply(&received)), "retryable");
        let received = Received { cut, ..reply(422, "no") };
        assert_eq!(name_of(&judge_reply(&received)), "rejected");
    }

    #[test]
    fn errors_name_target_and_cause_without_secrets() {
        redaction::hold(["hunter22", "s3cret/s3cret"]);
        let long = "x".repeat(300);
        let mut texts = String::new();
        for received in [
            reply(500, ""),
            reply(500, &long),
            reply(400, "bad\r\nline\u{1b}[31m at /hook?code=s3cret%2Fs3cret&v=1, s3cret/s3cret"),
            reply(401, "code=s3cret%2Fs3cret and hunter22"),
            Received {
                location: Some("https://login.example.org/x?y".to_owned()),
                ..reply(302, "x")
            },
            Received { location: Some("/other".to_owned()), ..reply(301, "") },
            reply(200, r#"{"batchItemFailures":[{"itemIdentifier":"s3cret/s3cret"}]}"#),
            reply(200, r#"{"batchItemFailures":7}"#),
            page("text/html", "\n<!DOCTYPE html><title>s3cret/s3cret</title>\r\n<p>hunter22"),
        ] {
            let text = judge_reply(&received).unwrap_err().to_string();
            assert!(!text.contains("s3cret") && !text.contains("hunter22"), "{text}");
            texts += &(text + "\n");
        }
        expect![[r"
            https://example.org/…#6fc2d0 answered 500
            https://example.org/…#6fc2d0 answered 500: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            https://example.org/…#6fc2d0 answered 400: bad  line [31m at /hook?code=[redacted]&v=1, [redacted]
            https://example.org/…#6fc2d0 answered 401: code=[redacted] and [redacted]
            https://example.org/…#6fc2d0 answered 302, a redirect to host `login.example.org`; redirects are not followed
            https://example.org/…#6fc2d0 answered 301, a redirect within the same host; redirects are not followed
            https://example.org/…#6fc2d0 answered 200, but its `batchItemFailures` names an event that is not in the batch
            https://example.org/…#6fc2d0 answered 200, but its `batchItemFailures` cannot be read: invalid type: integer `7`, expected a sequence at line 1 column 22
            https://example.org/…#6fc2d0 answered 200 with a web page, so this may not be the receiver; the page starts with `<!DOCTYPE html><title>[redacted]</title>`; correct `HANDLER__URL`, or set `HANDLER__ACCEPT_HTML` to `true` if the receiver replies with HTML
        "]].assert_eq(&texts);
    }
}

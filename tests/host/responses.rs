//! RESP: the handler's replies.

use highwater_fakehost::{Connection, Invocation, Level, Reply, Verdict, judge};
use serde_json::{Value as Json, json};

use crate::bench::{Bench, answered, exchange, failure, logs};
use crate::data;
use crate::receiver::Answer;

pub(crate) async fn success() {
    let bench = Bench::with_rows(1..=2).await;
    let host = bench.host().await;
    for expected in ["committed 2 rows in 1 batch", "nothing new"] {
        let outcome = host.run().await;
        let reply = outcome.reply.as_ref().unwrap();
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let log = &logs(&outcome)[0];
        assert!(log.contains(expected), "{log}");
        let envelope: Json = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(envelope, json!({"Outputs": {}, "Logs": [log], "ReturnValue": null}));
    }
    host.finish().await;
}

pub(crate) async fn failure_with_cause() {
    let bench = Bench::with_rows(1..=2).await;
    bench.receiver.script(&[Answer::Reject(500, "no \"room\" {left}\r\n\u{1}ä")]);
    let host = bench.host().await;
    let outcome = host.run().await;
    assert_eq!(outcome.reply.as_ref().unwrap().status, 500);
    // The reason phrase is all that the host shows of our reply, so it contains the cause, too.
    let reason = failure(&outcome);
    assert!(reason.contains("500 (HandlerError: "), "{outcome:?}");
    assert!(reason.contains("no \"room\" {left}"), "{outcome:?}");
    let (level, line) = host.event("handler_failed").await;
    assert_eq!(level, Level::Error);
    assert_eq!(line["invocation_id"], *outcome.id, "{line}");
    assert!(line["message"].as_str().unwrap().contains("no \"room\" {left}"), "{line}");
    assert_eq!(bench.receiver.accepted(), Vec::<i64>::new());
    assert_eq!(host.exits(), []);
}

pub(crate) async fn panic() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set_env("HIGHWATER_TEST_PANIC", "1");
    let host = bench.host().await;
    let pid = host.pid();
    let mut connection = Connection::open(host.port()).await.unwrap();
    let request = data::wire("invoke_chunked", host.port());
    let reply = connection.exchange(request.as_bytes()).await.unwrap();
    let verdict = judge(Some(&reply));
    assert!(matches!(&verdict, Verdict::Failure(text) if text.contains("500 (poller `nightly`")));
    assert_eq!(connection.ping().await.unwrap().status, 200, "the connection is not dropped");
    let (level, _) = host.event("tick_panicked").await;
    assert_eq!(level, Level::Error);
    for _ in 0..4 {
        host.run().await;
    }
    assert_eq!((host.pid(), host.exits()), (pid, vec![]));
    // Its location is one line of ours, with the invocation, and not a multi-line text.
    let (level, line) = host.event("panic").await;
    assert_eq!(level, Level::Error);
    assert_eq!(line["span"]["invocation_id"], "6a184cc4-2b0e-4c5e-9d0f-3f6f1f0e7a11", "{line}");
    host.lines();
}

pub(crate) async fn none_hangs() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let body = "Content-Length: 2\r\n\r\n{}";
    for head in [
        "GET /nightly",
        "PUT /nightly",
        "DELETE /nightly",
        "OPTIONS /nightly",
        "PATCH /",
        "POST /",
        "POST //",
        "GET /favicon.ico",
        "POST /%6eightly",
        "POST /%00",
        "POST /%ff",
        "POST /a%22%7b%0d%0a",
        "POST /nightly?x=1",
        "TRACE /nightly",
    ] {
        let request = format!("{head} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{body}", host.port());
        let (verdict, reply) = exchange(host.port(), &request).await.unwrap();
        let envelope: Json = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|error| panic!("{head}: {error}: {reply:?}"));
        assert!(envelope["Logs"][0].is_string(), "{head}: {envelope}");
        assert_eq!(verdict.is_success(), reply.status == 200, "{head}");
    }
    // A body that exceeds every limit is rejected, not left unanswered.
    let outcome = host.invoke(Invocation::new("nightly", vec![b' '; 17 << 20])).await;
    let refused = failure(&outcome);
    assert!(refused.contains(" 413 (") || refused.contains("HttpRequest"), "{refused}");
    assert_eq!(host.exits(), []);
}

#[expect(clippy::unused_async, reason = "every case of the table is a future")]
pub(crate) async fn judge_agrees() {
    let cases = data::json("responses/cases.json");
    let mut checked = 0;
    for case in cases["cases"].as_array().unwrap() {
        let headers = case["headers"].as_object().unwrap().iter();
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let reply = case["status"].as_u64().map(|status| Reply {
            status: status.try_into().unwrap(),
            reason: text(&case["reason"]),
            headers: headers.map(|(name, value)| (name.clone(), text(value))).collect(),
            body: text(&case["body"]).into_bytes(),
        });
        if case["id"] == "hang_no_reply" {
            continue;
        }
        let (verdict, error) = match judge(reply.as_ref()) {
            Verdict::Success(_) => ("success", String::new()),
            Verdict::Failure(error) => ("failure", error),
            Verdict::Hang(_) => ("hang", String::new()),
            Verdict::Follows(_) => ("follows", String::new()),
            Verdict::TimedOut => ("timed out", String::new()),
        };
        assert_eq!(case["verdict"], verdict, "{case}");
        assert_eq!(text(&case["host_error"]), error, "{case}");
        checked += 1;
    }
    assert_eq!(checked, cases["cases"].as_array().unwrap().len() - 1);
    let scalars = Reply {
        status: 200,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: br#"{"Logs":[1,true,null,"s"]}"#.to_vec(),
        ..Reply::default()
    };
    let blank = Reply { body: b"\xEF\xBB\xBF \r\n\t".to_vec(), ..scalars.clone() };
    assert_eq!(judge(Some(&blank)), Verdict::Hang("the reply is blank"));
    let expected = [Some("1"), Some("True"), None, Some("s")];
    let expected = expected.map(|text| text.map(str::to_owned)).to_vec();
    assert_eq!(judge(Some(&scalars)), Verdict::Success(expected));
}

pub(crate) async fn odd_texts() {
    let reason = "a \"b\" {c} {0} \\ \n\r\t\u{0}\u{1}\u{7f}\u{85} ä € 😀 \u{2028}</x>";
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    pause(&bench, "ann", reason);
    let other = bench.host().await;
    let outcome = other.run().await;
    let line = answered(outcome.reply.as_ref().unwrap());
    assert!(line["message"].as_str().unwrap().contains(reason), "{outcome:?}");
    other.finish().await;
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_reaches_the_host_as_one_line_of_latin_1() {
    let mut bench = Bench::new().await;
    bench.set("SOURCE__MODE", "Größe");
    bench.set("BATCH_ROWS_MAX", "… €");
    let host = bench.host().await;
    let outcome = host.run().await;
    let text = failure(&outcome);
    assert!(
        text.contains("500 (ConfigurationError: 2 mistakes in the settings; setting `"),
        "{text}"
    );
    assert!(text.contains("`Größe`") && text.contains("`... ?`"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invocation_without_an_id_gets_one() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let body = "{\"Data\":{},\"Metadata\":{}}";
    for (row, id) in [(2, ""), (3, "X-Azure-Functions-InvocationId:  \r\n")] {
        let head = format!("POST /nightly HTTP/1.1\r\nHost: 127.0.0.1\r\n{id}");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let line = answered(&exchange(host.port(), &request).await.unwrap().1);
        let id = line["invocation_id"].as_str().unwrap();
        assert_eq!((id.len(), id.matches('-').count()), (36, 4), "{line}");
        bench.insert(row..=row);
    }
    host.finish().await;
}

/// Records in the state document that an operator has paused the poller.
pub(crate) fn pause(bench: &Bench, by: &str, reason: &str) {
    let mut state = bench.state();
    state["paused"] = json!({"by": by, "reason": reason, "at": "2026-11-20T10:00:00Z"});
    std::fs::write(bench.state_path(), state.to_string()).unwrap();
}

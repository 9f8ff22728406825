//! Commands for operators: the real program beside a host that runs the same poller.

use std::process::{Output, Stdio};

use highwater::fakehost::Level;
use serde_json::Value as Json;
use tokio::process::Command;

use crate::bench::{Bench, LIMIT, PROGRAM, failure, logs, within};
use crate::receiver::Answer;

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) data: String,
    pub(crate) rest: String,
}

impl Said {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self {
            code: output.status.code().unwrap(),
            data: text(&output.stdout),
            rest: text(&output.stderr),
        }
    }

    /// Returns its data, where it ended well and said nothing else.
    pub(crate) fn done(&self) -> &str {
        assert_eq!((self.code, self.rest.as_str()), (0, ""), "{self:?}");
        &self.data
    }

    fn json(&self) -> Json {
        serde_json::from_str(self.done()).unwrap()
    }

    /// Checks that it ended with `code`, wrote no data, and said `text`.
    pub(crate) fn failed(&self, code: i32, text: &str) {
        assert_eq!((self.code, self.data.as_str()), (code, ""), "{self:?}");
        assert!(self.rest.contains(text), "{self:?}");
    }
}

impl Bench {
    /// Runs the program with the settings of the hosts, and without a terminal.
    pub(crate) async fn command(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env_clear().envs(&self.env).env("USER", "ann");
        command.stdin(Stdio::null()).kill_on_drop(true);
        Said::of(&within(LIMIT, command.output()).await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_outlives_every_process_until_somebody_resumes() {
    let bench = Bench::with_rows(1..=2).await;
    bench.host().await.run().await;
    let said = bench.command(&["pause", "nightly", "--reason", "the target moves"]).await;
    assert!(said.done().starts_with("nightly: paused at 20"), "{said:?}");
    let said = bench.command(&["pause", "nightly", "--reason", "again", "--by", "bob"]).await;
    let words = said.done();
    assert!(words.contains("has been paused since 20") && words.contains(" by ann@"), "{words}");
    assert!(words.ends_with(": the target moves\n"), "{words}");

    bench.insert(3..=3);
    for _ in 0..2 {
        let host = bench.host().await;
        assert!(logs(&host.run().await)[0].contains("the target moves"));
        host.stop().await;
    }
    assert_eq!(bench.receiver.taken(), [1, 2]);
    let arguments = ["resume", "nightly", "--reason", "it is there", "--output", "json"];
    let said = bench.command(&arguments).await.json();
    assert_eq!((&said["changed"], &said["reason"]), (&true.into(), &"the target moves".into()));
    assert_eq!(bench.command(&["resume", "nightly"]).await.done(), "nightly: is not paused\n");
    bench.host().await.run().await;
    assert_eq!(bench.receiver.taken(), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_tick_ends_after_the_batch_in_hand_when_it_is_paused() {
    let mut bench = Bench::with_rows(1..=6).await;
    bench.set("BATCH_ROWS_MAX", "2");
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, said) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        let said = bench.command(&["pause", "nightly", "--reason", "stop"]).await;
        bench.receiver.release();
        said
    });
    assert!(said.done().contains("ends after the batch in hand"), "{said:?}");
    logs(&outcome);
    assert_eq!(bench.receiver.taken(), [1, 2]);
    assert_eq!(bench.state()["checkpoint"]["cursor"]["tiebreaker"]["id"], 2);
    let (level, _) = {
        host.run().await;
        host.event("tick_paused").await
    };
    assert_eq!(level, Level::Information);
    bench.command(&["resume", "nightly"]).await.done();
    host.run().await;
    assert_eq!(bench.receiver.taken(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_resumes_is_told_what_had_stopped_the_poller() {
    for (status, on_failure, expected) in
        [(410, "retry", "handler of `nightly`"), (422, "stop", "failure policy of `nightly`")]
    {
        let mut bench = Bench::with_rows(1..=1).await;
        bench.set("ON_FAILURE", on_failure);
        bench.receiver.script(&[Answer::Refuse(status, "we have closed")]);
        let host = bench.host().await;
        failure(&host.run().await);
        assert!(logs(&host.run().await)[0].contains("we have closed"));
        let said = bench.command(&["resume", "nightly"]).await;
        let words = said.done();
        assert!(words.contains(expected) && words.contains("we have closed"), "{words}");
        host.run().await;
        assert_eq!(bench.receiver.taken(), [1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_usage_is_told_before_anything_is_touched() {
    let bench = Bench::new().await;
    for (arguments, text) in [
        (&["pause", "nightly"][..], "--reason"),
        (&["pause", "nightly", "--reason", " "], "expected a text"),
        (&["pause", "--reason", "x"], "<POLLER>"),
        (&["pause", "weekly", "--reason", "x"], "no poller `weekly`; the settings have `nightly`"),
        (&["resume", "weekly"], "no poller `weekly`"),
        (&["resume", "nightly", "--output", "xml"], "table, json, jsonl"),
        (&["quarantine"], "Usage"),
        (&["quarantine", "list", "weekly"], "no poller `weekly`"),
        (&["quarantine", "show", "nightly", "7"], "32 hex digits"),
        (&["quarantine", "show", "nightly", &"a".repeat(32)], "has not set aside event `aaa"),
    ] {
        bench.command(arguments).await.failed(2, text);
    }
    assert!(!bench.state_path().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_reached_or_read_has_an_exit_code_of_its_own() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    std::fs::write(bench.state_path(), "{").unwrap();
    bench.command(&["pause", "nightly", "--reason", "x"]).await.failed(1, "is not JSON");
    assert_eq!(std::fs::read_to_string(bench.state_path()).unwrap(), "{");

    bench.set("LEASE__TTL", "15s");
    bench.set_env("HIGHWATER__STATE__STORE", "blob");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let blob = format!(
        "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;\
         AccountKey=AAAA;BlobEndpoint=http://{nobody}/devstoreaccount1"
    );
    bench.set_env("AzureWebJobsStorage", &blob);
    for arguments in
        [&["pause", "nightly", "--reason", "x"][..], &["quarantine", "list", "nightly"]]
    {
        bench.command(arguments).await.failed(6, "cannot be reached");
    }
    bench.set("HANDLER__KIND", "pigeon");
    bench.command(&["resume", "nightly"]).await.failed(3, "pigeon");
}

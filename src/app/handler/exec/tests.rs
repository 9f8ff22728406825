//! Tests with real processes.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;

use expect_test::expect;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::*;
use crate::handler::ChainStep;
use crate::handler::testing::Sample;

/// Returns a handler that runs a shell script, with `arguments` as `$0`, `$1` and so on.
fn script(script: &str, arguments: &[&Path]) -> Exec {
    let mut words = vec!["-c".to_owned(), script.to_owned()];
    words.extend(arguments.iter().map(|path| path.to_str().unwrap().to_owned()));
    program("sh", words)
}

fn program(program: &str, arguments: Vec<String>) -> Exec {
    let timeout = Duration::from_secs(60);
    let environment = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    Exec::new(&ExecConfig { program: program.to_owned(), arguments, timeout, environment })
}

/// Returns the outcome of a delivery of `rows` events in a word, and the error's text.
async fn outcome(handler: &Exec, rows: u64) -> (String, String) {
    let ended = handler.handle(Sample::new(rows).delivery()).await;
    let Err(error) = ended else { return ("accepted".to_owned(), String::new()) };
    let name = match &error {
        HandlerError::Partial { accepted, .. } => format!("partial {accepted}"),
        HandlerError::Throttled { retry_after: None, .. } => "throttled".to_owned(),
        HandlerError::Retryable(_) => "retryable".to_owned(),
        HandlerError::Rejected(_) => "rejected".to_owned(),
        HandlerError::Misconfigured(_) => "misconfigured".to_owned(),
        HandlerError::Throttled { .. }
        | HandlerError::TooLarge(_)
        | HandlerError::Gone(_)
        | HandlerError::Stalled(_)
        | HandlerError::Fenced(_) => format!("{error:?}"),
    };
    (name, error.to_string())
}

#[tokio::test]
async fn a_process_receives_the_events_as_lines_and_the_batch_in_variables() {
    let folder = TempDir::new().unwrap();
    let (lines, variables) = (folder.path().join("lines"), folder.path().join("variables"));
    let text = r#"cat > "$0"; env | grep -E '^(HIGHWATER_|TRACEPARENT|TRACESTATE)' | grep -v _TEST_ | sort > "$1""#;
    let (handler, sample) = (script(text, &[&lines, &variables]), Sample::new(3));
    handler.handle(sample.delivery()).await.unwrap();
    let json: Vec<&str> = sample.events.iter().map(|event| event.json.as_str()).collect();
    assert_eq!(std::fs::read_to_string(&lines).unwrap(), json.join("\n") + "\n");
    let seen = std::fs::read_to_string(&variables).unwrap();
    expect![[r"
        HIGHWATER_ATTEMPT=2
        HIGHWATER_BATCH_ID=batch_…
        HIGHWATER_FENCING_TOKEN=42
        HIGHWATER_GENERATION=7
        HIGHWATER_POLLER=orders
        HIGHWATER_ROWS=3
        HIGHWATER_STARTED_AT=1970-01-01T00:00:01.5Z
        TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
        TRACESTATE=vendor=7,other=x
    "]]
    .assert_eq(&seen.replace(sample.batch_id.as_str(), "batch_…"));

    let step = Some(ChainStep { name: "notify", of_batch: &sample.batch_id });
    let again = Delivery {
        replay_id: Some("again"),
        traceparent: None,
        tracestate: None,
        step,
        ..sample.delivery()
    };
    handler.handle(again).await.unwrap();
    let seen = std::fs::read_to_string(&variables).unwrap();
    let of_batch = format!("HIGHWATER_OF_BATCH={}\n", sample.batch_id);
    assert!(seen.contains("HIGHWATER_STEP=notify\n") && seen.contains(&of_batch), "{seen}");
    assert!(seen.contains("HIGHWATER_REPLAY_ID=again\n") && !seen.contains("TRACE"));
}

#[tokio::test]
async fn the_exit_code_is_the_reply() {
    let mut texts = String::new();
    for (text, name) in [
        ("exit 0", "accepted"),
        ("echo bad row >&2; exit 65", "rejected"),
        ("exit 75", "throttled"),
        ("exit 77", "misconfigured"),
        ("exit 78", "misconfigured"),
        ("exec /dev/null", "misconfigured"),
        ("no-such-program 2>/dev/null", "misconfigured"),
        ("printf 'two\\nlines\\n' >&2; exit 1", "retryable"),
        ("exit 255", "retryable"),
        ("kill -9 $$", "retryable"),
    ] {
        let (ended, error) = outcome(&script(text, &[]), 3).await;
        assert_eq!(ended, name, "{text}: {error}");
        if !text.starts_with("exec") {
            texts += &(error + "\n");
        }
    }
    expect![[r"

        `sh` exited with code 65: bad row
        `sh` exited with code 75
        `sh` exited with code 77
        `sh` exited with code 78
        `sh` exited with code 127
        `sh` exited with code 1: two lines
        `sh` exited with code 255
        `sh` was killed by signal 9
    "]]
    .assert_eq(&texts);
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_misconfigured() {
    for name in ["no-such-program", "/dev/null", "/dev/null/x", "./no/such/program", "/"] {
        let (ended, error) = outcome(&program(name, Vec::new()), 1).await;
        assert_eq!(ended, "misconfigured");
        assert!(error.starts_with(&format!("start `{name}`: ")), "{error}");
    }
}

#[tokio::test]
async fn lines_on_standard_output_report_failed_events() {
    let ids: Vec<String> = Sample::new(3).events.iter().map(|event| event.id.to_string()).collect();
    let item = |id: &str| format!(r#"{{"batchItemFailures":[{{"itemIdentifier":"{id}"}}]}}"#);
    let mut texts = String::new();
    for (output, name) in [
        ("working\n{\"taken\": 3}\n[]\n\n".to_owned(), "accepted"),
        (r#"{"batchItemFailures":[]}"#.to_owned(), "accepted"),
        (item(&ids[2]), "partial 2"),
        (format!("{}\nand\n{}\n{}", item(&ids[2]), item(&ids[1]), item(&ids[1])), "partial 1"),
        (item(&ids[0]), "partial 0"),
        (format!("{}\n{}\n", item(&ids[2]), item("other")), "retryable"),
        (r#"{"batchItemFailures":[{}]}"#.to_owned(), "retryable"),
        ("{\n  \"batchItemFailures\": [\n".to_owned(), "retryable"),
        (r#"{"batchItemFailures":null}"#.to_owned(), "accepted"),
        (item(&ids[2]).replace("batch", "Batch"), "retryable"),
        (format!("{{\"reply\":{}}}", item(&ids[2])), "retryable"),
        (format!("{}{}", " ".repeat((1 << 20) - 9), item(&ids[2])), "retryable"),
        (format!("{}{}", " ".repeat((1 << 20) + 65_530), item(&ids[2])), "retryable"),
        (format!("{}\n{}", "x".repeat(2 << 20), item(&ids[2])), "partial 2"),
        (format!("{}{}", item(&ids[2]), " ".repeat(1 << 20)), "retryable"),
    ] {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("output");
        std::fs::write(&file, &output).unwrap();
        let (ended, error) = outcome(&script(r#"cat "$0""#, &[&file]), 3).await;
        assert_eq!(ended, name, "{error}");
        texts += &(error + "\n");
        // The lines count only with exit code 0.
        assert_eq!(outcome(&script(r#"cat "$0"; exit 1"#, &[&file]), 3).await.0, "retryable");
    }
    expect![[r#"


        `sh`: 1 of 3 events failed, the first at index 2
        `sh`: 3 of 3 events failed, the first at index 1
        `sh`: 1 of 3 events failed, the first at index 0
        `sh` exited with code 0, but a line with `batchItemFailures` names an event that is not in the batch
        `sh` exited with code 0, but a line with `batchItemFailures` names an event that is not in the batch
        `sh` exited with code 0, but a line with `batchItemFailures` cannot be read: invalid type: string "batchItemFailures", expected struct Line at line 1 column 21

        `sh` exited with code 0, but a line with `batchItemFailures` does not have it as a top-level field spelled exactly so
        `sh` exited with code 0, but a line with `batchItemFailures` does not have it as a top-level field spelled exactly so
        `sh` exited with code 0, but a line with `batchItemFailures` is longer than 1 MiB: print several lines
        `sh` exited with code 0, but a line with `batchItemFailures` is longer than 1 MiB: print several lines
        `sh`: 1 of 3 events failed, the first at index 2
        `sh` exited with code 0, but a line with `batchItemFailures` is longer than 1 MiB: print several lines
    "#]]
    .assert_eq(&texts);
}

/// Prints the lines that report accepted events, for a shell that reads its input.
fn accepted(ids: &[&str]) -> String {
    ids.iter()
        .fold(String::new(), |lines, id| format!("{lines}{{\"batchItemAccepted\":\"{id}\"}}\n"))
}

#[tokio::test]
async fn lines_on_standard_output_report_accepted_events_whatever_the_exit_code() {
    let sample = Sample::new(4);
    let ids: Vec<&str> = sample.events.iter().map(|event| event.id.as_str()).collect();
    let failed =
        |id: &str| format!("{{\"batchItemFailures\":[{{\"itemIdentifier\":\"{id}\"}}]}}\n");
    let mut texts = String::new();
    for (output, code, prefix) in [
        (accepted(&ids[..2]), 1, 2),
        (accepted(&ids[..2]), 75, 2),
        (accepted(&ids), 1, 4),
        // A gap holds back the events after it.
        (accepted(&[ids[0], ids[2], ids[3]]), 1, 1),
        (accepted(&[ids[3], ids[2], ids[1], ids[0]]), 1, 4),
        // Without a line break it may be incomplete, but the process has ended.
        (accepted(&ids[..2]).trim_end().to_owned(), 1, 2),
        (accepted(&ids[..1]) + &failed(ids[2]), 0, 1),
        (accepted(&ids[..2]) + &failed(ids[1]), 0, 2),
        (accepted(&[ids[0], "other"]), 0, 1),
        (accepted(&ids[..1]).replace("batchItemA", "BatchItemA"), 0, 0),
        (accepted(&ids[..1]).replace(ids[0], "\":"), 0, 0),
        ("{\"batchItemAccepted\":[]}".to_owned(), 0, 0),
        ("{\"batchItemAccepted\":null}".to_owned(), 0, 0),
    ] {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("output");
        std::fs::write(&file, &output).unwrap();
        let (handler, sample) =
            (script(&format!("cat \"$0\"; exit {code}"), &[&file]), Sample::new(4));
        let error = handler.handle(sample.delivery()).await.unwrap_err();
        assert_eq!(sample.progress.accepted(), prefix, "{output}");
        texts.extend([error.name(), ": ", &error.to_string(), "\n"]);
    }
    expect![[r#"
        retryable: `sh` exited with code 1
        throttled: `sh` exited with code 75
        retryable: `sh` exited with code 1
        retryable: `sh` exited with code 1
        retryable: `sh` exited with code 1
        retryable: `sh` exited with code 1
        partial: `sh`: 1 of 4 events failed, the first at index 2
        retryable: `sh` reported the event at index 1 as failed after it had reported it as accepted
        retryable: `sh` exited with code 0, but a line with `batchItemAccepted` names an event that is not in the batch
        retryable: `sh` exited with code 0, but a line with `batchItemAccepted` does not have it as a top-level field spelled exactly so
        retryable: `sh` exited with code 0, but a line with `batchItemAccepted` cannot be read: expected `,` or `}` at line 1 column 24
        retryable: `sh` exited with code 0, but a line with `batchItemAccepted` cannot be read: invalid type: sequence, expected a string at line 1 column 21
        retryable: `sh` exited with code 0, but a line with `batchItemAccepted` does not have it as a top-level field spelled exactly so
    "#]].assert_eq(&texts);
}

#[tokio::test]
async fn accepted_events_are_reported_while_the_process_runs() {
    // A line for each event, then the process hangs.
    let text = r#"read line; id=${line#*'"id":"'}; printf '{"batchItemAccepted":"%s"}\n' "${id%%'"'*}"; sleep 60"#;
    let (handler, sample) = (script(text, &[]), Sample::new(2));
    let mut call = pin!(handler.handle(sample.delivery()));
    while sample.progress.accepted() == 0 {
        let some = tokio::time::sleep(Duration::from_millis(5));
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = some => {}
        }
    }
    assert_eq!(sample.progress.accepted(), 1);
}

#[tokio::test]
async fn a_process_need_not_read_its_input() {
    // More than a pipe holds.
    let rows = 3_000;
    for (text, name) in [
        ("exit 0", "accepted"),
        ("exit 65", "rejected"),
        ("exec <&-; exit 0", "accepted"),
        ("read line; exec <&-; test -n \"$line\"", "accepted"),
        ("head -c 100000 > /dev/null", "accepted"),
    ] {
        assert_eq!(outcome(&script(text, &[]), rows).await.0, name, "{text}");
    }
}

#[tokio::test]
async fn a_hundred_megabytes_of_output_are_not_kept() {
    let zeros = "head -c 100000000 /dev/zero";
    assert_eq!(outcome(&script(zeros, &[]), 3).await.0, "accepted");
    let text = format!("{zeros} | tr '\\0' x >&2; printf last >&2; exit 1");
    let (ended, error) = outcome(&script(&text, &[]), 3).await;
    assert_eq!(ended, "retryable");
    assert!(error.ends_with("xxlast") && error.chars().count() < 500, "{error}");

    let progress = Progress::default();
    let (mut replies, mut tail) = (Replies::new(&[], &progress), Tail::default());
    for _ in 0..1_000 {
        replies.push(&[b'x'; 10_000]);
        tail.push(&[b'x'; 10_000]);
    }
    assert!(replies.bytes_kept() <= 2 << 20 && tail.bytes_kept() <= 1 << 15);
}

/// A named pipe that shows when a process is up, and when all processes that hold it are gone.
struct Watch {
    folder: TempDir,
}

impl Watch {
    fn new() -> Self {
        let watch = Self { folder: TempDir::new().unwrap() };
        for path in [watch.up(), watch.other()] {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        }
        watch
    }

    fn up(&self) -> PathBuf {
        self.folder.path().join("up")
    }

    fn other(&self) -> PathBuf {
        self.folder.path().join("other")
    }

    /// Waits until a process reports that it is up.
    async fn is_up(&self) -> BufReader<tokio::fs::File> {
        let mut file = BufReader::new(tokio::fs::File::open(self.up()).await.unwrap());
        let mut line = String::new();
        file.read_line(&mut line).await.unwrap();
        assert_eq!(line, "up\n");
        file
    }
}

/// Waits until no process holds the pipe, and checks that they were killed and did not exit by themselves.
async fn is_gone(mut file: BufReader<tokio::fs::File>) {
    let mut rest = String::new();
    file.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
}

/// A process whose child holds the pipe, and writes to it if it survives.
const GRANDCHILD: &str = r#"(echo up; sleep 20; echo orphan) > "$0" & wait"#;

// Paused time advances as soon as the runtime is idle. A file that is being read keeps it busy.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_dropped_leaves_no_orphan() {
    let (watch, sample) = (Watch::new(), Sample::new(1));
    let handler = script(GRANDCHILD, &[&watch.up()]);
    let file = {
        let mut delivery = handler.handle(sample.delivery());
        tokio::select! {
            ended = &mut delivery => panic!("{ended:?}"),
            file = watch.is_up() => file,
        }
    };
    is_gone(file).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_exceeds_its_timeout_is_killed_with_its_children() {
    let (watch, sample) = (Watch::new(), Sample::new(1));
    let text = format!("echo stuck >&2; {GRANDCHILD}");
    let handler = script(&text, &[&watch.up()]);
    let mut delivery = pin!(handler.handle(sample.delivery()));
    let file = tokio::select! {
        ended = &mut delivery => panic!("{ended:?}"),
        file = watch.is_up() => file,
    };
    let error = delivery.await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert_eq!(error.to_string(), "`sh` did not exit within 60s and was killed: stuck");
    is_gone(file).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_neither_reads_nor_exits_is_killed() {
    let (ended, error) = outcome(&program("sleep", vec!["1000".to_owned()]), 3_000).await;
    assert_eq!((ended.as_str(), error.contains("did not exit")), ("retryable", true), "{error}");
}

#[tokio::test]
async fn children_of_an_exited_process_are_killed() {
    let (watch, sample) = (Watch::new(), Sample::new(1));
    // The child reports that it is up, then the process exits; the child holds its standard error.
    let text = r#"(echo up; echo > "$1"; sleep 20; echo orphan) > "$0" & read line < "$1""#;
    let handler = script(text, &[&watch.up(), &watch.other()]);
    let (ended, file) = tokio::join!(handler.handle(sample.delivery()), watch.is_up());
    ended.unwrap();
    is_gone(file).await;
}

#[test]
fn a_runtime_that_shuts_down_leaves_no_orphan() {
    let watch = Watch::new();
    let handler = script(GRANDCHILD, &[&watch.up()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(async move { handler.handle(Sample::new(1).delivery()).await });
    let file = runtime.block_on(watch.is_up());
    drop(runtime);
    tokio::runtime::Runtime::new().unwrap().block_on(is_gone(file));
}

#[tokio::test]
async fn an_exiting_program_kills_its_processes_and_starts_no_more() {
    static OWN: Groups = Groups::new();
    let watch = Watch::new();
    let mut handler = script(GRANDCHILD, &[&watch.up()]);
    handler.groups = &OWN;
    let sample = Sample::new(1);
    let (ended, ()) = tokio::join!(handler.handle(sample.delivery()), async {
        let file = watch.is_up().await;
        OWN.kill_all();
        is_gone(file).await;
    });
    assert_eq!(ended.unwrap_err().to_string(), "`sh` was killed by signal 9");
    let (_, error) = outcome(&handler, 1).await;
    assert_eq!(error, "start `sh`: the program is shutting down");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_outside_the_group_does_not_block_the_delivery() {
    let mut handler = script("setsid sleep 5 & exit 0", &[]);
    handler.drain_time = Duration::from_millis(1);
    assert_eq!(outcome(&handler, 1).await.0, "accepted");
}

#[tokio::test]
async fn a_dropped_call_leaves_no_process_after_it_has_settled() {
    static GROUPS: Groups = Groups::new();
    let folder = TempDir::new().unwrap();
    let up = folder.path().join("up");
    // A background child that keeps writing as long as it lives.
    let text = r#"(while :; do echo x >> "$0"; done) & wait"#;
    let handler = Exec { groups: &GROUPS, ..script(text, &[&up]) };
    {
        let sample = Sample::new(1);
        let mut call = pin!(handler.handle(sample.delivery()));
        while !up.exists() {
            let soon = tokio::time::sleep(Duration::from_millis(5));
            tokio::select! { ended = &mut call => panic!("{ended:?}"), () = soon => {} }
        }
    }
    handler.settle().await;
    let length = std::fs::metadata(&up).unwrap().len();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(std::fs::metadata(&up).unwrap().len(), length, "it still writes");
}

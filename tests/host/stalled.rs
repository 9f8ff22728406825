//! A stalled host: the process's stdout or stderr is not read.

use std::io::{Write as _, pipe};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use highwater_fakehost::{Connection, Verdict, free_port};
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, PROGRAM, exchange, within};
use crate::data;

/// Longer than any step of these tests; many lines are written to fill a pipe and the queue in front of it.
const LIMIT: Duration = Duration::from_secs(120);

/// The program, with both pipes held by a test that does not read them.
struct Unread {
    child: Child,
    port: u16,
    metrics: String,
    client: reqwest::Client,
}

impl Unread {
    async fn start(bench: &mut Bench) -> Self {
        let port = free_port().unwrap();
        let metrics = format!("127.0.0.1:{}", free_port().unwrap());
        bench.set_env("HIGHWATER__METRICS__ADDRESS", &metrics);
        let mut command = Command::new(PROGRAM);
        command.env_clear().envs(&bench.env).current_dir(&bench.options.root).kill_on_drop(true);
        command.env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string());
        command.env("FUNCTIONS_APP_ROOT_PATH", &bench.options.root);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let process = Self { child: command.spawn().unwrap(), port, metrics, client };
        let end = Instant::now() + LIMIT;
        let metrics_port = process.metrics.rsplit(':').next().unwrap().parse().unwrap();
        for port in [port, metrics_port] {
            while Connection::open(port).await.is_err() {
                assert!(Instant::now() < end, "it listens");
                sleep(Duration::from_millis(2)).await;
            }
        }
        process
    }

    async fn ping(&self) {
        let ping = data::wire("ping", self.port);
        let (_, reply) = within(LIMIT, exchange(self.port, &ping)).await.unwrap();
        assert_eq!(reply.status, 200);
    }

    async fn tick(&self) -> Verdict {
        let invocation = data::wire("invoke_chunked", self.port);
        within(LIMIT, exchange(self.port, &invocation)).await.unwrap().0
    }

    /// Returns how many lines of a stream were dropped, by the metric.
    async fn dropped(&self, stream: &str) -> u64 {
        let scraped = self.client.get(format!("http://{}/metrics", self.metrics)).send();
        let text = within(LIMIT, scraped).await.unwrap().text().await.unwrap();
        let label = format!("stream=\"{stream}\"");
        let mut lines = text.lines().filter(|line| {
            line.starts_with("highwater_log_lines_dropped_total{") && line.contains(&label)
        });
        let line = lines.next().unwrap_or_else(|| panic!("no metric of {stream}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Ticks until lines of a stream are dropped; each tick and each ping is answered.
    async fn fill(&self, stream: &str, mut tick: impl AsyncFnMut()) {
        let end = Instant::now() + LIMIT;
        while self.dropped(stream).await == 0 {
            assert!(Instant::now() < end, "the pipe gets full");
            tick().await;
            self.ping().await;
        }
        // And when it is full.
        for _ in 0..3 {
            tick().await;
            self.ping().await;
        }
    }

    /// Sends SIGTERM to the process, and returns its exit status.
    async fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().unwrap().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
        assert!(killed.success());
        within(LIMIT, self.child.wait()).await.unwrap()
    }
}

/// Reads a stream until all dropped lines are reported; each line is complete.
async fn read_until_reported(stream: impl AsyncRead + Unpin, name: &str, dropped: u64) {
    let mut lines = BufReader::new(stream).lines();
    let mut reported = 0;
    while reported < dropped {
        let line = within(LIMIT, lines.next_line()).await.unwrap().expect("more lines");
        let line: Json = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if line["event"] == "log_lines_dropped" {
            assert_eq!((&line["stream"], &line["level"]), (&name.into(), &"WARN".into()));
            reported += line["lines"].as_u64().unwrap();
        }
    }
    assert_eq!(reported, dropped);
}

/// Returns a bench with maximum logging, and the program whose output is not read.
async fn talkative() -> (Bench, Unread) {
    let mut bench = Bench::new().await;
    bench.set("BATCH_ROWS_MAX", "1");
    bench.set_env("HIGHWATER__LOG", "trace");
    let process = Unread::start(&mut bench).await;
    (bench, process)
}

/// Fills stdout by ticks of 20 rows, all of which are delivered.
async fn fill_stdout(bench: &Bench, process: &Unread) {
    let mut rows = 0;
    process
        .fill("stdout", async || {
            bench.insert(rows + 1..=rows + 20);
            rows += 20;
            let verdict = process.tick().await;
            assert!(verdict.is_success(), "{verdict:?}");
            assert_eq!(bench.receiver.accepted().len(), usize::try_from(rows).unwrap());
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticks_and_pings_are_answered_while_stdout_is_unread() {
    let (bench, mut process) = talkative().await;
    fill_stdout(&bench, &process).await;
    let dropped = process.dropped("stdout").await;
    // Lines missing from a stream are reported on stderr, like all warnings.
    let (mut stdout, stderr) = (process.child.stdout.take(), process.child.stderr.take());
    let mut sink = tokio::io::sink();
    tokio::select! {
        drained = tokio::io::copy(stdout.as_mut().unwrap(), &mut sink) => panic!("{drained:?}"),
        () = read_until_reported(stderr.unwrap(), "stdout", dropped) => {}
    }
    assert_eq!(process.dropped("stderr").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_and_pings_are_answered_while_stderr_is_unread() {
    let mut bench = Bench::new().await;
    // Each invocation logs all its errors at ERROR, some 30 kB here.
    for number in 0..300 {
        bench.set(&format!("NO_SUCH_SETTING_{number}"), "x");
    }
    let mut process = Unread::start(&mut bench).await;
    process
        .fill("stderr", async || {
            let verdict = process.tick().await;
            assert!(!verdict.is_success(), "{verdict:?}");
        })
        .await;
    let dropped = process.dropped("stderr").await;
    let stderr = process.child.stderr.take().unwrap();
    read_until_reported(stderr, "stderr", dropped).await;
    assert_eq!(process.dropped("stdout").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_exits_while_stdout_is_unread() {
    let (bench, mut process) = talkative().await;
    fill_stdout(&bench, &process).await;
    assert_eq!(process.terminate().await.code(), Some(0));
}

/// The capacity of an unread pipe; pipe(7).
const PIPE_BYTES: usize = 65_536;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_line_tick_delivers_while_its_warnings_are_unread() {
    let mut bench = Bench::new().await;
    let table = "CREATE TABLE dbo.timed (id int NOT NULL PRIMARY KEY, at datetime2(7) NULL); \
                 INSERT INTO dbo.timed VALUES (1, '2020-01-01'), (2, NULL)";
    bench.database.execute(table).unwrap();
    bench.set("SOURCE__TABLE", "dbo.timed");
    bench.set("SOURCE__MODE", "timestamp+pk");
    bench.set("SOURCE__CURSOR", "at");
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["tick", "nightly"]).env_clear().envs(&bench.env).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let status = within(LIMIT, command.status()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(bench.receiver.accepted(), [1]);
    assert!(bench.state()["lease"]["released_at"].is_string());
    drop(reader);
}

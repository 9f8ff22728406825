//! The program itself: its size, its startup time, and its idle memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use highwater_fakehost::{FakeHost, Options as HostOptions, Phase, free_port};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::child::Server;
use crate::options::Options;
use crate::report::{Report, Rounds, count, float};
use crate::system;

const SIZE_MAX: u64 = 10_000_000;
const START_MAX_MS: f64 = 10.0;
const RESIDENT_MAX_KIB: u64 = 16 << 10;
/// Ticks before memory is measured.
const TICKS: usize = 20;
/// Limit on starting.
const WAIT_MAX: Duration = Duration::from_secs(10);

const FUNCTION: &str = r#"{ "bindings": [{ "name": "timer", "type": "timerTrigger",
    "direction": "in", "schedule": "0 */5 * * * *" }] }"#;

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let binary = &options.binary;
    let size = fs::metadata(binary).unwrap().len();
    let folder = tempfile::tempdir().unwrap();
    let env = settings(&server.connection, folder.path());
    let mut starts = Rounds::new();
    for round in 0..=options.size(3, 20, 20) {
        let took = start(binary, &env).await;
        if round > 0 {
            starts.add(took);
        }
    }
    let resident = resident(binary, &env, folder.path()).await;
    let is_deployed = binary.to_string_lossy().contains("musl");
    let kind = if is_deployed { "as deployed" } else { "not as deployed: with the commands" };
    let heads = ["program", "MB", "start to listening, ms", "slowest of 20", "idle MiB"];
    let row = vec![
        kind.to_owned(),
        format!("{:.1}", float(size) / 1e6),
        format!("{:.1}", starts.median()),
        format!("{:.1}", starts.at(100)),
        format!("{:.1}", float(resident) / 1024.0),
    ];
    report.table("The program", &heads, &[row]);
    report.keep(
        "program",
        json!({
            "as_deployed": is_deployed, "bytes": size, "start_ms": starts.all(),
            "idle_resident_kib": resident,
        }),
    );
    let shown = count(float(size));
    report.target("program: bytes", "≤ 10,000,000", &shown, size <= SIZE_MAX);
    let (wanted, shown) = (format!("≤ {START_MAX_MS:.0} ms"), format!("{:.1} ms", starts.median()));
    let is_met = starts.median() <= START_MAX_MS;
    report.target("program: start to listening", &wanted, &shown, is_met);
    let shown = format!("{:.1} MiB", float(resident) / 1024.0);
    report.target("program: idle memory", "≤ 16 MiB", &shown, resident <= RESIDENT_MAX_KIB);
}

/// One poller over an empty table, with its state in files.
fn settings(connection: &str, folder: &Path) -> BTreeMap<String, String> {
    let state = folder.join("state");
    fs::create_dir_all(state.join("state")).unwrap();
    let settings = [
        ("SqlConnection", connection),
        ("HIGHWATER__STATE__STORE", "file"),
        ("HIGHWATER__STATE__FOLDER", state.to_str().unwrap()),
        ("HIGHWATER__POLLERS__IDLE__SOURCE__CONNECTION", "SqlConnection"),
        ("HIGHWATER__POLLERS__IDLE__SOURCE__TABLE", "dbo.idle"),
        ("HIGHWATER__POLLERS__IDLE__SOURCE__CURSOR", "version"),
        ("HIGHWATER__POLLERS__IDLE__SOURCE__KEY", "id"),
        ("HIGHWATER__POLLERS__IDLE__HANDLER__KIND", "http"),
        ("HIGHWATER__POLLERS__IDLE__HANDLER__URL", "http://127.0.0.1:9/"),
    ];
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Returns the milliseconds from starting a process to its first open connection.
async fn start(binary: &Path, env: &BTreeMap<String, String>) -> f64 {
    let port = free_port().unwrap();
    let mut command = Command::new(binary);
    command.env_clear().envs(env).env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(began.elapsed() < WAIT_MAX, "it does not listen");
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    child.kill().await.unwrap();
    took
}

/// Returns the resident memory of a process whose timer has fired a few times, in KiB.
async fn resident(binary: &Path, env: &BTreeMap<String, String>, folder: &Path) -> u64 {
    let root = folder.join("root");
    fs::create_dir_all(root.join("idle")).unwrap();
    fs::write(root.join("idle/function.json"), FUNCTION).unwrap();
    fs::write(root.join("host.json"), r#"{ "version": "2.0" }"#).unwrap();
    let host = FakeHost::start(HostOptions {
        env: env.clone(),
        inherit_env: false,
        terminate_first: true,
        ..HostOptions::new(binary, root)
    });
    let host = host.unwrap();
    let Phase::Ready { pid, .. } = host.ready(1).await else { panic!("{:?}", host.phase()) };
    for _ in 0..TICKS {
        let outcome = host.fire("idle").await;
        let is_success = matches!(outcome.verdict, highwater_fakehost::Verdict::Success(_));
        assert!(is_success, "{outcome:?}");
    }
    // Memory freed by the last tick is returned to the system.
    sleep(Duration::from_secs(1)).await;
    let resident = system::resident_kib(Some(pid));
    host.stop().await;
    resident
}

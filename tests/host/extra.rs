//! Beyond the recorded cases: other situations of a host, and the fake host's own constants.

use std::time::Duration;

use highwater_fakehost::{Exit, FakeHost, Invocation, Level, Options, Phase};

use crate::bench::{Bench, LIMIT, logs, within};
use crate::{data, start, stop};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_settings_fail_only_invocations_and_every_error_is_logged() {
    start::wrong_settings().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_caller_is_gone_finishes_before_the_process_exits() {
    stop::caller_gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_leaves_no_process_running() {
    stop::an_in_flight_process().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_host_lets_a_short_run_finish() {
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[crate::receiver::Answer::Hold]);
    let host = bench.host().await;
    let (outcome, exit) = tokio::join!(host.fire("nightly"), async {
        bench.receiver.arrived(1).await;
        let (exit, ()) = tokio::join!(host.stop(), async { bench.receiver.release() });
        exit
    });
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    assert_eq!(exit.map(|exit| exit.code), Some(200));
    assert_eq!(host.phase(), Phase::Stopped);
    assert_eq!(bench.receiver.accepted(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_output_breaks_nothing() {
    let bench = Bench::with_rows(1..=1).await;
    let port = bench.free_port().await;
    let mut command = tokio::process::Command::new(crate::bench::PROGRAM);
    command.env_clear().envs(&bench.env).env("HIGHWATER__LOG", "debug").kill_on_drop(true);
    command.env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    let request = data::wire("invoke_chunked", port);
    let answer = within(LIMIT, async {
        loop {
            match crate::bench::exchange(port, &request).await {
                Ok(answer) => return answer,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    assert!(answer.await.0.is_success());
    assert_eq!(bench.receiver.accepted(), [1]);
    child.kill().await.unwrap();
}

#[tokio::test]
async fn exit_codes_match_their_meaning_to_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        r"[ -e again ] && exit 0; touch again; printf 'Warning: x\rz\377\n' >&2; echo y; exit 200";
    let options = Options {
        arguments: vec!["-c".into(), script.into()],
        ..Options::new("sh", folder.path())
    };
    let host = FakeHost::start(options).unwrap();
    assert_eq!(host.ready(1).await, Phase::Dead);
    let expected = [(200, false), (0, false)].map(|(code, counted)| Exit { code, counted });
    assert_eq!((host.exit(2, LIMIT).await, host.exits()), (Some(expected[1]), expected.to_vec()));
    let levels =
        [("Warning: x", Level::Warning), ("z\u{fffd}", Level::Error), ("y", Level::Information)];
    for (line, level) in levels {
        let record = host.journal().find(LIMIT, |record| record.message == line).await;
        assert_eq!(record.map(|record| record.level), Some(level));
    }
    let host = FakeHost::start(Options::new("/nowhere", folder.path())).unwrap();
    assert_eq!(host.ready(1).await, Phase::Unstartable);
}

#[test]
fn the_fake_hosts_constants_match_the_recorded_ones() {
    let recorded = data::json("lifecycle.json");
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap();
    for (name, value) in [
        ("ready_poll_interval_ms", ms(highwater_fakehost::READY_POLL_INTERVAL)),
        ("ready_initialization_timeout_s", highwater_fakehost::INITIALIZATION_TIMEOUT.as_secs()),
        ("invoke_wait_for_dispatcher_s", highwater_fakehost::INVOKE_WAIT_MAX.as_secs()),
        ("restart_error_threshold", highwater_fakehost::ERRORS_MAX.try_into().unwrap()),
        (
            "restart_error_bucket_reset_min",
            highwater_fakehost::ERRORS_FORGOTTEN_AFTER.as_secs() / 60,
        ),
        (
            "exit_code_restart_not_counted",
            highwater_fakehost::EXIT_CODE_RESTART.try_into().unwrap(),
        ),
        ("kill_wait_ms", ms(highwater_fakehost::KILL_WAIT)),
        ("host_stop_wait_s", highwater_fakehost::STOP_WAIT.as_secs()),
        ("timeout_grace_s", highwater_fakehost::TIMEOUT_GRACE.as_secs()),
        (
            "stderr_lines_kept_for_exit_message",
            highwater_fakehost::STDERR_LINES_KEPT.try_into().unwrap(),
        ),
        ("listener_lock_lease_s/azure", highwater_fakehost::LISTENER_LOCK_PERIOD.as_secs()),
        (
            "listener_lock_polled_by_others_s/default",
            highwater_fakehost::LISTENER_LOCK_POLLING_INTERVAL.as_secs(),
        ),
        ("storage_away_s_until_host_ends", highwater_fakehost::STORAGE_WAIT.as_secs()),
        ("request_chunk_characters", highwater_fakehost::CHUNK_CHARACTERS.try_into().unwrap()),
    ] {
        assert_eq!(recorded.pointer(&format!("/{name}")), Some(&value.into()), "{name}");
    }
    let host_code = format!("the host ends with code {}", highwater_fakehost::HOST_EXIT_CODE);
    assert_eq!(recorded["exit_after_third_error"], host_code);
    assert_eq!(recorded["console_category"], highwater_fakehost::CONSOLE_CATEGORY);
    let prefixes: Vec<_> = recorded["reserved_line_prefixes"].as_array().unwrap().iter().collect();
    assert_eq!(prefixes, highwater_fakehost::RESERVED_PREFIXES);
    assert_eq!(
        (recorded["kill_signal"].as_str(), &recorded["restart_backoff_ms"]),
        (Some("SIGKILL"), &0.into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_trace_reaches_the_handler_even_without_an_exporter() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let plain = Invocation::new("nightly", data::body("01_scheduled"));
    let (traceparent, tracestate) = (Some(traceparent.to_owned()), Some("a=1,b@c=d;e".to_owned()));
    let traced = Invocation { traceparent, tracestate, ..plain };
    logs(&host.invoke(traced.clone()).await);
    let sent = &bench.receiver.batches()[0];
    assert_eq!((&sent.traceparent, &sent.tracestate), (&traced.traceparent, &traced.tracestate));
    host.finish().await;
}

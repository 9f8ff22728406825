//! LIFE: how the host ends and restarts, and what happens to its handler.

use std::time::Duration;

use highwater_fakehost::{Exit, InPlace, Level, Phase, Record, Singleton, Timers, Verdict};

use crate::bench::{Bench, Host, LIMIT, exchange, failure, logs, within};
use crate::data;
use crate::orphan::{runs, until};
use crate::receiver::Answer;

/// Short enough to wait for in a test; a living host renews its lock after half of it.
const SHORT: Singleton =
    Singleton { period: Duration::from_secs(2), polling_interval: Duration::from_millis(100) };

/// A bench whose hosts send no signal but SIGKILL.
async fn bench() -> Bench {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.options.terminate_first = false;
    bench.options.singleton = SHORT;
    bench
}

/// Waits until a host has exited and left its handler running.
async fn left(host: &Host, pid: u32) {
    until("the host ends", async || host.phase() == Phase::Left).await;
    assert_eq!((host.phase().host_exit_code(), host.exits()), (Some(0), vec![]));
    assert!(failure(&host.run().await).contains("the handler is not there"));
    assert!(runs(pid), "the handler stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_outlasts_its_ticks_kills_the_handler_and_frees_the_lock() {
    let mut bench = bench().await;
    // Too long to wait for.
    bench.options.singleton.period = Duration::from_secs(600);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, exit) = tokio::join!(host.fire("nightly"), async {
        bench.receiver.arrived(1).await;
        let (exit, ()) = tokio::join!(host.stop(), async { bench.receiver.release() });
        exit
    });
    assert!(logs(&outcome)[0].contains("committed 1 row"), "{outcome:?}");
    assert_eq!(exit, Some(Exit { code: 137, counted: false }), "SIGTERM is never sent");
    assert_eq!((host.phase(), host.phase().host_exit_code()), (Phase::Stopped, Some(0)));
    let next = bench.host_with(host.timers().clone()).await;
    let outcome = within(LIMIT, next.fire("nightly")).await;
    assert!(logs(&outcome)[0].contains("nothing new"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_a_tick_outlasts_leaves_the_handler_and_keeps_the_lock() {
    let mut bench = bench().await;
    bench.options.stop_wait = Duration::from_millis(300);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let pid = host.pid();
    tokio::select! {
        outcome = host.fire("nightly") => panic!("{outcome:?}"),
        exit = async {
            bench.receiver.arrived(1).await;
            host.stop().await
        } => assert_eq!(exit, None),
    }
    left(&host, pid).await;
    // The orphan finishes its batch, and the next host fires once the lock of this one has expired.
    let next = bench.host_with(host.timers().clone()).await;
    assert!(next.port() != host.port());
    let (outcome, ()) = tokio::join!(within(LIMIT, next.fire("nightly")), async {
        until("it misses its host", async || exchange(host.port(), "").await.is_err()).await;
        bench.receiver.release();
        until("it ends", async || !runs(pid)).await;
    });
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    next.run_until(|| !bench.receiver.accepted().is_empty()).await;
    assert_eq!(bench.receiver.accepted(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_storage_exits_and_leaves_the_handler_running() {
    let mut bench = bench().await;
    bench.options.storage_wait = Duration::from_millis(300);
    bench.receiver.script(&[Answer::Hold]);
    let timers = Timers::default();
    timers.set_away(true);
    timers.set_away(false);
    let host = bench.host_with(timers).await;
    let pid = host.pid();
    tokio::select! {
        outcome = host.run() => panic!("{outcome:?}"),
        () = async {
            bench.receiver.arrived(1).await;
            host.timers().set_away(true);
            left(&host, pid).await;
        } => {}
    }
    bench.receiver.release();
    until("it ends", async || !runs(pid)).await;
    assert_eq!(bench.receiver.accepted(), [1]);
    assert!(bench.state()["lease"]["released_at"].is_string(), "{}", bench.state());

    // Without storage at startup no timer fires, and the listeners continue to request their locks.
    bench.insert(2..=2);
    bench.options.storage_wait = LIMIT;
    let next = bench.host_with(host.timers().clone()).await;
    let (outcome, ()) = tokio::join!(within(LIMIT, next.fire("nightly")), async {
        let outcome = next.run().await;
        assert!(logs(&outcome)[0].contains("committed 1 row"), "by hand: {outcome:?}");
        next.timers().set_away(false);
    });
    assert!(logs(&outcome)[0].contains("nothing new"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_side_by_side_lets_the_old_handler_finish() {
    let bench = bench().await;
    bench.receiver.script(&[Answer::Hold]);
    let old = bench.host().await;
    let (outcome, next) = tokio::join!(old.run(), async {
        bench.receiver.arrived(1).await;
        let next = Host::over(old.restart_in_place(InPlace::SideBySide).await.unwrap()).await;
        for host in [&old, &next] {
            let ping = data::wire("ping", host.port());
            assert_eq!(exchange(host.port(), &ping).await.unwrap().1.status, 200);
        }
        let skipped = next.run().await;
        assert!(logs(&skipped)[0].contains("skipped: lease held by"), "{skipped:?}");
        assert_eq!(old.exits(), []);
        bench.receiver.release();
        next
    });
    assert!(logs(&outcome)[0].contains("committed 1 row"), "{outcome:?}");
    assert_eq!(old.exit(1, LIMIT).await, Some(Exit { code: 137, counted: false }));
    bench.insert(2..=2);
    // The timers fire in the new one.
    let outcome = within(LIMIT, next.fire("nightly")).await;
    assert!(logs(&outcome)[0].contains("committed 1 row"), "{outcome:?}");
    assert_eq!(bench.receiver.accepted(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_one_after_the_other_waits_for_the_old_handler() {
    let bench = bench().await;
    bench.receiver.script(&[Answer::Hold]);
    let old = bench.host().await;
    let (outcome, next) = tokio::join!(old.run(), async {
        bench.receiver.arrived(1).await;
        let restart = old.restart_in_place(InPlace::OneAfterTheOther);
        tokio::pin!(restart);
        tokio::select! {
            biased;
            next = &mut restart => panic!("while the old one runs: {next:?}"),
            () = async { bench.receiver.release() } => {}
        }
        Host::over(restart.await.unwrap()).await
    });
    assert!(logs(&outcome)[0].contains("committed 1 row"), "{outcome:?}");
    assert_eq!(old.exits(), [Exit { code: 137, counted: false }], "before the new one");
    assert!(old.port() != next.port());
    let outcome = within(LIMIT, next.fire("nightly")).await;
    assert!(logs(&outcome)[0].contains("nothing new"), "{outcome:?}");
}

/// Two seconds after a time-out the host kills the current process, whichever that is, and counts no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_kills_the_current_process_and_its_siblings() {
    let mut bench = bench().await;
    bench.add_poller("other");
    // Longer than the two seconds in which its sibling must not time out.
    bench.options.function_timeout = Duration::from_secs(3);
    bench.receiver.script(&[Answer::Hold, Answer::Hold]);
    let host = bench.host().await;
    let timed_out = |record: &Record| {
        record.message.starts_with("Timeout value") && record.level == Level::Error
    };
    let (outcome, neighbour) = tokio::join!(host.fire("nightly"), async {
        host.journal().find(LIMIT, timed_out).await.unwrap();
        // The process exits in these two seconds and is restarted.
        host.force_stop().await;
        host.ready(2).await;
        host.fire("other").await
    });
    assert_eq!(outcome.verdict, Verdict::TimedOut);
    assert!(failure(&neighbour).starts_with("HttpRequestException"), "{neighbour:?}");
    host.exit(2, LIMIT).await.unwrap();
    let expected = [200, 137].map(|code| Exit { code, counted: false });
    assert_eq!(host.exits(), expected);
    assert!(matches!(host.ready(3).await, Phase::Ready { life: 3, .. }));
}

/// A schedule of a minute has a status, so an occurrence can be past due.
pub(crate) async fn host_killed() {
    for (schedule, is_past_due) in [(60, true), (59, false)] {
        let mut bench = Bench::with_rows(1..=3).await;
        bench.options.singleton = SHORT;
        bench.options.schedule = Duration::from_secs(schedule);
        bench.receiver.script(&[Answer::Hold]);
        let host = bench.host().await;
        let timers = host.timers().clone();
        // The host is killed during the run, together with the handler; nothing writes the timer's status.
        tokio::select! {
            outcome = host.fire("nightly") => panic!("{outcome:?}"),
            _ = bench.receiver.arrived(1) => {}
        }
        drop(host);
        let host = bench.host_with(timers).await;
        let outcome = within(LIMIT, host.fire("nightly")).await;
        assert!(outcome.verdict.is_success(), "{outcome:?}");
        crate::runs::check_redelivery(&bench, &host).await;
        host.fire("nightly").await;
        // Its last lines have been read by then.
        host.stop().await;
        let lines = host.lines().into_iter().map(|(_, line)| line);
        let late: Vec<_> = lines.filter(|line| line["is_past_due"] == true).collect();
        assert_eq!(late.len(), usize::from(is_past_due), "only the first run after a start");
        assert!(late.iter().all(|line| line["invocation_id"] == *outcome.id), "{late:?}");
    }
}

/// Of two hosts with the same id one fires. With different ids both fire, and our lease decides.
pub(crate) async fn two_hosts() {
    let mut bench = Bench::new().await;
    bench.options.singleton = Singleton { period: Duration::from_secs(600), ..SHORT };
    bench.insert(1..=1);
    let one = bench.host().await;
    assert!(one.fire("nightly").await.verdict.is_success());
    let standby = bench.host_with(one.timers().clone()).await;
    bench.insert(2..=2);
    {
        let fired = standby.fire("nightly");
        tokio::pin!(fired);
        let several_polls = 10 * SHORT.polling_interval;
        assert!(tokio::time::timeout(several_polls, &mut fired).await.is_err(), "one fires");
        assert!(logs(&one.fire("nightly").await)[0].contains("committed 1 row"));
        one.finish().await;
        let outcome = within(LIMIT, fired).await;
        assert!(
            logs(&outcome)[0].contains("nothing new"),
            "once the first has stopped: {outcome:?}"
        );
    }
    standby.finish().await;

    let one = bench.host().await;
    "a copy of the folder".clone_into(&mut bench.options.host_id);
    let other = bench.host_with(one.timers().clone()).await;
    bench.insert(3..=3);
    bench.receiver.script(&[Answer::Hold]);
    let (first, second) = tokio::join!(one.fire("nightly"), async {
        bench.receiver.arrived(3).await;
        let second = within(LIMIT, other.fire("nightly")).await;
        bench.receiver.release();
        second
    });
    assert!(logs(&second)[0].contains("skipped: lease held by"), "{second:?}");
    assert!(logs(&first)[0].contains("committed 1 row"), "{first:?}");
    // Both at once, many times: every row is delivered, none twice, under increasing tokens.
    for id in 4..=12 {
        bench.insert(id..=id);
        tokio::join!(one.fire("nightly"), other.fire("nightly"));
    }
    other.run_until(|| bench.receiver.accepted().len() >= 12).await;
    assert_eq!(bench.receiver.accepted(), (1..=12).collect::<Vec<_>>());
    let tokens: Vec<u64> = bench.receiver.batches().iter().map(|batch| batch.token).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    one.finish().await;
    other.finish().await;
}

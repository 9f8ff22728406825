//! `highwater race`: the race of a stale owner, forced and shown event by event.
//!
//! Two workers tick one poller under a lease of one second. The first takes the lease, calls its
//! handler, and is frozen with its write pending: timers too, since otherwise the lease's deadline would
//! stop the handler, and there would be no race. The second takes the lapsed lease over and writes.
//! Then the first thaws, still sure of its lease, and its write reaches the fence.
//!
//! Poller, lease, memory store and fence are the real ones, and the trace is the engine's own log; the
//! handler is one that writes a fenced target. Barriers order what happens, paused time and a seed the
//! rest, so each reproduction gives the same trace, with or without injected faults.
//!
//! The lease lapses two seconds after its ttl, so the takeover comes three seconds after the first
//! worker's last write, and the thaw 2.5 s after the first worker's lease has ended.

mod faults;
mod stage;
mod trace;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;
use tracing_subscriber::layer::SubscriberExt;

use self::faults::Chance;
use self::trace::{JobId, Trace};

/// Options of the command.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// How often to reproduce the race.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Percentage of storage and source calls that fail.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=50))]
    faults: u8,
}

/// One forced race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reproduction {
    /// What happened: one JSON object a line.
    pub trace: Vec<String>,
    /// Faults that were injected on the way.
    pub faults: u64,
}

/// Returns the trace that every reproduction must give: the events of seed 004.
pub fn expected_trace() -> Vec<String> {
    let job = stage::POLLER;
    let events = [
        json!({"event": "lease_acquired", "job_id": job, "token": 1, "forced": true}),
        json!({"event": "execution_started", "job_id": job, "token": 1}),
        json!({"event": "lease_acquired", "job_id": job, "token": 2, "forced": true}),
        json!({"event": "execution_started", "job_id": job, "token": 2}),
        json!({
            "event": "stale_write_blocked", "job_id": job,
            "stale_token": 1, "current_token": 2, "reason": "token_mismatch",
        }),
        json!({"event": "worker_exit", "reason": "stale"}),
        json!({"event": "worker_exit", "reason": "success"}),
    ];
    events.iter().map(ToString::to_string).collect()
}

/// Forces the race once, in a runtime of its own with paused time: not to be called from async code.
///
/// `seed` decides latencies and which calls fail; `faults_percent` how many.
///
/// # Errors
///
/// What the operating system says if it gives no runtime.
pub fn reproduce(seed: u64, faults_percent: u8) -> std::io::Result<Reproduction> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let trace = Trace::of(JobId(stage::POLLER));
    let chance = Arc::new(Chance::new(seed, faults_percent));
    let subscriber = tracing_subscriber::registry().with(trace.clone());
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(stage::play(Arc::clone(&chance)));
    });
    Ok(Reproduction { trace: trace.take(), faults: chance.injected() })
}

/// Runs the command; returns 1 if a reproduction differs from the expected trace.
///
/// Not to be called from async code.
pub fn run(options: Options) -> ExitCode {
    match reproduce_all(options, &mut std::io::stdout(), &mut std::io::stderr()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

/// Writes the first trace, and each that differs, to `data`, and one line about all to `remarks`.
fn reproduce_all(
    options: Options,
    data: &mut impl Write,
    remarks: &mut impl Write,
) -> std::io::Result<bool> {
    let Options { repeat, faults: percent } = options;
    let (began_at, expected) = (Instant::now(), expected_trace());
    let (mut same, mut injected) = (0, 0);
    for seed in 1..=repeat {
        let reproduction = reproduce(u64::from(seed), percent)?;
        let is_same = reproduction.trace == expected;
        if seed == 1 || !is_same {
            for line in &reproduction.trace {
                writeln!(data, "{line}")?;
            }
        }
        if !is_same {
            writeln!(remarks, "reproduction {seed} differs; its trace is above")?;
        }
        same += u32::from(is_same);
        injected += reproduction.faults;
    }
    writeln!(
        remarks,
        "{same} of {repeat} reproductions gave this trace, with {injected} faults injected at \
         {percent} %, in {:.2} s",
        began_at.elapsed().as_secs_f64()
    )?;
    Ok(same == repeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_prints_the_trace_once_and_counts() {
        let (mut data, mut remarks) = (Vec::new(), Vec::new());
        let options = Options { repeat: 3, faults: 10 };
        assert!(reproduce_all(options, &mut data, &mut remarks).unwrap());
        let text = String::from_utf8(data).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected_trace());
        let remarks = String::from_utf8(remarks).unwrap();
        assert!(remarks.starts_with("3 of 3 reproductions"), "{remarks}");
    }
}

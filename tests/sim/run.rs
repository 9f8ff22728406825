//! Runs seeds: one, many on all cores, and the shortest script that still fails.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::coverage::Coverage;
use crate::history::History;
use crate::script::{Break, Op, Plan, Property, script};
use crate::world::{Player, World};

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Hash of everything that happened.
    pub(crate) hash: u64,
    pub(crate) coverage: Coverage,
    pub(crate) violation: Option<String>,
    /// Versions of the quarantined rows, with the reason.
    pub(crate) aside: BTreeMap<u64, String>,
    /// The history, if it was requested as text.
    pub(crate) lines: Vec<String>,
}

/// Plays one script in the world of a seed.
pub(crate) fn play(seed: u64, plan: &Plan, ops: &[Op], readable: bool) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(seed, plan.clone(), History::begin(readable));
        let mut player = Player::new(Arc::clone(&world));
        player.play(ops).await;
        player.drain().await;
        world.with(|state| Run {
            hash: state.history.hash(),
            coverage: std::mem::take(&mut state.coverage),
            violation: state.judge.violation.take(),
            aside: state.judge.failures.take_set_aside(),
            lines: state.history.take_lines(),
        })
    })
}

/// Runs one seed unchanged.
pub(crate) fn run_seed(seed: u64, property: Property, broken: Option<Break>) -> Run {
    let plan = Plan::of(seed, property, broken);
    play(seed, &plan, &script(seed, &plan), false)
}

/// Explains a seed: the shortest script found that still fails, or all of it if none does.
pub(crate) fn explain(seed: u64, property: Property) -> String {
    let plan = Plan::of(seed, property, None);
    let mut ops = script(seed, &plan);
    let fails = |ops: &[Op]| play(seed, &plan, ops, false).violation.is_some();
    if fails(&ops) {
        shrink(&mut ops, fails);
    }
    let run = play(seed, &plan, &ops, true);
    let verdict = run.violation.as_deref().unwrap_or("nothing was wrong");
    let lines = run.lines.join("\n");
    format!("seed {seed}, {property:?}\n{plan:#?}\n{ops:#?}\n{lines}\nseed {seed}: {verdict}\n")
}

/// Leaves out what a failure does not need: halves first, then smaller parts.
fn shrink(ops: &mut Vec<Op>, fails: impl Fn(&[Op]) -> bool) {
    let mut part = ops.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..ops.len().min(at + part));
            if fails(&fewer) {
                *ops = fewer;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
}

/// The results of many runs.
#[derive(Debug)]
pub(crate) struct Summary {
    property: Property,
    pub(crate) cases: u64,
    seconds: f64,
    pub(crate) coverage: Coverage,
    /// The lowest seed that failed, and how.
    pub(crate) failure: Option<(u64, String)>,
}

/// Runs `cases` seeds from `first` on all cores; stops soon after the first failure.
pub(crate) fn run_many(
    first: u64,
    cases: u64,
    property: Property,
    broken: Option<Break>,
) -> Summary {
    let began_at = Instant::now();
    let next = AtomicU64::new(0);
    let result = Mutex::new((Coverage::default(), None::<(u64, String)>, 0));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= cases {
                return;
            }
            let seed = first.wrapping_add(index);
            let run = run_seed(seed, property, broken);
            let mut result = result.lock().unwrap();
            result.0.add(&run.coverage);
            result.2 += 1;
            if let Some(violation) = run.violation {
                next.store(cases, Ordering::Relaxed);
                if result.1.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
                    result.1 = Some((seed, violation));
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let seconds = began_at.elapsed().as_secs_f64();
    let (coverage, failure, cases) = result.into_inner().unwrap();
    Summary { property, cases, seconds, coverage, failure }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { property, cases, seconds, coverage, .. } = self;
        let count = f64::from(u32::try_from(*cases).unwrap_or(u32::MAX));
        let speed = count / seconds.max(0.001);
        writeln!(
            formatter,
            "{property:?}: {cases} cases in {seconds:.1} s, {speed:.0} seeds per second"
        )?;
        coverage.fmt(formatter)
    }
}

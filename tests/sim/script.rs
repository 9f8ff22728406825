//! What a seed generates: the plan of a world, and the script of its events.

use std::time::Duration;

use highwater_engine::backoff::Backoff;
use highwater_engine::document::OnMissingState;
use highwater_engine::journal::JournalMode;
use highwater_engine::lease::LeaseTerms;
use highwater_engine::policy::{
    FailurePolicy, Flow, Follow, OVERLAP_CRASHES_MIN, OnFailure, ParkPolicy,
};
use highwater_engine::poller::Limits;

use crate::bad::{Bad, BadRows};
use crate::random::Random;

/// The claim that a run checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// Despite any faults, nothing is lost, skipped, reverted or written by a stale holder, and the backlog
    /// drains once faults stop.
    Faults,
    /// Nothing fails: each delivered row state is delivered once.
    Calm,
}

/// A planted bug in the engine's environment that the invariants must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// The target accepts every write.
    NoFence,
    /// The store ignores `If-Match`.
    NoIfMatch,
    /// The lease is not renewed.
    NoHeartbeat,
    /// The store's clock runs ahead of its own `Last-Modified` by a second more than the margin for a
    /// lapsed lease allows.
    FastClock,
    /// The handler reports rows as accepted before its writes have arrived: a commit before the handling.
    AnswersBeforeItWrote,
    /// The source shows rows while an older transaction is open.
    NoHoldBack,
    /// The target gets only the token, so that all generations look alike.
    NoGeneration,
    /// The store claims to have stored a quarantined row, and has not.
    ForgetsEntries,
    /// The target rejects single rows that it would accept another time.
    RefusesGoodRows,
    /// The source continues after another table has replaced the current one.
    MissesNewTable,
    /// The source does not check whether two rows share a position.
    SkipsTwins,
    /// The store claims to have stored a later version of a parked key, and has not.
    ForgetsLaterVersions,
    /// The store removes an entry though a later version was recorded since it was read.
    RemovesLaterVersions,
}

/// The constants of a run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn for itself")]
pub(crate) struct Plan {
    pub(crate) calm: bool,
    pub(crate) broken: Option<Break>,
    pub(crate) instances: usize,
    pub(crate) terms: LeaseTerms,
    pub(crate) limits: Limits,
    pub(crate) policy: FailurePolicy,
    pub(crate) flow: Flow,
    pub(crate) journal: JournalMode,
    /// The handler is the second of a chain of two; the first accepts everything.
    pub(crate) chain: bool,
    /// The source stores how far it has read, sometimes at once.
    pub(crate) remembers: bool,
    pub(crate) bad: BadRows,
    /// The handler reports accepted rows while it runs.
    pub(crate) accepts: bool,
    /// Granularity of the store's clock.
    pub(crate) grain: Duration,
    /// By how much two responses of the store may disagree on the time, in either direction.
    pub(crate) skew_ms: u64,
    /// Longest ordinary latency in one direction.
    pub(crate) latency_ms: u64,
    /// Longest step of the handler.
    pub(crate) pace_ms: u64,
    pub(crate) fenced: bool,
    /// The handler's own task writes to the target, not a request that outlives it.
    pub(crate) in_process: bool,
    pub(crate) rows_per_write: usize,
    pub(crate) keys: u64,
    pub(crate) fault_percent: u64,
}

/// Longest time for which a seed may ask a throttled handler to wait, or a batch to back off.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// Shortest time without progress after which a handler is stopped.
const STALL_MIN: Duration = Duration::from_secs(1);

/// Most worlds keep no journal.
const JOURNALS: [JournalMode; 5] =
    [JournalMode::Off, JournalMode::Off, JournalMode::Off, JournalMode::Commits, JournalMode::Full];

impl Plan {
    /// Whether a commit may overlap the next handler call. Elsewhere the engine must not overlap, whatever
    /// the setting says.
    pub(crate) fn overlaps(&self) -> bool {
        self.flow.overlap_commit && !self.chain && self.policy.crashes_max >= OVERLAP_CRASHES_MIN
    }

    pub(crate) fn of(seed: u64, property: Property, broken: Option<Break>) -> Self {
        let mut random = Random::of(seed, 1);
        let calm = property == Property::Calm;
        // A tight world leaves the lease terms no slack: short TTL, late heartbeat, long latencies, a clock
        // as coarse and as wrong as allowed.
        let fast_clock = broken == Some(Break::FastClock);
        let tight = random.chance(25) || fast_clock;
        let ttl_ms = if tight { 3_000 } else { 1_000 * random.within(3..=60) };
        let rows_max = random.within(1..=8);
        let pace_ms = random.within(1..=ttl_ms / 2);
        let longest = Duration::from_millis(pace_ms * (2 * rows_max + 1));
        let tick_time_max = random.ms(ttl_ms..=6 * ttl_ms);
        // A calm handler must fit into the time of its tick; one that may fail need not.
        let stop_after = if calm || random.chance(70) {
            tick_time_max + longest + Duration::from_millis(2 * ttl_ms)
        } else {
            random.ms(ttl_ms / 2..=2 * ttl_ms)
        };
        let latest = ttl_ms * 45 / 100;
        let heartbeat = random.ms(if tight { latest } else { ttl_ms / 8 }..=latest);
        let (some, limit) = (random.chance(50), random.within(1..=4));
        let refresh = random.ms(0..=300_000);
        let (noted, interval) = (random.chance(50), random.ms(1_000..=120_000));
        let (small_bytes, stalls) = (random.chance(20), random.chance(40));
        let recreate = random.chance(50) || broken == Some(Break::NoGeneration);
        let [mut of_failures, mut of_journal, mut of_flow, mut of_overlap] =
            [5, 7, 9, 10].map(|n| Random::of(seed, n));
        let (instances, margin) = (random.index(2) + 2, random.ms(0..=ttl_ms / 5));
        let retry_delay_min = random.ms(100..=2_000);
        let retry_delay_max = random.ms(2_000..=30_000);
        // The draw of a removed setting. Without it, existing seeds would generate other worlds.
        random.chance(25);
        Self {
            journal: of_journal.pick(&JOURNALS),
            chain: of_journal.chance(20),
            remembers: of_journal.chance(25),
            policy: parking(policy(&mut of_failures), broken, &mut Random::of(seed, 15)),
            flow: flow([&mut of_flow, &mut of_overlap], rows_max, ttl_ms),
            accepts: of_failures.chance(50),
            bad: if calm { BadRows::NONE } else { BadRows::draw(seed, &mut of_failures) },
            calm,
            broken,
            instances,
            terms: LeaseTerms {
                ttl: Duration::from_millis(ttl_ms),
                heartbeat_interval: match broken {
                    Some(Break::NoHeartbeat) => Duration::from_secs(86_400),
                    Some(_) | None => heartbeat,
                },
                margin,
            },
            limits: Limits {
                batch_rows_max: usize::try_from(rows_max).expect("at most 8"),
                batch_bytes_max: if small_bytes { 600 } else { 1 << 20 },
                batches_max: some.then_some(limit),
                tick_time_max,
                handler_stop_after: stop_after,
                handler_stall_max: stalls.then_some(3 * Duration::from_millis(pace_ms) + STALL_MIN),
                state_refresh: refresh,
                status_interval: if noted { interval } else { Duration::ZERO },
                retry_delay_min,
                retry_delay_max,
                retry_after_max: Duration::from_secs(3_600),
                on_missing_state: if recreate {
                    OnMissingState::Recreate
                } else {
                    OnMissingState::Stop
                },
            },
            grain: Duration::from_secs(if tight { 1 } else { random.below(2) }),
            skew_ms: if tight { 999 } else { random.below(1_000) },
            latency_ms: if tight { ttl_ms / 20 } else { random.within(1..=ttl_ms / 20) },
            pace_ms,
            fenced: random.chance(65),
            in_process: random.chance(40),
            rows_per_write: random.index(4) + 1,
            keys: random.within(3..=40),
            fault_percent: if calm { 0 } else { random.pick(&[0, 2, 5, 10, 20, 35]) },
        }
    }
}

/// Draws how batches follow each other.
fn flow([random, of_overlap]: [&mut Random; 2], rows_max: u64, ttl_ms: u64) -> Flow {
    let rows_min = usize::try_from(random.within(1..=rows_max)).expect("at most 8");
    let prefetch = random.chance(70);
    let follows = random.chance(25);
    let follow = Follow { time: random.ms(0..=2 * ttl_ms), interval: random.ms(200..=5_000) };
    // A separate stream, so that earlier draws keep their values.
    let overlap_commit = of_overlap.chance(50);
    let follow = follows.then_some(follow);
    Flow { prefetch, overlap_commit, batch_rows_min: rows_min, follow }
}

/// Draws the policy for rows that are not accepted.
fn policy(random: &mut Random) -> FailurePolicy {
    use OnFailure::{Park, Retry, Stop};
    let on_failure = random.pick(&[Retry, Park, Park, Park, Stop]);
    let bisects = if on_failure == Park { 80 } else { 50 };
    let (limited, age) = (random.chance(30), random.ms(5_000..=600_000));
    let attempts_max = u32::try_from(random.within(1..=4)).expect("few");
    FailurePolicy {
        on_failure,
        attempts_max,
        crashes_max: u32::try_from(random.within(1..=4)).expect("few"),
        record_age_max: limited.then_some(age),
        bisect_on_error: random.chance(bisects),
        // Small enough to open often. Not drawn separately, so that the seeds of regressions stay the same.
        breaker_rows: attempts_max,
        park: ParkPolicy::NO_RETRIES,
    }
}

/// Lets half of the policies that park keys retry them. Drawn separately, so that seeds stay the same.
fn parking(policy: FailurePolicy, broken: Option<Break>, random: &mut Random) -> FailurePolicy {
    use Break::{ForgetsEntries, ForgetsLaterVersions, RemovesLaterVersions};
    let retries = random.chance(60);
    let parking =
        matches!(broken, None | Some(ForgetsEntries | ForgetsLaterVersions | RemovesLaterVersions));
    if policy.on_failure != OnFailure::Park || !retries || !parking {
        return policy;
    }
    let retries_max = random.pick(&[0, 0, 1, 2, 3, 10, 50, 200]);
    let age_max = random.ms(20_000..=3_600_000);
    let long = random.chance(30);
    let first = random.ms(if long { 5_000..=30_000 } else { 100..=2_000 });
    let max = first + random.ms(if long { 1_000..=600_000 } else { 0..=20_000 });
    let park = ParkPolicy { retries_max, age_max, backoff: Backoff { first, max } };
    FailurePolicy { park, ..policy }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Time passes.
    Wait(Duration),
    /// The timer of an instance fires.
    Tick(usize),
    /// A transaction writes rows and stays open.
    Begin(u64),
    /// An open transaction ends.
    End {
        which: usize,
        commit: bool,
    },
    /// An instance is suspended, timers and all.
    Freeze(usize, Duration),
    /// An instance crashes at its n-th poll from now, and another takes its place.
    Crash(usize, u64),
    /// A running tick is requested to stop after the batch in flight.
    Stop(usize),
    FaultPercent(u64),
    /// The target accepts nothing for this long.
    Outage(Duration),
    /// The target does not accept rows of a key for this long.
    Refuse(i64, Duration, Bad),
    /// A row is inserted or updated.
    Update(i64),
    /// An operator drops some entries.
    DropEntries,
    /// An operator redrives all entries, in a process that may crash after some polls.
    Redrive(Option<u64>),
    Pause,
    Resume,
    BreakLease,
    /// The document is deleted and will be created again.
    LoseDocument,
    /// The document is deleted and is not created again: ticks fail until an operator acts.
    LoseForGood,
    /// An operator resets the poller to the beginning.
    Reset,
    /// An operator saves a copy of the document.
    Copy,
    /// An operator replaces the document by the copy.
    Restore,
    /// The first request to create the document lands, if nothing is stored.
    CreationLands,
    /// The table is dropped and created again with some rows.
    Recreate(u64),
    /// A second table is filled.
    Stage(u64),
    /// The second table replaces the first.
    Swap,
    /// All rows are removed, and some inserted.
    Truncate(u64),
    /// The key gets another type.
    Retype,
    /// A column is added or dropped.
    Column(bool),
    /// The application is renamed: its instances stop, and start without a document.
    RenameApp,
    /// The marker that records that the poller has run is deleted.
    LoseMarker,
    /// The document is replaced by the unchanged copy while no instance runs.
    PutBack,
    /// Change tracking is switched on or off; it restarts when switched on again.
    Track(bool),
    /// Two rows with equal key and version are committed.
    Duplicate,
    /// One row of each such pair is removed.
    RemoveTwins,
    /// Processes that start from now on use another table name in their settings.
    Rename,
}

/// Returns the script of a seed: the events until faults stop.
pub(crate) fn script(seed: u64, plan: &Plan) -> Vec<Op> {
    let mut random = Random::of(seed, 2);
    let length = random.within(15..=45);
    let mut ops = vec![Op::Begin(random.within(1..=10)), Op::End { which: 0, commit: true }];
    for _ in 0..length {
        add_step(&mut ops, plan, &mut random);
    }
    add_operator(&mut ops, plan, &mut Random::of(seed, 12));
    add_table_events(&mut ops, plan, &mut Random::of(seed, 13));
    add_more_events(&mut ops, plan, &mut Random::of(seed, 14));
    add_parking(&mut ops, plan, &mut Random::of(seed, 16));
    ops
}

/// Where keys are parked and retried, the target does not accept some of them for a while, their rows change, and an operator drops
/// or redrives entries while ticks run.
fn add_parking(ops: &mut Vec<Op>, plan: &Plan, random: &mut Random) {
    if plan.calm || plan.policy.park == ParkPolicy::NO_RETRIES {
        return;
    }
    for _ in 0..random.within(3..=7) {
        let at = random.index(ops.len() + 1);
        let keys = i64::try_from(plan.keys).expect("few keys");
        let key = i64::try_from(random.below(plan.keys)).expect("few keys");
        let bad = random.pick(&[Bad::Refused, Bad::Refused, Bad::Refused, Bad::Failing]);
        let duration = random.ms(1_000..=600_000);
        let slot = random.index(plan.instances);
        // Long enough for a tick to isolate the row, in most worlds.
        let while_ticking = plan.limits.tick_time_max / 2;
        let mut acts = vec![Op::Refuse(key, duration, bad), Op::Update(key)];
        acts.extend([Op::Update((key + 1) % keys), Op::Tick(slot), Op::Wait(while_ticking)]);
        for _ in 0..random.within(1..=6) {
            let slot = random.index(plan.instances);
            match random.below(12) {
                0..3 => {}
                3 => acts.push(Op::DropEntries),
                // The lease is free, or a tick holds it.
                4..6 => {
                    let polls = random.chance(30).then(|| random.below(40));
                    acts.extend([Op::Redrive(polls), Op::Wait(random.ms(0..=5_000))]);
                }
                6..8 => acts.push(Op::Crash(slot, random.below(60))),
                8 => acts.extend([Op::Tick(slot), Op::Wait(random.ms(0..=2_000)), Op::DropEntries]),
                _ => acts.push(Op::Wait(random.ms(0..=60_000))),
            }
            if random.chance(60) {
                acts.extend([Op::Update(key), Op::Update((key + 2) % keys)]);
            }
            acts.extend([Op::Tick(slot), Op::Wait(random.ms(0..=5_000) + while_ticking / 4)]);
        }
        ops.splice(at..at, acts);
    }
}

/// In some worlds a table is truncated or changed, or storage and deployment do things that no command would
/// do.
fn add_more_events(ops: &mut Vec<Op>, plan: &Plan, random: &mut Random) {
    if plan.calm || plan.broken.is_some() || !random.chance(30) {
        return;
    }
    for _ in 0..random.within(1..=2) {
        let at = random.index(ops.len() + 1);
        let later = at + 1 + random.index(ops.len() + 1 - at);
        let rows = random.within(1..=6);
        match random.below(6) {
            0 => ops.insert(at, Op::Truncate(rows)),
            1 => ops.insert(at, Op::Retype),
            2 => {
                ops.insert(at, Op::Column(true));
                ops.insert(later, Op::Column(false));
            }
            3 => ops.insert(at, Op::LoseMarker),
            // A journal belongs to one name of the application and one sequence of grants.
            4 if plan.journal == JournalMode::Off => ops.insert(at, Op::RenameApp),
            _ if plan.journal == JournalMode::Off => {
                ops.insert(at, Op::Copy);
                ops.insert(later, Op::PutBack);
            }
            _ => {}
        }
    }
}

/// In some worlds the table is replaced, renamed or untracked for a while, or its key is not unique.
fn add_table_events(ops: &mut Vec<Op>, plan: &Plan, random: &mut Random) {
    let breaks_it = matches!(plan.broken, Some(Break::MissesNewTable | Break::SkipsTwins));
    if plan.calm || (plan.broken.is_some() && !breaks_it) || !random.chance(35) {
        return;
    }
    for _ in 0..random.within(1..=2) {
        let at = random.index(ops.len() + 1);
        let later = at + 1 + random.index(ops.len() + 1 - at);
        let rows = random.within(1..=6);
        match random.below(5) {
            0 => ops.insert(at, Op::Recreate(rows)),
            1 => {
                ops.insert(at, Op::Stage(rows));
                ops.insert(later, Op::Swap);
            }
            2 => {
                ops.insert(at, Op::Track(false));
                ops.insert(later, Op::Track(true));
            }
            3 => {
                ops.insert(at, Op::Duplicate);
                if random.chance(50) {
                    ops.insert(later, Op::RemoveTwins);
                }
            }
            _ => ops.insert(at, Op::Rename),
        }
    }
}

/// In some worlds an operator replaces the document, at times that no other draw depends on.
fn add_operator(ops: &mut Vec<Op>, plan: &Plan, random: &mut Random) {
    if plan.calm || plan.broken.is_some() || !random.chance(30) {
        return;
    }
    for _ in 0..random.within(1..=3) {
        let at = random.index(ops.len() + 1);
        let ticks = (0..plan.instances).flat_map(|slot| [Op::Tick(slot), Op::Wait(RETRY_MAX)]);
        match random.below(3) {
            0 => ops.insert(at, Op::Reset),
            1 => {
                ops.insert(at, Op::Copy);
                let later = at + 1 + random.index(ops.len() - at);
                ops.insert(later, Op::Restore);
            }
            _ => {
                let acts = std::iter::once(Op::LoseForGood).chain(ticks).chain([Op::Reset]);
                ops.splice(at..at, acts.collect::<Vec<_>>());
            }
        }
    }
}

fn add_step(ops: &mut Vec<Op>, plan: &Plan, random: &mut Random) {
    let ttl_ms = u64::try_from(plan.terms.ttl.as_millis()).expect("at most a minute");
    let slot = random.index(plan.instances);
    let other = (slot + 1) % plan.instances;
    let past_lease = random.ms(ttl_ms + 2_500..=3 * ttl_ms + 10_000);
    let soon = random.ms(0..=4 * (plan.latency_ms + plan.pace_ms));
    match random.below(if plan.calm { 70 } else { 112 }) {
        0..15 => ops.push(Op::Wait(random.ms(0..=ttl_ms))),
        15..18 => ops.push(Op::Wait(past_lease)),
        18..38 => ops.extend([Op::Tick(slot), Op::Wait(soon)]),
        38..50 => {
            let commit = !random.chance(15);
            ops.extend([Op::Begin(random.within(1..=12)), Op::End { which: 9, commit }]);
        }
        50..56 => ops.push(Op::Begin(random.within(1..=6))),
        56..62 => ops.push(Op::End { which: random.index(4), commit: !random.chance(20) }),
        62..64 => ops.push(Op::Stop(slot)),
        64..67 => {
            ops.push(Op::Pause);
            if random.chance(70) {
                ops.extend([Op::Wait(random.ms(0..=ttl_ms)), Op::Tick(other), Op::Resume]);
            }
        }
        67..70 => ops.push(Op::Resume),
        // Prepares a stale owner: frozen past its lease with work in flight, while another instance ticks.
        70..80 => {
            let taken = random.ms(ttl_ms + 2_500..=ttl_ms + 8_000);
            let ticks = [Op::Tick(slot), Op::Wait(soon), Op::Freeze(slot, past_lease)];
            ops.extend(ticks);
            ops.extend([Op::Wait(taken), Op::Tick(other), Op::Wait(random.ms(0..=ttl_ms))]);
        }
        80..84 => ops.push(Op::Freeze(slot, random.ms(0..=ttl_ms))),
        84..92 => ops.extend([Op::Crash(slot, random.below(25)), Op::Tick(slot), Op::Wait(soon)]),
        92..96 => ops.push(Op::FaultPercent(random.pick(&[0, 2, 5, 10, 20, 50]))),
        // Everything is unreachable for a while, starting in the middle of a tick.
        96..98 => {
            ops.extend([Op::Tick(slot), Op::Wait(soon), Op::FaultPercent(100)]);
            ops.extend([Op::Wait(past_lease), Op::FaultPercent(plan.fault_percent)]);
        }
        98..100 => ops.push(Op::BreakLease),
        100..102 => ops.push(Op::LoseDocument),
        // Attempts are used up while the target is down; it may recover in the middle of a tick.
        102..108 => {
            ops.extend([Op::Begin(random.within(1..=6)), Op::End { which: 9, commit: true }]);
            ops.push(Op::Outage(random.ms(0..=6 * 30_000)));
            for slot in [slot, other, slot, other, slot] {
                let pause = plan.limits.retry_delay_max + random.ms(0..=ttl_ms);
                ops.extend([Op::Tick(slot), Op::Wait(pause)]);
            }
        }
        // A stale owner of a document that has been created again since.
        _ => {
            ops.extend([Op::Tick(slot), Op::Wait(soon), Op::Freeze(slot, past_lease)]);
            ops.push(Op::LoseDocument);
            if random.chance(30) {
                ops.push(Op::CreationLands);
            }
            ops.extend([Op::Tick(other), Op::Wait(random.ms(0..=ttl_ms))]);
        }
    }
}

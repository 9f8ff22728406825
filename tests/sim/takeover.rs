//! How long it takes until another instance commits, once the holder of the lease is gone.
//!
//! Instances tick by timers of equal interval and different phase, while rows come in. At a random moment the
//! holder of the lease is killed, or asked to stop as by SIGTERM. Nothing else fails, and no instance
//! replaces it. The bounds that must hold:
//!
//! | gone by | counted from | at most |
//! |---|---|---|
//! | a kill | the kill, or the landing of what it had sent | TTL + margin + one tick |
//! | SIGTERM | the landing of its last write, which releases the lease | one tick |
//!
//! One tick is one interval of the timer plus the length of the committing tick. The margin is that of the
//! rule for an expired lease, 2 s and two grains, plus the largest difference of two readings of the store's
//! clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_engine::policy::FailurePolicy;
use tokio::time::{Instant, sleep_until};

use crate::history::History;
use crate::random::Random;
use crate::script::{Op, Plan, Property};
use crate::world::{Player, TickId, World};

/// How a holder disappears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Killed,
    Stopped,
}

/// One takeover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeover {
    pub(crate) took: Duration,
    pub(crate) bound: Duration,
}

/// Statistics of many takeovers.
#[derive(Debug)]
pub(crate) struct Takeovers(pub(crate) Vec<Takeover>);

/// Firings after which a seed is abandoned that never sees a lease held.
const FIRINGS_MAX: u32 = 200;

/// Plays one seed; `None` if the holder released its lease before it was gone.
pub(crate) fn play(seed: u64, gone: Gone) -> Result<Option<Takeover>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        // New rows only: if each row is rewritten again and again, a read may find nothing. And a default
        // policy, since another one may stop the poller after one crash.
        let policy = FailurePolicy::default();
        let plan = Plan { keys: u64::MAX >> 1, policy, ..Plan::of(seed, Property::Calm, None) };
        let world = World::new(seed, plan, History::begin(false));
        let mut stage = Stage::new(seed, Arc::clone(&world));
        let takeover = stage.play(gone).await;
        world.with(|state| state.judge.violation.take()).map_or(takeover, Err)
    })
}

/// Instances with timers.
struct Stage {
    random: Random,
    world: Arc<World>,
    player: Player,
    interval: Duration,
    /// When each instance's timer fires next; `None` for a killed instance.
    next: Vec<Option<Instant>>,
    /// When each tick started.
    began_at: BTreeMap<TickId, Instant>,
}

impl Stage {
    fn new(seed: u64, world: Arc<World>) -> Self {
        let mut random = Random::of(seed, 4);
        // A timer that fires while a tick runs is lost, so the interval must not be shorter than a tick that
        // finds the lease held: two reads of the document, one of rows and a rejected write.
        let interval_min = 9 * world.plan.latency_ms;
        let interval = random.ms(interval_min..=interval_min + 60_000);
        let (now, instances) = (Instant::now(), world.plan.instances);
        let phase = u64::try_from(interval.as_millis()).expect("minutes");
        let next = (0..instances).map(|_| Some(now + random.ms(0..=phase))).collect();
        let player = Player::new(Arc::clone(&world));
        Self { random, world, player, interval, next, began_at: BTreeMap::new() }
    }

    async fn play(&mut self, gone: Gone) -> Result<Option<Takeover>, String> {
        let some_time = 3 * u64::try_from(self.interval.as_millis()).expect("minutes");
        let from = Instant::now() + self.random.ms(0..=some_time);
        self.run_until(from).await;
        let Some((slot, tick)) = self.meet_holder().await else {
            return Err("nobody ever held the lease".to_owned());
        };
        let gone_at = Instant::now();
        self.next[slot] = None;
        match gone {
            Gone::Killed => self.player.kill(slot).await,
            Gone::Stopped => self.player.stop(slot),
        }
        let Some(next) = self.meet_successor(tick, gone_at).await else {
            return Err(format!("nobody took over from tick {}", tick.0));
        };
        let one_tick = self.interval + next.length;
        self.world.with(|state| {
            let landed_at = state.judge.landed_at(tick).expect("a holder has written");
            let lapsed = state.coverage.count("instance: lapsed lease taken over") > 0;
            let (since, bound) = match gone {
                Gone::Killed if lapsed => {
                    (gone_at.max(landed_at), self.lapse() + self.distrust() + one_tick)
                }
                // A pending write released the lease.
                Gone::Killed => return Ok(None),
                Gone::Stopped if lapsed => return Err("a stopped holder let it lapse".to_owned()),
                Gone::Stopped => (landed_at, one_tick),
            };
            Ok(Some(Takeover { took: next.committed_at - since, bound }))
        })
    }

    /// Returns how long a lease can look alive after its last write.
    fn lapse(&self) -> Duration {
        let plan = &self.world.plan;
        let disagreement = Duration::from_millis(plan.skew_ms) + plan.grain;
        plan.terms.ttl + Duration::from_secs(2) + 2 * plan.grain + disagreement
    }

    /// Returns how much longer a cold process may wait if the clocks disagree by more than half a TTL, so
    /// that it does not trust the service's clock: one TTL plus one timer interval.
    fn distrust(&self) -> Duration {
        let plan = &self.world.plan;
        let late = Duration::from_millis(plan.skew_ms + 2 * plan.latency_ms) + plan.grain;
        if late > plan.terms.ttl / 2 { plan.terms.ttl + self.interval } else { Duration::ZERO }
    }

    /// Continues until an instance is met at a random moment of its term.
    async fn meet_holder(&mut self) -> Option<(usize, TickId)> {
        let step = self.world.plan.pace_ms + self.world.plan.latency_ms;
        let end = Instant::now() + FIRINGS_MAX * self.interval;
        while Instant::now() < end {
            let wait = self.random.ms(1..=2 * step);
            self.run_until(Instant::now() + wait).await;
            let holder = self.world.with(|state| {
                let tick = state.judge.holder().filter(|tick| state.is_running(*tick))?;
                Some((state.slots.iter().position(|slot| slot.tick == tick)?, tick))
            });
            // At any moment of a lease's term, not only when it is first seen.
            if holder.is_some() && self.random.chance(30) {
                return holder;
            }
        }
        None
    }

    async fn meet_successor(&mut self, gone: TickId, gone_at: Instant) -> Option<Successor> {
        let end = Instant::now() + FIRINGS_MAX * self.interval + 2 * self.lapse();
        while Instant::now() < end {
            self.run_until(Instant::now() + self.interval).await;
            let commit = self.world.with(|state| state.judge.commit_of_another(gone, gone_at));
            if let Some((tick, committed_at)) = commit {
                return Some(Successor {
                    committed_at,
                    length: committed_at - self.began_at[&tick],
                });
            }
        }
        None
    }

    /// Lets timers fire until `end`; a few rows come in with each.
    async fn run_until(&mut self, end: Instant) {
        loop {
            let timers = self.next.iter().enumerate();
            let first = timers.filter_map(|(slot, at)| at.map(|at| (at, slot))).min();
            let Some((at, slot)) = first.filter(|(at, _)| *at <= end) else { break };
            sleep_until(at).await;
            self.next[slot] = Some(at + self.interval);
            self.player.act(Op::Begin(self.random.within(1..=6))).await;
            self.player.act(Op::End { which: 0, commit: true }).await;
            self.player.tick(slot).await;
            let tick = self.world.with(|state| state.slots[slot].tick);
            self.began_at.entry(tick).or_insert(at);
        }
        sleep_until(end).await;
    }
}

struct Successor {
    committed_at: Instant,
    /// From the start of its tick.
    length: Duration,
}

impl fmt::Display for Takeovers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut took: Vec<f64> = self.0.iter().map(|one| one.took.as_secs_f64()).collect();
        let share = |one: &Takeover| one.took.as_secs_f64() / one.bound.as_secs_f64() * 100.0;
        let mut shares: Vec<f64> = self.0.iter().map(share).collect();
        took.sort_by(f64::total_cmp);
        shares.sort_by(f64::total_cmp);
        let Some(last) = took.len().checked_sub(1) else { return Ok(()) };
        let middle = took.len() / 2;
        write!(
            formatter,
            "; median {:.1} s, max {:.1} s; of its bound: median {:.0} %, max {:.1} %",
            took[middle], took[last], shares[middle], shares[last]
        )
    }
}

//! The target and the handler that writes to it: fenced by the real [`Fence`], or one that accepts
//! everything.
//!
//! A handler writes its batch in several steps, and fails before, between or after them: by chance, because
//! the target is down, or because of a permanently bad row. In half of the worlds it reports accepted rows as
//! it goes. In most worlds a pending write is its own task, so that it may land after its handler was
//! dropped; in the others the handler's own task writes, so that a thawed one can be rejected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::document::{Fence, Generation, StaleWrite};
use highwater_engine::event::ChangeEvent;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use tokio::time::{Instant, sleep};

use crate::bad::Bad;
use crate::parked::{Purpose, writes_entries};
use crate::script::{Break, Plan};
use crate::world::{State, TickId, World};

/// The written rows: last write wins, as in any table.
#[derive(Debug, Default)]
pub(crate) struct Target {
    fence: Fence,
    pub(crate) rows: BTreeMap<i64, u64>,
    /// It accepts nothing before this instant.
    pub(crate) down_until: Option<Instant>,
    /// Whether it was fixed, and accepts the bad rows.
    pub(crate) is_mended: bool,
    /// Keys whose rows it does not accept for a while: until when, and how their rows fail.
    pub(crate) refused: BTreeMap<i64, (Instant, Bad)>,
}

impl Target {
    /// Returns the highest grant that it has accepted.
    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }
}

/// One instance's handler.
#[derive(Debug)]
pub(crate) struct SimHandler {
    pub(crate) world: Arc<World>,
    pub(crate) slot: usize,
}

/// The behaviour of one call.
struct Behaviour {
    /// Rows it writes before anything else happens.
    writes: usize,
    then: Then,
}

enum Then {
    Taken,
    Fail(HandlerError),
    /// It never returns: the stall guard, the tick deadline or the lease deadline must stop it.
    Hang,
    /// The process crashes.
    Die,
}

/// A pending write to the target.
struct Write {
    world: Arc<World>,
    tick: TickId,
    term: u64,
    purpose: Purpose,
    fence: Fence,
    rows: Vec<(i64, u64)>,
}

impl Write {
    async fn arrive(self, after: Duration) -> Result<(), StaleWrite> {
        sleep(after).await;
        let plan = &self.world.plan;
        self.world.with(|state| {
            if plan.fenced {
                match state.target.fence.admit(self.fence.generation, self.fence.token) {
                    Ok(raised) => state.target.fence = raised,
                    Err(stale) if plan.broken != Some(Break::NoFence) => {
                        let later = stale.stale.generation < stale.current.generation;
                        state.coverage.saw(if later {
                            "handler: fenced by a later generation"
                        } else {
                            "handler: fenced"
                        });
                        state.note(format_args!("stale write of tick {} refused", self.tick.0));
                        return Err(stale);
                    }
                    Err(_) => {}
                }
            }
            if !state.is_running(self.tick) {
                state.coverage.saw("handler: write landed after its writer was gone");
            }
            state.note(format_args!("tick {} wrote {:?}", self.tick.0, self.rows));
            state.target.rows.extend(self.rows.iter().copied());
            let table = &state.table.committed;
            let by = (self.tick, self.term, self.purpose);
            state.judge.rows_written(by, plan.fenced, &self.rows, table);
            Ok(())
        })
    }
}

#[async_trait]
impl Handler for SimHandler {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let rows: Vec<(i64, u64)> = delivery.events.iter().map(row_of).collect();
        let (tick, purpose, (term, _running), behaviour) = self.world.with(|state| {
            let slot = &mut state.slots[self.slot];
            (slot.handles, slot.reads_ahead) = (true, false);
            let tick = slot.tick;
            let purpose = state.judge.parked.purpose_of(tick, delivery.replay_id);
            let source = (tick, slot.fingerprint.as_str());
            let term = state.judge.delivered(source, &delivery, &rows, &state.table.twins);
            let text = if purpose == Purpose::Regular { "handles" } else { "retries" };
            state.note(format_args!("tick {} {text} {rows:?}", tick.0));
            (tick, purpose, term, behaviour(state, &self.world.plan, purpose, &rows))
        });
        let taken = self.act(&delivery, &rows, (tick, term, purpose), behaviour).await;
        self.world.with(|state| {
            let slot = &mut state.slots[self.slot];
            slot.handles = false;
            if slot.reads_ahead && taken.is_err() {
                state.coverage.saw("source: read in vain, since the batch was not taken");
            }
            if purpose == Purpose::Regular {
                state.judge.answered(tick, &taken);
            }
        });
        taken
    }
}

/// Returns key and version of a row from its payload. The cursor is the engine's own and says nothing about
/// what was delivered.
fn row_of(event: &ChangeEvent) -> (i64, u64) {
    let json: serde_json::Value = serde_json::from_str(event.json.as_ref()).unwrap();
    let row = &json["after"];
    let version = row["value"].as_str().and_then(|text| text.strip_prefix("state "));
    (row["id"].as_i64().unwrap(), version.unwrap().parse().unwrap())
}

impl SimHandler {
    async fn act(
        &self,
        delivery: &Delivery<'_>,
        rows: &[(i64, u64)],
        (tick, term, purpose): (TickId, u64, Purpose),
        behaviour: Behaviour,
    ) -> Result<(), HandlerError> {
        let plan = &self.world.plan;
        let blurred = plan.broken == Some(Break::NoGeneration);
        let generation = if blurred { Generation(0) } else { delivery.generation };
        let fence = Fence { generation, token: delivery.fencing_token };
        sleep(self.world.with(State::pace)).await;
        let mut done = 0;
        for rows in rows[..behaviour.writes].chunks(plan.rows_per_write) {
            delivery.progress.report(1);
            let rows = rows.to_vec();
            done += rows.len();
            let write = Write { world: Arc::clone(&self.world), tick, term, purpose, fence, rows };
            let (there, back, down) =
                self.world.with(|state| (state.pace(), state.pace(), state.target.is_down()));
            if down {
                return Err(self.world.with(unavailable));
            }
            if plan.broken == Some(Break::AnswersBeforeItWrote) {
                drop(tokio::spawn(write.arrive(there)));
                continue;
            }
            if plan.in_process {
                write.arrive(there).await?;
            } else {
                tokio::spawn(write.arrive(there)).await.expect("a write does not panic")?;
                sleep(back).await;
            }
            if plan.accepts {
                delivery.progress.accept(done);
                if purpose == Purpose::Regular {
                    self.world.with(|state| state.judge.accepted(tick, done));
                }
            }
        }
        match behaviour.then {
            Then::Taken => Ok(()),
            Then::Fail(error) => Err(error),
            Then::Hang => std::future::pending().await,
            Then::Die => {
                self.world.with(|state| state.slots[self.slot].hold.dies_in = Some(0));
                std::future::pending().await
            }
        }
    }
}

/// The first step of a chain, which accepts everything at once. A step that needed time would take it from
/// the last attempt of a row before it is quarantined, which the invariants must see at the target.
#[derive(Debug)]
pub(crate) struct SimStep {
    pub(crate) world: Arc<World>,
}

#[async_trait]
impl Handler for SimStep {
    async fn handle(&self, _delivery: Delivery<'_>) -> Result<(), HandlerError> {
        self.world.with(|state| state.coverage.saw("handler: step of a chain"));
        Ok(())
    }
}

fn unavailable(state: &mut State) -> HandlerError {
    state.coverage.saw("handler: down");
    HandlerError::Retryable("down".to_owned())
}

fn behaviour(state: &mut State, plan: &Plan, purpose: Purpose, rows: &[(i64, u64)]) -> Behaviour {
    if state.target.is_down() {
        return Behaviour { writes: 0, then: Then::Fail(unavailable(state)) };
    }
    if state.fault() {
        return by_chance(state, plan, purpose, rows.len());
    }
    if plan.broken == Some(Break::RefusesGoodRows) && rows.len() == 1 && state.random.chance(5) {
        return Behaviour { writes: 0, then: Then::Fail(HandlerError::Rejected("no".to_owned())) };
    }
    let bad = |(_, version): &(i64, u64)| plan.bad.of(*version).filter(|_| !state.target.is_mended);
    let of_key = |(key, _): &(i64, u64)| {
        let refused = state.target.refused.get(key);
        refused.filter(|(until, _)| Instant::now() < *until).map(|(_, bad)| *bad)
    };
    let bad = |row| bad(row).or_else(|| of_key(row));
    let found = rows.iter().enumerate().find_map(|(index, row)| bad(row).map(|bad| (index, bad)));
    match found {
        Some((index, bad)) => {
            let (_, version) = rows[index];
            if bad == Bad::Refused && plan.bad.of(version).is_none() {
                state.judge.parked.refuses(version);
                state.coverage.saw("handler: key refused for a while");
            }
            of_bad_row(state, plan, index, bad)
        }
        None => Behaviour { writes: rows.len(), then: Then::Taken },
    }
}

/// Either the rows before the bad one are written, or nothing is.
fn of_bad_row(state: &mut State, plan: &Plan, index: usize, bad: Bad) -> Behaviour {
    let text = || "bad".to_owned();
    if bad == Bad::Deadly {
        state.coverage.saw("handler: row kills the process");
        return Behaviour { writes: index, then: Then::Die };
    }
    state.coverage.saw("handler: row bad for good");
    let error = match bad {
        _ if plan.bad.named => HandlerError::Partial { accepted: index, reason: text() },
        Bad::Refused => HandlerError::Rejected(text()),
        Bad::Failing | Bad::Deadly => HandlerError::Retryable(text()),
    };
    let writes = if plan.bad.named || state.random.chance(50) { index } else { 0 };
    Behaviour { writes, then: Then::Fail(error) }
}

/// A failure that says nothing about the rows. Never one that would wrongly blame a single row.
fn by_chance(state: &mut State, plan: &Plan, purpose: Purpose, rows: usize) -> Behaviour {
    let text = || "injected".to_owned();
    let some = state.random.index(rows + 1);
    if state.random.chance(15) {
        state.coverage.saw("handler: hung");
        return Behaviour { writes: some, then: Then::Hang };
    }
    let judges_rows = rows == 1 && writes_entries(&plan.policy) && purpose == Purpose::Regular;
    let (kind, writes, then) = match state.random.below(10) {
        0 => ("handler: failed before any write", 0, HandlerError::Retryable(text())),
        1 if !judges_rows => {
            ("handler: failed before any write", 0, HandlerError::Rejected(text()))
        }
        2 if !judges_rows => {
            ("handler: failed before any write", 0, HandlerError::TooLarge(text()))
        }
        3 => ("handler: failed before any write", 0, HandlerError::Misconfigured(text())),
        4 => {
            let retry_after = state.random.chance(50).then(|| state.random.ms(1_000..=20_000));
            let error = HandlerError::Throttled { reason: text(), retry_after };
            ("handler: throttled", 0, error)
        }
        5 if state.random.chance(40) => ("handler: gone", some, HandlerError::Gone(text())),
        6 => ("handler: failed after all writes", rows, HandlerError::Retryable(text())),
        7 | 8 if some < rows => {
            let error = HandlerError::Partial { accepted: some, reason: text() };
            ("handler: partial", some, error)
        }
        _ => ("handler: failed after some writes", some, HandlerError::Retryable(text())),
    };
    state.coverage.saw(kind);
    state.note(format_args!("{kind}"));
    Behaviour { writes, then: Then::Fail(then) }
}

//! The target and the handler that writes it: fenced by the real [`Fence`], or one that takes
//! everything.
//!
//! A handler writes its batch in several steps, and fails before, between or after them. In most
//! worlds a write on its way is a task of its own, so that it may land after its handler was dropped;
//! in the others the handler's own task writes, so that a thawed one can be refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::state::{Fence, Generation, StaleWrite};
use tokio::time::sleep;

use crate::script::Break;
use crate::source::version_of;
use crate::world::{State, TickId, World};

/// What has been written: last write wins, as in any table.
#[derive(Debug, Default)]
pub(crate) struct Target {
    fence: Fence,
    pub(crate) rows: BTreeMap<i64, u64>,
}

/// One instance's handler.
#[derive(Debug)]
pub(crate) struct SimHandler {
    pub(crate) world: Arc<World>,
    pub(crate) slot: usize,
}

/// What one call does.
struct Behaviour {
    /// Rows it writes before anything else happens.
    writes: usize,
    then: Then,
}

enum Then {
    Taken,
    Fail(HandlerError),
    /// It never answers: the stall guard, the tick's end of time or the lease's must stop it.
    Hang,
}

/// A write on its way to the target.
struct Write {
    world: Arc<World>,
    tick: TickId,
    term: u64,
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
            state.judge.rows_written(self.term, plan.fenced, &self.rows, table);
            Ok(())
        })
    }
}

#[async_trait]
impl Handler for SimHandler {
    fn reports_progress(&self) -> bool {
        true
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let rows: Vec<(i64, u64)> = delivery
            .events
            .iter()
            .map(|event| (event.cursor.key["id"].as_i64().unwrap(), version_of(&event.cursor)))
            .collect();
        let (tick, term, behaviour) = self.world.with(|state| {
            let tick = state.slots[self.slot].tick;
            let term = state.judge.delivered(tick, &delivery, &rows);
            state.note(format_args!("tick {} handles {rows:?}", tick.0));
            (tick, term, behaviour(state, rows.len()))
        });
        let plan = &self.world.plan;
        let blurred = plan.broken == Some(Break::NoGeneration);
        let generation = if blurred { Generation(0) } else { delivery.generation };
        let fence = Fence { generation, token: delivery.fencing_token };
        sleep(self.world.with(State::pace)).await;
        for rows in rows[..behaviour.writes].chunks(plan.rows_per_write) {
            delivery.progress.report(1);
            let rows = rows.to_vec();
            let write = Write { world: Arc::clone(&self.world), tick, term, fence, rows };
            let (there, back) = self.world.with(|state| (state.pace(), state.pace()));
            if plan.broken == Some(Break::AnswersBeforeItWrote) {
                drop(tokio::spawn(write.arrive(there)));
                continue;
            }
            if plan.in_process {
                write.arrive(there).await?;
                continue;
            }
            tokio::spawn(write.arrive(there)).await.expect("a write does not panic")?;
            sleep(back).await;
        }
        match behaviour.then {
            Then::Taken => Ok(()),
            Then::Fail(error) => Err(error),
            Then::Hang => std::future::pending().await,
        }
    }
}

fn behaviour(state: &mut State, rows: usize) -> Behaviour {
    if !state.fault() {
        return Behaviour { writes: rows, then: Then::Taken };
    }
    let text = || "injected".to_owned();
    let some = state.random.index(rows + 1);
    if state.random.chance(15) {
        state.coverage.saw("handler: hung");
        return Behaviour { writes: some, then: Then::Hang };
    }
    let (kind, writes, then) = match state.random.below(10) {
        0 => ("handler: failed before any write", 0, HandlerError::Retryable(text())),
        1 => ("handler: failed before any write", 0, HandlerError::Rejected(text())),
        2 => ("handler: failed before any write", 0, HandlerError::TooLarge(text())),
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

//! The faults injected into the instances, storage and the database, by seed.

use std::sync::Arc;
use std::time::Duration;

use highwater_devdb::{Fault, Faults};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::instances::{COPY, Instances, NAMES, TTL};
use crate::ledger::{Call, End, Kind, Ledger, Shared};
use crate::rng::Rng;
use crate::storage::Storage;

/// One fault.
#[derive(Clone, Copy, Debug)]
enum FaultKind {
    /// A process is killed while its call is answered, or right after.
    KillInCall,
    /// A process is killed while the commit of its copy is pending.
    KillInCopy,
    /// A process is killed at any moment.
    KillAnytime,
    KillBoth,
    /// A process is asked to stop while its call is answered.
    Terminate,
    /// Storage is frozen for longer than a lease.
    Freeze,
    /// Storage is stopped and started.
    Restart,
    /// The next requests to the database lose their connections.
    Cut,
}

/// The faults injected with every ten kills.
const DECK: [FaultKind; 15] = [
    FaultKind::KillInCall,
    FaultKind::KillInCall,
    FaultKind::KillInCall,
    FaultKind::KillInCall,
    FaultKind::KillInCopy,
    FaultKind::KillInCopy,
    FaultKind::KillAnytime,
    FaultKind::KillAnytime,
    FaultKind::KillBoth,
    FaultKind::Terminate,
    FaultKind::Terminate,
    FaultKind::Freeze,
    FaultKind::Restart,
    FaultKind::Cut,
    FaultKind::Cut,
];

/// A call comes within this time, usually after a lease has expired.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Attempts of a kill without other faults: one may come after its call's commit.
const ISOLATED_KILLS_MAX: u32 = 5;
/// A copy is written within this time, unless storage is frozen.
const COPY_MAX: Duration = Duration::from_secs(5);

pub(crate) struct FaultInjector<'a> {
    pub(crate) rng: Rng,
    pub(crate) ledger: Shared,
    pub(crate) storage: Arc<Storage>,
    pub(crate) instances: &'a Instances,
    pub(crate) database: Faults,
    /// The current storage fault, while other faults continue.
    pub(crate) active_fault: Option<JoinHandle<()>>,
}

impl FaultInjector<'_> {
    /// Injects faults until this many processes have been killed.
    pub(crate) async fn inject(&mut self, kills: u64) {
        let killed = |injector: &Self| injector.ledger.read(Ledger::kills);
        while killed(self) < kills {
            let mut deck = DECK;
            self.rng.shuffle(&mut deck);
            for card in deck {
                self.play(card).await;
                sleep(self.rng.millis(50..=600)).await;
            }
            println!("{} of {kills} kills", killed(self));
        }
        self.calm().await;
        self.database.clear();
        self.kill_in_isolation().await;
    }

    /// Kills a holder without any other fault, and waits for its successor's call: otherwise a storm may be
    /// too dense, or too short, to measure any takeover.
    async fn kill_in_isolation(&mut self) {
        for _ in 0..ISOLATED_KILLS_MAX {
            let Some(worker) = self.caller().await else { continue };
            let fault = self.instances.kill(worker).await;
            self.look_at_the_lease(fault, worker).await;
            let holder = |ledger: &Ledger| ledger.faults[fault].term_after;
            let Some((term, true)) = self.ledger.read(holder) else { continue };
            let next = |ledger: &Ledger| {
                let is_next = |call: &&Call| call.term > term && call.end == End::Answered;
                ledger.calls.iter().find(is_next).map(|_| ())
            };
            if self.ledger.wait(CALL_MAX, next).await.is_some() {
                return;
            }
        }
    }

    /// Waits until no storage fault is active.
    async fn calm(&mut self) {
        if let Some(task) = self.active_fault.take() {
            task.await.unwrap();
        }
    }

    async fn play(&mut self, card: FaultKind) {
        match card {
            FaultKind::KillInCall => {
                let worker = self.caller().await.unwrap_or(0);
                sleep(self.rng.millis(0..=80)).await;
                self.kill(worker).await;
            }
            FaultKind::KillInCopy => {
                // The server commits, and the client never receives the response.
                let stall = Fault::Stall(self.rng.millis(100..=200));
                self.database.arm_matching("COMMIT TRANSACTION", 1, stall);
                let worker = self.copier().await.unwrap_or(0);
                sleep(self.rng.millis(0..=150)).await;
                self.kill(worker).await;
            }
            FaultKind::KillAnytime => {
                let worker = self.rng.index(NAMES.len());
                self.kill(worker).await;
            }
            FaultKind::KillBoth => {
                let kills = tokio::join!(self.instances.kill(0), self.instances.kill(1));
                let (_, second) = kills;
                self.look_at_the_lease(second, 1).await;
            }
            FaultKind::Terminate => self.terminate().await,
            FaultKind::Freeze => {
                self.calm().await;
                let (storage, length) = (Arc::clone(&self.storage), self.rng.millis(500..=2000));
                let freeze = async move { storage.freeze(TTL + length).await };
                self.active_fault = Some(tokio::spawn(freeze));
            }
            FaultKind::Restart => {
                self.calm().await;
                let (storage, pause) = (Arc::clone(&self.storage), self.rng.millis(0..=1000));
                self.active_fault = Some(tokio::spawn(async move { storage.restart(pause).await }));
            }
            FaultKind::Cut => {
                let times = self.rng.between(1..=3);
                let fault = self.ledger.fault(Kind::Cut(times));
                let cut = self.cut();
                self.database.arm(times, cut);
                self.ledger.fault_over(fault);
            }
        }
    }

    /// Returns how the next connections are cut.
    fn cut(&mut self) -> Fault {
        let rng = &mut self.rng;
        match rng.index(4) {
            0 => Fault::DropBeforeRun,
            1 => Fault::DropBeforeAnswer,
            2 => Fault::DropAfterRows(rng.index(10)),
            _ => Fault::DropAfterBytes(1 + rng.index(400)),
        }
    }

    /// Waits for an unanswered call, and returns its caller.
    async fn caller(&self) -> Option<usize> {
        self.ledger.wait(CALL_MAX, |ledger| ledger.open_call().map(|call| call.worker)).await
    }

    /// Waits until the copying poller's lease is held, and returns its holder.
    async fn copier(&self) -> Option<usize> {
        let end = Instant::now() + COPY_MAX;
        while Instant::now() < end {
            let owner = self.storage.read_of(COPY).await.filter(|sample| sample.is_held);
            if let Some(owner) = owner.and_then(|sample| sample.owner) {
                return NAMES.iter().position(|name| owner.contains(&format!("/{name}-")));
            }
            sleep(Duration::from_millis(5)).await;
        }
        None
    }

    async fn kill(&mut self, worker: usize) {
        let fault = self.instances.kill(worker).await;
        self.look_at_the_lease(fault, worker).await;
    }

    /// Records whether the kill has hit the holder, if storage can tell.
    async fn look_at_the_lease(&self, fault: usize, worker: usize) {
        if self.active_fault.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // The last request of the dead process may still be pending.
        sleep(Duration::from_millis(100)).await;
        let Some(sample) = self.storage.read().await else { return };
        let name = format!("/{}-", NAMES[worker]);
        let is_its = sample.is_held && sample.owner.is_some_and(|owner| owner.contains(&name));
        self.ledger.write(|l| l.faults[fault].term_after = Some((sample.term, is_its)));
    }

    async fn terminate(&mut self) {
        self.calm().await;
        let Some(worker) = self.caller().await else { return };
        if self.instances.terminate(worker).await.is_none() {
            let text = "a process failed when it was asked to stop".to_owned();
            self.ledger.write(|ledger| ledger.violations.push(text));
        }
        // So that the next kill does not hit its successor's call.
        let calls = self.ledger.read(|ledger| ledger.calls.len());
        let next = self.ledger.wait(CALL_MAX, |l| (l.calls.len() > calls + 1).then_some(()));
        next.await.unwrap_or_default();
    }
}

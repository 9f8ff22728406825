//! What is done to the instances, to storage and to the database, as a seed has it.

use std::sync::Arc;
use std::time::Duration;

use highwater_devdb::{Fault, Faults};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::instances::{COPY, Instances, NAMES, TTL};
use crate::ledger::{Call, End, Kind, Ledger, Shared};
use crate::rng::Rng;
use crate::storage::Storage;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Card {
    /// A process is killed while its call is answered, or right after.
    KillInCall,
    /// A process is killed while the commit of its copy is on its way.
    KillInCopy,
    /// A process is killed whatever it does.
    KillAnytime,
    KillBoth,
    /// A process is asked to stop while its call is answered.
    Terminate,
    /// Storage stands still for longer than a lease.
    Freeze,
    /// Storage is stopped and started.
    Restart,
    /// The next requests to the database lose their connections.
    Cut,
}

/// What happens with each ten kills.
const DECK: [Card; 15] = [
    Card::KillInCall,
    Card::KillInCall,
    Card::KillInCall,
    Card::KillInCall,
    Card::KillInCopy,
    Card::KillInCopy,
    Card::KillAnytime,
    Card::KillAnytime,
    Card::KillBoth,
    Card::Terminate,
    Card::Terminate,
    Card::Freeze,
    Card::Restart,
    Card::Cut,
    Card::Cut,
];

/// A call comes within this: a lease lapses first, as a rule.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Tries of a kill in the calm: one may come after its call's commit.
const CALM_KILLS_MAX: u32 = 5;
/// A copy is made within this, unless storage stands still.
const COPY_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Weather<'a> {
    pub(crate) rng: Rng,
    pub(crate) ledger: Shared,
    pub(crate) storage: Arc<Storage>,
    pub(crate) instances: &'a Instances,
    pub(crate) database: Faults,
    /// What is being done to storage, while other things go on.
    pub(crate) brewing: Option<JoinHandle<()>>,
}

impl Weather<'_> {
    /// Lets it rage until so many processes have been killed.
    pub(crate) async fn rage(&mut self, kills: u64) {
        let killed = |weather: &Self| weather.ledger.read(Ledger::kills);
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
        self.kill_in_the_calm().await;
    }

    /// Kills a holder with nothing else going on, and waits for its successor's call: a storm may be too
    /// dense, or too short, for any takeover in it to be measured.
    async fn kill_in_the_calm(&mut self) {
        for _ in 0..CALM_KILLS_MAX {
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

    /// Waits until nothing is done to storage any more.
    async fn calm(&mut self) {
        if let Some(task) = self.brewing.take() {
            task.await.unwrap();
        }
    }

    async fn play(&mut self, card: Card) {
        match card {
            Card::KillInCall => {
                let worker = self.caller().await.unwrap_or(0);
                sleep(self.rng.millis(0..=80)).await;
                self.kill(worker).await;
            }
            Card::KillInCopy => {
                // The server commits, and nobody is there to hear of it.
                let stall = Fault::Stall(self.rng.millis(100..=200));
                self.database.arm_matching("COMMIT TRANSACTION", 1, stall);
                let worker = self.copier().await.unwrap_or(0);
                sleep(self.rng.millis(0..=150)).await;
                self.kill(worker).await;
            }
            Card::KillAnytime => {
                let worker = self.rng.index(NAMES.len());
                self.kill(worker).await;
            }
            Card::KillBoth => {
                let kills = tokio::join!(self.instances.kill(0), self.instances.kill(1));
                let (_, second) = kills;
                self.look_at_the_lease(second, 1).await;
            }
            Card::Terminate => self.terminate().await,
            Card::Freeze => {
                self.calm().await;
                let (storage, length) = (Arc::clone(&self.storage), self.rng.millis(500..=2000));
                let freeze = async move { storage.freeze(TTL + length).await };
                self.brewing = Some(tokio::spawn(freeze));
            }
            Card::Restart => {
                self.calm().await;
                let (storage, pause) = (Arc::clone(&self.storage), self.rng.millis(0..=1000));
                self.brewing = Some(tokio::spawn(async move { storage.restart(pause).await }));
            }
            Card::Cut => {
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

    /// Waits for a call that is not answered yet, and returns who made it.
    async fn caller(&self) -> Option<usize> {
        self.ledger.wait(CALL_MAX, |ledger| ledger.open_call().map(|call| call.worker)).await
    }

    /// Waits for a lease of the copying poller that is held, and returns whose it is.
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

    /// Notes whether the kill has met the holder, where storage can tell.
    async fn look_at_the_lease(&self, fault: usize, worker: usize) {
        if self.brewing.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // What the dead process sent last may still be on its way.
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
            let text = "a process did not end well when it was asked to stop".to_owned();
            self.ledger.write(|ledger| ledger.violations.push(text));
        }
        // So that its successor's call is not met by the next kill.
        let calls = self.ledger.read(|ledger| ledger.calls.len());
        let next = self.ledger.wait(CALL_MAX, |l| (l.calls.len() > calls + 1).then_some(()));
        next.await.unwrap_or_default();
    }
}

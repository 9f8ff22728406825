//! Random lives: events that affect a table, the state of its poller, processes, and operator actions.
//!
//! Each row state carries a token in its payload, and a life is judged by the tokens in the table:
//!
//! 1. When ticks are idle, each token in the table was delivered, or the last tick failed.
//! 2. After the fix that the error prints, ticks do not keep failing, and each token was delivered.
//! 3. No token is delivered twice without a cause.
//! 4. If the server numbers the rows and its last number is below the position, ticks do not become idle.
//!
//! ```text
//! cargo test --test it -- lives                       the seeds that run on every merge
//! LIVES=5000 cargo test --test it -- lives            more of them
//! LIVES_SEED=57 cargo test --test it -- lives         one, with its log
//! ```
//!
//! # What is legal
//!
//! - Skipped: rows that were in the table when an operator reset the poller to now.
//! - Skipped: in mode `integer+pk`, numbers of a truncated table up to the highest number it ever had.
//!   A maximum below the checkpoint does not stop a poller, because delivered rows may be deleted. If the server
//!   numbers the rows, this is legal only while no tick has seen its last number below the position. A rebuilt table
//!   is numbered from its highest row, so numbers of deleted rows are reused.
//! - Skipped: rows that were written while changes were not tracked, if an operator kept the position.
//! - Skipped: rows that were in the table when `init` started a poller from now.
//! - Redelivered: under rowversions and change tracking, all rows of a rebuilt table whose position was kept: the
//!   copies are new writes.
//! - Redelivered: all rows after a reset, after `init` started a poller under another app name, or after an older
//!   copy of the document was restored.
//! - Redelivered: all rows after document and marker vanished, if the process that ticks next has never
//!   ticked, or if an operator's command created the document. Neither can know that the poller ran.
//!   Not if another app name has the document: then the tick must stop.
//! - Redelivered: all rows after a clone of another app name's document, unless it was the only one and the last.
//! - Redelivered: all rows of a partition that starts over under another app name with a different partition count.
//!
//! In a partitioned poller, an event of state, process or operator happens to one partition, and is a cause
//! for all.

#![expect(
    clippy::large_futures,
    clippy::wildcard_enum_match_arm,
    reason = "a life is one future, and most operations are alike"
)]

use std::collections::{BTreeMap, BTreeSet};

use highwater::admin::{InitResult, ResetTo};
use highwater::config::{ProcessVars, Relation, Vars as _};
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::chain;
use highwater::journal::EventKind;
use highwater::partition::Partition;
use highwater::poller::{Operator, TickOutcome};
use highwater::repartition::Repartition;
use highwater::state::StateDocument;

use crate::any_server::say;
use crate::ticks::Ticks;

/// Seeds of each mode on every merge.
const SEEDS: u64 = 60;
/// Fixes that each partition of a life may need in succession.
const REMEDIES_MAX: u16 = 5;
/// Maximum partition count.
const PARTITIONS_MAX: u64 = 3;

const ANN: Operator<'_> = Operator { by: "ann", reason: "a random life" };

/// An event in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    // To the table.
    Insert,
    /// Rows with equal cursor and key.
    Duplicate,
    Update,
    Delete,
    Truncate,
    /// The table is dropped and created again.
    Recreate,
    /// The table is dropped and created again with the same rows.
    Rebuild,
    /// Like [`Op::Recreate`], with times before those of the old table.
    RecreateBackdated,
    /// The table is renamed, and another with the same columns gets its name.
    Swap,
    /// As [`Op::Recreate`], with a key of another type.
    Retype,
    /// As [`Op::Rebuild`], with a key of another type.
    RebuildRetyped,
    AddColumn,
    /// The column that was added last is dropped.
    DropColumn,
    /// The column that was added last is renamed.
    RenameColumn,
    TrackOff,
    TrackOn,
    // To the process.
    Tick,
    NewProcess,
    /// The setting names the table in another letter case.
    Rename,
    /// The application is renamed, so that its state is kept elsewhere.
    RenameApp,
    /// The partition count changes, by the command and the setting.
    Repartition,
    // To the state.
    LoseDocument,
    LoseMarker,
    // By an operator.
    ResetToBeginning,
    ResetToNow,
    Init,
    /// The document of an earlier name of the application is cloned.
    Clone,
    Pause,
    Resume,
    /// A copy of the document is saved.
    Copy,
    /// The document is replaced by the copy.
    Restore,
}

/// Operations, and how often each is drawn.
const WEIGHTS: [(Op, u64); 30] = [
    (Op::Insert, 17),
    (Op::Duplicate, 2),
    (Op::Update, 2),
    (Op::Delete, 1),
    (Op::Truncate, 1),
    (Op::Recreate, 1),
    (Op::Rebuild, 2),
    (Op::RecreateBackdated, 1),
    (Op::Swap, 1),
    (Op::Retype, 1),
    (Op::AddColumn, 1),
    (Op::DropColumn, 1),
    (Op::RenameColumn, 1),
    (Op::TrackOff, 1),
    (Op::TrackOn, 2),
    (Op::Tick, 18),
    (Op::NewProcess, 2),
    (Op::Rename, 1),
    (Op::RenameApp, 3),
    (Op::Repartition, 2),
    (Op::LoseDocument, 1),
    (Op::LoseMarker, 1),
    (Op::ResetToBeginning, 1),
    (Op::ResetToNow, 1),
    (Op::Init, 1),
    (Op::Clone, 2),
    (Op::Pause, 1),
    (Op::Resume, 1),
    (Op::Copy, 2),
    (Op::Restore, 1),
];

/// `SplitMix64`.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    fn op(&mut self) -> Op {
        let mut at = self.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        for (op, weight) in WEIGHTS {
            match at.checked_sub(weight) {
                Some(rest) => at = rest,
                None => return op,
            }
        }
        unreachable!("below the sum of the weights")
    }
}

/// A row of the table.
struct Row {
    id: i64,
    token: String,
    /// The expression of its time.
    at: String,
    /// Whether it is legal not to deliver it.
    may_be_skipped: bool,
    /// Whether it was written while changes were not tracked.
    is_untracked: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts of a life")]
struct Life {
    ticks: Ticks,
    mode: CursorMode,
    /// Whether the table has a primary key.
    unique: bool,
    text_key: bool,
    /// Whether the key ever had another type.
    is_retyped: bool,
    /// Whether the server numbers the rows.
    identity: bool,
    tracked: bool,
    truncated: bool,
    /// Whether a tick has found that numbers were reused.
    is_loss_known: bool,
    /// Whether the table is only ever rebuilt with the same rows, so that a position may be kept.
    keeps_rows: bool,
    rows: Vec<Row>,
    /// The last number assigned in this table, and the highest one in any.
    last: i64,
    highest: i64,
    tokens: u32,
    /// Number of judged deliveries.
    judged: usize,
    delivered: BTreeSet<String>,
    /// Tokens delivered since the last cause for a redelivery.
    since_cause: BTreeSet<String>,
    /// Partitions that have completed a tick in the running process.
    have_ticked: BTreeSet<String>,
    /// A copy of the document of each partition.
    copies: BTreeMap<String, StateDocument>,
    /// Columns that were added to the table.
    columns: Vec<String>,
    /// Names that the application has had.
    apps: u32,
    /// The source of each partition's document, if that is certain.
    source_of_document: BTreeMap<String, String>,
    /// The partitions and sources of the documents under other names.
    left: Vec<(String, String)>,
    /// The target count of an unfinished repartition.
    repartitioning: Option<u16>,
    log: Vec<String>,
}

impl Life {
    async fn begin(mode: CursorMode, rng: &mut Rng) -> Self {
        let unique = mode == ChangeTracking || rng.below(3) > 0;
        let mut ticks = Ticks::concurrent("", mode).await;
        ticks.settings.cursor_column = match mode {
            IntegerPk => Some("n".to_owned()),
            TimestampPk => Some("at".to_owned()),
            RowVersion => Some("rv".to_owned()),
            ChangeTracking => None,
        };
        let mut life = Self {
            ticks,
            mode,
            unique,
            text_key: false,
            is_retyped: false,
            identity: mode == IntegerPk && rng.below(2) == 0,
            tracked: mode == ChangeTracking,
            truncated: false,
            is_loss_known: false,
            keeps_rows: rng.below(3) == 0,
            rows: Vec::new(),
            last: 0,
            highest: 0,
            tokens: 0,
            judged: 0,
            delivered: BTreeSet::new(),
            since_cause: BTreeSet::new(),
            have_ticked: BTreeSet::new(),
            copies: BTreeMap::new(),
            columns: Vec::new(),
            apps: 1,
            source_of_document: BTreeMap::new(),
            left: Vec::new(),
            repartitioning: None,
            log: vec![format!("{mode}, {}", if unique { "primary key" } else { "no unique key" })],
        };
        if life.identity {
            life.log.push("numbered by the server".to_owned());
        }
        if rng.below(5) == 0 {
            life.ticks.start_now = true;
            life.log.push("starts from now".to_owned());
        }
        life.ticks.at(0).await;
        life.create().await;
        life
    }

    async fn create(&self) {
        let key_type = if self.text_key { "nvarchar(20)" } else { "int" };
        let key = if self.unique { " PRIMARY KEY" } else { "" };
        let track = if self.mode == ChangeTracking {
            "; ALTER TABLE dbo.t ENABLE CHANGE_TRACKING"
        } else {
            ""
        };
        let identity = if self.identity { " IDENTITY" } else { "" };
        let create = format!(
            "CREATE TABLE dbo.t (id {key_type} NOT NULL{key}, n int{identity} NOT NULL, \
             at datetime2(7) NOT NULL, rv rowversion NOT NULL, note nvarchar(20)){track}"
        );
        self.ticks.run(&create).await;
    }

    fn token(&mut self) -> String {
        self.tokens += 1;
        format!("token-{}", self.tokens)
    }

    fn now(&self) -> String {
        format!("DATEADD(second, {}, '2026-01-01T10:00:00')", self.ticks.second())
    }

    fn key(&self, id: i64) -> String {
        if self.text_key { format!("N'{id}'") } else { id.to_string() }
    }

    /// Inserts rows with equal key and cursor.
    async fn insert(&mut self, count: u64, at: &str) {
        self.last += 1;
        let id = self.last;
        // Under other numbers the rows of a truncated table are new; see `What is legal`.
        let is_old = self.truncated && self.mode == IntegerPk && id <= self.highest;
        let may_be_skipped = is_old && !self.is_loss_known;
        self.highest = self.highest.max(id);
        let mut rows = Vec::new();
        for _ in 0..count {
            let token = self.token();
            rows.push(format!("({}, {id}, {at}, N'{token}')", self.key(id)));
            let is_untracked = self.mode == ChangeTracking && !self.tracked;
            self.rows.push(Row { id, token, at: at.to_owned(), may_be_skipped, is_untracked });
        }
        self.write(&rows.join(", ")).await;
    }

    /// Inserts rows with their numbers, which the server would assign, too.
    async fn write(&self, rows: &str) {
        let insert = format!("INSERT INTO dbo.t (id, n, at, note) VALUES {rows}");
        let (on, off) = if self.identity {
            ("SET IDENTITY_INSERT dbo.t ON; ", "; SET IDENTITY_INSERT dbo.t OFF")
        } else {
            ("", "")
        };
        self.ticks.run(&format!("{on}{insert}{off}")).await;
    }

    async fn empty(&mut self, tsql: &str) {
        self.ticks.run(tsql).await;
        self.rows.clear();
        self.last = 0;
    }

    async fn recreate(&mut self, at: &str) {
        self.ticks.run("DROP TABLE dbo.t").await;
        self.create_filled(at).await;
    }

    async fn create_filled(&mut self, at: &str) {
        self.rows.clear();
        self.last = 0;
        self.columns.clear();
        self.create().await;
        self.tracked = self.mode == ChangeTracking;
        self.truncated = false;
        for _ in 0..4 {
            self.insert(1, at).await;
        }
    }

    async fn rebuild(&mut self) {
        self.ticks.run("DROP TABLE dbo.t").await;
        self.columns.clear();
        self.create().await;
        self.tracked = self.mode == ChangeTracking;
        for Row { id, token, at, .. } in &self.rows {
            let row = format!("({}, {id}, {at}, N'{token}')", self.key(*id));
            self.write(&row).await;
        }
        if self.identity {
            self.last = self.rows.iter().map(|row| row.id).max().unwrap_or_default();
            self.truncated |= self.last < self.highest;
        }
        self.rows.iter_mut().for_each(|row| row.is_untracked = false);
    }

    async fn track(&mut self, tracked: bool) {
        if self.tracked != tracked {
            let verb = if tracked { "ENABLE" } else { "DISABLE" };
            self.ticks.run(&format!("ALTER TABLE dbo.t {verb} CHANGE_TRACKING")).await;
            self.tracked = tracked;
        }
    }

    /// Returns the replacement for an `op` that would put other rows into a table that keeps its own.
    fn instead_of(&self, op: Op) -> Op {
        match op {
            Op::Truncate | Op::Recreate | Op::RecreateBackdated | Op::Swap if self.keeps_rows => {
                Op::Rebuild
            }
            Op::Retype if self.keeps_rows => Op::RebuildRetyped,
            op => op,
        }
    }

    /// Whether an operation is meaningful in this life.
    fn fits(&self, op: Op) -> bool {
        match op {
            Op::TrackOff | Op::TrackOn => self.mode == ChangeTracking,
            Op::RecreateBackdated => self.mode == TimestampPk,
            Op::Duplicate => !self.unique,
            // A row whose number does not change is not read again after an update.
            Op::Update => self.unique && self.mode != IntegerPk && !self.rows.is_empty(),
            Op::Delete => !self.rows.is_empty(),
            Op::DropColumn | Op::RenameColumn => !self.columns.is_empty(),
            Op::Restore => !self.copies.is_empty(),
            Op::Clone => self.apps > 1,
            _ => true,
        }
    }

    async fn act(&mut self, op: Op, rng: &mut Rng) -> Result<(), String> {
        let partitions = Partition::all(self.ticks.partitions);
        let part = rng.below(self.ticks.partitions.into());
        self.ticks.partition = partitions.get(usize::try_from(part).unwrap()).copied().flatten();
        self.log.push(match self.ticks.partition {
            Some(part) => format!("{op:?} ({part})"),
            None => format!("{op:?}"),
        });
        let now = self.now();
        match op {
            Op::Insert => self.insert(1, &now).await,
            Op::Duplicate => self.insert(2 + rng.below(3), &now).await,
            Op::Update => {
                let at = self.any_row(rng);
                let token = self.token();
                let id = self.key(self.rows[at].id);
                let set = format!("note = N'{token}', at = {now}");
                self.ticks.run(&format!("UPDATE dbo.t SET {set} WHERE id = {id}")).await;
                self.rows[at].token = token;
                self.rows[at].at = now;
                self.rows[at].may_be_skipped = false;
                self.rows[at].is_untracked = self.mode == ChangeTracking && !self.tracked;
            }
            Op::Delete => {
                let id = self.rows[self.any_row(rng)].id;
                let key = self.key(id);
                self.ticks.run(&format!("DELETE FROM dbo.t WHERE id = {key}")).await;
                self.rows.retain(|row| row.id != id);
            }
            Op::Truncate => {
                self.truncated = true;
                self.empty("TRUNCATE TABLE dbo.t").await;
                for _ in 0..4 {
                    self.insert(1, &now).await;
                }
            }
            Op::Recreate => self.recreate(&now).await,
            Op::Rebuild => self.rebuild().await,
            Op::RebuildRetyped => {
                (self.text_key, self.is_retyped) = (!self.text_key, true);
                self.rebuild().await;
            }
            Op::RecreateBackdated => self.recreate("'2025-12-31T00:00:00'").await,
            Op::Swap => {
                self.ticks
                    .run("DROP TABLE IF EXISTS dbo.old; EXEC sp_rename N'dbo.t', N'old'")
                    .await;
                self.create_filled(&now).await;
            }
            Op::Retype => {
                self.text_key = !self.text_key;
                self.recreate(&now).await;
            }
            Op::AddColumn => {
                let column = self.token().replace('-', "_");
                self.ticks.run(&format!("ALTER TABLE dbo.t ADD {column} int NULL")).await;
                self.columns.push(column);
            }
            Op::DropColumn => {
                let column = self.columns.pop().unwrap();
                self.ticks.run(&format!("ALTER TABLE dbo.t DROP COLUMN {column}")).await;
            }
            Op::RenameColumn => {
                let (column, new) = (self.columns.pop().unwrap(), self.token().replace('-', "_"));
                let rename = format!("EXEC sp_rename N'dbo.t.{column}', N'{new}', N'COLUMN'");
                self.ticks.run(&rename).await;
                self.columns.push(new);
            }
            Op::TrackOff => self.track(false).await,
            Op::TrackOn => self.track(true).await,
            Op::Tick => return self.tick().await,
            Op::NewProcess => self.restart(),
            Op::Rename => {
                let name = match &self.ticks.settings.relation {
                    Relation::Table(name) if name == "t" => "T",
                    _ => "t",
                };
                self.ticks.settings.relation = Relation::Table(name.to_owned());
                self.restart();
            }
            Op::RenameApp => {
                for part in partitions {
                    self.ticks.partition = part;
                    self.leave().await;
                }
                self.apps += 1;
                self.ticks.rename_app(&format!("app{}", self.apps));
                self.have_ticked.clear();
                self.repartitioning = None;
            }
            Op::Repartition => {
                let to = 1 + rng.below(PARTITIONS_MAX);
                let done = self.repartition(u16::try_from(to).unwrap()).await?;
                self.log.extend(done.err().map(|error| format!("  refused: {error}")));
            }
            Op::Clone => self.clone_from(1 + rng.below(u64::from(self.apps) - 1)).await,
            Op::Init => {
                self.may_start_over().await;
                let other = self.ticks.process();
                match other.admin().init().await {
                    Ok(InitResult::Started { .. }) => self.started(),
                    Ok(InitResult::StartedBefore) => {}
                    Err(error) => self.log.push(format!("  refused: {}", chain(&error))),
                }
            }
            Op::LoseDocument => self.ticks.lose_document(),
            Op::LoseMarker => self.ticks.lose_marker(),
            Op::ResetToBeginning => self.reset(ResetTo::Beginning).await,
            Op::ResetToNow => self.reset(ResetTo::Now).await,
            Op::Pause => {
                // See `What is legal`: a command cannot know that both vanished.
                self.may_vanish().await;
                let refused = self.ticks.process().admin().pause(ANN).await.err();
                self.log.extend(refused.map(|error| format!("  refused: {}", chain(&error))));
            }
            Op::Resume => self.resume().await,
            Op::Copy => {
                if self.ticks.stored().await.0 {
                    self.copies.insert(self.ticks.name(), self.ticks.document().await);
                }
            }
            Op::Restore => self.restore().await,
        }
        Ok(())
    }

    /// Records the source of a partition's document, before the application is renamed.
    async fn leave(&mut self) {
        let source = self.source_of_document.remove(&self.ticks.name());
        if self.ticks.stored().await.0 {
            let document = self.ticks.document().await;
            let source = source.filter(|_| document.checkpoint.cursor.is_some());
            self.left.extend(source.map(|source| (self.ticks.name(), source)));
        }
    }

    /// Changes the partition count, or finishes an interrupted repartition. Returns why it failed.
    async fn repartition(&mut self, to: u16) -> Result<Result<(), String>, String> {
        let to = self.repartitioning.unwrap_or(to);
        if self.ticks.partition_layout().await.parts.is_some() {
            for part in Partition::all(self.ticks.partitions) {
                self.ticks.partition = part;
                self.may_vanish().await;
            }
            self.ticks.pass(10).await;
            let (old, new) =
                (self.ticks.processes(self.ticks.partitions), self.ticks.processes(to));
            if old.len() != new.len() || self.repartitioning.is_some() {
                let done = Box::pin(Repartition::new(old, new).run(ANN, &|_| ())).await;
                self.repartitioning =
                    self.ticks.partition_layout().await.under_way.map(|record| record.to);
                self.judge_deliveries()?;
                if let Err(error) = done {
                    return Ok(Err(chain(&error)));
                }
            }
        }
        self.log.push(format!("  {to} partitions"));
        (self.ticks.partitions, self.ticks.partition, self.repartitioning) = (to, None, None);
        self.source_of_document.clear();
        self.restart();
        Ok(Ok(()))
    }

    /// Clones the document of an earlier name of the application.
    async fn clone_from(&mut self, app: u64) {
        let app = if app == 1 { "app".to_owned() } else { format!("app{app}") };
        let other = self.ticks.process();
        let from = other.under_app(&app).expect("the store knows several");
        match Box::pin(from.admin().clone_to(&other, true, ANN)).await {
            Ok(_) => {
                self.since_cause.clear();
                self.forget_loss();
            }
            Err(error) => self.log.push(format!("  refused: {}", chain(&error))),
        }
    }

    /// The poller continues from a document that may not contain a loss that a tick has found.
    fn forget_loss(&mut self) {
        self.is_loss_known = false;
        let (is_new, highest) = (self.truncated && self.mode == IntegerPk, self.highest);
        self.rows.iter_mut().for_each(|row| row.may_be_skipped |= is_new && row.id <= highest);
    }

    /// Returns a text that distinguishes the sources of this life.
    fn source(&self) -> String {
        format!("{:?} {}", self.ticks.settings.relation, self.text_key)
    }

    /// An operator's command has started the poller.
    fn started(&mut self) {
        self.since_cause.clear();
        if self.ticks.start_now {
            self.rows.iter_mut().for_each(|row| row.may_be_skipped = true);
        }
    }

    /// See `What is legal`: nothing shows that the poller has run, unless another app name has its document.
    async fn may_start_over(&mut self) {
        if !self.have_ticked.contains(&self.ticks.name()) {
            self.may_vanish().await;
        }
    }

    async fn may_vanish(&mut self) {
        let is_known = self.left.contains(&(self.ticks.name(), self.source()));
        let (has_document, has_marker) = self.ticks.stored().await;
        // A tick that stops because another app name has the document leaves a blank one.
        let is_blank = !has_document || self.ticks.document().await.is_blank();
        if !is_known && is_blank && !has_marker {
            self.since_cause.clear();
        }
    }

    fn any_row(&self, rng: &mut Rng) -> usize {
        let count = u64::try_from(self.rows.len()).unwrap();
        usize::try_from(rng.below(count)).unwrap()
    }

    fn restart(&mut self) {
        self.ticks.restart();
        self.have_ticked.clear();
    }

    async fn reset(&mut self, to: ResetTo<'_>) {
        let other = self.ticks.process();
        let reset = match Box::pin(other.admin().plan_reset(to, false)).await {
            Ok(plan) => {
                let id = format!("reset-{}", self.log.len());
                Box::pin(other.admin().reset(&plan, id, ANN)).await.map_err(|error| chain(&error))
            }
            Err(error) => Err(chain(&error)),
        };
        if let Err(error) = reset {
            return self.log.push(format!("  refused: {error}"));
        }
        self.since_cause.clear();
        self.is_loss_known = false;
        self.source_of_document.remove(&self.ticks.name());
        if matches!(to, ResetTo::Now) {
            self.rows.iter_mut().for_each(|row| row.may_be_skipped = true);
        }
    }

    async fn restore(&mut self) {
        let Some(copy) = self.copies.get(&self.ticks.name()).cloned() else { return };
        self.source_of_document.remove(&self.ticks.name());
        if !self.ticks.stored().await.0 {
            self.forget_loss();
        }
        let other = self.ticks.process();
        let present = other.admin().present().await.unwrap();
        match other.admin().restore(&copy, &present, (EventKind::Imported, ANN)).await {
            Ok(_) => self.since_cause.clear(),
            Err(error) => self.log.push(format!("  refused: {}", chain(&error))),
        }
    }

    /// Whether the server's last number is below the stored position of the poller.
    async fn has_reused_numbers(&self) -> bool {
        if !self.identity || self.ticks.partitions > 1 || !self.ticks.stored().await.0 {
            return false;
        }
        let position = self.ticks.document().await.checkpoint.cursor;
        let last = self.last.max(1);
        position.and_then(|at| at.value.parse().ok()).is_some_and(|at: i64| at > last)
    }

    async fn tick(&mut self) -> Result<(), String> {
        self.may_start_over().await;
        self.ticks.pass(10).await;
        let report = self.ticks.report().await;
        if report.result.is_ok() {
            self.have_ticked.insert(self.ticks.name());
        }
        if let Ok(TickOutcome::Idle | TickOutcome::Committed { .. }) = report.result {
            self.source_of_document.insert(self.ticks.name(), self.source());
        }
        self.log.push(match report.result {
            Ok(outcome) => format!("  {outcome:?}, {} rows", report.rows),
            Err(error) => {
                let error = chain(&error);
                // A loss that was found persists until a reset. Of several partitions only this one has found
                // it.
                if error.contains("the last identity of ") && self.ticks.partitions == 1 {
                    self.is_loss_known = true;
                    self.rows.iter_mut().for_each(|row| row.may_be_skipped = false);
                }
                format!("  failed: {error}")
            }
        });
        self.judge_deliveries()
    }

    /// Rule 3.
    fn judge_deliveries(&mut self) -> Result<(), String> {
        let received = self.ticks.handler.received();
        for delivery in &received[self.judged..] {
            for row in delivery.payloads() {
                let Some(token) = row["note"].as_str() else { continue };
                self.delivered.insert(token.to_owned());
                if !self.since_cause.insert(token.to_owned()) {
                    self.log.push(format!("  `{token}` again"));
                    return Err("a row was delivered twice without a cause".to_owned());
                }
            }
        }
        self.judged = received.len();
        Ok(())
    }

    /// Ticks until there are no new rows. Returns the error of a process that keeps failing.
    async fn until_quiet(&mut self) -> Result<Result<(), String>, String> {
        if let Some(to) = self.repartitioning {
            self.log.push("-- finish the repartition".to_owned());
            if let Err(error) = self.repartition(to).await? {
                self.log.push(format!("  failed: {error}"));
                return Ok(Err(error));
            }
        }
        self.parts_until_quiet().await
    }

    async fn parts_until_quiet(&mut self) -> Result<Result<(), String>, String> {
        for part in Partition::all(self.ticks.partitions) {
            self.ticks.partition = part;
            self.log.push(format!("-- {} until quiet", self.ticks.name()));
            self.may_start_over().await;
            let has_reused_numbers = self.has_reused_numbers().await;
            let quiet = self.ticks.until_quiet().await;
            if quiet.is_ok() {
                self.have_ticked.insert(self.ticks.name());
            }
            if quiet.is_ok() && has_reused_numbers {
                return Err("numbers were taken back without an alarm".to_owned());
            }
            self.log.push(match &quiet {
                Ok(()) => "  quiet".to_owned(),
                Err(error) => format!("  failed: {error}"),
            });
            self.judge_deliveries()?;
            if quiet.as_ref().is_err_and(|error| error.starts_with("not quiet")) {
                return Err("ticks do not become quiet".to_owned());
            }
            if quiet.is_err() {
                return Ok(quiet);
            }
        }
        Ok(Ok(()))
    }

    /// Rule 1, if the last tick has not failed.
    fn judge_table(&mut self) -> Result<(), String> {
        let missing = |row: &&Row| !row.may_be_skipped && !self.delivered.contains(&row.token);
        let lost: Vec<_> = self.rows.iter().filter(missing).map(|row| row.token.clone()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        self.log.push(format!("  not delivered: {}", lost.join(", ")));
        Err("rows were lost without an alarm".to_owned())
    }

    /// Leaves one row per key, and enables change tracking again.
    async fn fix_table(&mut self) {
        let mut keys = BTreeSet::new();
        let (kept, twins) = std::mem::take(&mut self.rows)
            .into_iter()
            .partition::<Vec<_>, _>(|row| keys.insert(row.id));
        self.rows = kept;
        for Row { token, .. } in twins {
            self.ticks.run(&format!("DELETE FROM dbo.t WHERE note = N'{token}'")).await;
        }
        self.track(self.mode == ChangeTracking).await;
    }

    /// Applies the fix that an error suggests.
    async fn follow(&mut self, error: &str, rng: &mut Rng) -> Result<(), String> {
        self.log.push("-- remedy".to_owned());
        let mut error = error.to_owned();
        if error.contains("`highwater resume ") {
            self.resume_all().await;
            match self.parts_until_quiet().await? {
                Ok(()) => return Ok(()),
                Err(other) => error = other,
            }
        }
        let error = error.as_str();
        if error.contains("`highwater state import") {
            if self.copies.contains_key(&self.ticks.name()) {
                self.restore().await;
            } else {
                self.reset(ResetTo::Beginning).await;
            }
            return Ok(());
        }
        if self.keeps_rows && error.contains(" keep --new-source ") {
            match self.ticks.follow_keep(error).await {
                Ok(done) => {
                    self.log.push(format!("  {done}"));
                    self.source_of_document.remove(&self.ticks.name());
                    self.rows.iter_mut().for_each(|row| row.may_be_skipped |= row.is_untracked);
                    if matches!(self.mode, RowVersion | ChangeTracking) {
                        self.since_cause.clear();
                    }
                    return Ok(());
                }
                // The new table has no changes since the position, its numbers end before it, or its key has
                // another type. Only the plan can know that.
                Err(refused)
                    if (self.mode == ChangeTracking || self.identity || self.is_retyped)
                        && refused.contains("cannot be kept") =>
                {
                    self.log.push(format!("  refused: {refused}"));
                }
                Err(refused) => {
                    self.log.push(format!("  {refused}"));
                    return Err("a remedy does not work".to_owned());
                }
            }
        }
        // Both commands that a renamed app or a loss suggests must work.
        let two = error.contains("`highwater clone ") || error.contains(" to-now ");
        // Positions of another partition count are cloned under that count, which a life does not return to.
        let is_divided = error.contains("PARTITIONS=");
        let index = usize::from(is_divided || two && rng.below(2) == 0);
        match self.ticks.follow_nth(error, index).await {
            Ok(done) => {
                self.log.push(format!("  {done}"));
                // A clone continues where the other app was, which may be an older name of several.
                let is_only =
                    self.left.iter().filter(|(name, _)| *name == self.ticks.name()).count() < 2;
                if !done.contains(" clone ") || !is_only {
                    self.since_cause.clear();
                }
                if done.contains(" init ") {
                    self.started();
                }
                if done.contains(" reset ") {
                    self.is_loss_known = false;
                }
                if done.contains(" clone ") {
                    self.forget_loss();
                }
                if done.contains(" to-now ") {
                    self.rows.iter_mut().for_each(|row| row.may_be_skipped = true);
                }
                Ok(())
            }
            Err(refused) => {
                self.log.push(format!("  {refused}"));
                Err("a remedy does not work".to_owned())
            }
        }
    }

    async fn resume(&mut self) {
        self.may_vanish().await;
        let refused = self.ticks.process().admin().resume(ANN).await.err();
        self.log.extend(refused.map(|error| format!("  refused: {}", chain(&error))));
    }

    async fn resume_all(&mut self) {
        for part in Partition::all(self.ticks.partitions) {
            self.ticks.partition = part;
            self.resume().await;
        }
    }

    /// Lets the life become idle, applies fixes while it fails, and judges it.
    async fn end(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.resume_all().await;
        // An idle process reads its document again when it has something to write.
        self.act(Op::Insert, rng).await?;
        if self.until_quiet().await?.is_ok() {
            return self.judge_table();
        }
        self.log.push("-- fix the table".to_owned());
        self.fix_table().await;
        for _ in 0..REMEDIES_MAX * self.ticks.partitions {
            let Err(error) = self.until_quiet().await? else { return self.judge_table() };
            self.follow(&error, rng).await?;
            self.resume_all().await;
            self.act(Op::Insert, rng).await?;
        }
        Err("ticks keep failing after the remedy".to_owned())
    }
}

/// Returns the log of a life, and its violation, if any.
async fn play(mode: CursorMode, seed: u64) -> (Vec<String>, Result<(), String>) {
    let mut rng =
        Rng(seed.wrapping_mul(7_919).wrapping_add(u64::from(mode.as_str().as_bytes()[0])));
    let mut life = Life::begin(mode, &mut rng).await;
    let mut result = Ok(());
    for _ in 0..10 + rng.below(14) {
        let op = life.instead_of(rng.op());
        if result.is_ok() && life.fits(op) {
            result = life.act(op, &mut rng).await;
        }
    }
    if result.is_ok() {
        result = life.end(&mut rng).await;
    }
    (life.log, result)
}

/// Returns a number from the environment.
fn asked(name: &str) -> Option<u64> {
    let text = ProcessVars.get(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, expected a number")))
}

async fn lives(mode: CursorMode) {
    let one = asked("LIVES_SEED");
    let first = one.unwrap_or(1);
    let count = if one.is_some() { 1 } else { asked("LIVES").unwrap_or(SEEDS) };
    // Each violation, its number of lives, the seed of the shortest, and its log.
    let mut wrong: BTreeMap<String, (u64, u64, Vec<String>)> = BTreeMap::new();
    for seed in first..first + count {
        let (log, result) = Box::pin(play(mode, seed)).await;
        if one.is_some() {
            say(&log.join("\n"));
        }
        let Err(what) = result else { continue };
        let found = wrong.entry(what).or_insert_with(|| (0, seed, log.clone()));
        found.0 += 1;
        if log.len() < found.2.len() {
            (found.1, found.2) = (seed, log);
        }
    }
    let violations: Vec<String> = wrong
        .into_iter()
        .map(|(what, (lives, seed, log))| {
            let log = log.join("\n  ");
            format!("{what}: {lives} of {count} lives of {mode}; the shortest, LIVES_SEED={seed}:\n  {log}")
        })
        .collect();
    assert!(violations.is_empty(), "{}", violations.join("\n\n"));
}

#[tokio::test]
async fn no_life_of_a_numbered_table_loses_rows_or_keeps_failing() {
    lives(IntegerPk).await;
}

#[tokio::test]
async fn no_life_of_a_table_with_times_loses_rows_or_keeps_failing() {
    lives(TimestampPk).await;
}

#[tokio::test]
async fn no_life_of_a_table_with_rowversions_loses_rows_or_keeps_failing() {
    lives(RowVersion).await;
}

#[tokio::test]
async fn no_life_of_a_tracked_table_loses_rows_or_keeps_failing() {
    lives(ChangeTracking).await;
}

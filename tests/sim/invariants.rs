//! The invariants, checked from outside.
//!
//! Nothing here trusts the code's own tokens. The holder of the lease is derived from the order in which
//! requests landed: the terms are counted here, and only then compared with the tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_engine::handler::Delivery;
use serde_json::Value;
use tokio::time::Instant;

use crate::failures::{Failures, InFlight};
use crate::parked::{Parked, Purpose};
use crate::script::Plan;
use crate::world::TickId;

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a world")]
pub(crate) struct Judge {
    /// The first violation.
    pub(crate) violation: Option<String>,
    /// Version up to which everything is committed.
    pub(crate) checkpoint: u64,
    /// Generation and token.
    grant: (u64, u64),
    /// The holder, according to whose write landed. Set until the lease is released.
    holder: Option<(TickId, String)>,
    /// Terms in the order of their grants.
    terms: u64,
    term_of: BTreeMap<TickId, u64>,
    /// When the latest document write of each tick landed.
    landed_at: BTreeMap<TickId, Instant>,
    /// How long a lease lives without a write.
    ttl: Duration,
    /// Ticks whose lease was ended by another grant, the operator or a loss of the document before they
    /// released it.
    ended_by_others: BTreeSet<TickId>,
    /// When each tick moved the checkpoint.
    commits: Vec<(TickId, Instant)>,
    /// The newest term of which the target has accepted a write.
    target_term: u64,
    /// How often each state of each row was written.
    written: BTreeMap<(i64, u64), u32>,
    /// The same since the document was last lost. All of it must be redelivered after a loss.
    written_since_loss: BTreeSet<(i64, u64)>,
    /// Terms that were granted before the document was last lost.
    terms_before_loss: u64,
    /// Whether the document is gone and only an operator may create it again; whether that ever happened.
    pub(crate) has_vanished: bool,
    pub(crate) ever_vanished: bool,
    /// Whether the document is gone because it belongs to an earlier name of the application; whether that
    /// ever happened.
    pub(crate) is_elsewhere: bool,
    pub(crate) ever_elsewhere: bool,
    /// Whether an older copy was ever restored with the grants that it contained.
    pub(crate) ever_put_back: bool,
    /// The table of the checkpoint, and the current table, by the table's own counter.
    checkpoint_of: u64,
    pub(crate) table: u64,
    /// The newest tick when the table was last replaced.
    replaced_after: TickId,
    /// The table that each tick found when it read from the beginning.
    first_reads: BTreeMap<TickId, u64>,
    /// The source of the document.
    fingerprint: String,
    /// Whether ticks may report another table, and another source.
    pub(crate) ever_replaced: bool,
    pub(crate) ever_renamed: bool,
    /// The rows of each batch as first delivered.
    batches: BTreeMap<String, Vec<String>>,
    /// Rows that were not accepted, and their outcome.
    pub(crate) failures: Failures,
    /// Parked keys, and their entries.
    pub(crate) parked: Parked,
    /// Kinds of events that only this module can see, for the coverage counts.
    pub(crate) saw: Vec<&'static str>,
}

/// The content of a document, read as plain JSON.
struct Seen {
    checkpoint: u64,
    /// Generation and token.
    grant: (u64, u64),
    owner_id: Option<String>,
    in_flight: Option<InFlight>,
    paused_by: Option<String>,
    keeps: bool,
    /// Whether it records that rows after the checkpoint are lost.
    is_lost: bool,
    fingerprint: String,
}

impl Seen {
    fn of(bytes: &[u8]) -> Self {
        let document: Value = serde_json::from_slice(bytes).expect("a document is JSON");
        let lease = &document["lease"];
        let version = |text: &str| u64::from_str_radix(&text[2..], 16).expect("a rowversion");
        let at = |cursor: &Value| cursor["value"].as_str().map_or(0, version);
        let in_flight = &document["in_flight"];
        Self {
            checkpoint: at(&document["checkpoint"]["cursor"]),
            grant: (
                document["generation"].as_u64().expect("a generation"),
                lease["fencing_token"].as_u64().expect("a token"),
            ),
            owner_id: lease["owner_id"]
                .as_str()
                .filter(|_| lease["released_at"].is_null())
                .map(str::to_owned),
            in_flight: in_flight["rows"].as_u64().map(|rows| InFlight {
                after: at(&in_flight["after"]),
                upto: at(&in_flight["upto"]),
                rows,
            }),
            paused_by: document["paused"]["by"].as_str().map(str::to_owned),
            keeps: document["source_state"]["bound"].is_string(),
            is_lost: document["source_state"]["position_lost"].is_string(),
            fingerprint: document["source_fingerprint"].as_str().expect("a fingerprint").to_owned(),
        }
    }
}

/// The kind of a document write that landed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    /// A term started with no lease held.
    Granted,
    /// A term started over a lease that its holder had not released.
    TakenOver,
    /// Anything else.
    Other,
}

impl Judge {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            failures: Failures::of(plan),
            parked: Parked::of(plan),
            ttl: plan.terms.ttl,
            ..Self::default()
        }
    }

    pub(crate) fn object(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.object(what());
        }
    }

    /// Whether the lease is held, expired or not.
    pub(crate) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Returns the tick that holds the lease, expired or not.
    pub(crate) fn holder(&self) -> Option<TickId> {
        self.holder.as_ref().map(|(tick, _)| *tick)
    }

    /// Returns when the latest document write of a tick landed.
    pub(crate) fn landed_at(&self, tick: TickId) -> Option<Instant> {
        self.landed_at.get(&tick).copied()
    }

    /// Returns the first commit since `since` by a tick other than `than`.
    pub(crate) fn commit_of_another(
        &self,
        than: TickId,
        since: Instant,
    ) -> Option<(TickId, Instant)> {
        self.commits.iter().find(|(tick, at)| *tick != than && *at >= since).copied()
    }

    /// Records a lost document: everything starts over, except generation and token.
    pub(crate) fn document_lost(&mut self) {
        self.checkpoint = 0;
        self.end_holder();
        self.written_since_loss.clear();
        self.terms_before_loss = self.terms;
        self.failures.in_flight = None;
    }

    /// Records a lost document that only an operator may replace.
    pub(crate) fn document_vanished(&mut self) {
        self.document_lost();
        self.parked.document_lost();
        (self.has_vanished, self.ever_vanished) = (true, true);
    }

    /// Records a new name of the application. If the old name's poller has delivered from the same source,
    /// nothing may be redelivered until an operator acts.
    pub(crate) fn app_renamed(&mut self, is_elsewhere: bool) {
        self.document_lost();
        self.parked.app_renamed();
        self.has_vanished = is_elsewhere;
        self.is_elsewhere = is_elsewhere;
        self.ever_elsewhere |= is_elsewhere;
    }

    /// Records that the settings name another source. Deliveries of another application from the old source
    /// say nothing about it.
    pub(crate) fn source_renamed(&mut self) {
        if self.is_elsewhere {
            (self.has_vanished, self.is_elsewhere) = (false, false);
        }
    }

    /// Like [`Self::document_replaced`], but keeps the grants of the copy.
    pub(crate) fn document_put_back(&mut self, bytes: &[u8], checkpoint_of: u64) {
        self.document_replaced(bytes, checkpoint_of);
        self.parked.document_lost();
        self.grant = Seen::of(bytes).grant;
        self.ever_put_back = true;
    }

    /// Records that another table has replaced the current one, or that its change tracking was restarted.
    /// `newest` is the newest tick that has started.
    pub(crate) fn table_replaced(&mut self, table: u64, newest: TickId) {
        (self.table, self.replaced_after, self.ever_replaced) = (table, newest, true);
        self.parked.table_replaced();
    }

    /// Records that a tick reads the whole table.
    pub(crate) fn reads_from_beginning(&mut self, tick: TickId, table: u64) {
        self.first_reads.insert(tick, table);
    }

    /// Whether the checkpoint says nothing about the rows of the current table, because it belongs to another
    /// one.
    pub(crate) fn position_is_lost(&self) -> bool {
        self.checkpoint > 0 && self.checkpoint_of != self.table
    }

    /// Returns the table of the checkpoint.
    pub(crate) fn checkpoint_of(&self) -> u64 {
        self.checkpoint_of
    }

    /// Returns the source of the document.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Records that an operator has replaced the document by one whose checkpoint is of the table
    /// `checkpoint_of`. Rows after that checkpoint must be redelivered.
    pub(crate) fn document_replaced(&mut self, bytes: &[u8], checkpoint_of: u64) {
        self.checkpoint_of = checkpoint_of;
        let seen = Seen::of(bytes);
        self.document_lost();
        if seen.grant.0 == 0 {
            return;
        }
        (self.has_vanished, self.is_elsewhere) = (false, false);
        self.checkpoint = seen.checkpoint;
        let before = |row: &&(i64, u64)| row.1 <= seen.checkpoint;
        self.written_since_loss = self.written.keys().filter(before).copied().collect();
    }

    /// The lease passes on or is lost, although its holder has not released it.
    fn end_holder(&mut self) {
        self.ended_by_others.extend(self.holder.take().map(|(tick, _)| tick));
    }

    /// Judges a tick that reports its lease as lost. If no other tick took the lease, the tick has released
    /// it and its last write landed, so the report is false.
    pub(crate) fn lease_reported_lost(&mut self, tick: TickId) {
        let was_lost = self.ended_by_others.contains(&tick);
        self.require(was_lost, || format!("tick {} reports a lease lost that nobody took", tick.0));
    }

    /// Judges a document write by a tick or the operator that has just landed.
    pub(crate) fn document_landed(
        &mut self,
        writer: Option<(TickId, &str)>,
        bytes: &[u8],
        table: &BTreeMap<i64, u64>,
    ) -> Landed {
        let seen = Seen::of(bytes);
        if seen.grant.0 == 0 {
            // Blank: a placeholder document, even if the request to create it lands late.
            let free = self.holder.is_none() && self.checkpoint == 0;
            self.require(free, || "a blank document replaced one in use".to_owned());
            return Landed::Other;
        }
        let (checkpoint, grant) = (self.checkpoint, self.grant);
        self.require(seen.checkpoint >= checkpoint, || {
            format!("checkpoint went back from {checkpoint} to {}", seen.checkpoint)
        });
        self.require(seen.grant >= grant, || {
            format!("generation and token went back from {grant:?} to {:?}", seen.grant)
        });
        let landed = if let Some((tick, owner_id)) = writer {
            let landed = self.tick_landed(tick, owner_id, &seen);
            self.failures_landed(tick, &landed, seen.checkpoint, seen.owner_id.is_none());
            landed
        } else {
            if seen.owner_id.is_none() {
                self.end_holder();
            }
            Landed::Other
        };
        if seen.keeps {
            self.saw.push("document: keeps what the source asked for");
        }
        self.paused(seen.paused_by);
        self.parked.document_landed(writer.map(|(tick, _)| tick), bytes);
        self.failures.in_flight = seen.in_flight;
        if let Some((tick, _)) = writer.filter(|_| checkpoint == 0 && seen.checkpoint > 0) {
            self.checkpoint_of = self.first_reads.get(&tick).copied().unwrap_or_default();
        }
        self.checkpoint = seen.checkpoint;
        self.grant = seen.grant;
        self.fingerprint = seen.fingerprint;
        if self.position_is_lost() {
            // The next read finds it, and it is judged at the end.
            return landed;
        }
        let lost = table.iter().find(|(key, version)| {
            **version <= seen.checkpoint
                && !self.written_since_loss.contains(&(**key, **version))
                && !self.is_excused(**key, **version)
        });
        if let Some((key, version)) = lost {
            let at = seen.checkpoint;
            self.object(format!(
                "checkpoint {at} is past row {key} at {version}, neither written nor set aside"
            ));
        }
        landed
    }

    /// Whether this state of a row is quarantined or parked, or an operator dropped it.
    fn is_excused(&self, key: i64, version: u64) -> bool {
        self.parked.excuses(key, version)
    }

    /// Whether this or a later state of a row was written.
    pub(crate) fn was_written_since(&self, key: i64, version: u64) -> bool {
        self.written.range((key, version)..=(key, u64::MAX)).next().is_some()
    }

    /// Records that a row needs no further delivery, because its entry was removed after one.
    pub(crate) fn settled(&mut self, key: i64, version: u64) {
        self.written_since_loss.insert((key, version));
    }

    /// Whether an idle tick has written source state for which rows wait, while a lease is recorded that its holder let
    /// lapse. Owner, token and checkpoint stay, so the next holder finds what it would have found.
    fn is_idle_note_over_lapsed_lease(&self, holds: bool, seen: &Seen) -> bool {
        let Some((holder, owner)) = self.holder.as_ref().filter(|_| !holds) else { return false };
        let is_lapsed = self.landed_at(*holder).is_some_and(|at| at.elapsed() >= self.ttl);
        let is_unchanged = (seen.grant, seen.checkpoint) == (self.grant, self.checkpoint);
        is_lapsed && is_unchanged && seen.owner_id.as_ref() == Some(owner)
    }

    fn tick_landed(&mut self, tick: TickId, owner_id: &str, seen: &Seen) -> Landed {
        let (checkpoint, grant) = (self.checkpoint, self.grant);
        let holds = self.holder.as_ref().is_some_and(|(holder, _)| *holder == tick);
        if seen.is_lost && !holds && (seen.grant, seen.checkpoint) == (grant, checkpoint) {
            // A tick without the lease records that the position is lost, even while another tick holds it.
            // The lease is unchanged and its holder continues.
            let owner = self.holder.as_ref().map(|(_, owner)| owner.clone());
            self.require(owner.is_none() || seen.owner_id == owner, || {
                format!("tick {} took the lease from {owner:?} as it wrote a loss", tick.0)
            });
            self.saw.push("document: keeps that the position is lost");
            return Landed::Other;
        }
        if self.is_idle_note_over_lapsed_lease(holds, seen) {
            return Landed::Other;
        }
        let asks = seen.owner_id.as_deref() == Some(owner_id);
        let landed = if asks && !holds {
            self.require(seen.grant > grant, || {
                format!("tick {} was granted the lease under used token {grant:?}", tick.0)
            });
            self.require(seen.checkpoint == checkpoint, || {
                format!("tick {} moved the checkpoint as it took the lease", tick.0)
            });
            self.require(!self.has_vanished, || {
                format!("tick {} began again though the state vanished", tick.0)
            });
            self.terms += 1;
            if self.term_of.insert(tick, self.terms).is_some() {
                self.saw.push("tick: took the lease again after it had run out of rows");
            }
            let other = self.holder.as_ref().is_some_and(|(_, holder)| holder != owner_id);
            self.failures.overtaken = self.holder();
            if let Some(written_at) = self.holder().and_then(|holder| self.landed_at(holder)) {
                let (idle, ttl) = (written_at.elapsed(), self.ttl);
                self.require(!other || idle >= ttl, || {
                    format!("tick {} took a live lease over: {idle:?} after its last write", tick.0)
                });
            }
            self.end_holder();
            if other { Landed::TakenOver } else { Landed::Granted }
        } else {
            self.require(holds || self.holder.is_none(), || {
                format!("tick {} wrote over the lease of another", tick.0)
            });
            self.require(holds || seen.checkpoint == checkpoint, || {
                format!("tick {} moved the checkpoint without the lease", tick.0)
            });
            Landed::Other
        };
        self.holder = seen.owner_id.as_ref().map(|_| (tick, owner_id.to_owned()));
        self.landed_at.insert(tick, Instant::now());
        if seen.checkpoint > checkpoint {
            self.commits.push((tick, Instant::now()));
        }
        landed
    }

    /// Judges a handler call; returns the term under which it runs and a token that lives as long as the
    /// call.
    pub(crate) fn delivered(
        &mut self,
        (tick, fingerprint): (TickId, &str),
        delivery: &Delivery<'_>,
        rows: &[(i64, u64)],
        twins: &BTreeSet<u64>,
    ) -> (u64, Arc<()>) {
        let purpose = self.parked.purpose_of(tick, delivery.replay_id);
        if self.holder() == Some(tick) && purpose == Purpose::Regular {
            let reads_on = self.position_is_lost() && tick > self.replaced_after;
            self.require(!reads_on, || format!("tick {} read on in another table", tick.0));
            let same = fingerprint == self.fingerprint;
            self.require(same, || format!("tick {} read another source", tick.0));
        }
        if purpose == Purpose::Regular && self.holder() == Some(tick) {
            let parked = self.parked.must_be_diverted(rows);
            self.require(parked.is_none(), || {
                format!("tick {} was given row {parked:?}, whose key is parked", tick.0)
            });
        }
        let twin = rows.iter().find(|(_, version)| twins.contains(version));
        self.require(twin.is_none(), || format!("one of two rows was delivered: {twin:?}"));
        self.require(rows.is_sorted_by(|a, b| a.1 < b.1), || {
            format!("tick {} was given rows out of order: {rows:?}", tick.0)
        });
        // A column that was added or dropped meanwhile follows the current row.
        let without_extra = |json: &str| json.replace(r#","extra":null"#, "");
        let events = delivery.events.iter().map(|event| without_extra(event.json.as_ref()));
        let events: Vec<String> = events.collect();
        let batch_id = delivery.batch_id.as_str().to_owned();
        let first = self.batches.entry(batch_id.clone()).or_insert_with(|| events.clone());
        let same = *first == events;
        self.require(same, || format!("batch {batch_id} stands for two different sets of rows"));
        let term = self.term_of.get(&tick).copied();
        self.require(term.is_some(), || format!("tick {} handles without a lease", tick.0));
        if purpose != Purpose::Regular {
            return (term.unwrap_or_default(), Arc::new(()));
        }
        self.announced(tick, rows);
        (term.unwrap_or_default(), self.handed_over(tick, rows))
    }

    /// The holder of the lease delivers only rows that the document records as in flight. So a successor
    /// starts there, and prefetched rows wait for the commit of those before them. With overlapped commits
    /// they wait for the handler of those before them: one batch, so at most two are redelivered.
    fn announced(&mut self, tick: TickId, rows: &[(i64, u64)]) {
        let (Some((_, first)), Some((_, last))) = (rows.first(), rows.last()) else { return };
        let in_flight = self.failures.in_flight.as_ref();
        let said = in_flight.is_some_and(|said| said.after < *first && *last <= said.upto);
        let (first, last, holds) = (*first, *last, self.holder() == Some(tick));
        let overlaps = self.failures.may_overlap(tick, first);
        self.require(said || overlaps || !holds, || {
            format!("tick {} was given rows {first} to {last} that are not in flight", tick.0)
        });
    }

    /// Judges a write that the target has just accepted.
    ///
    /// In order means: all committed rows before a written row have been written already, or quarantined, or
    /// have just failed alone in the same tick, so that the rows after them are tried; or this is the one row
    /// that is probed after such a row. "Already" means since the document was last lost, for holders granted
    /// the lease since then, because they start over. A stale holder of the lost document continues where it
    /// was, and is judged by everything that was ever written.
    pub(crate) fn rows_written(
        &mut self,
        (tick, term, purpose): (TickId, u64, Purpose),
        fenced: bool,
        rows: &[(i64, u64)],
        table: &BTreeMap<i64, u64>,
    ) {
        if fenced {
            let newest = self.target_term;
            self.require(term >= newest, || {
                format!("target took a write of term {term} after one of term {newest}")
            });
            self.target_term = newest.max(term);
        }
        let knows_table = tick > self.replaced_after;
        for (key, version) in rows {
            let times = self.written.entry((*key, *version)).or_default();
            *times += 1;
            let is_first = *times == 1;
            self.written_since_loss.insert((*key, *version));
            let begins_anew = term > self.terms_before_loss;
            let is_newest = term == self.terms && self.holder() == Some(tick);
            if knows_table {
                self.key_written((*key, *version), is_first, is_newest && begins_anew);
            }
            if purpose != Purpose::Regular {
                // Rows of other keys do not wait for a parked one.
                continue;
            }
            let failures = &self.failures;
            let is_written = |row: (i64, u64)| {
                if begins_anew {
                    self.written_since_loss.contains(&row)
                } else {
                    self.written.contains_key(&row)
                }
            };
            let skipped = table.iter().find(|(k, v)| {
                knows_table
                    && **v < *version
                    && !is_written((**k, **v))
                    && !self.is_excused(**k, **v)
                    && !failures.has_failed_alone(tick, **v)
                    && !failures.is_probing(tick)
            });
            if begins_anew && self.terms_before_loss > 0 {
                self.saw.push("order: judged anew after a document was lost");
            }
            if let Some((k, v)) = skipped {
                let text = format!("row {key} at {version} came before row {k} at {v}");
                self.object(text);
            }
        }
    }

    /// Judges the end: all faults have stopped, and every instance has had enough time.
    pub(crate) fn end(
        &mut self,
        calm: bool,
        table: &BTreeMap<i64, u64>,
        fenced_target: Option<&BTreeMap<i64, u64>>,
    ) {
        let newest = table.values().max().copied().unwrap_or(0);
        let checkpoint = self.checkpoint;
        let is_lost = self.position_is_lost();
        self.require(!is_lost, || "another table was read on in without an alarm".to_owned());
        self.require(checkpoint == newest, || {
            format!("backlog did not drain: checkpoint {checkpoint}, newest row {newest}")
        });
        if let Some(target) = fenced_target {
            let differs = table.iter().find(|(key, version)| {
                target.get(key) != Some(version) && !self.is_excused(**key, **version)
            });
            self.require(differs.is_none(), || {
                format!("fenced target differs from the source at {differs:?}: {target:?}")
            });
        }
        let aside = self.failures.set_aside_count();
        self.require(!calm || aside == 0, || format!("{aside} rows set aside, nothing failed"));
        let twice = self.written.iter().find(|(_, times)| **times > 1);
        if let Some(((key, version), times)) = twice.filter(|_| calm) {
            let text = format!("row {key} at {version} written {times} times, nothing failed");
            self.object(text);
        }
    }
}

#[test]
fn order_checks_restart_after_a_loss_but_not_for_former_holders() {
    let table = BTreeMap::from([(1, 1), (2, 2)]);
    let mut judge = Judge { terms: 1, ..Judge::default() };
    judge.rows_written((TickId(1), 1, Purpose::Regular), false, &[(1, 1), (2, 2)], &table);
    judge.document_lost();
    let stale = (TickId(1), 1, Purpose::Regular);
    judge.rows_written(stale, false, &[(2, 2)], &table);
    assert_eq!(judge.violation, None, "a stale holder goes on where the lost document was");
    judge.terms = 2;
    judge.rows_written((TickId(2), 2, Purpose::Regular), false, &[(2, 2)], &table);
    let violation = judge.violation.unwrap_or_default();
    assert_eq!(violation, "row 2 at 2 came before row 1 at 1");
}

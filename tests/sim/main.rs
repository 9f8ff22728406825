//! Simulation: several instances of the real engine in a world that fails in every way we know.
//!
//! Everything follows from one number, the seed: the plan (lease ttl, heartbeat, margin, limits, clock,
//! latency, failure policy, kind of target, which rows are bad for good), the script of what happens,
//! and each fault. Each seed runs in a paused current-thread runtime of its own, so hours pass in
//! milliseconds and every run can be repeated.
//!
//! ```text
//! cargo test --test sim                                                   1,000 cases per property, 500 per takeover
//! SIM_CASES=50000 SIM_SEED=1000000 cargo test --test sim -- --nocapture   as many as asked, from there
//! SIM_SEED=57 cargo test --test sim -- --nocapture                        one seed, told line by line
//! ```
//!
//! A run prints how many seeds it ran, how fast, and how often each kind of trouble occurred; one that
//! never occurred in a default run fails it, be it of trouble or of what is met while nothing fails
//! (`coverage.rs`). A failing seed is shrunk to a short script and told line
//! by line; it then gets a name in `regressions.rs`.
//!
//! # What is simulated
//!
//! Real are poller, lease, state document, fence and memory store. Around them: a store with latency,
//! a coarse and skewed clock, reads and writes that fail before or after they happened, and writes
//! that land long after they were given up (`store.rs`); a table with overlapping transactions, late
//! commits and rollbacks, read below the lowest open version (`source.rs`); a handler that writes in
//! steps, accepts as it goes and fails anywhere, before a target with or without a fence that is down
//! at times (`target.rs`); rows that it refuses, that fail, or that kill whoever handles them, each
//! time (`bad.rs`); instances that are
//! frozen, timers too, or die at any await and come back with a new name and no memory (`freeze.rs`;
//! `crashes.rs` lets ticks die at each of their awaits in turn: ones that go well, ones that look for a row
//! that is refused and set it aside, and ones whose handler fails);
//! an operator who pauses, resumes and breaks leases, and one who deletes the document, so that it is
//! made again under a higher generation; the request that once created it may land again (`world.rs`);
//! a journal, in two of five worlds, whose appends fail, lose their answer or land late (`journal.rs`);
//! in one of five a chain of two steps, in one of four a source that asks to have something kept. In two of
//! three the next batch is read while the handler runs, over the one connection that each instance has; in one
//! of two a commit is overlapped with the next handler, where that may be; in one
//! of four a tick that has run out of rows looks for new ones for a while. A poller that is divided, and divided
//! anew while it works and instances die, has worlds of its own (`partitions.rs`).
//!
//! # What counts as a failure
//!
//! Judged from outside (`invariants.rs`), never by the code's own tokens: the judge counts terms by
//! whose request took the lease.
//!
//! - The checkpoint passes a committed row that was neither written to the target nor set aside.
//! - A row is set aside that was not, in this very tick, refused for good alone, and is bad; or failed
//!   alone, while the target took another row, and failed alone again; or that was not in hand alone
//!   when the last of several holders died (`failures.rs`). So nothing is while the target takes nothing.
//! - Something is set aside, or a poller stopped, and its policy does not say so.
//! - A row is written before a committed row that lies before it, but for one that was set aside or has
//!   just failed alone; a batch is out of order.
//! - Checkpoint or (generation, token) go back, but for the checkpoint of a document that was deleted;
//!   after that everything must be written again, in order. A term begins under a grant that was used before; the
//!   checkpoint moves without the lease, or together with its taking; somebody writes over the lease of
//!   another.
//! - A fenced target takes a write of a term after one of a later term, or ends up different from the
//!   source.
//! - One batch id stands for two sets of rows; a handler runs without a lease, or is given rows by the holder
//!   of the lease that the document does not say are in flight; but for one batch behind those, once its handler
//!   has taken these, where commits are overlapped: so two batches at most come again.
//! - The backlog does not drain once faults have stopped.
//! - Nothing failed, and a state of a row was still delivered twice.
//! - After a kill of the holder nobody else commits within ttl, margin and one tick, or after SIGTERM
//!   within one tick (`takeover.rs`, which prints how long it took beside that bound).
//! - A journal, where one is kept, leads to what was not the document as of the write that it tells of last;
//!   or to one that is ahead of what is stored; or does not name a write that it lacks between two that it
//!   has (`journal.rs`). Looked at in the end and after each death in a tick.
//! - A second tick of one process runs beside the first; a tick panics; an alarm has no cause.
//! - Two runs of one seed differ.
//!
//! # What does not
//!
//! - Duplicates while something fails, also of rows that were committed (delivery is at least once).
//! - A stale instance that writes an unfenced target, or a fenced one that no newer holder has reached.
//! - States of a row between two reads that nobody saw (window W7).
//! - Any number of failed, skipped or idle ticks while faults last.
//!
//! # Where nondeterminism could come from
//!
//! Order of tasks (one thread), time (paused; the memory store's clock moves with it), chance (one
//! generator, `random.rs`), maps (`BTreeMap`), `select!` (`biased` in the engine), ids of instances and
//! writes (names and counters). Seeds run on several threads, but share nothing. The full history,
//! bytes of every document included, is hashed; the same seed twice must give the same hash.
//!
//! # Breaks that were tried
//!
//! `the_judge_sees_every_break` breaks the surroundings in each run: a target without fence, a store
//! that ignores `If-Match`, no heartbeat, a clock a second faster than the margin of a lapsed
//! lease allows, an answer before the writes (a commit before the handling), a source without hold-back,
//! a target that is told the token without the generation, a store that forgets rows that were set aside,
//! a target that refuses for good what it takes another time.
//!
//! `.ci/mutants.mjs` breaks the code itself, one rule at a time. The unit tests are asked first, and the
//! simulation where they notice nothing; `tests/it/proof.rs` keeps this list equal to that one:
//!
//! - margin removed
//! - clock's grain ignored
//! - idle time before a foreign write ignored
//! - fractions of idle time lost at each foreign write
//! - token not raised
//! - released lease held on to
//! - lapsed lease never taken
//! - token not compared
//! - generation dropped
//! - release without token check
//! - checkpoint may move back
//! - row that failed alone not tried alone again
//! - rows that were probed taken for a batch
//! - crash not counted
//! - pause ignored
//! - back-off ignored
//! - broken lease keeps its owner
//! - recovery releases a live lease
//! - recovery ignores the margin
//! - recovery moves a checkpoint
//! - recovery keeps the token
//! - recovery counts no crash
//! - recovery ends a back-off that was asked for
//! - recovery acts on a document that changed
//! - fence admits anyone
//! - fence without generation
//! - fence refuses its own
//! - unknown version read
//! - requirements ignored
//! - deadline counted from the reply
//! - no heartbeat
//! - heartbeat beside the writer
//! - heartbeat counted from now
//! - refused write taken for a loss
//! - own write not recognised
//! - retry reads another range
//! - rest of a batch begins where the whole did
//! - checkpoint of another source used
//! - cut batch remembered as whole
//! - range read again remembered as all
//! - rest of a batch committed with its front's mark
//! - poller that never ran started by a tick
//! - no row more asked for than a batch may have
//! - documents of two applications under one path
//! - answer that was cut moves the mark
//! - answer that was cut not checked
//! - reset keeps what was remembered
//! - mark kept over a clock set back
//! - new mark not written at once
//! - rows read past an open transaction
//! - times read before they settled
//! - local times held against UTC
//! - bound ahead of a column's clock found well
//! - numbers read before they settled
//! - highest number read after the clock
//! - expired changes skipped
//! - database that went back read on
//! - half a version taken for the whole
//! - changes read past the current version
//! - rows left unread for changes
//! - resting position not renewed
//! - changes ordered by half a key
//! - filter closes its parenthesis
//! - query with a hint that loses rows
//! - rowversion of a query of another database
//! - another database taken for the connection's
//! - query with an order of its own
//! - value of a filter written into the text
//! - filter without its value
//! - values of filters not told apart
//! - retyped key read on
//! - key in another collation read on
//! - key value compared without its own type
//! - statement kept for key values of other types
//! - text of a checkpoint taken for a collation
//! - sizes of a key value's type not checked
//! - key value longer than its type cut
//! - key of a deleted row read from the row in part
//! - part told from a variant's value without its type
//! - columns remembered before rows had them
//! - flag of deleted rows not read
//! - choice forgotten
//! - late rows move the checkpoint
//! - late rows keep others waiting
//! - late rows looked for too early
//! - late rows told without their ids
//! - window forgotten before its rows are taken
//! - window not compared
//! - window read up to where rows were not taken
//! - window moved on by rows of another
//! - windows merged across a gap
//! - windows kept by a reset
//! - windows without room not counted
//! - ids of other rows taken for a window's
//! - marker ignored
//! - generation not above the marker's
//! - document begun without a generation
//! - delivery without its generation
//! - events joined over a gap
//! - events of two batches joined
//! - half a surrogate pair lost in a row
//! - batch id without its bytes
//! - rest of a password shown
//! - braces taken for a value
//! - read tried again for ever
//! - read tried again beyond its time
//! - unknown error tried again
//! - token never replaced
//! - token used to its end
//! - service asked before its pause is over
//! - password told by a refusal
//! - blob named without its content
//! - native lease taken for a blob that is there
//! - message larger than a queue takes
//! - rows sent past one that is too large
//! - any acceptance taken for a start
//! - any success taken for a status
//! - failure of an unknown event passed over
//! - batch taken as far as its best lane
//! - states of a key in several lanes
//! - failure of an unknown event ignored
//! - reply cut short taken for a success
//! - signature without its time
//! - value over the limit delivered as NULL
//! - row over the limit of a batch delivered
//! - key with half a surrogate pair mangled
//! - parameter in the code page of the database
//! - outage blamed on the rows
//! - row set aside without a probe
//! - age of a failure ignored
//! - row set aside that nobody died with alone
//! - death with another row taken for one with this
//! - batch accepted whole handed over again
//! - probe that found nothing taken for a proof
//! - row not tried again after its probe
//! - fault looked for row by row
//! - rows that may kill not written down
//! - row passed that is not written down
//! - probe of many rows while processes die
//! - probe not written down
//! - crashes that were told of counted
//! - rows on renewals not counted
//! - lease given up under a pause taken for a loss
//! - own late prefix taken for a loss
//! - prefix taken for the failure behind it
//! - verified and then written blindly
//! - no If-Match in memory
//! - no If-Match in a file
//! - no If-Match in a table
//! - refused write taken for an unknown one
//! - committed before the handler
//! - next handler goes on though the commit failed
//! - result taken though the commit before it failed
//! - result taken without waiting for the commit before it
//! - next handler goes on under a newer lease
//! - next handler held to the lease as hoped for
//! - write overtakes a commit
//! - commit overlapped unasked
//! - commit overlapped of rows that failed before
//! - commit overlapped where one crash sets rows aside
//! - commit beside a handler not counted
//! - batch in the air not counted
//! - rows read ahead delivered though the commit failed
//! - rows read ahead from where the batch in hand began
//! - rows read ahead delivered though others lie before them
//! - read that failed since nobody listened not made again
//! - rows asked for behind what may not be one batch
//! - rows asked for that no batch would take
//! - rows asked for without what the batch in hand wants kept
//! - rows read ahead kept though the batch was not taken
//! - read ahead that failed not made again
//! - read ahead of rows that failed before
//! - range read again cut to the next batch's size
//! - source followed past the tick's time
//! - source followed after a stop
//! - slow handler given more
//! - rows beside the checkpoint's skipped
//! - redirect taken for a success
//! - announced batch delivered under a pause
//! - entry taken under another's name
//! - finished work waits for a read that is tried again
//! - position of a cleaned-up change kept
//! - replay goes on at a target that is at fault
//! - rows that had a whole tick tried whole again
//! - fence of a target not asked
//! - fence of a target not raised
//! - refused batch committed in part
//! - ledger ignored
//! - ledger forgets while events come again
//! - replay left out by the ledger
//! - more parameters than a server takes
//! - first state of a row written
//! - text cut by its cast
//! - digits cut from a decimal
//! - way forward taken for none
//! - skip between two keys not asked about
//! - reset beyond what the source has
//! - way forward that nobody agreed to
//! - reset planned under a held lease
//! - reset into another source unasked
//! - live lease broken unasked
//! - clone made over a document
//! - clone under the name of a poller that ran
//! - range overtakes the poller
//! - range ends behind the checkpoint's key
//! - gap between two windows
//! - range read on past its end
//! - last row of a range left out
//! - row before a range delivered
//! - changes up to a whole version not bounded
//! - range delivered under the poller's own document
//! - range without a document begun by a tick
//! - range done before a read finds nothing
//! - range that was given up delivered on
//! - backfill that was given up still told of
//! - row set aside by a slow step before the one that failed
//! - removed journal taken for one that has not begun
//! - escape in a query let through
//! - older state of a row written over a newer one
//! - poller's fence not locked by a range
//! - end of a line that is too long not looked at
//! - failures further inside passed over
//! - failures further inside ignored
//! - write that is told of without a number
//! - line of a write that another has made
//! - line that builds on one that is missing
//! - append that failed built on
//! - day without a snapshot
//! - gap in a history not named
//! - changes put onto another document
//! - second write of a number passed over
//! - dropped history still folded
//! - old copy taken for the document
//! - difference passed over
//! - line appended wherever the part ends
//! - line appended where the file does not end
//! - file dropped with what was appended since
//! - own lines of a lost answer appended again
//! - history looked for where it was dropped
//! - pause of a tick not told of
//! - what rides on a renewal not told of
//! - note of an idle tick not told of
//! - journal without a line never explained
//! - lines that lead nowhere explained
//! - restored document under its old generation
//! - restored document with a token that was given
//! - restored document with its old holder
//! - restored document without a marker of its own
//! - document replaced under a held lease
//! - generation of a restored document not above the marker's
//! - damaged document's generation not looked at
//! - document replaced unsaved
//! - history dropped before the new one is there
//! - part dropped with what was appended since
//! - result of other bytes counts
//! - results kept for other bytes
//! - results survive into the next batch
//! - result kept before the step ran
//! - step called before the last result is written
//! - steps done called again
//! - batch begins anew at each attempt
//! - front that one step took committed
//! - step accepts for the chain
//! - throttled token endpoint asked again
//! - pause of a token endpoint forgotten with who waited
//! - secret of a token request told
//! - newer C library packed
//! - steps share the batch id
//! - rows of other parts read
//! - changes of other parts read
//! - row without a key of no part
//! - number of parts not in the fingerprint
//! - part begun beside another division
//! - document of another part put in place
//! - document that others took over put in place
//! - division not written down before the first row
//! - reset beside another division
//! - look at a part writes its division down
//! - old part read past the bound
//! - bound behind a checkpoint
//! - part that reads the table bounded by changes
//! - windows left unread by new parts
//! - new parts begun before the old ones came to the bound
//! - text of others becomes markup
//! - text of others ends an attribute
//! - page answers under anybody's name
//! - form of another page's counts
//! - form without the page's token counts
//! - done unconfirmed from the page
//! - status page for everybody
//! - a tick waits for a collector that hangs
//! - each tick waits for a collector that hangs
//! - a whole address is in a span
//! - an idle tick counts rows
//! - a count that took long made again at once
//!
//! By hand, with the simulation alone; in how many cases depends on how chance is drawn, which has changed
//! since, so no numbers stand here. Those of the breaks of the surroundings are printed by each run.
//!
//! | break | caught by |
//! |---|---|
//! | `Fence::admit` lets everybody in | the target's terms; the race |
//! | commit before handle | a row never written; also while nothing fails |
//! | `If-Match` ignored by the store | a used token; the checkpoint going back while nothing fails |
//! | token not raised at a grant | a used token; the race |
//! | heartbeat removed | only while nothing fails: delivered twice |
//! | a landed write not recognised by its `write_id` | delivered twice while nothing fails; the race |
//! | delivery without its generation | the target's terms |
//! | a bound of 30 s instead of 2 s past the ttl | the bound of a takeover after a kill |
//! | a release that does not say so | a stopped holder's lease lapses |
//! | one row too many in an acknowledged prefix | a row never written |
//! | a first document taken for one that vanished | an alarm without a cause; its regression |
//! | margin of a lapsed lease removed | not caught at 1,000: needs the worst clock at the worst moment |
//! | heartbeat counted from the start of each hold | not caught: here every hold ends in a write |
//! | a pause that makes a dead lease look alive | not caught: it costs time only; a unit test has it |
//!
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::print_stdout,
    reason = "a test may panic and print; `allow-*-in-tests` does not reach helper functions"
)]

mod bad;
mod coverage;
mod crashes;
mod failures;
mod freeze;
mod history;
mod invariants;
mod journal;
mod partitions;
mod race;
mod random;
mod regressions;
mod run;
mod script;
mod source;
mod store;
mod takeover;
mod target;
mod world;

use self::coverage::{CALM, KINDS};
use self::run::{explain, run_many, run_seed};
use self::script::{Break, Property};
use self::takeover::{Gone, Takeovers};

/// Cases per property where nothing else is asked for.
const CASES: u64 = 1_000;
/// Cases per way in which a holder goes, where nothing else is asked for.
const TAKEOVERS: u64 = 500;

/// Returns a number from the environment: `SIM_CASES`, `SIM_SEED`.
fn asked(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no settings; this is its command line"
    )]
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, expected a number")))
}

fn check(property: Property) {
    let (seed, cases) = (asked("SIM_SEED"), asked("SIM_CASES"));
    if let (Some(seed), None) = (seed, cases) {
        println!("{}", explain(seed, property));
    }
    let default = if seed.is_some() { 1 } else { CASES };
    let cases = cases.unwrap_or(default);
    let summary = run_many(seed.unwrap_or(1), cases, property, None);
    println!("{summary}");
    if let Some((seed, _)) = summary.failure {
        panic!("{}", explain(seed, property));
    }
    let kinds = if property == Property::Calm { CALM } else { KINDS };
    let missing = summary.coverage.missing(kinds);
    assert!(
        cases < CASES || missing.is_empty(),
        "kinds of trouble that never occurred: {missing:?}"
    );
}

#[test]
fn nothing_is_lost_skipped_or_taken_back_whatever_fails() {
    check(Property::Faults);
}

#[test]
fn every_row_is_delivered_once_while_nothing_fails() {
    check(Property::Calm);
}

#[test]
fn another_commits_within_ttl_margin_and_one_tick_after_a_kill() {
    check_takeover("a kill", Gone::Killed);
}

#[test]
fn another_commits_within_one_tick_after_sigterm() {
    check_takeover("SIGTERM", Gone::Stopped);
}

fn check_takeover(after: &str, gone: Gone) {
    let began_at = tokio::time::Instant::now();
    let seed = asked("SIM_SEED");
    let default = if seed.is_some() { 1 } else { TAKEOVERS };
    let (first, cases) = (seed.unwrap_or(1), asked("SIM_CASES").unwrap_or(default));
    let mut takeovers = Takeovers(Vec::new());
    for seed in first..first + cases {
        let takeover = takeover::play(seed, gone);
        let Some(takeover) = takeover.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")) else {
            continue;
        };
        assert!(takeover.took <= takeover.bound, "seed {seed}: {takeover:?}");
        takeovers.0.push(takeover);
    }
    let (count, seconds) = (takeovers.0.len(), began_at.elapsed().as_secs_f64());
    println!("takeover after {after}: {count} of {cases} cases in {seconds:.1} s{takeovers}");
    assert!(cases < TAKEOVERS || count > 400, "only {count} takeovers: the rest proves nothing");
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 1..=60 {
        for property in [Property::Faults, Property::Calm] {
            let (first, second) = (run_seed(seed, property, None), run_seed(seed, property, None));
            assert_eq!(first.hash, second.hash, "seed {seed}, {property:?}");
        }
    }
    let different = run_seed(1, Property::Faults, None).hash;
    assert_ne!(different, run_seed(2, Property::Faults, None).hash);
}

/// A judge who sees nothing would pass everything.
#[test]
fn the_judge_sees_every_break() {
    for (broken, property) in [
        (Break::NoFence, Property::Faults),
        (Break::NoIfMatch, Property::Faults),
        (Break::NoHeartbeat, Property::Calm),
        (Break::FastClock, Property::Calm),
        (Break::AnswersBeforeItWrote, Property::Faults),
        (Break::NoHoldBack, Property::Faults),
        (Break::NoGeneration, Property::Faults),
        (Break::ForgetsEntries, Property::Faults),
        (Break::RefusesGoodRows, Property::Faults),
    ] {
        let summary = run_many(1, CASES, property, Some(broken));
        let (seed, violation) = summary.failure.unwrap_or_else(|| panic!("{broken:?} not seen"));
        println!("{broken:?}: {} cases to seed {seed}: {violation}", summary.cases);
    }
}

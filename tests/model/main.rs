//! The lease and commit protocol in every interleaving, within bounds.
//!
//! A breadth-first search through all worlds that a few processes, one state document and a few faults can
//! reach. Each change of the document is the real pure transition of `highwater_engine::document`, the
//! target's fence is the real [`highwater_engine::document::Fence`], and batch ids are the real ones. Only
//! their environment is modelled.
//!
//! # What is modelled
//!
//! - **The store**: one document, replaced by compare-and-swap. The only relevant property of versions is that an
//!   old one never returns.
//! - **Processes**, two or three, each with the memory that `src/engine/lease.rs` has: its grant, the version it
//!   wrote last, the batch in flight, the pending logical write. They read, request the lease, renew while the
//!   handler runs, commit with release or with the next batch, commit a prefix with a failure, fail, and release the
//!   lease. The handler of the next batch may finish before the commit that announces it has a response, and before
//!   it has landed (overlapped commits), or after it.
//! - **Writes** get a response, or land with the response lost, or stay pending and land at any later time or never
//!   (zombies). How a holder judges a rejected or unanswered write follows the rules of
//!   `src/engine/lease/judge.rs`, in their order.
//! - **Time** decides nothing: any lease may be seen as expired at any moment, and any process may be arbitrarily
//!   slow between any two steps.
//! - **Faults**: lost responses, crashes (a process restarts under another id or not at all), deliveries that reach
//!   the target late, an operator who pauses, resumes or resets by a write that may itself be late, and the loss of
//!   the document, after which it is created again under a higher generation. Only a blank document is ever created;
//!   a request for one may land late, also after a loss.
//! - **The source** has rows 1 to N. The number of rows that a fetch returns is open, since rows move and the table
//!   grows, so two processes may have different batches in flight.
//!
//! # What is claimed, in every reachable world
//!
//! Judged by a witness that sees everything and numbers the grants itself, not by the tokens of the code:
//!
//! 1. Nothing is skipped: each row up to the checkpoint was delivered to a handler that finished before, and after
//!    a reset was delivered again.
//! 2. The checkpoint never goes back, except by a reset; (generation, token) never does.
//! 3. Each grant has a token that no earlier grant had.
//! 4. Once the fenced target has accepted a write of one grant, it accepts none of an earlier one.
//! 5. Only the holder of the newest grant changes the document by renewing, committing or releasing, and a writer
//!    has seen whatever it replaces: of two commits made from one version at most one succeeds.
//! 6. If the newest holder crashed now, at most two of the batches that its handler has finished would be
//!    redelivered.
//! 7. From there a process that runs alone delivers and commits everything, past the fence too.
//!
//! Each run also checks that it has met the relevant events, and prints in how many steps: two holders at
//! once, zombies that landed, stale deliveries rejected, writes recognized by their id and by their batch, a
//! change applied to another process's version, a holder that crashed, a pause and a reset that landed, a
//! document that was lost, a handler that finished before the commit of the previous batch, and one that did
//! so in vain. A run that never met one of them fails.
//!
//! **Variants** each leave out one part of the protocol. A search that finds nothing proves little unless it
//! finds these. Every unsafe variant is found, and its shortest path to the damage is printed. A test checks
//! that each claim is broken by some variant. One variant is safe: a holder that treats a lost response as a
//! lost lease only delivers twice.
//!
//! # What is not shown
//!
//! - Nothing beyond the bounds, though damage in such protocols needs few writes: every variant here shows it within
//!   four.
//! - Nothing about the code that implements the rules: `src/engine/lease/judge.rs` is restated here, not run.
//!   `src/engine/lease/tests.rs` and the tests of the stores drive the real one through the same faults.
//! - Nothing about backoff, document fields for people, or clocks; the transitions' own tests cover them. The
//!   in-flight record is left out of states, since no rule about who may write reads it.
//! - A document that is lost **before it was marked**, and created again within the grain and skew of the storage
//!   clock: only that clock could distinguish the two generations. Here the later one is always higher.
//!
//! # Deeper
//!
//! ```text
//! MODEL_WRITES=7 cargo test -p highwater-engine --test model -- --nocapture
//! ```
//!
//! `MODEL_WRITES` (versions stored), `MODEL_FAULTS`, `MODEL_OWNERS` (2 or 3) and `MODEL_ROWS` set the bounds
//! of the main search. Each further write multiplies the states by about 3, each further fault by about 10; a
//! million states take some 150 MB. Seven writes with two faults were 10,368,560 states before the next
//! handler could overlap a commit, and found nothing.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic and print; `allow-*-in-tests` does not reach helper functions"
)]

mod choices;
mod documents;
mod parking;
mod search;
mod steps;
mod variants;
mod witness;
mod words;
mod world;

use self::search::{Report, search};
use self::steps::Bounds;
use self::variants::Variant;
use self::witness::{Claim, Sight};

const BOUNDS: Bounds = Bounds { owners: 3, rows: 2, writes: 5, faults: 2 };

#[test]
fn no_interleaving_of_writes_and_faults_breaks_a_claim() {
    let bounds = Bounds {
        owners: setting("MODEL_OWNERS", BOUNDS.owners),
        rows: setting("MODEL_ROWS", BOUNDS.rows),
        writes: setting("MODEL_WRITES", BOUNDS.writes),
        faults: setting("MODEL_FAULTS", BOUNDS.faults),
    };
    check_safe(Variant::Faithful, bounds, &Sight::ALL);
}

#[test]
fn nor_does_one_with_more_writes_and_a_single_fault() {
    check_safe(Variant::Faithful, Bounds { writes: 6, faults: 1, ..BOUNDS }, Sight::OF_ONE_FAULT);
}

#[test]
fn nor_does_one_with_three_rows() {
    let bounds = Bounds { owners: 2, rows: 3, faults: 1, ..BOUNDS };
    check_safe(Variant::Faithful, bounds, Sight::OF_ONE_FAULT);
}

#[test]
fn treating_a_lost_response_as_a_lost_lease_is_safe() {
    let sights = [Sight::TwoHoldersAtOnce, Sight::ZombieWriteLanded, Sight::AllCommitted];
    check_safe(Variant::NoJudging, Bounds { faults: 1, ..BOUNDS }, &sights);
}

#[test]
fn writing_without_a_condition_is_found_unsafe() {
    check_unsafe(Variant::NoIfMatch);
}

#[test]
fn verifying_and_then_writing_blindly_is_found_unsafe() {
    check_unsafe(Variant::VerifyThenBlindWrite);
}

#[test]
fn repeating_old_content_under_a_fresh_tag_is_found_unsafe() {
    check_unsafe(Variant::FreshTagOldContent);
}

#[test]
fn committing_before_the_handler_is_found_unsafe() {
    check_unsafe(Variant::CheckpointFirst);
}

#[test]
fn a_fence_of_unique_rows_alone_is_found_unsafe() {
    check_unsafe(Variant::UniqueOnlyFence);
}

#[test]
fn a_grant_under_the_same_token_is_found_unsafe() {
    check_unsafe(Variant::TokenStays);
}

#[test]
fn tokens_that_start_again_with_the_document_are_found_unsafe() {
    check_unsafe(Variant::GenerationRestarts);
}

#[test]
fn a_grant_that_rides_on_the_creation_is_found_unsafe() {
    check_unsafe(Variant::GrantRidesOnCreation);
}

#[test]
fn committing_before_the_commit_before_it_is_confirmed_is_found_unsafe() {
    check_unsafe(Variant::NextCommitUnconfirmed);
}

#[test]
fn starting_the_next_handler_call_after_a_rejected_commit_is_found_unsafe() {
    check_unsafe(Variant::NextGoesOn);
}

#[test]
fn each_claim_is_broken_by_some_variant() {
    for claim in Claim::ALL {
        let breaks = |variant: &Variant| variant.breaks().contains(&claim);
        assert!(Variant::UNSAFE.iter().any(breaks), "no variant breaks {claim:?}");
    }
}

fn check_safe(variant: Variant, bounds: Bounds, sights: &[Sight]) {
    let report = search(variant, bounds, None);
    print_figures(variant, bounds, &report);
    if let Some((claim, way)) = report.broken {
        unreachable!("{claim:?} is broken:\n{}", way.join("\n"));
    }
    assert_eq!(report.writes, bounds.writes, "the search ended early");
    let met = |sight: &Sight| (*sight, report.sights.count(*sight));
    let counts: Vec<_> = sights.iter().map(met).collect();
    let words = counts.iter().map(|(sight, steps)| format!("{sight:?} {}", number(*steps)));
    println!("  steps that met {}", words.collect::<Vec<_>>().join(", "));
    for (sight, steps) in counts {
        assert!(steps > 0, "never met: {sight:?}");
    }
}

fn check_unsafe(variant: Variant) {
    let bounds = Bounds { faults: variant.faults(), rows: variant.rows(), ..BOUNDS };
    for wanted in variant.breaks() {
        let report = search(variant, bounds, Some(*wanted));
        print_figures(variant, bounds, &report);
        let Some((claim, way)) = report.broken else {
            unreachable!("{variant:?} was not found to break {wanted:?}");
        };
        println!("  not so: {claim:?}\n    {}", way.join("\n    "));
    }
}

fn print_figures(variant: Variant, bounds: Bounds, report: &Report) {
    let name = if variant == Variant::Faithful { String::new() } else { format!(" {variant:?}:") };
    println!(
        "model:{name} {} states, {} writes deep, {} owners, {} faults, {} steps, {:.1} s",
        grouped(report.states),
        report.writes,
        bounds.owners,
        bounds.faults,
        report.steps,
        report.duration.as_secs_f64()
    );
}

fn number(count: u64) -> String {
    grouped(usize::try_from(count).unwrap())
}

/// Returns a number with a comma between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

fn setting(name: &str, default: u8) -> u8 {
    std::env::var_os(name).map_or(default, |text| text.to_str().unwrap().parse().unwrap())
}

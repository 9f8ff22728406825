//! What a refused or unanswered write means, for every kind of write and whoever wrote between.

use super::*;
use crate::journal::Entry;
use crate::testing::Calls;

/// What a holder writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Renewal,
    Commit,
    CommitAndNext,
    CommitAndLeave,
    Narrowing,
    Prefix,
    Failure,
    Release,
}

const KINDS: [Kind; 8] = [
    Kind::Renewal,
    Kind::Commit,
    Kind::CommitAndNext,
    Kind::CommitAndLeave,
    Kind::Narrowing,
    Kind::Prefix,
    Kind::Failure,
    Kind::Release,
];

/// Who writes between the holder's write and its look at what became of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nobody,
    APause,
    AnOwnLateRenewal,
}

fn batch(after: Option<u64>, upto: u64) -> InFlight {
    serde_json::from_value(serde_json::json!({
        "batch_id": format!("batch_{upto}"),
        "after": after.map(at),
        "upto": at(upto),
        "rows": 1,
        "digest": "d",
    }))
    .unwrap()
}

fn failure(now: OffsetDateTime) -> Failure {
    Failure {
        error: "503".to_owned(),
        step: None,
        kind: "handler_failed",
        counted: true,
        next_attempt_at: None,
        now,
        tick: None,
        narrowed: None,
        pause: None,
    }
}

async fn acquire(world: &World) -> Lease<'_> {
    let base = world.base().await;
    let asked = Lease::acquire(world.context(&world.a), &base, Some(batch(None, 1))).await;
    match asked.unwrap() {
        AcquireResult::Held(lease) => *lease,
        other @ (AcquireResult::Conflict | AcquireResult::Refused(_)) => panic!("{other:?}"),
    }
}

async fn write(lease: &mut Lease<'_>, kind: Kind) -> Result<(), LeaseError> {
    let now = lease.now();
    let next = |upto| AfterCommit::Announce(Box::new(batch(Some(1), upto)));
    match kind {
        Kind::Renewal => {
            let deadline = lease.deadline();
            lease.renew(None, deadline).await
        }
        Kind::Commit => lease.commit(commit(1, now)).await,
        Kind::CommitAndNext => lease.commit(Commit { then: next(2), ..commit(1, now) }).await,
        Kind::CommitAndLeave => {
            let then = AfterCommit::ReleaseAndKeep(Box::new(batch(Some(1), 2)), None);
            lease.commit(Commit { then, ..commit(1, now) }).await
        }
        Kind::Narrowing => lease.narrow(batch(None, 1)).await,
        Kind::Prefix => {
            let prefix = Commit { then: next(3), ..commit(1, now) };
            lease.commit_prefix(prefix, failure(now)).await
        }
        Kind::Failure => lease.fail(failure(now)).await,
        Kind::Release => lease.release(None, None).await,
    }
}

fn assert_written(document: &StateDocument, kind: Kind, case: &str) {
    let moved =
        matches!(kind, Kind::Commit | Kind::CommitAndNext | Kind::CommitAndLeave | Kind::Prefix);
    assert_eq!(document.checkpoint.cursor, moved.then(|| at(1)), "{case}");
    let goes_on = matches!(kind, Kind::Renewal | Kind::Narrowing | Kind::CommitAndNext);
    let releases = !goes_on;
    assert_eq!(document.lease.released_at.is_some(), releases, "{case}");
    let in_flight = document.in_flight.as_ref().map(|batch| (batch.upto.clone(), batch.attempt));
    let expected = match kind {
        Kind::Commit => None,
        Kind::CommitAndNext | Kind::CommitAndLeave => Some((at(2), 0)),
        Kind::Prefix => Some((at(3), 1)),
        Kind::Failure => Some((at(1), 1)),
        Kind::Renewal | Kind::Narrowing | Kind::Release => Some((at(1), 0)),
    };
    assert_eq!(in_flight, expected, "{case}: counted once");
    assert_eq!(document.lease.fencing_token, FencingToken(1), "{case}");
}

async fn check(kind: Kind, fault: Option<Fault>, between: Between) {
    let case = format!("{kind:?}, {fault:?}, {between:?}");
    let world = World::new();
    let mut lease = acquire(&world).await;
    let holder = lease.holder.clone();
    world.store.take_calls();
    let somebody = async {
        // After the faulty write, before its outcome is read.
        tokio::time::sleep(Duration::from_millis(50)).await;
        match between {
            Between::Nobody => {}
            Between::APause => world.meddle(pause).await,
            Between::AnOwnLateRenewal => {
                world
                    .meddle(|found| {
                        found.renew(&holder, found.lease.heartbeat_at.unwrap()).unwrap()
                    })
                    .await;
            }
        }
    };
    if let Some(fault) = fault {
        world.store.break_next(Call::Store, fault);
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(1)));
        let (written, ()) = tokio::join!(write(&mut lease, kind), somebody);
        written.unwrap_or_else(|error| panic!("{case}: {error:?}"));
    } else {
        somebody.await;
        write(&mut lease, kind).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
    }
    let document = world.document().await;
    assert_written(&document, kind, &case);
    assert_eq!(document.paused.is_some(), between == Between::APause, "{case}: a pause is kept");
}

#[tokio::test(start_paused = true)]
async fn every_write_of_a_holder_takes_effect_once_despite_other_writers() {
    for kind in KINDS {
        for fault in
            [None, Some(Fault::LostRequest), Some(Fault::LostAnswer), Some(Fault::Unreachable)]
        {
            for between in [Between::Nobody, Between::APause, Between::AnOwnLateRenewal] {
                // A renewal that was given up goes by an older tag: it cannot land after a write did.
                let landed = fault == Some(Fault::LostAnswer);
                if !(landed && between == Between::AnOwnLateRenewal) {
                    Box::pin(check(kind, fault, between)).await;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_holder_is_written_once_the_lease_is_lost() {
    for kind in KINDS {
        for fault in [None, Some(Fault::LostRequest), Some(Fault::Unreachable)] {
            let world = World::new();
            let mut lease = acquire(&world).await;
            if let Some(fault) = fault {
                world.store.break_next(Call::Store, fault);
            }
            world.meddle(|found| found.break_lease().unwrap()).await;
            world.store.take_calls();
            let lost = write(&mut lease, kind).await;
            assert!(matches!(lost, Err(LeaseError::Lost(_))), "{kind:?}, {fault:?}: {lost:?}");
            // The one write by which it learns of it, and none behind that.
            let Calls { puts, refused, .. } = world.store.take_calls();
            assert!(puts == 0 && refused <= 1, "{kind:?}, {fault:?}: {puts}, {refused}");
            assert_eq!(world.document().await.write_id, "somebody else");
        }
    }
}

/// Lets another writer move the checkpoint.
async fn move_checkpoint(world: &World) {
    world
        .meddle(|found| {
            let mut next = found.clone();
            next.checkpoint.cursor = Some(at(7));
            next
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_another_writer_moved_is_a_loss_even_under_our_own_grant() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    move_checkpoint(&world).await;
    let renewed = write(&mut lease, Kind::Renewal).await;
    assert!(matches!(renewed, Err(LeaseError::Lost(_))), "{renewed:?}");
    assert_eq!(world.document().await.checkpoint.cursor, Some(at(7)));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_another_writer_moved_is_a_loss_after_an_abandoned_commit_too() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    let now = lease.now();
    let then = AfterCommit::Announce(Box::new(batch(Some(1), 3)));
    world.store.break_next(Call::Store, Fault::Unreachable);
    let prefix = Commit { then, ..commit(1, now) };
    lease.renew(Some(prefix), Instant::now()).await.unwrap_err();
    move_checkpoint(&world).await;
    let renewed = write(&mut lease, Kind::Renewal).await;
    assert!(matches!(renewed, Err(LeaseError::Lost(_))), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_is_judged_by_its_id_which_no_other_logical_write_has() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    let mut ids = vec![world.document().await.write_id];
    for kind in [Kind::Renewal, Kind::Narrowing, Kind::CommitAndNext, Kind::Renewal, Kind::Release]
    {
        write(&mut lease, kind).await.unwrap();
        ids.push(world.document().await.write_id);
    }
    world.acquire(&world.b).await;
    ids.push(world.document().await.write_id);
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), 7, "{ids:?}");
    // All tries of one logical write have the same.
    let mut lease = World::acquire(&world, &world.b).await;
    world.store.break_next(Call::Store, Fault::LostAnswer);
    world.store.take_calls();
    write(&mut lease, Kind::Renewal).await.unwrap();
    assert_eq!(world.store.take_calls().puts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_committed_by_a_renewal_does_not_hide_the_failure_after_it() {
    for fault in [None, Some(Fault::LostRequest), Some(Fault::LostAnswer)] {
        let world = World::new();
        let mut lease = acquire(&world).await;
        let (now, deadline) = (lease.now(), lease.deadline());
        let then = || AfterCommit::Announce(Box::new(batch(Some(1), 3)));
        lease.renew(Some(Commit { then: then(), ..commit(1, now) }), deadline).await.unwrap();
        if let Some(fault) = fault {
            world.store.break_next(Call::Store, fault);
        }
        let prefix = Commit { then: then(), ..commit(1, now) };
        lease.commit_prefix(prefix, failure(now)).await.unwrap();
        let document = world.document().await;
        assert_written(&document, Kind::Prefix, &format!("{fault:?}"));
    }
}

/// The writes with which a holder gives its lease up.
const FINAL: [Kind; 5] =
    [Kind::Commit, Kind::CommitAndLeave, Kind::Prefix, Kind::Failure, Kind::Release];

/// Another instance delivers a batch: takes the lease, moves the checkpoint and releases.
async fn deliver_as(world: &World, instance: &Instance, batch: InFlight) {
    let base = world.base().await;
    let context = LeaseContext { store: &*world.memory, ..world.context(instance) };
    let asked = Lease::acquire(context, &base, Some(batch.clone())).await.unwrap();
    let AcquireResult::Held(mut lease) = asked else { panic!("{asked:?}") };
    let now = lease.now();
    let commit = Commit { batch_id: batch.batch_id, upto: batch.upto, ..commit(1, now) };
    lease.commit(commit).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_final_write_whose_answer_was_lost_is_recognised_after_others_have_committed() {
    for kind in FINAL {
        for successors in [1, 3, 40] {
            let world = World::new();
            let mut lease = acquire(&world).await;
            world.store.break_next(Call::Store, Fault::LostAnswer);
            world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(1)));
            let others = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                for number in 0..successors {
                    let instance = Instance::new(format!("b{number}"));
                    deliver_as(&world, &instance, batch(Some(1 + number), 2 + number)).await;
                }
            };
            let (written, ()) = tokio::join!(write(&mut lease, kind), others);
            written.unwrap_or_else(|error| panic!("{kind:?}, {successors}: {error:?}"));
            let document = world.document().await;
            assert_eq!(document.checkpoint.cursor, Some(at(1 + successors)), "{kind:?}");
            assert_eq!(document.lease.fencing_token, FencingToken(1 + successors), "{kind:?}");
            lease.still_held().unwrap_err();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_journal_describes_a_commit_that_is_found_landed_under_a_newer_grant() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    world.store.break_next(Call::Store, Fault::LostAnswer);
    world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(1)));
    let other = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        deliver_as(&world, &world.b, batch(Some(1), 2)).await;
    };
    let (written, ()) = tokio::join!(write(&mut lease, Kind::Commit), other);
    written.unwrap();
    let append = world.journal.lock().unwrap().take().unwrap();
    let lines = String::from_utf8(append.bytes).unwrap();
    let entries = lines.lines().map(|line| serde_json::from_str::<Entry>(line).unwrap());
    let mut commits = entries.filter(|entry| {
        entry.event == EventKind::BatchComplete && entry.owner_id.as_deref() == Some("a")
    });
    let details = commits.next().unwrap().details;
    assert_eq!((details.after, details.upto), (None, Some(at(1))));
    assert!(commits.next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_released_grant_stays_known_after_a_takeover() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    world.store.break_next(Call::Store, Fault::LostAnswer);
    world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(1)));
    let others = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // One dies with the lease, which is broken then, and another delivers.
        world.acquire(&world.b).await;
        world.meddle(|found| found.break_lease().unwrap()).await;
        deliver_as(&world, &Instance::new("c"), batch(Some(1), 2)).await;
    };
    let (written, ()) = tokio::join!(write(&mut lease, Kind::Failure), others);
    written.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stale_holder_whose_successor_committed_the_same_batch_has_lost_its_lease() {
    for kind in [Kind::Commit, Kind::CommitAndNext, Kind::CommitAndLeave, Kind::Prefix] {
        for fault in [None, Some(Fault::LostRequest), Some(Fault::Unreachable)] {
            let world = World::new();
            let mut stale = acquire(&world).await;
            sleep(33).await;
            deliver_as(&world, &world.b, batch(None, 1)).await;
            let delivered = world.document().await;
            assert_eq!(delivered.checkpoint.cursor, Some(at(1)));
            if let Some(fault) = fault {
                world.store.break_next(Call::Store, fault);
            }
            let lost = write(&mut stale, kind).await;
            assert!(matches!(lost, Err(LeaseError::Lost(_))), "{kind:?}, {fault:?}: {lost:?}");
            assert_eq!(world.document().await, delivered, "{kind:?}, {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_changes_at_each_read_is_met_with_pauses_until_the_deadline() {
    for kind in KINDS {
        let world = World::new();
        let mut lease = acquire(&world).await;
        world.meddle(pause).await;
        for _ in 0..10_000 {
            world.store.break_next(Call::Load, Fault::EtagMoved);
        }
        world.store.take_calls();
        let asked_at = Instant::now();
        let given_up = write(&mut lease, kind).await.unwrap_err();
        let text = crate::error::chain(&given_up);
        assert!(text.contains("p.json`") && text.contains("rewrites `ETag`"), "{kind:?}: {text}");
        let Calls { gets, refused, puts } = world.store.take_calls();
        assert!(puts == 0 && refused == gets && refused < 25, "{kind:?}: {refused} tries");
        let took = asked_at.elapsed();
        assert!(took > Duration::from_secs(20) && took <= TTL, "{kind:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_change_of_another_writer_costs_no_pause() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    world.meddle(pause).await;
    let asked_at = Instant::now();
    write(&mut lease, Kind::Renewal).await.unwrap();
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_garbled_answer_is_a_failed_read_and_is_read_again() {
    for kind in KINDS {
        for (fault, portal) in [(Fault::LostAnswer, 1), (Fault::LostRequest, 5)] {
            let world = World::new();
            let mut lease = acquire(&world).await;
            world.store.break_next(Call::Store, fault);
            for _ in 0..portal {
                world.store.break_next(Call::Load, Fault::Garbled);
            }
            let case = format!("{kind:?}, {fault:?}");
            let written = write(&mut lease, kind).await;
            written.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            assert_written(&world.document().await, kind, &case);
        }
    }
    // The grant itself is judged by the same read.
    let world = World::new();
    let base = world.base().await;
    world.store.break_next(Call::Store, Fault::LostAnswer);
    world.store.break_next(Call::Load, Fault::Garbled);
    let asked = Lease::acquire(world.context(&world.a), &base, None).await.unwrap();
    assert!(matches!(asked, AcquireResult::Held(_)), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_document_that_is_really_damaged_is_an_error_and_is_not_overwritten() {
    let world = World::new();
    let mut lease = acquire(&world).await;
    let etag = world.base().await.etag.unwrap();
    let damaged = b"{\"version\": 1, \"poller_na".to_vec();
    let precondition = Precondition::Matches(etag);
    world.memory.store(&world.key, damaged.clone(), precondition).await.unwrap();
    let error = write(&mut lease, Kind::Commit).await.unwrap_err();
    assert!(matches!(error, LeaseError::Format(_)), "{error:?}");
    let stored = world.memory.load(&world.key).await.unwrap().stored.unwrap();
    assert_eq!(stored.bytes, damaged);
}

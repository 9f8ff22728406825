//! Checks the state of a poller: whether it can be read, and what it contains. Changes nothing.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Finding;
use super::clock::{self, ClockReading};
use crate::clock::Clock;
use crate::cursor::{CursorMode, KeyId, KeyValues, SourceFingerprint};
use crate::document::{
    DocumentAge, FencingToken, LeaseState, Marker, OnMissingState, StateDocument, decode,
    decode_marker,
};
use crate::error::{
    Loss, accept_source, chain, end_loss, raise_above, restart_in_source, restore_state,
};
use crate::event::counted;
use crate::range::mismatch;
use crate::source::SourceShape;
use crate::store::{ETag, ReadResult, StateKey, StateStore, StoreError};

/// Name of the check that the store answers.
const STORE: &str = "state store";
/// Name of the check of the document.
const DOCUMENT: &str = "state document";
/// Name of the check of the lease.
const LEASE: &str = "lease";
/// Name of the check of the store's clock.
const CLOCK: &str = "state store clock";

/// What the settings say about a poller's state.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Name of the poller.
    pub poller: &'a str,
    /// Whether a first start must be requested explicitly.
    pub start_now: bool,
    /// What happens if a poller ran before and has no state.
    pub on_missing_state: OnMissingState,
    /// Whether it parks keys.
    pub parks: bool,
}

/// The findings, and the document for further checks.
#[derive(Debug, Default)]
pub struct StateCheck {
    /// The findings.
    pub findings: Vec<Finding>,
    /// The document, if it is usable.
    pub document: Option<StateDocument>,
    /// Whether the poller has never run, according to document and marker; see also [`other_apps`].
    pub is_first_start: bool,
}

/// Reads a poller's document and its marker, and judges them.
pub async fn examine(
    store: &dyn StateStore,
    expected: Expected<'_>,
    clock: &dyn Clock,
) -> StateCheck {
    let key = StateKey::Document(expected.poller.to_owned());
    let asked_at = clock.now();
    let loaded = match store.load(&key).await {
        Ok(loaded) => loaded,
        Err(error) => {
            return StateCheck { findings: vec![unread(&error)], ..StateCheck::default() };
        }
    };
    let reading = ClockReading {
        reported: loaded.date,
        asked_at,
        answered_at: clock.now(),
        grain: store.grain(),
    };
    let mut findings = vec![
        Finding::ok(STORE, format!("reachable; read `{key}`")),
        clock::judge(CLOCK, "the state store", reading, None),
    ];
    let marker = store.load(&StateKey::Marker(expected.poller.to_owned())).await;
    let (more, document) = judge(expected, &loaded, &marker, store.grain());
    findings.extend(more);
    if let Some(stored) = loaded.stored.as_ref().filter(|_| expected.parks) {
        findings.push(parking(store, expected.poller, &stored.etag).await);
    }
    let has_begun = document.as_ref().is_some_and(|document| !document.is_blank());
    let is_first_start = !has_begun && matches!(&marker, Ok(ReadResult { stored: None, .. }));
    StateCheck { findings, document, is_first_start }
}

/// Checks the rights that parked keys need: to list, and to remove an entry. It tries to remove one that does not exist,
/// under the tag of another object.
async fn parking(store: &dyn StateStore, poller: &str, etag: &ETag) -> Finding {
    let check = "parked keys";
    let listed = store.list().await.map(drop);
    let key =
        StateKey::Quarantined { poller: poller.to_owned(), key: KeyId::of(&KeyValues::new()) };
    let removed = match listed {
        Ok(()) => store.remove(&key, etag).await,
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) | Err(StoreError::Conflict { .. }) => {
            Finding::ok(check, "the state store may be listed, and entries may be removed")
        }
        Err(error @ (StoreError::Unreachable { .. } | StoreError::Unknown { .. })) => {
            Finding::unknown(check, chain(&error), "run it again")
        }
        Err(error @ StoreError::Refused { .. }) => Finding::error(
            check,
            format!(
                "`ON_FAILURE=park` needs the rights to list and to delete in the state store: {}",
                chain(&error)
            ),
            "grant them (`l` and `d` of a shared access signature, `GRANT DELETE` of a table), or set `ON_FAILURE` to `retry`",
        ),
    }
}

/// Judges whether the checkpoint belongs to the source in the settings.
pub fn fingerprint(document: &StateDocument, shape: &SourceShape) -> Finding {
    let check = "fingerprint";
    let SourceShape { fingerprint: configured, definition, .. } = shape;
    let (stored, name) = (&document.source_fingerprint, &document.poller_name);
    if stored == configured || (document.is_blank() && document.checkpoint.cursor.is_none()) {
        return Finding::ok(check, "the state belongs to the source that the settings describe");
    }
    let cursor = document.checkpoint.cursor.as_ref();
    let keeps = cursor.is_none_or(|cursor| mismatch(cursor, shape.mode, &shape.key).is_none());
    let accept = if keeps { accept_source(name) } else { restart_in_source(name) };
    Finding::error(
        check,
        format!(
            "source no longer matches the checkpoint: {}",
            document.source_differences(configured, definition)
        ),
        format!("revert the setting, or {accept}"),
    )
}

fn unread(error: &StoreError) -> Finding {
    let found = chain(error);
    match error {
        StoreError::Unreachable { .. } | StoreError::Unknown { .. } => Finding::unreachable(
            STORE,
            found,
            "check that the service is running and reachable from this machine: name, port, firewall",
        ),
        StoreError::Refused { .. } | StoreError::Conflict { .. } => Finding::error(
            STORE,
            found,
            "fix the reason: create the container, folder or table, or grant access to it",
        ),
    }
}

fn judge(
    expected: Expected<'_>,
    loaded: &ReadResult,
    marker: &Result<ReadResult, StoreError>,
    grain: std::time::Duration,
) -> (Vec<Finding>, Option<StateDocument>) {
    let Some(stored) = &loaded.stored else {
        return (vec![missing(expected, marker)], None);
    };
    let document = match decode(expected.poller, &stored.bytes) {
        Ok(document) => document,
        Err(error) => {
            return (
                vec![Finding::error(DOCUMENT, chain(&error), restore_state(expected.poller, None))],
                None,
            );
        }
    };
    let since_write = (loaded.date - stored.last_modified).max(time::Duration::ZERO).unsigned_abs();
    let age = DocumentAge { since_write, grain };
    let mut findings = if is_loss(&document, marker) {
        vec![missing(expected, marker)]
    } else {
        vec![position(&document, expected), marked(&document, expected, marker)]
    };
    findings.extend(trouble(&document));
    findings.push(lease(&document, age));
    (findings, Some(document))
}

/// Looks for the same poller under another application, from which a first start would have to continue.
///
/// Like a tick, it compares the sources. `None` as `source` means an unknown one.
pub async fn other_apps(
    store: &dyn StateStore,
    poller: &str,
    source: Option<&SourceFingerprint>,
) -> Vec<Finding> {
    let (check, key) = ("first start", StateKey::Document(poller.to_owned()));
    let unknown = |reason: &str| {
        let found = format!("could not check whether it has run under another app: {reason}");
        Finding::unknown(check, found, "grant permission to list and read, or check the app's name")
    };
    let apps = match store.apps_with(&key).await {
        Ok(apps) => apps.unwrap_or_default(),
        Err(error) => return vec![unknown(&chain(&error))],
    };
    let mut findings = Vec::new();
    // The one that was written last, like a tick.
    let mut newest = None;
    for app in apps {
        let Some(other) = store.of_app(&app) else { continue };
        let there = other.location(&key);
        let stored = match other.load(&key).await {
            Ok(loaded) => loaded.stored,
            Err(error) => {
                findings.push(unknown(&format!("`{there}`: {}", chain(&error))));
                continue;
            }
        };
        let Some(stored) = stored else { continue };
        let found = match decode(poller, &stored.bytes) {
            Ok(found) => found,
            Err(error) => {
                findings.push(unknown(&format!("`{there}`: {}", error.defect())));
                continue;
            }
        };
        let is_same = source.is_none_or(|source| found.source_fingerprint == *source);
        if found.checkpoint.cursor.is_none() || !is_same {
            continue;
        }
        if newest.as_ref().is_none_or(|(_, _, before)| stored.last_modified > *before) {
            newest = Some((app, there, stored.last_modified));
        }
    }
    let Some((app, there, _)) = newest else { return findings };
    let here = store.location(&key);
    let delivered = if source.is_some() {
        "has delivered the same source: the first tick stops"
    } else {
        "has a state document for this poller: the first tick stops if it has delivered the same source"
    };
    findings.push(Finding::warning(
        check,
        format!("never ran as `{here}`, but app `{app}` (`{there}`) {delivered}"),
        format!(
            "continue from there with `highwater clone {poller} --from-app {app} --reason \"app renamed\"`, or start \
             here on purpose with `highwater init {poller}`"
        ),
    ));
    findings
}

/// Whether the document only replaces a lost one: no tick has written it, although the poller has run.
fn is_loss(document: &StateDocument, marker: &Result<ReadResult, StoreError>) -> bool {
    let never_ran = document.is_blank()
        && document.checkpoint.cursor.is_none()
        && document.replay_id.is_none()
        && document.lease.fencing_token == FencingToken(0);
    never_ran && matches!(read_marker(&document.poller_name, marker), Ok(Some(_)))
}

/// Judges a missing document, or a blank one although the poller has run: a first start, or a loss.
fn missing(expected: Expected<'_>, marker: &Result<ReadResult, StoreError>) -> Finding {
    let marker = match read_marker(expected.poller, marker) {
        Ok(marker) => marker,
        Err(reason) => return marker_unread(reason),
    };
    match marker {
        Some(marker) if expected.on_missing_state == OnMissingState::Stop => Finding::error(
            DOCUMENT,
            format!("gone, but the poller has run since {}", rfc3339(marker.created_at)),
            restore_state(expected.poller, None),
        ),
        Some(_) => Finding::warning(
            DOCUMENT,
            "gone; the next tick recreates it and redelivers everything",
            format!(
                "to avoid that, before the next tick: {}",
                restore_state(expected.poller, None)
            ),
        ),
        None if expected.start_now => Finding::warning(
            DOCUMENT,
            "none yet: the poller waits to be started from now",
            format!("run `highwater init {}` once", expected.poller),
        ),
        None => Finding::ok(DOCUMENT, "none yet: the first tick starts at the beginning"),
    }
}

fn position(document: &StateDocument, expected: Expected<'_>) -> Finding {
    let generation = document.generation;
    match &document.checkpoint.cursor {
        Some(cursor) => {
            let at = document.checkpoint.updated_at.map_or("an unknown time".to_owned(), rfc3339);
            let found = format!(
                "readable, generation {generation}; checkpoint `{}` of mode `{}`, moved at {at}",
                cursor.value, cursor.mode
            );
            Finding::ok(DOCUMENT, found)
        }
        None if document.is_blank() && expected.start_now => Finding::warning(
            DOCUMENT,
            "readable, but blank: the poller waits to be started from now",
            format!("run `highwater init {}` once", expected.poller),
        ),
        None => {
            let found = format!("readable, generation {generation}; nothing is committed yet");
            Finding::ok(DOCUMENT, found)
        }
    }
}

/// Checks the marker, which distinguishes a lost document from a first start.
fn marked(
    document: &StateDocument,
    expected: Expected<'_>,
    marker: &Result<ReadResult, StoreError>,
) -> Finding {
    let check = "state marker";
    match read_marker(expected.poller, marker) {
        Err(reason) => marker_unread(reason),
        Ok(Some(marker)) if marker.generation > document.generation && !document.is_blank() => {
            Finding::warning(
                check,
                format!(
                    "generation {}, but the document has {}: the document was replaced with an older one",
                    marker.generation, document.generation
                ),
                "check that the right copy was restored; a fenced target rejects older generations",
            )
        }
        Ok(Some(_)) => Finding::ok(check, "written; a loss of the document would be detected"),
        Ok(None) if document.marked => Finding::warning(
            check,
            "gone; if the document is lost too, the poller starts as if it had never run",
            "write it again with `highwater recover --yes`",
        ),
        Ok(None) => {
            Finding::ok(check, "not written yet; the next tick that acquires the lease writes it")
        }
    }
}

fn marker_unread(reason: String) -> Finding {
    let fix = "restore a copy of the marker, or grant permission to read it";
    Finding::error("state marker", reason, fix)
}

fn read_marker(
    poller: &str,
    loaded: &Result<ReadResult, StoreError>,
) -> Result<Option<Marker>, String> {
    let loaded = loaded.as_ref().map_err(|error| chain(error))?;
    let decoded = loaded.stored.as_ref().map(|stored| decode_marker(poller, &stored.bytes));
    decoded.transpose().map_err(|error| chain(&error))
}

/// Returns what blocks the poller, apart from the lease.
fn trouble(document: &StateDocument) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(paused) = &document.paused {
        findings.push(Finding::warning(
            "pause",
            format!("paused by `{}` since {}: {}", paused.by, rfc3339(paused.at), paused.reason),
            format!(
                "fix what the reason says, then run `highwater resume {}`",
                document.poller_name
            ),
        ));
    }
    if let Some(batch) = &document.in_flight
        && (batch.attempt > 0 || batch.crashes > 0)
    {
        let error = batch.last_error.as_deref().unwrap_or("no error was recorded");
        findings.push(Finding::warning(
            "batch in flight",
            format!(
                "a batch of {} has failed {}, with {}; last error: {error}",
                counted(batch.rows, "row"),
                counted(batch.attempt.into(), "time"),
                counted(batch.crashes.into(), "crash")
            ),
            "fix the handler or its target; the rows are retried, and block the rows after them",
        ));
    }
    if let Some(refused) = document.fence_ahead() {
        findings.push(Finding::error(
            "target's fence",
            format!(
                "target has accepted grant {}, but the newest grant here is {}; no tick delivers",
                refused.current, refused.stale
            ),
            raise_above(&document.poller_name, &refused.current),
        ));
    }
    if let Some(reason) = document.lost_position() {
        let cursor = document.checkpoint.cursor.as_ref();
        let is_tracked = cursor.is_some_and(|cursor| cursor.mode == CursorMode::ChangeTracking);
        // Only a final loss is stored.
        let loss = Loss { is_tracked, is_final: true, is_new_source: false };
        let fix = end_loss(&document.poller_name, loss);
        let fix = format!("{fix}; no tick continues before a reset");
        findings.push(Finding::error("lost position", reason, fix));
    }
    findings
}

fn lease(document: &StateDocument, age: DocumentAge) -> Finding {
    let token = document.lease.fencing_token;
    match document.lease_state("", age) {
        LeaseState::Free => Finding::ok(LEASE, format!("free, last fencing token {token}")),
        LeaseState::Own => Finding::ok(LEASE, format!("held by a nameless owner, token {token}")),
        LeaseState::Held { owner_id } => Finding::ok(
            LEASE,
            format!(
                "held by `{owner_id}` with fencing token {token}, last written {} s ago (ttl {} s)",
                age.since_write.as_secs(),
                document.lease.ttl_seconds
            ),
        ),
        LeaseState::Lapsed => Finding::warning(
            LEASE,
            format!(
                "expired: `{}` has not written for {} s and did not release it (ttl {} s)",
                document.lease.owner_id.as_deref().unwrap_or_default(),
                age.since_write.as_secs(),
                document.lease.ttl_seconds
            ),
            "if the timer runs, nothing: the next tick takes it over; otherwise start the function app",
        ),
    }
}

fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

#[cfg(test)]
mod tests;

//! Appends to a journal, and interprets rejected and unanswered appends.

use std::sync::Arc;
use std::time::Duration;

use time::Date;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::field::Empty;
use tracing::{Instrument as _, warn};

use super::store::length;
use super::{Append, Appended, JournalStore, Part};
use crate::backoff::{STORE, seed_of};
use crate::store::StoreError;
use crate::trace::span;

/// Appends to one poller's journal.
///
/// Its end is remembered, so an append is one request. If another writer, such as an operator, has moved the end, the
/// new lines are read: they may come from an own append whose response was lost.
#[derive(Debug)]
pub struct Appender {
    store: Arc<dyn JournalStore>,
    poller: String,
    retention: Option<Duration>,
    end: Option<(Part, u64)>,
    /// Whether the next append starts a part.
    starts_part: bool,
}

/// Most requests to find the end for one append.
const TRIES_MAX: u32 = 5;
/// Longest duration of an append: a tick waits for it.
const TIME_MAX: Duration = Duration::from_secs(5);

impl Appender {
    /// Returns an appender for the journal of `poller`. It drops the parts of days that ended more than `retention`
    /// ago; `None` keeps all.
    pub fn new(store: Arc<dyn JournalStore>, poller: &str, retention: Option<Duration>) -> Self {
        Self { store, poller: poller.to_owned(), retention, end: None, starts_part: false }
    }

    /// Makes the next append start a new part, so that earlier parts can be dropped.
    pub fn start_part(&mut self) {
        self.starts_part = true;
        self.end = None;
    }

    /// Appends lines to the part of their day.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; it is then unknown whether the lines were appended, unless it is `Refused`.
    pub async fn append(&mut self, append: &Append) -> Result<(), StoreError> {
        let until = Instant::now() + TIME_MAX;
        let begins_day = self.end.as_ref().is_none_or(|(part, _)| part.day != append.day);
        let bytes = i64::try_from(append.bytes.len()).unwrap_or(i64::MAX);
        let span = span!(
            "journal append",
            otel.kind = "client",
            poller.name = self.poller,
            highwater.journal.bytes = bytes,
            error.type = Empty,
        );
        let attempts = self.append_with_retries(append).instrument(span.clone());
        let appended = match timeout_at(until, attempts).await {
            Ok(appended) => appended,
            Err(_elapsed) => Err(StoreError::Unknown {
                key: self.poller.clone(),
                reason: "the journal did not accept the lines in time".to_owned(),
            }),
        };
        self.starts_part = false;
        if appended.is_err() {
            span.record("error.type", "JournalAppendError");
            self.end = None;
        } else if begins_day {
            // If this takes too long today, it is retried tomorrow.
            timeout_at(until, self.drop_old(append.day)).await.unwrap_or_default();
        }
        appended
    }

    async fn append_with_retries(&mut self, append: &Append) -> Result<(), StoreError> {
        let (mut part, mut position) = match self.end.take() {
            Some((part, position)) if part.day == append.day => (part, position),
            Some(_) | None => self.find_end(append.day).await?,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.store.append(&part, position, append.bytes.clone()).await {
                Ok(Appended::UpTo(end)) => {
                    self.end = Some((part, end));
                    return Ok(());
                }
                Ok(Appended::Full) => {
                    part = part.next();
                    position = self.store.length(&part).await?;
                    continue;
                }
                Err(error @ StoreError::Refused { .. }) => return Err(error),
                Err(error) => error,
            };
            if tries >= TRIES_MAX {
                return Err(error);
            }
            if !matches!(error, StoreError::Conflict { .. }) {
                sleep(STORE.delay(tries, seed_of(&self.poller))).await;
            }
            let Ok(written_after) = self.store.read(&part, position).await else { continue };
            if written_after.is_empty() && matches!(error, StoreError::Conflict { .. }) {
                // Shorter than before: the part was dropped, and the history continues in another one.
                let Ok(end) = self.find_end(append.day).await else { continue };
                (part, position) = end;
                continue;
            }
            position += length(&written_after);
            if contains(&written_after, &append.bytes) {
                self.end = Some((part, position));
                return Ok(());
            }
        }
    }

    async fn find_end(&self, day: Date) -> Result<(Part, u64), StoreError> {
        let parts = self.store.list(&self.poller).await?;
        let last = parts.into_iter().rfind(|part| part.day == day);
        let part = last.unwrap_or_else(|| Part::of_day(&self.poller, day));
        let position = self.store.length(&part).await?;
        // Another writer that starts one at the same time uses the same number: one of the two then follows the
        // other.
        if self.starts_part && position > 0 { Ok((part.next(), 0)) } else { Ok((part, position)) }
    }

    /// Drops parts beyond the retention. Each day starts with a snapshot, so the remaining parts can be folded.
    async fn drop_old(&self, today: Date) {
        let Some(kept) = self.retention else { return };
        let days = i64::try_from(kept.as_secs() / SECONDS_PER_DAY).unwrap_or(i64::MAX);
        let Some(oldest) = today.checked_sub(time::Duration::days(days.min(DAYS_MAX))) else {
            return;
        };
        let dropped = async {
            for part in self.store.list(&self.poller).await? {
                if part.day < oldest {
                    self.store.remove(&part, None).await?;
                }
            }
            Ok::<(), StoreError>(())
        };
        if let Err(error) = dropped.await {
            warn!(
                event = "journal_not_tidied",
                poller.name = self.poller,
                error = %error,
                "Could not drop old parts of the journal of poller `{}`; will retry tomorrow",
                self.poller
            );
        }
    }
}

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
/// Longer than any retention, and small enough to subtract from any date.
const DAYS_MAX: i64 = 366_000;

/// Whether the complete lines `wanted` are contained in the complete lines `lines`.
fn contains(lines: &[u8], wanted: &[u8]) -> bool {
    let mut rest = lines;
    while !rest.is_empty() {
        if rest.starts_with(wanted) {
            return true;
        }
        let next = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use time::macros::date;

    use super::*;
    use crate::journal::MemoryJournal;

    /// A journal whose appends fail as scripted, from the last fault to the first.
    #[derive(Debug, Default)]
    struct Faulty {
        memory: MemoryJournal,
        faults: Mutex<Vec<Fault>>,
        calls: AtomicUsize,
    }

    #[derive(Clone, Copy, Debug)]
    enum Fault {
        /// The append happens, but the response is lost.
        AnswerLost,
        /// The append does not happen, and the response is lost.
        Lost,
        NotReached,
        Full,
        Refused,
    }

    #[async_trait]
    impl JournalStore for Faulty {
        async fn append(
            &self,
            part: &Part,
            position: u64,
            bytes: Vec<u8>,
        ) -> Result<Appended, StoreError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let fault = self.faults.lock().unwrap().pop();
            let (key, reason) = (part.to_string(), "scripted".to_owned());
            match fault {
                None => self.memory.append(part, position, bytes).await,
                Some(Fault::AnswerLost) => {
                    self.memory.append(part, position, bytes).await?;
                    Err(StoreError::Unknown { key, reason })
                }
                Some(Fault::Lost) => Err(StoreError::Unknown { key, reason }),
                Some(Fault::NotReached) => Err(StoreError::Unreachable { key, reason }),
                Some(Fault::Full) => Ok(Appended::Full),
                Some(Fault::Refused) => Err(StoreError::Refused { key, reason }),
            }
        }

        async fn length(&self, part: &Part) -> Result<u64, StoreError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.memory.length(part).await
        }

        async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.memory.read(part, position).await
        }

        async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.memory.list(poller).await
        }

        async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
            self.memory.remove(part, length).await
        }
    }

    fn lines(day: Date, text: &str) -> Append {
        Append { day, bytes: format!("{text}\n").into_bytes(), entries: 1 }
    }

    const DAY: Date = date!(2026 - 04 - 07);

    async fn all(store: &dyn JournalStore) -> String {
        let mut all = Vec::new();
        for part in store.list("orders").await.unwrap() {
            all.extend(store.read(&part, 0).await.unwrap());
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_appended_once_even_if_responses_are_lost() {
        use Fault::{AnswerLost, Full, Lost, NotReached};
        for faults in [
            vec![],
            vec![AnswerLost],
            vec![Lost],
            vec![NotReached],
            vec![Full],
            vec![AnswerLost, Lost],
            vec![Lost, NotReached, AnswerLost, Lost],
        ] {
            let store = Arc::new(Faulty::default());
            let mut appender = Appender::new(store.clone(), "orders", None);
            appender.append(&lines(DAY, "one")).await.unwrap();
            *store.faults.lock().unwrap() = faults.clone();
            appender.append(&lines(DAY, "two")).await.unwrap();
            appender.append(&lines(DAY, "three")).await.unwrap();
            assert_eq!(all(&*store).await, "one\ntwo\nthree\n", "{faults:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_another_writer_are_kept_and_followed() {
        let store = Arc::new(Faulty::default());
        let mut one = Appender::new(store.clone(), "orders", None);
        let mut other = Appender::new(store.clone(), "orders", None);
        one.append(&lines(DAY, "one")).await.unwrap();
        other.append(&lines(DAY, "other")).await.unwrap();
        one.append(&lines(DAY, "two")).await.unwrap();
        assert_eq!(all(&*store).await, "one\nother\ntwo\n");
    }

    #[tokio::test(start_paused = true)]
    async fn appending_continues_in_the_last_part_after_one_was_dropped() {
        let store = Arc::new(Faulty::default());
        let mut appender = Appender::new(store.clone(), "orders", None);
        appender.append(&lines(DAY, "one")).await.unwrap();
        let first = Part::of_day("orders", DAY);
        store.append(&first.next(), 0, b"snapshot\n".to_vec()).await.unwrap();
        store.remove(&first, Some(4)).await.unwrap();
        appender.append(&lines(DAY, "two")).await.unwrap();
        assert_eq!(all(&*store).await, "snapshot\ntwo\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_warm_append_is_one_request() {
        let store = Arc::new(Faulty::default());
        let mut appender =
            Appender::new(store.clone(), "orders", Some(Duration::from_secs(86_400)));
        appender.append(&lines(DAY, "one")).await.unwrap();
        let cold = store.calls.swap(0, Ordering::Relaxed);
        appender.append(&lines(DAY, "two")).await.unwrap();
        assert_eq!((cold, store.calls.load(Ordering::Relaxed)), (4, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_ends_if_the_store_rejects_it_or_never_answers() {
        let store = Arc::new(Faulty::default());
        let mut appender = Appender::new(store.clone(), "orders", None);
        *store.faults.lock().unwrap() = vec![Fault::Refused];
        let refused = appender.append(&lines(DAY, "one")).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
        *store.faults.lock().unwrap() = vec![Fault::Lost; 50];
        let unknown = appender.append(&lines(DAY, "one")).await;
        assert!(matches!(unknown, Err(StoreError::Unknown { .. })), "{unknown:?}");
        store.faults.lock().unwrap().clear();
        appender.append(&lines(DAY, "two")).await.unwrap();
        assert_eq!(all(&*store).await, "two\n");
    }

    #[tokio::test(start_paused = true)]
    async fn each_day_has_its_own_part_and_old_ones_are_dropped() {
        let store = Arc::new(MemoryJournal::default());
        let retention = Some(Duration::from_secs(2 * SECONDS_PER_DAY));
        let mut appender = Appender::new(store.clone(), "orders", retention);
        for day in 1..=5 {
            let day = Date::from_calendar_date(2026, time::Month::April, day).unwrap();
            appender.append(&lines(day, &day.to_string())).await.unwrap();
        }
        assert_eq!(all(&*store).await, "2026-04-03\n2026-04-04\n2026-04-05\n");
    }

    #[test]
    fn only_complete_lines_are_found() {
        assert!(contains(b"a\nbc\nd\n", b"bc\nd\n"));
        for wanted in [&b"c\n"[..], b"d\ne\n", b"b\n"] {
            assert!(!contains(b"a\nbc\nd\n", wanted));
        }
    }
}

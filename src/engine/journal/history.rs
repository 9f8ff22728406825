//! Reads a journal back, to show what happened or to rebuild a document.

use time::{Date, OffsetDateTime};

use super::store::length;
use super::{Entry, EventKind, Finding, FoldResult, JournalStore, Part, VERSION, fold};
use crate::document::{FencingToken, Generation};
use crate::store::StoreError;

/// A line of a part, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the part.
    pub part: String,
    /// Number of the line in it, from 1.
    pub number: usize,
    /// The line, without its end.
    pub bytes: Vec<u8>,
    /// Its content, or why it cannot be read.
    pub entry: Result<Entry, String>,
}

/// A poller's journal, or the last part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The lines, as they are stored.
    pub lines: Vec<Line>,
    /// The parts that were read, oldest first, with their lengths at that time.
    pub parts: Vec<(Part, u64)>,
}

/// Selects entries; an unset field does not restrict the selection.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Not before this; storage time.
    pub since: Option<OffsetDateTime>,
    /// Before this; storage time.
    pub until: Option<OffsetDateTime>,
    /// Any of these kinds; empty for all.
    pub events: Vec<EventKind>,
    /// The batch that they refer to.
    pub batch_id: Option<String>,
    /// The grant under which they happened.
    pub token: Option<FencingToken>,
}

impl Filter {
    /// Whether `entry` is selected.
    pub fn matches(&self, entry: &Entry) -> bool {
        self.since.is_none_or(|since| entry.at >= since)
            && self.until.is_none_or(|until| entry.at < until)
            && (self.events.is_empty() || self.events.contains(&entry.event))
            && self.token.is_none_or(|token| entry.fencing_token == token)
            && self.batch_id.as_ref().is_none_or(|wanted| {
                entry.details.batch_id.as_ref().is_some_and(|id| id.as_str() == wanted.as_str())
            })
    }

    /// Whether all entries are selected.
    pub fn is_none(&self) -> bool {
        let Self { since, until, events, batch_id, token } = self;
        since.is_none()
            && until.is_none()
            && events.is_empty()
            && batch_id.is_none()
            && token.is_none()
    }
}

impl History {
    /// Reads the journal of `poller`, starting at the day `from` if given.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn read(
        store: &dyn JournalStore,
        poller: &str,
        from: Option<Date>,
    ) -> Result<Self, StoreError> {
        let mut history = Self::default();
        for part in store.list(poller).await? {
            if from.is_none_or(|from| part.day >= from) {
                let bytes = store.read(&part, 0).await?;
                history.lines.extend(read_part(&part.to_string(), &bytes));
                history.parts.push((part, length(&bytes)));
            }
        }
        Ok(history)
    }

    /// Returns the readable entries, in stored order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().filter_map(|line| line.entry.as_ref().ok())
    }

    /// Returns the document as of the last entry; unreadable lines are the first findings.
    pub fn fold(&self) -> FoldResult {
        let mut folded = fold(self.entries().cloned().collect());
        folded.findings = self.unreadable().chain(folded.findings).collect();
        folded
    }

    /// Returns the problems of single lines.
    pub fn unreadable(&self) -> impl Iterator<Item = Finding> {
        self.lines.iter().filter_map(|line| {
            let reason = line.entry.as_ref().err()?.clone();
            Some(Finding::Unreadable { part: line.part.clone(), line: line.number, reason })
        })
    }

    /// Returns the lines selected by `filter`, in historical order. If nothing is filtered out, unreadable lines stay
    /// after the line that they follow.
    pub fn select(&self, filter: &Filter) -> Vec<&Line> {
        let mut place = (Generation(0), 0);
        let mut placed: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                place = line.entry.as_ref().map_or(place, Entry::place);
                (place, line)
            })
            .collect();
        // A stable sort keeps lines with the same place in stored order.
        placed.sort_by_key(|(place, _)| *place);
        let lines = placed.into_iter().map(|(_, line)| line);
        lines
            .filter(|line| {
                line.entry.as_ref().map_or(filter.is_none(), |entry| filter.matches(entry))
            })
            .collect()
    }
}

/// Reads the lines of a part, without empty ones.
pub(super) fn read_part(part: &str, bytes: &[u8]) -> Vec<Line> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    lines
        .map(|(index, line)| Line {
            part: part.to_owned(),
            number: index + 1,
            bytes: line.to_vec(),
            entry: read_line(line),
        })
        .collect()
}

fn read_line(line: &[u8]) -> Result<Entry, String> {
    let entry: Entry = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if entry.version == VERSION {
        return Ok(entry);
    }
    Err(format!("it has version {}, this build reads {VERSION}", entry.version))
}

#[cfg(test)]
mod tests {
    use time::macros::{date, datetime};

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::StateDocument;
    use crate::journal::MemoryJournal;

    fn entry(seq: u64, event: EventKind) -> Entry {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.journal_seq = seq;
        document.lease.fencing_token = FencingToken(seq / 10);
        let at = datetime!(2026-04-07 00:00 UTC) + std::time::Duration::from_secs(seq);
        Entry::of_operator(event, &document, at, "eve", None)
    }

    fn text(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in entries {
            entry.write_to(&mut bytes);
        }
        bytes
    }

    fn history(bytes: &[u8]) -> History {
        History { lines: read_part("p", bytes), parts: Vec::new() }
    }

    fn seqs(history: &History, filter: &Filter) -> Vec<u64> {
        let lines = history.select(filter);
        lines.iter().map(|line| line.entry.as_ref().map_or(0, |entry| entry.seq)).collect()
    }

    #[test]
    fn each_filter_excludes_other_entries() {
        let entries = [
            entry(9, EventKind::Paused),
            entry(11, EventKind::Resumed),
            entry(10, EventKind::Paused),
            entry(20, EventKind::Reset),
        ];
        let history = history(&[text(&entries), b"{\n".to_vec()].concat());
        let at =
            |seconds| datetime!(2026-04-07 00:00 UTC) + std::time::Duration::from_secs(seconds);
        let all = Filter::default();
        for (filter, expected) in [
            (all.clone(), &[9, 10, 11, 20, 0][..]),
            (Filter { since: Some(at(10)), ..all.clone() }, &[10, 11, 20]),
            (Filter { until: Some(at(11)), ..all.clone() }, &[9, 10]),
            (
                Filter { events: vec![EventKind::Paused, EventKind::Reset], ..all.clone() },
                &[9, 10, 20],
            ),
            (Filter { token: Some(FencingToken(1)), ..all.clone() }, &[10, 11]),
            (Filter { batch_id: Some("b".to_owned()), ..all }, &[]),
        ] {
            assert_eq!(seqs(&history, &filter), expected, "{filter:?}");
        }
    }

    #[tokio::test]
    async fn parts_are_read_from_a_day_on_with_their_lengths() {
        let store = MemoryJournal::default();
        let parts =
            [date!(2026 - 04 - 07), date!(2026 - 04 - 08)].map(|d| Part::of_day("orders", d));
        for (part, seq) in parts.iter().zip(1..) {
            store.append(part, 0, text(&[entry(seq, EventKind::Paused)])).await.unwrap();
        }
        let all = History::read(&store, "orders", None).await.unwrap();
        assert_eq!(seqs(&all, &Filter::default()), [1, 2]);
        let end = History::read(&store, "orders", Some(parts[1].day)).await.unwrap();
        assert_eq!(seqs(&end, &Filter::default()), [2]);
        let bytes = store.length(&parts[1]).await.unwrap();
        assert_eq!(end.parts, [(parts[1].clone(), bytes)]);
    }

    #[test]
    fn leftovers_of_a_compaction_do_not_count() {
        let mut late = entry(3, EventKind::Resumed);
        late.document = None;
        late.changes = Some(crate::journal::Changes::default());
        let folded = history(&text(&[late.clone(), entry(4, EventKind::Compacted)])).fold();
        assert_eq!((folded.findings, folded.document.unwrap().journal_seq), (vec![], 4));
        let folded = history(&text(&[late, entry(4, EventKind::Paused)])).fold();
        assert_eq!(folded.findings.len(), 1, "any other snapshot tells of the gap before it");
    }
}

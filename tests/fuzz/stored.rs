//! What is stored, and may be damaged or written by others: state documents and journals.

use highwater::journal::{Entry, Filter, History, JournalStore as _, MemoryJournal, Part};
use highwater::state::{decode, decode_marker, encode};
use time::macros::date;

use crate::host::block_on;

/// A state document and a marker. What is read can be written, and reads back the same.
pub(crate) fn documents(input: &[u8]) {
    match decode("orders", input) {
        Ok(document) => {
            let written = encode(&document);
            let again = decode("orders", &written);
            assert_eq!(again.as_ref().ok(), Some(&document), "{again:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    drop(decode_marker("orders", input));
}

/// The lines of a journal. Damaged ones are findings and hide no others.
pub(crate) fn journal(input: &[u8]) {
    let journal = MemoryJournal::default();
    let part = Part::of_day("orders", date!(2026 - 04 - 07));
    let history = block_on(async {
        journal.append(&part, 0, input.to_vec()).await.ok()?;
        History::read(&journal, "orders", None).await.ok()
    });
    let Some(history) = history else { return };
    let lines = input.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    assert_eq!(history.lines.len(), lines.count());
    assert_eq!(history.select(&Filter::default()).len(), history.lines.len());
    drop(history.fold());
    for entry in history.entries() {
        let mut written = Vec::new();
        entry.write_to(&mut written);
        let again: Result<Entry, _> = serde_json::from_slice(&written);
        assert_eq!(again.as_ref().ok(), Some(entry), "{again:?}");
    }
}

//! The application of the demo: writes rows while the pollers read.
//!
//! Each round is one transaction that inserts flights and changes earlier ones, and that stays open
//! for a while between the two, so that pollers encounter uncommitted rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::flights::{COLUMNS, Flight, TABLE};
use highwater_devdb::{Database, Engine as _, Parameter, Reply, Session, SqlError, Type, Value};

/// Rounds that the rows are spread over.
const ROUNDS: usize = 60;
/// Most rows changed in a round.
const CHANGES_EACH_MAX: usize = 10;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a transaction stays open with what it has inserted.
const OPEN: Duration = Duration::from_millis(25);

/// What is to be written.
#[derive(Debug)]
pub(super) struct Work {
    rounds: Vec<Round>,
    changes: u64,
}

#[derive(Debug)]
struct Round {
    inserts: Vec<Flight>,
    /// First and last id to change; nothing where the last is lower.
    changes: (usize, usize),
}

impl Work {
    /// Spreads `rest` over rounds, with changes of flights among the first `changeable`.
    ///
    /// No row is changed twice. So if those rows arrived before the work began, no state is replaced before it
    /// could be read.
    pub(super) fn new(rest: Vec<Flight>, changeable: usize) -> Self {
        let each = rest.len().div_ceil(ROUNDS).max(1);
        let count = rest.len().div_ceil(each);
        let changes = changeable.min(count * CHANGES_EACH_MAX);
        let changed_before = |round: usize| (round * changes).checked_div(count).unwrap_or(0);
        let mut rest = rest.into_iter();
        let rounds = (0..count).map(|round| Round {
            inserts: rest.by_ref().take(each).collect(),
            changes: (changed_before(round) + 1, changed_before(round + 1)),
        });
        let rounds = rounds.collect();
        Self { rounds, changes: u64::try_from(changes).unwrap_or(u64::MAX) }
    }

    /// Returns how many changes of rows there will be.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

/// What has been committed so far.
#[derive(Debug, Default)]
pub(super) struct WriteProgress {
    inserted: AtomicU64,
    changed: AtomicU64,
}

impl WriteProgress {
    /// Rows inserted.
    pub(super) fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Relaxed)
    }

    /// Rows changed.
    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }
}

/// Does the work, and counts what was committed.
pub(super) async fn write(
    database: Database,
    work: Work,
    written: Arc<WriteProgress>,
) -> Result<(), SqlError> {
    let mut session = database.connect("Highwater")?;
    for Round { inserts, changes: (first, last) } in work.rounds {
        let inserted;
        (session, inserted) = on_blocking_thread(session, move |session| {
            session.begin()?;
            insert(session, inserts)
        })
        .await?;
        sleep(OPEN).await;
        let changed;
        (session, changed) = on_blocking_thread(session, move |session| {
            let changed = change(session, first, last)?;
            session.commit()?;
            Ok(changed)
        })
        .await?;
        written.inserted.fetch_add(inserted, Ordering::Relaxed);
        written.changed.fetch_add(changed, Ordering::Relaxed);
        sleep(PAUSE).await;
    }
    Ok(())
}

async fn on_blocking_thread(
    mut session: Box<dyn Session>,
    work: impl FnOnce(&mut dyn Session) -> Result<u64, SqlError> + Send + 'static,
) -> Result<(Box<dyn Session>, u64), SqlError> {
    let ran = spawn_blocking(move || work(&mut *session).map(|rows| (session, rows))).await;
    ran.unwrap_or_else(|panic| Err(SqlError::new(0, 20, panic.to_string())))
}

fn insert(session: &mut dyn Session, flights: Vec<Flight>) -> Result<u64, SqlError> {
    let names = COLUMNS.join(", ");
    let values: Vec<String> = COLUMNS.iter().map(|column| format!("@{column}")).collect();
    let sql = format!("INSERT INTO {TABLE} ({names}) VALUES ({})", values.join(", "));
    let mut rows = 0;
    for flight in flights {
        let parameters: Vec<Parameter> = COLUMNS.iter().zip(flight).map(parameter).collect();
        rows += run(session, &sql, &parameters)?;
    }
    Ok(rows)
}

fn parameter((name, value): (&&str, Value)) -> Parameter {
    let ty = if matches!(value, Value::Int(_)) { Type::Int } else { Type::NVarChar(Some(40)) };
    Parameter { name: format!("@{name}"), ty, value }
}

/// Puts flights off: those that left by a few minutes, the cancelled ones all the same.
fn change(session: &mut dyn Session, first: usize, last: usize) -> Result<u64, SqlError> {
    let sql = format!(
        "UPDATE {TABLE} SET dep_delay = dep_delay + 5, arr_delay = arr_delay + 5
         WHERE id BETWEEN {first} AND {last}"
    );
    if first > last { Ok(0) } else { run(session, &sql, &[]) }
}

fn run(session: &mut dyn Session, sql: &str, parameters: &[Parameter]) -> Result<u64, SqlError> {
    let mut rows = 0;
    for reply in session.run(sql, parameters) {
        match reply {
            Reply::Rows { completion, .. } | Reply::Done(completion) => {
                rows += completion.written();
            }
            Reply::Error(error) => return Err(error),
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::flights;

    #[tokio::test(start_paused = true)]
    async fn all_rows_are_written_and_as_many_are_changed_as_was_said() {
        let database = Database::in_memory().unwrap();
        let mut all = flights::read(300).unwrap();
        let rest = all.split_off(250);
        flights::load(&database, &all).unwrap();
        let work = Work::new(rest, 120);
        let changes = work.changes();
        let written = Arc::new(WriteProgress::default());
        write(database.clone(), work, Arc::clone(&written)).await.unwrap();
        assert_eq!((written.inserted(), written.changed()), (50, changes));
        assert_eq!(changes, 120);
        assert_eq!(database.execute("SELECT id FROM dbo.flights").unwrap(), 300);
    }

    #[test]
    fn changes_stay_among_the_rows_that_may_change() {
        for (rest, changeable) in [(4_050, 1_000), (15, 8), (1, 1), (0, 9), (61, 0)] {
            let work = Work::new(flights::read(rest).unwrap(), changeable);
            assert!(work.changes() <= u64::try_from(changeable).unwrap(), "{rest}, {changeable}");
            let of_round = |round: &Round| round.changes.1 + 1 - round.changes.0;
            let sum: usize = work.rounds.iter().map(of_round).sum();
            assert_eq!(u64::try_from(sum).unwrap(), work.changes());
            let inserts: usize = work.rounds.iter().map(|round| round.inserts.len()).sum();
            assert_eq!(inserts, rest);
        }
    }
}

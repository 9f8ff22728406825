//! The inputs and reports of the measurement processes.

use serde::{Deserialize, Serialize};

use crate::ours::BATCH_BYTES_MAX;
use crate::tables::Tables;

/// The role of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// The embedded SQL Server.
    Server(Tables),
    /// The receiver of the POSTs.
    Receiver,
    /// The bare loop.
    Bare(Drain),
    /// The poller.
    Ours(Drain),
    /// Idle pollers.
    Idle(Idle),
    /// One poller after another over the same rows.
    Memory(Passes),
    /// A poller with a timer, and a writer.
    Latency(Wait),
    /// Pollers with timers, over storage that fails.
    Load(Load),
}

/// All rows of a table in batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub(crate) connection: String,
    pub(crate) table: String,
    pub(crate) batch: usize,
    /// Most bytes of a batch.
    pub(crate) bytes_max: usize,
    /// The URL for batches; if absent they are only counted.
    pub(crate) url: Option<String>,
    /// The statements that a poller sends; for the bare loop.
    pub(crate) texts: Option<Texts>,
    /// The state store; in memory if absent.
    pub(crate) blobs: Option<Blobs>,
    /// Whether an earlier process created the poller's document.
    pub(crate) is_known: bool,
    /// Batches after which the poller stops; if absent it reads to the end.
    pub(crate) batches_max: Option<u64>,
}

impl Drain {
    /// Returns the job to read a table to its end in batches of `batch` rows, and to count them.
    pub(crate) fn of(connection: &str, table: &str, batch: usize) -> Self {
        Self {
            connection: connection.to_owned(),
            table: table.to_owned(),
            batch,
            bytes_max: BATCH_BYTES_MAX,
            url: None,
            texts: None,
            blobs: None,
            is_known: false,
            batches_max: None,
        }
    }
}

/// A container of Azurite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Blobs {
    pub(crate) connection: String,
    pub(crate) container: String,
}

/// The statements of a fetch: `@P1` is the number of rows, `@P2` the row version and `@P3` the key after
/// which to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Texts {
    /// From the beginning.
    pub(crate) first: String,
    /// After a row.
    pub(crate) next: String,
}

/// The measured cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Took {
    pub(crate) rows: u64,
    /// Rows that were read before the clock started.
    pub(crate) rows_before: u64,
    pub(crate) batches: u64,
    pub(crate) seconds: f64,
    /// Of this process alone.
    pub(crate) cpu_seconds: f64,
    /// Largest resident memory of the process so far, in KiB.
    pub(crate) peak_kib: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) connection: String,
    pub(crate) table: String,
    pub(crate) pollers: usize,
    /// Ticks of each poller.
    pub(crate) ticks: u64,
    pub(crate) blobs: Option<Blobs>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Passes {
    pub(crate) drain: Drain,
    pub(crate) passes: u64,
}

/// Resident memory of a process, in KiB.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) rows: u64,
    pub(crate) before_kib: u64,
    /// At the end of each pass.
    pub(crate) after_kib: Vec<u64>,
    pub(crate) peak_kib: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) connection: String,
    pub(crate) table: String,
    /// The time over which writes are spread; if ticks do not follow, also their interval.
    pub(crate) spread_ms: u64,
    pub(crate) rows: u64,
    /// Key of the first row.
    pub(crate) first_id: u64,
    /// Whether a tick continues to poll for rows.
    pub(crate) follows: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) connection: String,
    pub(crate) table: String,
    pub(crate) pollers: usize,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

/// The result of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) written: u64,
    pub(crate) delivered: u64,
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) ticks: u64,
    /// Ticks that found the previous one still running.
    pub(crate) met_running: u64,
    pub(crate) failed: u64,
    /// Handler calls that started while another one of the same poller ran.
    pub(crate) overlaps: u64,
    pub(crate) storage_calls: u64,
    pub(crate) storage_faults: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Resident memory each tenth of the time.
    pub(crate) rss_kib: Vec<u64>,
    /// Errors of failed ticks, with their counts.
    pub(crate) said: std::collections::BTreeMap<String, u64>,
}

//! Memory use under an endless stream of rows.

use std::sync::Arc;

use highwater::state::MemoryStore;
use serde_json::json;

use crate::child::{self, Receiver, Server};
use crate::job::{Drain, Memory, Passes, Role};
use crate::options::Options;
use crate::ours::{Parts, handler, source_up_to, tick};
use crate::report::{Report, count, float};
use crate::system;

/// The tolerance within which memory is flat: the allocator may round.
const FLAT: f64 = 1.1;

/// The default of `BATCH_BYTES_MAX`.
const DEFAULT_BYTES_MAX: u32 = 4 << 20;

/// How many full batches a poller may need in addition to its idle memory.
const FULL_BATCHES: f64 = 3.0;

/// Reads the same rows again and again, each time with a new poller, over one connection.
pub(crate) async fn drain(job: &Passes) -> Memory {
    let Drain { connection, table, batch, bytes_max, url, .. } = &job.drain;
    let source = source_up_to(*bytes_max, "memory", connection, table);
    let handler = handler(url.as_ref());
    let poller = |name: String, batch, batches_max| {
        let (source, handler) = (Arc::clone(&source), Arc::clone(&handler));
        let store = Arc::new(MemoryStore::default());
        let bytes_max = *bytes_max;
        Parts { name, source, handler, store, batch, bytes_max, batches_max }.poller()
    };
    // An idle poller keeps its connections.
    let at_rest = tick(&poller("rest".to_owned(), 1, Some(1))).await;
    assert!(at_rest.result.is_ok(), "{at_rest:?}");
    let mut memory = Memory { before_kib: system::resident_kib(None), ..Memory::default() };
    for pass in 0..job.passes {
        let report = tick(&poller(format!("pass-{pass}"), *batch, None)).await;
        assert!(report.result.is_ok(), "{report:?}");
        memory.rows += report.rows;
        memory.after_kib.push(system::resident_kib(None));
    }
    memory.peak_kib = system::peak_kib();
    memory
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let small = Drain::of(&server.connection, "dbo.flights", 1_000);
    let mut figures = Vec::new();
    let rows = options.size(options.flights() * 4, 2_000_000, 10_000_000);
    let passes = rows.div_ceil(options.flights()).max(4);
    let memory = run("flights in batches of 1,000", passes, small, report).await;
    figures.push(cells("flights in batches of 1,000, in process", &memory));

    // As many rows as the byte limit allows, as with default settings.
    let receiver = Receiver::start().await;
    let bytes_max = usize::try_from(DEFAULT_BYTES_MAX).unwrap();
    let wide = Drain::of(&server.connection, "dbo.wide", 100_000);
    let large = Drain { bytes_max, url: Some(receiver.url.clone()), ..wide };
    let memory = run("batches of 4 MiB", (passes / 4).max(4), large, report).await;
    figures.push(cells("rows of 1 kB in batches of 4 MiB, `http`", &memory));
    let most = FULL_BATCHES * f64::from(DEFAULT_BYTES_MAX) / 1024.0;
    let more = float(memory.peak_kib) - float(memory.before_kib);
    let wanted = format!("≤ {} MiB more than idle", mib(most));
    let what = "memory at its peak in batches of 4 MiB";
    report.target(what, &wanted, &format!("{} MiB", mib(more)), more <= most);

    let heads = ["workload", "rows", "idle", "first half", "second half", "peak"];
    report.table("Memory, MiB", &heads, &figures);
}

/// Reads rows endlessly, and judges whether memory stays flat.
async fn run(what: &str, passes: u64, drain: Drain, report: &mut Report) -> Memory {
    let memory: Memory = child::run(&Role::Memory(Passes { drain, passes })).await;
    let [early, late] = halves(&memory);
    let what = format!("memory over {} rows, {what}", count(float(memory.rows)));
    let wanted = format!("second half ≤ {FLAT} × first");
    report.target(&what, &wanted, &format!("{:.2} ×", late / early), late / early <= FLAT);
    report.keep("memory", json!(memory));
    memory
}

/// Returns the maximum of each half, in KiB.
fn halves(memory: &Memory) -> [f64; 2] {
    let (early, late) = memory.after_kib.split_at(memory.after_kib.len() / 2);
    [early, late].map(|kib| float(kib.iter().copied().max().unwrap()))
}

fn cells(what: &str, memory: &Memory) -> Vec<String> {
    let [early, late] = halves(memory).map(mib);
    let [before, peak] = [memory.before_kib, memory.peak_kib].map(|kib| mib(float(kib)));
    vec![what.to_owned(), count(float(memory.rows)), before, early, late, peak]
}

fn mib(kib: f64) -> String {
    format!("{:.1}", kib / 1024.0)
}

//! Memory under rows without end.

use std::sync::Arc;

use highwater::state::MemoryStore;
use serde_json::json;

use crate::child::{self, Server};
use crate::job::{Drain, Memory, Passes, Role};
use crate::options::Options;
use crate::ours::{Ignoring, Parts, source, tick};
use crate::report::{Report, count, float};
use crate::system;

/// What counts as flat: the allocator may round.
const FLAT: f64 = 1.1;

/// Reads the same rows again and again, each time by a poller that has not seen them, over one
/// connection.
pub(crate) async fn drain(job: &Passes) -> Memory {
    let source = source("memory", &job.drain.connection, &job.drain.table);
    let handler = Arc::new(Ignoring::default());
    let mut memory = Memory { before_kib: system::resident_kib(None), ..Memory::default() };
    for pass in 0..job.passes {
        let parts = Parts {
            name: format!("pass-{pass}"),
            source: Arc::clone(&source),
            handler: handler.clone(),
            store: Arc::new(MemoryStore::default()),
            batch: job.drain.batch,
            batches_max: None,
        };
        let report = tick(&parts.poller()).await;
        assert!(report.result.is_ok(), "{report:?}");
        memory.rows += report.rows;
        memory.after_kib.push(system::resident_kib(None));
    }
    memory.peak_kib = system::peak_kib();
    memory
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let rows = options.size(options.flights() * 4, 2_000_000, 10_000_000);
    let job = Passes {
        passes: rows.div_ceil(options.flights()).max(4),
        drain: Drain {
            connection: server.connection.clone(),
            table: "dbo.flights".to_owned(),
            batch: 1_000,
            url: None,
            texts: None,
            blobs: None,
            is_known: false,
            batches_max: None,
        },
    };
    let memory: Memory = child::run(&Role::Memory(job)).await;
    let (early, late) = memory.after_kib.split_at(memory.after_kib.len() / 2);
    let most = |kib: &[u64]| float(kib.iter().copied().max().unwrap());
    let mib = |kib: f64| format!("{:.1}", kib / 1024.0);
    let heads = ["rows", "before", "first half", "second half", "peak"];
    let figures = vec![
        count(float(memory.rows)),
        mib(float(memory.before_kib)),
        mib(most(early)),
        mib(most(late)),
        mib(float(memory.peak_kib)),
    ];
    report.table("Memory while flights are read in batches of 1,000, MiB", &heads, &[figures]);
    let ratio = most(late) / most(early);
    let what = format!("memory over {} rows", count(float(memory.rows)));
    let wanted = format!("second half ≤ {FLAT} × first");
    report.target(&what, &wanted, &format!("{ratio:.2} ×"), ratio <= FLAT);
    report.keep("memory", json!(memory));
}

//! The poller: the library's own, over the real driver and wire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use highwater::clock::SystemClock;
use highwater::config::{
    Config, HandlerConfig, OnSchemaChange, Relation, SourceClock, SqlConnection,
};
use highwater::cursor::CursorMode;
use highwater::handler::http::{Client, Http};
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::FailurePolicy;
use highwater::poller::{Limits, Poller, PollerParts, TickOutcome};
use highwater::source::Source;
use highwater::source::mssql::{Mssql, SizeLimits, SourceSettings};
use highwater::state::{BlobStore, MemoryStore, StateStore};
use highwater::testing::limits;
use highwater::tick::{TickReport, TickRequest};
use tokio::time::Instant;

use crate::azurite::service;
use crate::bare::WARM_UP;
use crate::job::{Blobs, Drain, Took};
use crate::system;

/// Larger than any batch here, so that rows alone limit a batch.
pub(crate) const BATCH_BYTES_MAX: usize = 64 << 20;

/// Accepts rows and discards them.
#[derive(Debug, Default)]
pub(crate) struct Ignoring {
    pub(crate) rows: AtomicU64,
    batches: AtomicU64,
}

#[async_trait]
impl Handler for Ignoring {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        self.rows.fetch_add(delivery.events.len().try_into().unwrap(), Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The components of pollers.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) batch: usize,
    pub(crate) bytes_max: usize,
    pub(crate) batches_max: Option<u64>,
}

impl Parts {
    pub(crate) fn poller(self) -> Poller {
        let second = Duration::from_secs(1);
        Poller::new(PollerParts {
            name: self.name,
            source: self.source,
            handler: self.handler,
            store: self.store,
            instance: Arc::new(Instance::new("measure")),
            terms: LeaseTerms::of(120 * second),
            limits: Limits {
                batch_rows_max: self.batch,
                batch_bytes_max: self.bytes_max,
                batches_max: self.batches_max,
                tick_time_max: 3600 * second,
                handler_stop_after: 3600 * second,
                status_interval: 300 * second,
                retry_delay_min: Duration::ZERO,
                retry_delay_max: Duration::ZERO,
                retry_after_max: Duration::ZERO,
                ..limits()
            },
            policy: FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
    }
}

/// Returns a source over a table whose key is `id` and whose cursor is `version`.
pub(crate) fn source(poller: &str, connection: &str, table: &str) -> Arc<dyn Source> {
    source_up_to(BATCH_BYTES_MAX, poller, connection, table)
}

/// Returns the same for batches of this many bytes.
pub(crate) fn source_up_to(
    bytes_max: usize,
    poller: &str,
    connection: &str,
    table: &str,
) -> Arc<dyn Source> {
    let settings = SourceSettings {
        poller: poller.to_owned(),
        connection: SqlConnection::parse(connection).unwrap(),
        relation: Relation::Table(table.to_owned()),
        mode: Some(CursorMode::RowVersion),
        cursor_column: Some("version".to_owned()),
        key: vec!["id".to_owned()],
        columns: None,
        columns_excluded: Vec::new(),
        mask: highwater::source::mssql::Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: None,
        operations: None,
        settle: Duration::from_secs(5),
        clock: SourceClock::Utc,
        limits: SizeLimits { batch_bytes_max: bytes_max, ..SizeLimits::default() },
        on_schema_change: OnSchemaChange::Follow,
        partition: None,
    };
    Arc::new(Mssql::new(settings).unwrap())
}

/// Returns the handler `http` if there is a receiver, otherwise one that ignores rows.
pub(crate) fn handler(url: Option<&String>) -> Arc<dyn Handler> {
    match url {
        Some(url) => http(url),
        None => Arc::new(Ignoring::default()),
    }
}

/// Returns the handler `http`, as configured by the settings.
fn http(url: &str) -> Arc<dyn Handler> {
    let settings = [
        ("Sql", "Server=127.0.0.1;Database=d;User ID=u;Password=p"),
        ("HIGHWATER__STATE__STORE", "file"),
        ("HIGHWATER__STATE__FOLDER", "unused"),
        ("HIGHWATER__POLLERS__BENCH__SOURCE__CONNECTION", "Sql"),
        ("HIGHWATER__POLLERS__BENCH__SOURCE__TABLE", "dbo.t"),
        ("HIGHWATER__POLLERS__BENCH__SOURCE__CURSOR", "version"),
        ("HIGHWATER__POLLERS__BENCH__SOURCE__KEY", "id"),
        ("HIGHWATER__POLLERS__BENCH__HANDLER__KIND", "http"),
        ("HIGHWATER__POLLERS__BENCH__HANDLER__URL", url),
    ];
    let vars: BTreeMap<String, String> =
        settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let config = Config::from_vars(&vars).unwrap();
    let HandlerConfig::Http(http) = &config.pollers["bench"].handler else { panic!("http") };
    Arc::new(Http::new(Client::new().unwrap(), http, Arc::new(SystemClock)))
}

/// Returns the state store.
pub(crate) fn store(blobs: Option<&Blobs>) -> Arc<dyn StateStore> {
    let Some(blobs) = blobs else { return Arc::new(MemoryStore::default()) };
    let service = service(&blobs.connection, Duration::from_secs(20));
    Arc::new(BlobStore::new(&service, &blobs.container, "measure").unwrap())
}

pub(crate) async fn tick(poller: &Poller) -> TickReport {
    poller.tick(&TickRequest::default()).await
}

/// Reads a table to its end, in one tick.
pub(crate) async fn drain(job: &Drain) -> Took {
    let source = source_up_to(job.bytes_max, "bench", &job.connection, &job.table);
    let handler = handler(job.url.as_ref());
    let poller = |name: &str, store, batches_max| {
        let (source, handler) = (Arc::clone(&source), Arc::clone(&handler));
        let name = name.to_owned();
        let (batch, bytes_max) = (job.batch, job.bytes_max);
        Parts { name, source, handler, store, batch, bytes_max, batches_max }.poller()
    };
    // Another poller over the same connection: the measured poller reads the same rows again.
    let warm = poller("warm", store(None), Some(WARM_UP));
    warm.admin().init().await.unwrap();
    let warm = tick(&warm).await;
    assert!(warm.result.is_ok(), "{warm:?}");
    let timed = poller("bench", store(job.blobs.as_ref()), job.batches_max);
    if !job.is_known {
        // A poller's document is created once, and rows read before that are read again. That must not be
        // measured.
        timed.admin().init().await.unwrap();
    }
    let (began, cpu) = (Instant::now(), system::cpu_seconds(None));
    let report = tick(&timed).await;
    let took = Took {
        rows: report.rows,
        rows_before: warm.rows,
        batches: report.batches,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: system::cpu_seconds(None) - cpu,
        peak_kib: system::peak_kib(),
    };
    let more = job.batches_max.is_some();
    let ended =
        matches!(&report.result, Ok(TickOutcome::Committed { more: left }) if *left == more);
    assert!(ended, "{report:?}");
    took
}

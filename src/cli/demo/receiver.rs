//! Receives the batches: an HTTP endpoint on this machine that keeps a tally, answers one call with an
//! error and does not answer another one.

use std::net::Ipv4Addr;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::tally::{End, RowState, Tally};
use highwater::cursor::RowVersion;

/// Call that is answered with an error, counted from 1.
const FAILED_CALL: u32 = 4;
/// Call that is left without an answer, counted from 1.
const HELD_CALL: u32 = 9;
/// How long that call stays open if its process is not killed.
const HELD_MAX: Duration = Duration::from_secs(20);

/// Something that happened to a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallEvent {
    /// A call was answered with an error.
    Failed {
        /// Number of the call.
        call: u32,
        /// Rows in it.
        rows: usize,
    },
    /// A call is left without an answer.
    Held {
        /// Number of the call.
        call: u32,
        /// Rows in it.
        rows: usize,
        /// The process that made it.
        worker: usize,
    },
    /// The first call after that one arrived.
    Resumed {
        /// The process that made it.
        worker: usize,
        /// Time since the call that was left without an answer.
        after: Duration,
    },
}

/// A running receiver; dropping it closes the port.
#[derive(Debug)]
pub(super) struct Receiver {
    port: u16,
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    seen: Mutex<Seen>,
    happenings: UnboundedSender<CallEvent>,
}

#[derive(Debug, Default)]
struct Seen {
    calls: u32,
    held_at: Option<Instant>,
    tally: Tally,
}

impl Receiver {
    /// Starts a receiver that reports special calls to `happenings`.
    pub(super) async fn start(happenings: UnboundedSender<CallEvent>) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { seen: Mutex::default(), happenings });
        let router = Router::new()
            .route("/{worker}", post(take))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        let served = async move { axum::serve(listener, router).await };
        let task = tokio::spawn(served).abort_handle();
        Ok(Self { port, shared, task })
    }

    /// Returns the URL for batches of a process; each has its own, so it is known who made a call.
    pub(super) fn url(&self, worker: usize) -> String {
        format!("http://127.0.0.1:{}/{worker}", self.port)
    }

    /// Returns what `read` makes of the tally so far.
    pub(super) fn tally<T>(&self, read: impl FnOnce(&Tally) -> T) -> T {
        read(&self.shared.seen().tally)
    }

    /// Returns how many calls came.
    pub(super) fn calls(&self) -> u32 {
        self.shared.seen().calls
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The part of a batch that matters here.
#[derive(Deserialize)]
struct Batch {
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    pk: Key,
    cursor: Position,
}

#[derive(Deserialize)]
struct Key {
    id: i64,
}

#[derive(Deserialize)]
struct Position {
    value: String,
}

impl Event {
    fn state(&self) -> Option<RowState> {
        let version = RowVersion::from_str(&self.cursor.value).ok()?.0;
        Some(RowState { id: self.pk.id, version })
    }
}

async fn take(
    State(shared): State<Arc<Shared>>,
    Path(worker): Path<usize>,
    Json(batch): Json<Batch>,
) -> (StatusCode, &'static str) {
    let states: Option<Vec<RowState>> = batch.events.iter().map(Event::state).collect();
    let Some(states) = states else { return (StatusCode::BAD_REQUEST, "no row version") };
    match shared.note(worker, &states) {
        End::Accepted => (StatusCode::OK, "taken"),
        End::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "the demo lets this call fail"),
        End::Killed => {
            // Dropped with the connection, as soon as the process is dead.
            sleep(HELD_MAX).await;
            (StatusCode::GATEWAY_TIMEOUT, "the process should have been killed")
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, worker: usize, states: &[RowState]) -> End {
        let mut seen = self.seen();
        seen.calls += 1;
        let (call, rows) = (seen.calls, states.len());
        let resumed = seen.held_at.take();
        let end = match call {
            FAILED_CALL => End::Failed,
            HELD_CALL => End::Killed,
            _ => End::Accepted,
        };
        seen.tally.note(states, end);
        let happening = match end {
            End::Failed => Some(CallEvent::Failed { call, rows }),
            End::Killed => {
                seen.held_at = Some(Instant::now());
                Some(CallEvent::Held { call, rows, worker })
            }
            End::Accepted => {
                resumed.map(|since| CallEvent::Resumed { worker, after: since.elapsed() })
            }
        };
        drop(seen);
        if let Some(happening) = happening {
            // The demo may be over, with the channel closed.
            self.happenings.send(happening).unwrap_or_default();
        }
        end
    }
}

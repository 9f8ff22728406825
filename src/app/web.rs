//! What all HTTP servers of this process share: which requests they accept, and how long they wait for a client.

mod guard;
#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tracing::debug;

pub use self::guard::Authority;
pub(crate) use self::guard::{Refusal, is_same_origin, is_token};

/// Largest head of a request. The Functions host and browsers send less than a kilobyte.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long a server waits for a client. A client that exceeds it loses its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimeouts {
    /// From the end of a reply, or from connecting, to the end of the next request's head.
    pub(crate) head: Duration,
    /// From the head of a request to the end of its body.
    pub(crate) body: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), body: Duration::from_secs(30) }
    }
}

/// Serves `router` until `shutdown` completes, then waits for the requests that are being answered.
pub(crate) async fn serve(
    mut listener: TcpListener,
    router: Router,
    timeouts: ClientTimeouts,
    shutdown: impl Future<Output = ()>,
) {
    let router = router.layer(Extension(timeouts));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let connections = GracefulShutdown::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, _) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            // Waits after an error, such as too many open files.
            accepted = Listener::accept(&mut listener) => accepted,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(event = "connection_failed", "A connection ended: {error}");
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// The body of a request was not received.
#[derive(Debug)]
pub(crate) struct BodyError {
    /// Status of the reply.
    pub(crate) status: StatusCode,
    /// Why.
    pub(crate) reason: String,
}

/// Reads the body of a request, of at most `bytes_max`.
pub(crate) async fn read_body(mut request: Request, bytes_max: usize) -> Result<Bytes, BodyError> {
    let limit = request.extensions().get::<ClientTimeouts>().copied().unwrap_or_default().body;
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    match tokio::time::timeout(limit, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(rejection)) => {
            Err(BodyError { status: rejection.status(), reason: rejection.body_text() })
        }
        Err(_elapsed) => Err(BodyError {
            status: StatusCode::REQUEST_TIMEOUT,
            reason: format!("the body did not arrive within {limit:?}"),
        }),
    }
}

/// Returns a reply to a request that is refused.
type Refuse = fn(Refusal) -> Response<Body>;

/// Returns routes that answer only what `authority` admits; `refuse` answers everything else.
///
/// This is the outermost layer: a refused request gets no information, not even a 404.
pub(crate) fn guarded(router: Router, authority: Authority, refuse: Refuse) -> Router {
    router.layer(from_fn_with_state((authority, refuse), judge))
}

async fn judge(
    State((authority, refuse)): State<(Authority, Refuse)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match authority.admit(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(refusal),
    }
}

//! What all HTTP servers of this process share: which requests they accept.

mod guard;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware::{Next, from_fn_with_state};

pub use self::guard::Authority;
pub(crate) use self::guard::{Refusal, is_same_origin, is_token};

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

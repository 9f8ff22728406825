//! The target of the POSTs: a process that reads each body to its end and accepts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;

use crate::child::tell;

/// Reports its URL, and answers questions until its input ends.
pub(crate) async fn serve() {
    let bytes = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/changes", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/changes", post(take))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::clone(&bytes));
    tokio::spawn(async move { axum::serve(listener, router).await });
    println!("{url}");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await.unwrap().is_some() {
        tell(&bytes.swap(0, Ordering::Relaxed));
    }
}

async fn take(State(bytes): State<Arc<AtomicU64>>, body: Bytes) {
    bytes.fetch_add(body.len().try_into().unwrap(), Ordering::Relaxed);
}

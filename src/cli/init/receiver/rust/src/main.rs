//! Serves the receiver: on this machine, and as a custom handler of Azure Functions.

use std::env::var;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use receiver::handler::handle;
use receiver::support::receive::{BODY_BYTES_MAX, Receiver, Rejection};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const PATH: &str = "/api/@@poller@@";
const PORT: u16 = @@port@@;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let local = local_settings();
    let setting = |name: &str| var(name).ok().or_else(|| local.get(name)?.as_str().map(str::to_owned));
    let secrets = setting("WEBHOOK_SECRETS").unwrap_or_default();
    let database = setting("DATABASE").ok_or("DATABASE is not set: expected the path of a SQLite file")?;
    let receiver = Arc::new(Receiver::new(&secrets, database.into(), Box::new(handle))?);
    // The Functions host names the port; elsewhere, it is the one that the poller posts to.
    let port = setting("FUNCTIONS_CUSTOMHANDLER_PORT").or_else(|| setting("PORT"));
    let port = port.map_or(Ok(PORT), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    eprintln!("receiver: http://{}{PATH}", listener.local_addr()?);
    axum::serve(listener, Router::new().route(PATH, post(receive)).with_state(receiver)).await?;
    Ok(())
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    body: Body,
) -> (StatusCode, Json<Value>) {
    let Ok(raw) = to_bytes(body, BODY_BYTES_MAX).await else {
        return reply(Rejection::too_large().into_reply());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    // The database blocks its thread.
    let received = tokio::task::spawn_blocking(move || receiver.receive(&headers, &raw, now)).await;
    reply(received.unwrap_or_else(|panic| {
        eprintln!("the handler panicked: {panic}");
        (503, json!({ "error": "the batch cannot be applied now" }))
    }))
}

fn reply((status, reply): (u16, Value)) -> (StatusCode, Json<Value>) {
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(reply))
}

/// Returns the settings of local.settings.json, for which the environment takes precedence; empty without the file.
fn local_settings() -> Value {
    let text = std::fs::read("local.settings.json").unwrap_or_default();
    let mut settings: Value = serde_json::from_slice(&text).unwrap_or_default();
    settings["Values"].take()
}

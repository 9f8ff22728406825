//! Requests to the port of the handler: bytes as they arrive, and bodies of invocations.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use highwater::host::Invocation;
use highwater::host::server::{Function, Functions, Service, serve};
use highwater::page;
use highwater::poller::StopSignal;
use highwater::state::MemoryStore;
use highwater::status::StatusReader;
use highwater::telemetry::Telemetry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    static PORT: OnceCell<u16> = const { OnceCell::new() };
}

/// Runs a future to its end, together with what it spawns.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Returns the port of a server with the status of no poller, and a function that fails.
async fn start() -> io::Result<u16> {
    let board = StatusReader {
        app: "shop".to_owned(),
        state: Arc::new(MemoryStore::default()),
        pollers: BTreeMap::new(),
        schedules: BTreeMap::new(),
        disabled: BTreeMap::new(),
    };
    let status = (page::FUNCTION.to_owned(), Function::Status(Arc::new(board)));
    let service = Service {
        functions: Functions::Ready(BTreeMap::from([status])),
        stop: StopSignal::new(),
        telemetry: Telemetry::default(),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(serve(listener, service, std::future::pending()));
    Ok(port)
}

/// Sends bytes, and returns everything that the server answers.
pub(crate) async fn exchange(port: u16, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    // A server may close before it has read everything.
    let (mut answer, sent) = (Vec::new(), stream.write_all(bytes).await);
    drop((sent, stream.shutdown().await));
    drop(stream.read_to_end(&mut answer).await);
    Ok(answer)
}

/// An input that starts with `{` is the body of an invocation; any other is what a client sends, where line feeds stand for
/// line ends.
pub(crate) fn requests(input: &[u8]) {
    match Invocation::read("id", input) {
        Ok(invocation) => assert!(!format!("{invocation:?}").is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let bytes = if input.starts_with(b"{") {
        let head = format!(
            "POST /{} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            page::FUNCTION,
            input.len()
        );
        [head.as_bytes(), input].concat()
    } else {
        input.to_vec()
    };
    let answer = block_on(async {
        let known = PORT.with(|port| port.get().copied());
        let port = if let Some(port) = known { port } else { start().await? };
        PORT.with(|known| *known.get_or_init(|| port));
        exchange(port, &bytes).await
    });
    let Ok(answer) = answer else { return };
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
}

//! A misbehaving server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What the server does after reading a request.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Sends this and closes.
    Say(&'static [u8]),
    /// Sends this and then nothing, without closing.
    Stall(&'static [u8]),
    /// Sends the first and then the second repeatedly.
    Flood(&'static [u8], &'static [u8]),
    /// Resets the connection.
    Reset,
}

/// More than a client may be made to read.
const FLOOD_BYTES: usize = 100 << 20;
/// Upper bound on the bytes buffered by the sockets of both sides, besides the part of a reply that is read.
pub const SOCKET_BYTES: usize = 16 << 20;

/// A server that misbehaves in a given way.
#[derive(Debug, Default)]
pub struct Raw {
    /// Bytes sent.
    pub sent: AtomicUsize,
    /// Requests received.
    pub requests: AtomicUsize,
}

impl Raw {
    /// Returns the server and its origin.
    pub async fn start(act: Act) -> (Arc<Self>, String) {
        let raw = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&raw);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.serve(stream, act).await;
            }
        });
        (raw, origin)
    }

    async fn serve(&self, mut stream: TcpStream, act: Act) {
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        self.requests.fetch_add(1, Ordering::Relaxed);
        match act {
            Act::Say(answer) => {
                stream.write_all(answer).await.unwrap();
                // The rest is read, so that closing does not reset the connection.
                stream.shutdown().await.unwrap();
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
            }
            Act::Stall(start) => {
                stream.write_all(start).await.unwrap();
                // Until the client disconnects.
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
            }
            Act::Flood(head, again) => {
                let mut next = head;
                while self.sent.load(Ordering::Relaxed) < FLOOD_BYTES {
                    if stream.write_all(next).await.is_err() {
                        return;
                    }
                    self.sent.fetch_add(next.len(), Ordering::Relaxed);
                    next = again;
                }
            }
            Act::Reset => stream.set_zero_linger().unwrap(),
        }
    }
}

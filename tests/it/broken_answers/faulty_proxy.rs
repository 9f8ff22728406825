//! A proxy that corrupts the server's responses on the first connection made to it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Bytes before the body of a TDS packet.
const HEADER: usize = 8;
/// Bytes of the token that ends a message.
const DONE: usize = 13;
/// The status bit of a message's last packet.
const LAST: u8 = 1;

/// The fault applied to the bytes that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    None,
    /// The connection is closed after this many bytes.
    Cut(usize),
    /// Nothing is sent after this many bytes, and the connection stays open.
    Stall(usize),
    /// Packets have a body of at most this many bytes.
    Repack(usize),
    /// The header of one packet has this length.
    Length {
        packet: usize,
        length: u16,
    },
}

impl Harm {
    /// Whether a client can hang.
    pub(super) fn hangs(self) -> bool {
        matches!(self, Self::Stall(_) | Self::Length { .. })
    }
}

/// A listening proxy. Dropping it closes its connections.
pub(super) struct FaultyProxy {
    port: u16,
    counters: Arc<Counters>,
    task: AbortHandle,
}

#[derive(Default)]
struct Counters {
    connections: AtomicUsize,
    server_bytes: Mutex<Vec<u8>>,
}

impl FaultyProxy {
    pub(super) async fn start(server: u16, harm: Harm) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let counters = Arc::new(Counters::default());
        let counted = counters.clone();
        let listen = async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let number = counted.connections.fetch_add(1, Ordering::Relaxed);
                let harm = if number == 0 { harm } else { Harm::None };
                connections.spawn(serve(client, server, harm, counted.clone()));
            }
        };
        Self { port, counters, task: tokio::spawn(listen).abort_handle() }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn connections(&self) -> usize {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// All bytes that the server has sent, before any fault.
    pub(super) fn server_bytes(&self) -> Vec<u8> {
        self.counters.server_bytes.lock().unwrap().clone()
    }

    /// The edges in the bytes that the server has sent: the start and end of each packet, the end of its
    /// header, and the start of its message's last token.
    pub(super) fn edges(&self) -> BTreeSet<usize> {
        let server_bytes = self.server_bytes();
        let (mut found, mut begin) = (BTreeSet::new(), 0);
        while begin + HEADER <= server_bytes.len() {
            let length = u16::from_be_bytes([server_bytes[begin + 2], server_bytes[begin + 3]]);
            let end = begin + usize::from(length);
            found.extend([begin, begin + HEADER, end.saturating_sub(DONE), end - 1]);
            begin = end;
        }
        found.retain(|at| *at < server_bytes.len());
        found
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, server: u16, harm: Harm, counters: Arc<Counters>) {
    let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // Either side may close first, in the middle of a write: these tests are about that.
    tokio::select! {
        biased;
        _ = answers(&mut from_server, &mut to_client, harm, &counters) => {}
        _ = copy(&mut from_client, &mut to_server) => {}
    }
}

async fn answers(
    server: &mut OwnedReadHalf,
    client: &mut OwnedWriteHalf,
    harm: Harm,
    counters: &Counters,
) -> std::io::Result<()> {
    if let Harm::Repack(_) | Harm::Length { .. } = harm {
        return packets(server, client, harm).await;
    }
    let mut left = match harm {
        Harm::Cut(length) | Harm::Stall(length) => length,
        Harm::None | Harm::Repack(_) | Harm::Length { .. } => usize::MAX,
    };
    let mut buffer = vec![0; 8_192];
    loop {
        if left == 0 && matches!(harm, Harm::Stall(_)) {
            std::future::pending::<()>().await;
        }
        if left == 0 {
            return Ok(());
        }
        let read = server.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        counters.server_bytes.lock().unwrap().extend(&buffer[..read]);
        let passed = read.min(left);
        client.write_all(&buffer[..passed]).await?;
        left -= passed;
    }
}

/// Forwards packets with rewritten headers.
async fn packets(
    server: &mut OwnedReadHalf,
    client: &mut OwnedWriteHalf,
    harm: Harm,
) -> std::io::Result<()> {
    for number in 0.. {
        let mut header = [0; HEADER];
        server.read_exact(&mut header).await?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let mut body = vec![0; length - HEADER];
        server.read_exact(&mut body).await?;
        if let Harm::Length { packet, length } = harm
            && packet == number
        {
            header[2..4].copy_from_slice(&length.to_be_bytes());
        }
        match harm {
            Harm::Repack(size) => {
                let chunks: Vec<&[u8]> = body.chunks(size).collect();
                for (index, chunk) in chunks.iter().enumerate() {
                    let last = index + 1 == chunks.len() && header[1] & LAST == LAST;
                    let length = u16::try_from(chunk.len() + HEADER).unwrap().to_be_bytes();
                    let new = [header[0], u8::from(last), length[0], length[1], 0, 0, 1, 0];
                    client.write_all(&[&new, *chunk].concat()).await?;
                }
            }
            Harm::None | Harm::Cut(_) | Harm::Stall(_) | Harm::Length { .. } => {
                client.write_all(&[&header[..], &body].concat()).await?;
            }
        }
    }
    Ok(())
}

//! A proxy in front of Azurite that breaks the response to a write, before or after it is committed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What happens to one PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What Azurite receives.
    pub(crate) request: Delivery,
    /// What the client receives.
    pub(crate) answer: Answer,
}

/// What Azurite receives of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The request, before the client receives anything.
    Now,
    /// Nothing.
    Never,
    /// The request, this long after the client got its response: an abandoned write that lands late.
    Late(Duration),
}

/// The response to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// An error of the service with this status.
    Status(u16),
    /// Nothing for this long; then Azurite's response, or the end of the connection.
    Hold(Duration),
}

/// The proxy; it stops when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    faults: Mutex<VecDeque<Option<Fault>>>,
    puts: AtomicUsize,
    commits: AtomicUsize,
    /// The number of seconds by which the `Date` of each response is shifted.
    date_off: AtomicI64,
}

impl Proxy {
    /// Starts a proxy that forwards everything to `upstream` until a fault is set.
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream,
            faults: Mutex::default(),
            puts: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
            date_off: AtomicI64::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { address, shared, task }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shifts the `Date` of each response, like a caching proxy with a wrong clock.
    pub(crate) fn shift_dates(&self, by: time::Duration) {
        self.shared.date_off.store(by.whole_seconds(), Ordering::SeqCst);
    }

    /// Breaks one future write; several faults are consumed in order.
    pub(crate) fn break_put(&self, fault: Fault) {
        self.shared.faults.lock().unwrap().push_back(Some(fault));
    }

    /// Breaks the write that follows the next `count` ones.
    pub(crate) fn break_put_after(&self, count: usize, fault: Fault) {
        let mut faults = self.shared.faults.lock().unwrap();
        faults.extend((0..count).map(|_| None));
        faults.push_back(Some(fault));
    }

    /// Returns a function that breaks one future PUT, for code that cannot hold the proxy itself.
    pub(crate) fn breaker(&self) -> impl FnOnce(Fault) + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move |fault| shared.faults.lock().unwrap().push_back(Some(fault))
    }

    /// Returns how many PUTs clients have sent.
    pub(crate) fn puts(&self) -> usize {
        self.shared.puts.load(Ordering::SeqCst)
    }

    /// Returns how many PUTs Azurite has committed.
    pub(crate) fn commits(&self) -> usize {
        self.shared.commits.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // Broken connections are the purpose of this proxy.
            drop(shared.exchange(client).await);
        });
    }
}

impl Shared {
    /// Serves one request; each has its own connection on both sides.
    async fn exchange(&self, mut client: TcpStream) -> io::Result<()> {
        let request = read_request(&mut client).await?;
        let fault = if is_write(&request) {
            self.puts.fetch_add(1, Ordering::SeqCst);
            self.faults.lock().unwrap().pop_front().flatten()
        } else {
            None
        };
        let Some(fault) = fault else {
            let answer = self.forward(&request).await?;
            let off = time::Duration::seconds(self.date_off.load(Ordering::SeqCst));
            return client.write_all(&with_date_off(answer, off)).await;
        };
        let answer = match fault.request {
            Delivery::Now => Some(self.forward(&request).await?),
            Delivery::Never | Delivery::Late(_) => None,
        };
        // The client may be gone by now; a late request must be delivered anyway.
        drop(reply(client, fault.answer, answer).await);
        if let Delivery::Late(delay) = fault.request {
            tokio::time::sleep(delay).await;
            self.forward(&request).await?;
        }
        Ok(())
    }

    /// Sends a request to Azurite and returns its complete response.
    async fn forward(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut upstream = TcpStream::connect(self.upstream).await?;
        upstream.write_all(request).await?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer).await?;
        if is_write(request) && answer.starts_with(b"HTTP/1.1 201 ") {
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
        Ok(answer)
    }
}

/// Shifts the header `Date` of a response.
fn with_date_off(answer: Vec<u8>, off: time::Duration) -> Vec<u8> {
    const FORM: &[time::format_description::BorrowedFormatItem<'_>] = time::macros::format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    if off.is_zero() {
        return answer;
    }
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let lines = head.split("\r\n").map(|line| match line.split_once(": ") {
        Some((name, date)) if name.eq_ignore_ascii_case("date") => {
            let date = time::PrimitiveDateTime::parse(date, FORM).unwrap() + off;
            format!("{name}: {}", date.format(FORM).unwrap())
        }
        _ => line.to_owned(),
    });
    let head = lines.collect::<Vec<_>>().join("\r\n");
    [head.as_bytes(), &answer[end..]].concat()
}

/// A queue is written by POST.
fn is_write(request: &[u8]) -> bool {
    request.starts_with(b"PUT ") || request.starts_with(b"POST ")
}

async fn reply(mut client: TcpStream, how: Answer, answer: Option<Vec<u8>>) -> io::Result<()> {
    match how {
        Answer::Close => Ok(()),
        Answer::Reset => client.set_zero_linger(),
        Answer::Status(status) => {
            let code = if status == 503 { "ServerBusy" } else { "OperationTimedOut" };
            let head = format!("HTTP/1.1 {status} Broken\r\nx-ms-error-code: {code}\r\n");
            let rest = "content-length: 0\r\nconnection: close\r\n\r\n";
            client.write_all(format!("{head}{rest}").as_bytes()).await
        }
        Answer::Hold(duration) => {
            tokio::time::sleep(duration).await;
            client.write_all(&answer.unwrap_or_default()).await
        }
    }
}

/// Reads a request with a body of known length, and asks the other side to close after it.
async fn read_request(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let head = loop {
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if client.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let body = length(&request[..head]);
    while request.len() < head + 4 + body {
        if client.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    request.splice(head..head, *b"\r\nconnection: close");
    Ok(request)
}

fn length(head: &[u8]) -> usize {
    String::from_utf8_lossy(head)
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().expect("a length is a number"))
}

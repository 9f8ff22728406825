//! HTTP/1.1 as the host's client writes it, over plain TCP so that the framing is ours to choose.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::body::Invocation;

/// How a body is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// In one chunk, as in Azure.
    #[default]
    Chunked,
    /// In two chunks, as large bodies come.
    TwoChunks,
    /// With its length, as under `func start`.
    ContentLength,
}

/// A whole reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// Headers as they came.
    pub headers: Vec<(String, String)>,
    /// Body, out of its framing.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns a header's value; names are matched without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// Version that the host tells of itself.
const HOST_VERSION: &str = "4.1052.200.26301";
/// Longest head, and longest body, of a reply.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// A connection to the handler that can be used again.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to `127.0.0.1`.
    ///
    /// # Errors
    ///
    /// [`io::Error`]; of kind `ConnectionRefused` while nothing listens.
    pub async fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a whole request and reads the whole reply.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if the connection breaks, closes without a reply, or carries no HTTP.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.0.get_mut().write_all(request).await?;
        let (status, reason) = self.status_line().await?;
        let headers = self.headers().await?;
        let mut reply = Reply { status, reason, headers, body: Vec::new() };
        reply.body = self.body(&reply).await?;
        Ok(reply)
    }

    /// Pings as the host does.
    ///
    /// # Errors
    ///
    /// As [`Connection::exchange`].
    pub async fn ping(&mut self) -> io::Result<Reply> {
        let port = self.0.get_ref().peer_addr()?.port();
        self.exchange(ping(port).as_bytes()).await
    }

    async fn status_line(&mut self) -> io::Result<(u16, String)> {
        // As Latin-1, which is how the host's client reads the reason phrase.
        let mut line = Vec::new();
        (&mut self.0).take(REPLY_BYTES_MAX).read_until(b'\n', &mut line).await?;
        let line: String = line.into_iter().map(char::from).collect();
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut parts = line.splitn(3, ' ');
        let version = parts.next().filter(|version| version.starts_with("HTTP/1."));
        let status = parts.next().and_then(|status| status.parse().ok());
        match (version, status) {
            (Some(_), Some(status)) => Ok((status, parts.next().unwrap_or_default().to_owned())),
            (_, _) => Err(invalid("status line", line)),
        }
    }

    async fn headers(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut headers = Vec::new();
        // Ends with the connection at the latest: a line is never empty but at the end.
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(headers);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid("header", &line))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    async fn body(&mut self, reply: &Reply) -> io::Result<Vec<u8>> {
        if matches!(reply.status, 204 | 304) {
            return Ok(Vec::new());
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            return self.chunks().await;
        }
        match reply.header("content-length").map(str::parse) {
            Some(Ok(length)) => self.bytes(length).await,
            Some(Err(_)) => Err(invalid("content-length", "not a number")),
            None => {
                let mut body = Vec::new();
                (&mut self.0).take(REPLY_BYTES_MAX).read_to_end(&mut body).await?;
                Ok(body)
            }
        }
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let length = u64::from_str_radix(&line, 16);
            let length = length.map_err(|error| invalid("chunk size", &error.to_string()))?;
            body.extend(self.bytes(length).await?);
            self.line().await?;
            if length == 0 {
                return Ok(body);
            }
        }
    }

    async fn bytes(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > REPLY_BYTES_MAX {
            return Err(invalid("length", "too long"));
        }
        let mut body = Vec::new();
        let read = (&mut self.0).take(length).read_to_end(&mut body).await?;
        if u64::try_from(read) == Ok(length) {
            Ok(body)
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.0).take(REPLY_BYTES_MAX).read_line(&mut line).await?;
        let text = line.strip_suffix("\r\n").map(str::to_owned);
        text.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

fn invalid(what: &str, found: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a {what}: `{found}`"))
}

/// Returns the ping, which carries none of the host's headers.
pub(super) fn ping(port: u16) -> String {
    format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")
}

/// Returns the request of an invocation, byte for byte as recorded.
pub(super) fn request(port: u16, invocation: &Invocation) -> Vec<u8> {
    let Invocation { function, id, traceparent, tracestate, framing, body } = invocation;
    let mut head = format!(
        "POST /{function} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
         X-Azure-Functions-HostVersion: {HOST_VERSION}\r\n\
         X-Azure-Functions-InvocationId: {id}\r\n\
         User-Agent: Azure-Functions-Host/{HOST_VERSION}\r\n"
    );
    if *framing != Framing::ContentLength {
        head.push_str("Transfer-Encoding: chunked\r\n");
    }
    if let Some(traceparent) = traceparent {
        head.extend(["traceparent: ", traceparent, "\r\n"]);
    }
    if let Some(tracestate) = tracestate {
        head.extend(["tracestate: ", tracestate, "\r\n"]);
    }
    head.push_str("Content-Type: application/json; charset=utf-8\r\n");
    let (first, second) = body.split_at(body.len() / 2);
    let mut request = head.into_bytes();
    match framing {
        Framing::ContentLength => {
            request.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
            request.extend(body);
        }
        Framing::Chunked => {
            request.extend(b"\r\n");
            push_chunks(&mut request, &[body]);
        }
        Framing::TwoChunks => {
            request.extend(b"\r\n");
            push_chunks(&mut request, &[first, second]);
        }
    }
    request
}

fn push_chunks(request: &mut Vec<u8>, chunks: &[&[u8]]) {
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        request.extend(format!("{:X}\r\n", chunk.len()).bytes());
        request.extend(*chunk);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(text: &str) -> String {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["raw"].as_str().unwrap().replace("%PORT%", "4711")
    }

    #[test]
    fn requests_are_the_recorded_ones_byte_for_byte() {
        let body = include_str!("../../tests/host/data/requests/01_scheduled.json");
        for (framing, traceparent, text) in [
            (
                Framing::Chunked,
                None,
                include_str!("../../tests/host/data/wire/invoke_chunked.json"),
            ),
            (
                Framing::Chunked,
                Some("00-66df9b1cb7fddd4c8f82478556550ae0-f1ed90c42a33d34c-00"),
                include_str!(
                    "../../tests/host/data/wire/invoke_chunked_traceparent_unsampled.json"
                ),
            ),
            (
                Framing::TwoChunks,
                None,
                include_str!("../../tests/host/data/wire/invoke_two_chunks.json"),
            ),
            (
                Framing::ContentLength,
                None,
                include_str!("../../tests/host/data/wire/invoke_content_length.json"),
            ),
        ] {
            let invocation = Invocation {
                id: "6a184cc4-2b0e-4c5e-9d0f-3f6f1f0e7a11".to_owned(),
                traceparent: traceparent.map(str::to_owned),
                framing,
                ..Invocation::new("nightly", body)
            };
            let sent = String::from_utf8(request(4711, &invocation)).unwrap();
            assert_eq!(sent, recorded(text));
        }
        let recorded = recorded(include_str!("../../tests/host/data/wire/ping.json"));
        assert_eq!(ping(4711), recorded);
    }
}

//! HTTP/1.1 as written by the host's client, over plain TCP so that we control the framing.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use url::Url;

use super::CHUNK_CHARACTERS;
use super::body::Invocation;
use super::judge::{Verdict, judge, unsuccessful};

/// How a body is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// In chunks of [`CHUNK_CHARACTERS`], as in Azure.
    #[default]
    Chunked,
    /// With its length, as under `func start`.
    ContentLength,
}

/// A complete reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// Headers as received.
    pub headers: Vec<(String, String)>,
    /// Decoded body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns a header's value; names are case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// Version that the host reports in each request.
const HOST_VERSION: &str = "4.1037.0.0";
/// Longest head of a reply, its status line included.
const HEAD_BYTES_MAX: u64 = 65_536;
/// Longest body of a reply.
const REPLY_BYTES_MAX: u64 = 16 << 20;
/// Redirects that the client follows.
const REDIRECTS_MAX: usize = 50;

/// Sends an invocation to a port of `127.0.0.1` as the host's client does, and judges the reply: redirects are followed,
/// and without a reply it is a failure.
pub async fn call(port: u16, invocation: &Invocation) -> (Verdict, Option<Reply>) {
    match exchange(port, invocation).await {
        Ok((verdict, reply)) => (verdict, Some(reply)),
        Err(error) => (Verdict::Failure(format!("HttpRequestException: {error}")), None),
    }
}

async fn exchange(port: u16, invocation: &Invocation) -> io::Result<(Verdict, Reply)> {
    let mut url = Url::parse(&format!("http://{}:{port}/", Ipv4Addr::LOCALHOST))
        .map_err(|error| invalid("address", &error.to_string()))?;
    let mut request = request(port, invocation);
    let mut redirects = 0;
    loop {
        let port = url.port_or_known_default().unwrap_or(port);
        let reply = Connection::open(port).await?.exchange(&request).await?;
        let verdict = judge(Some(&reply));
        let Verdict::Follows(location) = &verdict else { return Ok((verdict, reply)) };
        redirects += 1;
        if redirects > REDIRECTS_MAX {
            return Ok((unsuccessful(&reply), reply));
        }
        url = url.join(location).map_err(|error| invalid("location", &error.to_string()))?;
        let port = url.port_or_known_default().unwrap_or(port);
        request = if matches!(reply.status, 307 | 308) {
            let function = url.path().trim_start_matches('/').to_owned();
            self::request(port, &Invocation { function, ..invocation.clone() })
        } else {
            get(url.path(), port).into_bytes()
        };
    }
}

/// A reusable connection to the handler.
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

    /// Sends a complete request and reads the complete reply.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if the connection breaks, closes without a reply, or carries no HTTP.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.0.get_mut().write_all(request).await?;
        let mut reply = self.head().await?;
        // Other 1xx replies announce nothing: the reply itself follows.
        while reply.status < 200 && reply.status != 101 {
            reply = self.head().await?;
        }
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
        self.exchange(get("/", port).as_bytes()).await
    }

    async fn head(&mut self) -> io::Result<Reply> {
        let mut left = HEAD_BYTES_MAX;
        let (status, reason) = status_line(&self.head_line(&mut left).await?)?;
        let mut reply = Reply { status, reason, ..Reply::default() };
        // Ends with the connection at the latest: a line is never empty except at the end.
        loop {
            let line = self.head_line(&mut left).await?;
            if line.is_empty() {
                return Ok(reply);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid("header", &line))?;
            reply.headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// Reads a line of the head, of which `left` bytes may follow. It is read as Latin-1, as the host's client does.
    async fn head_line(&mut self, left: &mut u64) -> io::Result<String> {
        let mut line = Vec::new();
        let read = (&mut self.0).take(*left).read_until(b'\n', &mut line).await?;
        *left = left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
        let line: String = line.into_iter().map(char::from).collect();
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None if *left == 0 => Err(invalid("head", "longer than 65536 bytes")),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }

    async fn body(&mut self, reply: &Reply) -> io::Result<Vec<u8>> {
        if matches!(reply.status, 101 | 204 | 304) {
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

/// Returns the status and the reason phrase of a status line.
fn status_line(line: &str) -> io::Result<(u16, String)> {
    let mut parts = line.splitn(3, ' ');
    let version = parts.next().filter(|version| version.starts_with("HTTP/1."));
    let status = parts.next().and_then(|status| status.parse().ok());
    match (version, status) {
        (Some(_), Some(status)) => Ok((status, parts.next().unwrap_or_default().to_owned())),
        (_, _) => Err(invalid("status line", line)),
    }
}

/// Returns a request without a body and without the host's headers, such as the ping.
fn get(path: &str, port: u16) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")
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
    let mut request = head.into_bytes();
    match framing {
        Framing::ContentLength => {
            request.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
            request.extend(body);
        }
        Framing::Chunked => {
            request.extend(b"\r\n");
            let mut rest = body.as_slice();
            while !rest.is_empty() {
                let (chunk, behind) = rest.split_at(chunk_bytes(rest));
                request.extend(format!("{:X}\r\n", chunk.len()).bytes());
                request.extend(chunk);
                request.extend(b"\r\n");
                rest = behind;
            }
            request.extend(b"0\r\n\r\n");
        }
    }
    request
}

/// Returns the length of the first chunk of a body in bytes; the limit counts characters.
fn chunk_bytes(body: &[u8]) -> usize {
    let begins_character = |byte: u8| byte & 0b1100_0000 != 0b1000_0000;
    let beginnings = body.iter().enumerate().filter(|(_, byte)| begins_character(**byte));
    beginnings.map(|(at, _)| at).nth(CHUNK_CHARACTERS).unwrap_or(body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the invocation of a recorded request, and the request.
    fn recorded(name: &str) -> (Invocation, String) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../host/data/recorded/wire");
        let json = std::fs::read(format!("{folder}/{name}.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let raw = json["raw"].as_str().unwrap().replace("%PORT%", "4711");
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let function = head.split(['/', ' ']).nth(2).unwrap();
        let (framing, body) = match header("Content-Length") {
            Some(_) => (Framing::ContentLength, body.to_owned()),
            None => (Framing::Chunked, unchunked(body)),
        };
        let id = header("X-Azure-Functions-InvocationId").unwrap();
        let traceparent = header("traceparent");
        (Invocation { id, traceparent, framing, ..Invocation::new(function, body) }, raw)
    }

    fn unchunked(mut body: &str) -> String {
        let mut whole = String::new();
        loop {
            let (size, rest) = body.split_once("\r\n").unwrap();
            let (chunk, rest) = rest.split_at(usize::from_str_radix(size, 16).unwrap());
            body = rest.strip_prefix("\r\n").unwrap();
            whole.push_str(chunk);
            if chunk.is_empty() {
                return whole;
            }
        }
    }

    #[test]
    fn requests_are_the_recorded_ones_byte_for_byte() {
        for name in [
            "admin_abc_chunked",
            "admin_no_input_chunked",
            "http_status_chunked",
            "http_status_length",
            "past_due_length",
            "retry_1_chunked",
            "retry_3_infinite_chunked",
            "timer_1min_first_chunked",
            "timer_5s_length",
            "timer_otel_chunked",
        ] {
            let (invocation, raw) = recorded(name);
            let sent = String::from_utf8(request(4711, &invocation)).unwrap();
            assert_eq!(sent, raw, "{name}");
        }
    }

    #[test]
    fn a_retry_has_every_field_that_the_recorded_one_has() {
        let (invocation, _) = recorded("retry_1_chunked");
        let recorded: serde_json::Value = serde_json::from_slice(&invocation.body).unwrap();
        let recorded = &recorded["Metadata"]["RetryContext"];
        let failure = "Response status code does not indicate success: 500 (x).";
        let (id, function) = (&invocation.id, &invocation.function);
        let retry = super::super::body::retry_context((function, id), (1, 3, Some(failure)));
        assert_eq!(shape(&retry), shape(recorded));
        let inner = retry.pointer("/Exception/InnerException/Message").unwrap();
        assert_eq!(inner, failure);
        let length = retry.to_string().len();
        assert!(length > 3 * CHUNK_CHARACTERS, "in several chunks: {length}");
    }

    /// Returns the names of all fields, in their order.
    fn shape(json: &serde_json::Value) -> Vec<String> {
        let fields = json.as_object().into_iter().flatten();
        fields
            .flat_map(|(name, value)| {
                let within = shape(value).into_iter().map(move |inner| format!("{name}.{inner}"));
                std::iter::once(name.clone()).chain(within)
            })
            .collect()
    }
}

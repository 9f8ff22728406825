//! Packets: messages are split into packets of the negotiated size and reassembled.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::wire::invalid;

/// Packet types.
pub(crate) mod kind {
    pub(crate) const BATCH: u8 = 0x01;
    pub(crate) const RPC: u8 = 0x03;
    pub(crate) const REPLY: u8 = 0x04;
    pub(crate) const ATTENTION: u8 = 0x06;
    pub(crate) const TRANSACTION: u8 = 0x0E;
    pub(crate) const LOGIN: u8 = 0x10;
    pub(crate) const PRELOGIN: u8 = 0x12;
}

/// Bytes before the body of a packet.
pub(crate) const HEADER_BYTES: usize = 8;

/// Packet size until the login has negotiated another.
pub(crate) const PACKET_BYTES_DEFAULT: usize = 4096;

/// Largest message accepted.
const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// A stream of either kind: TCP or TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Header of one packet.
pub(crate) fn header(kind: u8, last: bool, body: usize, number: usize) -> [u8; HEADER_BYTES] {
    let length = u16::try_from(body + HEADER_BYTES).unwrap_or(u16::MAX).to_be_bytes();
    let [number, ..] = number.wrapping_add(1).to_le_bytes();
    [kind, u8::from(last), length[0], length[1], 0, 0, number, 0]
}

/// Reads one message; [`None`] if the client has closed the connection between two messages.
///
/// # Errors
///
/// Fails if the connection breaks inside a message.
pub(crate) async fn receive<S: Stream + ?Sized>(
    stream: &mut S,
) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut body = Vec::new();
    let mut message_kind = None;
    while body.len() <= MESSAGE_BYTES_MAX {
        let mut head = [0; HEADER_BYTES];
        let [first, rest @ ..] = &mut head;
        if stream.read(std::slice::from_mut(first)).await? == 0 {
            return Ok(None);
        }
        stream.read_exact(rest).await?;
        let [packet_kind, status, high, low, ..] = head;
        let length = usize::from(u16::from_be_bytes([high, low]))
            .checked_sub(HEADER_BYTES)
            .ok_or_else(|| invalid("packet is shorter than its header"))?;
        let start = body.len();
        body.resize(start + length, 0);
        stream.read_exact(body.get_mut(start..).unwrap_or_default()).await?;
        let kind = *message_kind.get_or_insert(packet_kind);
        if status & 1 == 1 {
            return Ok(Some((kind, body)));
        }
    }
    Err(invalid("message is too long"))
}

/// Sends one message.
///
/// # Errors
///
/// Fails if the connection breaks.
pub(crate) async fn send<S: Stream + ?Sized>(
    stream: &mut S,
    body: &[u8],
    packet_bytes: usize,
) -> io::Result<()> {
    stream.write_all(&packets(body, packet_bytes, true)).await?;
    stream.flush().await
}

/// Sends the start of a message without its end.
///
/// # Errors
///
/// Fails if the connection breaks.
pub(crate) async fn send_beginning<S: Stream + ?Sized>(
    stream: &mut S,
    body: &[u8],
    packet_bytes: usize,
) -> io::Result<()> {
    if body.is_empty() {
        return Ok(());
    }
    stream.write_all(&packets(body, packet_bytes, false)).await?;
    stream.flush().await
}

/// Sends one message as one packet, with another length in its header.
///
/// # Errors
///
/// Fails if the connection breaks.
pub(crate) async fn send_claiming<S: Stream + ?Sized>(
    stream: &mut S,
    body: &[u8],
    length: u16,
) -> io::Result<()> {
    let [high, low] = length.to_be_bytes();
    let mut packet = packets(body, body.len() + HEADER_BYTES, true);
    for (byte, claimed) in packet.iter_mut().skip(2).zip([high, low]) {
        *byte = claimed;
    }
    stream.write_all(&packet).await?;
    stream.flush().await
}

fn packets(body: &[u8], packet_bytes: usize, complete: bool) -> Vec<u8> {
    let size = packet_bytes.saturating_sub(HEADER_BYTES).max(1);
    let count = body.len().div_ceil(size).max(1);
    let mut out = Vec::with_capacity(body.len() + count * HEADER_BYTES);
    for number in 0..count {
        let start = number * size;
        let chunk = body.get(start..body.len().min(start + size)).unwrap_or_default();
        let last = complete && number + 1 == count;
        out.extend(header(kind::REPLY, last, chunk.len(), number));
        out.extend(chunk);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_is_split_into_packets_and_reassembled() {
        let body: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for size in [512, 4096, 32_767] {
            let bytes = packets(&body, size, true);
            assert_eq!(bytes.len(), 5000 + 8 * 5000_usize.div_ceil(size - 8));
            let mut stream = tokio_test_stream(bytes);
            assert_eq!(receive(&mut stream).await.unwrap(), Some((kind::REPLY, body.clone())));
            assert_eq!(receive(&mut stream).await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn an_empty_message_is_one_packet() {
        assert_eq!(packets(&[], 512, true), [4, 1, 0, 8, 0, 0, 1, 0]);
    }

    fn tokio_test_stream(bytes: Vec<u8>) -> impl Stream {
        tokio::io::join(io::Cursor::new(bytes), tokio::io::sink())
    }
}

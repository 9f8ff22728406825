//! Bytes of TDS 7.4: reading and writing primitives, types, values and tokens.
//!
//! Written from the open specification MS-TDS
//! (<https://learn.microsoft.com/openspecs/windows_protocols/ms-tds/>), the source of all numbers. Only the
//! server's side: it reads what a client sends, and writes what a server sends.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod tokens;

use std::io;

/// `SQL_Latin1_General_CP1_CI_AS`, the collation of everything.
pub(crate) const COLLATION: [u8; 5] = [0x09, 0x04, 0xD0, 0x00, 0x34];

/// Largest value read into memory, to limit what a broken client can request.
const VALUE_BYTES_MAX: usize = 256 << 20;

pub(crate) fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Reads from the front of a message.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or_else(|| invalid("message is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        self.array().map(|[byte]: [u8; 1]| byte)
    }

    pub(crate) fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn i16(&mut self) -> io::Result<i16> {
        self.array().map(i16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> io::Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> io::Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A little-endian number of up to eight bytes.
    pub(crate) fn uint(&mut self, length: usize) -> io::Result<u64> {
        let bytes = self.take(length)?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// A string of this many UTF-16 units.
    pub(crate) fn utf16(&mut self, units: usize) -> io::Result<String> {
        self.take(units * 2).map(utf16)
    }

    /// A value in chunks, as `max` types are sent.
    pub(crate) fn chunked(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.u64()? == u64::MAX {
            return Ok(None);
        }
        let mut value = Vec::new();
        while value.len() <= VALUE_BYTES_MAX {
            let length = usize::try_from(self.u32()?).map_err(io::Error::other)?;
            if length == 0 {
                return Ok(Some(value));
            }
            value.extend_from_slice(self.take(length)?);
        }
        Err(invalid("value is too long"))
    }

    /// A value with a two-byte length.
    pub(crate) fn short(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = self.u16()?;
        if length == u16::MAX {
            return Ok(None);
        }
        self.take(usize::from(length)).map(|bytes| Some(bytes.to_vec()))
    }
}

pub(crate) fn utf16(bytes: &[u8]) -> String {
    let (pairs, _) = bytes.as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    String::from_utf16_lossy(&units)
}

pub(crate) fn utf16_bytes(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Appends a string with a one-byte length in UTF-16 units, cut at 255.
pub(crate) fn put_short_text(out: &mut Vec<u8>, text: &str) {
    let units: Vec<u16> = text.encode_utf16().take(255).collect();
    out.push(u8::try_from(units.len()).unwrap_or(u8::MAX));
    out.extend(units.into_iter().flat_map(u16::to_le_bytes));
}

/// Appends a string with a two-byte length in UTF-16 units, cut at 4,000.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let units: Vec<u16> = text.encode_utf16().take(4000).collect();
    out.extend(u16::try_from(units.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(units.into_iter().flat_map(u16::to_le_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_is_an_error_not_a_panic() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u16().unwrap(), 0x0201);
        assert!(reader.u32().is_err());
        assert_eq!(reader.rest(), &[3]);
    }

    #[test]
    fn texts_are_utf16() {
        let mut out = Vec::new();
        put_short_text(&mut out, "é😀");
        assert_eq!(out[0], 3);
        assert_eq!(utf16(&out[1..]), "é😀");
    }

    #[test]
    fn chunks_are_joined() {
        let mut bytes = 5_u64.to_le_bytes().to_vec();
        for part in [&b"ab"[..], b"cde", b""] {
            bytes.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
            bytes.extend(part);
        }
        assert_eq!(Reader::new(&bytes).chunked().unwrap().unwrap(), b"abcde");
        assert_eq!(Reader::new(&[0xFF; 8]).chunked().unwrap(), None);
    }
}

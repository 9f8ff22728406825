//! The history of events, in order: always as a hash, as text on request.

use std::fmt::{self, Write};

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct History {
    began_at: Instant,
    hash: Fnv,
    lines: Option<Vec<String>>,
}

/// FNV-1a, 64 bits.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

impl History {
    pub(crate) fn begin(readable: bool) -> Self {
        let lines = readable.then(Vec::new);
        Self { began_at: Instant::now(), hash: Fnv(0xCBF2_9CE4_8422_2325), lines }
    }

    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        let at = self.began_at.elapsed().as_millis();
        writeln!(self.hash, "{at} {what}").expect("a hash takes everything");
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{at:>9} ms  {what}"));
        }
    }

    /// Adds bytes to the hash only.
    pub(crate) fn note_bytes(&mut self, bytes: &[u8]) {
        self.hash.add(bytes);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.0
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}

//! Handler: one line of JSON for each event on standard output.
//!
//! For trying a poller out and for piping into a local program. Success means that the operating
//! system has taken the bytes, no more: a reader that dies after that has lost them.

use std::fmt;

use async_trait::async_trait;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use super::{Delivery, Handler, HandlerError, Progress};

/// Lines are gathered up to this size before they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// Writes events as newline-delimited JSON.
pub struct Stdout {
    out: Mutex<Out>,
}

struct Out {
    to: Box<dyn AsyncWrite + Send + Unpin>,
    /// Whether a write was given up, which may have left half a line behind.
    mid_line: bool,
}

impl Stdout {
    /// Returns a handler that writes to the standard output of this process.
    pub fn new() -> Self {
        Self::to(Box::new(tokio::io::stdout()))
    }

    /// Returns a handler that writes to `to`.
    pub fn to(to: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        Self { out: Mutex::new(Out { to, mid_line: false }) }
    }
}

impl Default for Stdout {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Stdout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stdout").finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for Stdout {
    /// A reader that stops reading leaves a full pipe: then no chunk gets on.
    fn reports_progress(&self) -> bool {
        true
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let mut out = self.out.lock().await;
        let lines = delivery.events.iter().map(|event| event.json.as_str());
        out.write(lines, delivery.progress)
            .await
            .map_err(|error| HandlerError::Retryable(format!("write to standard output: {error}")))
    }
}

impl Out {
    async fn write(
        &mut self,
        lines: impl Iterator<Item = &str>,
        progress: &Progress,
    ) -> std::io::Result<()> {
        // Ends the half line of a delivery that was dropped, so that this one starts a new one.
        let mut chunk = if self.mid_line { "\n".to_owned() } else { String::new() };
        self.mid_line = true;
        for line in lines {
            chunk.push_str(line);
            chunk.push('\n');
            if chunk.len() >= CHUNK_BYTES {
                self.to.write_all(chunk.as_bytes()).await?;
                chunk.clear();
                progress.report(1);
            }
        }
        self.to.write_all(chunk.as_bytes()).await?;
        self.to.flush().await?;
        self.mid_line = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;
    use crate::handler::testing::Sample;

    #[tokio::test]
    async fn each_event_is_one_line() {
        let (to, mut from) = duplex(1 << 20);
        let sample = Sample::new(3);
        let handler = Stdout::to(Box::new(to));
        handler.handle(sample.delivery()).await.unwrap();
        drop(handler);
        let mut text = String::new();
        from.read_to_string(&mut text).await.unwrap();
        let lines: Vec<&str> = sample.events.iter().map(|event| event.json.as_str()).collect();
        assert_eq!(text, lines.join("\n") + "\n");
    }

    #[tokio::test]
    async fn a_closed_pipe_is_worth_another_attempt() {
        let (to, from) = duplex(16);
        drop(from);
        let error = Stdout::to(Box::new(to)).handle(Sample::new(1).delivery()).await.unwrap_err();
        assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
        assert_eq!(error.to_string(), "write to standard output: broken pipe");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delivery_after_a_dropped_one_starts_on_a_new_line() {
        let (to, mut from) = duplex(16);
        let (handler, sample) = (Stdout::to(Box::new(to)), Sample::new(1));
        let limit = std::time::Duration::from_secs(1);
        // The reader takes nothing, so the first delivery stands still after 16 bytes.
        tokio::time::timeout(limit, handler.handle(sample.delivery())).await.unwrap_err();
        let read = async {
            let mut text = String::new();
            from.read_to_string(&mut text).await.map(|_| text)
        };
        let write = async {
            handler.handle(sample.delivery()).await.unwrap();
            drop(handler);
        };
        let (text, ()) = tokio::join!(read, write);
        let (json, text) = (&sample.events[0].json, text.unwrap());
        let (half, rest) = text.split_once('\n').unwrap();
        assert!(half.len() == 16 && json.starts_with(half), "{half}");
        assert_eq!(rest, format!("{json}\n"));
    }
}

//! A source that ends at a position.

use std::sync::Arc;

use async_trait::async_trait;

use super::Poller;
use crate::cursor::{Cursor, SourceFingerprint, SourceState};
use crate::source::{Anchor, FetchError, FetchWindow, Rows, Source, SourceShape};

/// Reads up to a position.
#[derive(Debug)]
struct Bounded {
    source: Arc<dyn Source>,
    upto: Cursor,
}

impl Bounded {
    fn cut<'a>(&'a self, window: FetchWindow<'a>) -> FetchWindow<'a> {
        let ends_before = |upto: &&Cursor| {
            upto.compare_leading(&self.upto).is_some_and(std::cmp::Ordering::is_le)
        };
        FetchWindow { upto: Some(window.upto.filter(ends_before).unwrap_or(&self.upto)), ..window }
    }
}

#[async_trait]
impl Source for Bounded {
    fn shape(&self) -> &SourceShape {
        self.source.shape()
    }

    async fn open(&self, stored: Option<&SourceFingerprint>) -> Result<(), FetchError> {
        self.source.open(stored).await
    }

    async fn anchor(&self, kept: Option<&SourceState>) -> Result<Anchor, FetchError> {
        self.source.anchor(kept).await
    }

    async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
        self.source.current(at).await
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.source.fetch(self.cut(window)).await
    }

    async fn fetch_at_once(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.source.fetch_at_once(self.cut(window)).await
    }
}

impl Poller {
    /// Returns the poller limited to rows up to a position; it delivers even while paused.
    #[must_use]
    pub(crate) fn up_to(self, upto: Cursor) -> Self {
        let source = Arc::clone(&self.source);
        Self { source: Arc::new(Bounded { source, upto }), through_pause: true, ..self }
    }
}

//! What a receiver needs besides `handler.rs`: signature, statuses, types, once only.

pub mod columns;
pub mod once;
pub mod receive;

/// Why a change was not applied.
#[derive(Debug)]
pub enum Failure {
    /// This change cannot be applied, and the reason lies in the change itself.
    Event(String),
    /// Nothing can be applied now.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Failure {
    /// This change cannot be applied, and the reason lies in the change itself.
    pub fn event(reason: impl Into<String>) -> Self {
        Self::Event(reason.into())
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

//! Settings of the handlers.

use std::time::Duration;

use crate::StorageConnection;

/// Where blobs are written.
#[derive(Clone, Debug)]
pub struct BlobConfig {
    /// Name of the connection.
    pub connection_setting: String,
    /// How to get in.
    pub access: StorageConnection,
    /// Name of the container.
    pub container: String,
    /// Limit on one request.
    pub timeout: Duration,
    /// Tries of one batch within one tick; at least 1.
    pub tries_max: u32,
}

/// How a message's text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEncoding {
    /// In base64, as queue triggers of Azure Functions expect it.
    Base64,
    /// As it is.
    None,
}

/// Where messages are sent.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Name of the connection.
    pub connection_setting: String,
    /// How to get in.
    pub access: StorageConnection,
    /// Name of the queue.
    pub queue: String,
    /// Most events in one message; at least 1.
    pub message_events_max: usize,
    /// How a message's text is written.
    pub encoding: MessageEncoding,
    /// Limit on one request.
    pub timeout: Duration,
    /// Tries of one message within one tick; at least 1.
    pub tries_max: u32,
}

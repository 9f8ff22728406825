//! Settings of the handlers.

use std::time::Duration;

use crate::StorageConnection;

/// Where blobs are written.
#[derive(Clone, Debug)]
pub struct BlobConfig {
    /// Name of the connection.
    pub connection_setting: String,
    /// The connection.
    pub access: StorageConnection,
    /// Name of the container.
    pub container: String,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Most attempts per batch within one tick; at least 1.
    pub tries_max: u32,
}

/// How the text of a message is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEncoding {
    /// In base64, as queue triggers of Azure Functions expect it.
    Base64,
    /// Unencoded.
    None,
}

/// Where messages are sent.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Name of the connection.
    pub connection_setting: String,
    /// The connection.
    pub access: StorageConnection,
    /// Name of the queue.
    pub queue: String,
    /// Most events in one message; at least 1.
    pub message_events_max: usize,
    /// How the text of a message is encoded.
    pub encoding: MessageEncoding,
    /// Most messages in flight at a time; at least 1.
    pub concurrency: usize,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Most attempts per message within one tick; at least 1.
    pub tries_max: u32,
}

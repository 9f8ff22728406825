//! Handlers that write to Azure Storage.

pub mod blob;
pub mod queue;

mod settings;
mod storage;
mod traced;

pub use self::settings::{BlobConfig, MessageEncoding, QueueConfig};

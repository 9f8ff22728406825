//! Settings of the handler that writes blobs.

use std::time::Duration;

use crate::config::parse;
use crate::config::read::Reader;
use crate::config::settings;
use crate::config::storage::read_access;
use crate::config::{StorageConnection, StorageService};

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

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<BlobConfig> {
    let at = Some(segment);
    let access = read_access(reader, StorageService::Blob, &settings::HANDLER_CONNECTION, at);
    let container = reader.read(&settings::HANDLER_CONTAINER, at, parse::container_name);
    let timeout = super::read_timeout(reader, segment);
    let tries_max = super::read_tries_max(reader, segment);
    let (connection_setting, access) = access?;
    Some(BlobConfig {
        connection_setting,
        access,
        container: container?,
        timeout: timeout?,
        tries_max: tries_max?,
    })
}

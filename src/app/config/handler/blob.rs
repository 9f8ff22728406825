//! Settings of the handler that writes blobs.

use crate::config::parse;
use crate::config::read::Reader;
use crate::config::settings;
use crate::config::storage::read_access;
use crate::config::{BlobConfig, StorageService};

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

//! Settings of the handler that sends messages to a queue.

use crate::config::parse;
use crate::config::read::Reader;
use crate::config::settings;
use crate::config::storage::read_access;
use crate::config::{MessageEncoding, QueueConfig, StorageService};

/// Largest value of `MESSAGE_EVENTS_MAX`: more than can ever fit.
const MESSAGE_EVENTS_MAX: u32 = 10_000;
/// Messages in flight at a time, unless the setting says otherwise.
const CONCURRENCY: u32 = 16;

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<QueueConfig> {
    let at = Some(segment);
    let access = read_access(reader, StorageService::Queue, &settings::HANDLER_CONNECTION, at);
    // Queue names follow the same rules as container names.
    let queue = reader.read(&settings::HANDLER_QUEUE, at, parse::container_name);
    let events_max = parse::number(1..=MESSAGE_EVENTS_MAX);
    let events_max = reader.read(&settings::HANDLER_MESSAGE_EVENTS_MAX, at, events_max);
    let encodings = [("base64", MessageEncoding::Base64), ("none", MessageEncoding::None)];
    let encoding = reader.read(&settings::HANDLER_MESSAGE_ENCODING, at, parse::one_of(&encodings));
    let concurrency = super::read_concurrency(reader, segment, CONCURRENCY);
    let timeout = super::read_timeout(reader, segment);
    let tries_max = super::read_tries_max(reader, segment);
    let (connection_setting, access) = access?;
    Some(QueueConfig {
        connection_setting,
        access,
        queue: queue?,
        message_events_max: usize::try_from(events_max?).unwrap_or(usize::MAX),
        encoding: encoding?,
        concurrency,
        timeout: timeout?,
        tries_max: tries_max?,
    })
}

//! Handler: events become messages of an Azure Storage queue.
//!
//! # The message
//!
//! One event is one message: the event's JSON object. If several events may share a message, it is a JSON
//! array of as many as fit, even if that is one. The text is in base64 by default, as queue triggers of Azure
//! Functions expect. That leaves room for 48 KiB of JSON in the 64 KiB of a message. Messages do not expire.
//!
//! # Order
//!
//! Several messages are sent at a time; those with rows of the same key one after the other, in the order of the rows. A
//! queue does not guarantee to deliver them in that order.
//!
//! # Duplicates
//!
//! A queue does not reject duplicate messages. Each event contains its id, the same on every delivery; a
//! consumer that must not process an event twice stores the ids. The rows whose messages were sent without a gap are
//! reported as accepted, and are not sent again. Messages that were sent after a gap are. A message starts only if it is
//! close to the oldest one in flight, so there are few of them.
//!
//! Nothing is remembered between calls. Rows that are passed over because they were sent before would look accepted,
//! although the queue may be down.
//!
//! # A row that is too large
//!
//! Everything before it is sent and accepted. The row itself is rejected permanently, with its key and size.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use azure_storage_queue::QueueClient;
use azure_storage_queue::models::{QueueClientSendMessageOptions, QueueMessage};
use highwater_engine::handler::prefix::AcceptedPrefix;
use highwater_engine::handler::tries::Tries;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::Span;

use self::dispatch::{NotSent, dispatch};
use self::message::{Messages, OversizeEvent, Row};
use super::QueueConfig;
use super::storage::Resource;
use super::traced;
use crate::{ConnectError, Failure, QueueService};

mod dispatch;
mod message;

/// How much longer than one HTTP request an attempt may take: its limit does not cover token requests.
const GRACE: Duration = Duration::from_millis(500);
/// A message that never expires; by default the service deletes it after seven days.
/// <https://learn.microsoft.com/rest/api/storageservices/put-message#uri-parameters>
const NEVER: i32 = -1;

/// Sends events to one queue.
pub struct Queue {
    client: QueueClient,
    config: QueueConfig,
    /// Whether a missing queue is created.
    may_create: bool,
    created: OnceCell<()>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = &self.config.queue;
        formatter.debug_struct("Queue").field("queue", queue).finish_non_exhaustive()
    }
}

impl Queue {
    /// Returns a handler that sends to the queue of `config`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if tokens would be sent without https.
    pub fn new(service: &QueueService, config: &QueueConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            client: service.queue(&config.queue)?,
            config: config.clone(),
            may_create: service.is_development(),
            created: OnceCell::new(),
        })
    }

    fn resource(&self) -> Resource<'_> {
        Resource {
            kind: "queue",
            name: &self.config.queue,
            role: "Storage Queue Data Message Sender",
            rights: "a",
        }
    }

    async fn create_queue_once(&self) -> Result<(), HandlerError> {
        if !self.may_create {
            return Ok(());
        }
        let create = async || match Box::pin(self.client.create(None)).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let failure = Failure::of(&error);
                let code = failure.answer().map(|answer| answer.code.as_str());
                match code {
                    Some("QueueAlreadyExists") => Ok(()),
                    Some(_) | None => Err(self.resource().failed(&failure)),
                }
            }
        };
        self.created.get_or_try_init(create).await.copied()
    }

    /// Sends one message, with the allowed number of attempts.
    async fn send(&self, text: &str, delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let mut tries = Tries::up_to(self.config.tries_max);
        // Each iteration counts an attempt.
        loop {
            let sent = timeout(self.config.timeout + GRACE, self.send_once(text)).await;
            let sent = sent.unwrap_or_else(|_elapsed| Err(self.resource().timed_out()));
            delivery.progress.report(1);
            let Err(error) = sent else { return Ok(()) };
            tries.after(error, delivery).await?;
        }
    }

    async fn send_once(&self, text: &str) -> Result<(), HandlerError> {
        self.create_queue_once().await?;
        let failed = |error: azure_core::Error| self.resource().failed(&Failure::of(&error));
        let message = QueueMessage { message_text: Some(text.to_owned()) };
        let seconds = self.config.timeout.as_secs().saturating_sub(1);
        let options = QueueClientSendMessageOptions {
            message_time_to_live: Some(NEVER),
            timeout: Some(i32::try_from(seconds).unwrap_or(i32::MAX).max(1)),
            ..QueueClientSendMessageOptions::default()
        };
        let content = message.try_into().map_err(failed)?;
        let sent = Box::pin(self.client.send_message(content, Some(options))).await;
        sent.map(drop).map_err(failed)
    }
}

#[async_trait]
impl Handler for Queue {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        traced::within(traced::send(&self.config.queue), self.send_all(delivery)).await
    }
}

impl Queue {
    async fn send_all(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let mut prefix = AcceptedPrefix::new(delivery.events.len(), delivery.progress);
        let rows = Row::of(delivery.events).collect();
        let messages = Messages::new(rows, self.config.message_events_max, self.config.encoding);
        let send = |text: String| async move { self.send(&text, &delivery).await };
        let mut count = 0_i64;
        let accepted = |rows: &[Row<'_>]| {
            prefix.accept(rows.iter().map(|row| row.index));
            count += 1;
            Span::current().record("messaging.batch.message_count", count);
        };
        let concurrency = self.config.concurrency;
        let dispatched = Box::pin(dispatch(messages, concurrency, send, accepted)).await;
        dispatched.map_err(|error| match error {
            // The queue accepts other messages, so the search for the failing row is over.
            NotSent::Failed(HandlerError::Retryable(reason)) if count > 0 => {
                HandlerError::Partial { accepted: prefix.len(), reason }
            }
            NotSent::Failed(error) => error,
            NotSent::Oversize(oversize) => refused(&oversize, prefix.len()),
        })
    }
}

/// Rejects a row that does not fit into a message, after `accepted` events that were sent.
fn refused(oversize: &OversizeEvent<'_>, accepted: usize) -> HandlerError {
    let reason = oversize.to_string();
    // First accept the events before it, so that the row is then rejected on its own.
    if accepted > 0 {
        HandlerError::Partial { accepted, reason }
    } else {
        HandlerError::Rejected(reason)
    }
}

//! Handler: events become messages of an Azure Storage queue.
//!
//! # The message
//!
//! One event is one message: the event's JSON object. Where several may share one, a message is a JSON
//! array of as many as fit, even of one. The text is in base64 by default, as queue triggers of Azure
//! Functions expect it, which leaves room for 48 KiB of JSON in the 64 KiB that a message may have.
//! Messages do not expire.
//!
//! # Duplicates
//!
//! A queue takes the same message twice. Each event has its id in it, the same on every delivery; a
//! consumer that must not do things twice remembers ids. Messages are sent one after the other, in
//! the order of the rows (a queue does not promise to hand them out in it). What was sent of a batch
//! is remembered by this process, and not sent again when the same batch comes back; a process that
//! died has forgotten.
//!
//! # A row that is too large
//!
//! Everything before it is sent and taken. The row itself is refused for good, by key and size.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use azure_storage_queue::QueueClient;
use azure_storage_queue::models::{QueueClientSendMessageOptions, QueueMessage};
use highwater_engine::event::BatchId;
use highwater_engine::handler::tries::Tries;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;
use tracing::Span;

use self::message::{Messages, Oversize};
use super::QueueConfig;
use super::storage::Resource;
use super::traced;
use crate::{ConnectError, Failure, QueueService};

mod message;

/// How much longer than one HTTP request a try may take: asking for a token is not part of that.
const GRACE: Duration = Duration::from_millis(500);
/// Says that a message does not expire; without it the service deletes it after seven days.
/// <https://learn.microsoft.com/rest/api/storageservices/put-message#uri-parameters>
const NEVER: i32 = -1;

/// Sends events to one queue.
pub struct Queue {
    client: QueueClient,
    config: QueueConfig,
    /// Whether the queue is made where it is missing.
    makes_it: bool,
    made: OnceCell<()>,
    /// The batch that came last, and how many of its events were sent.
    sent: Mutex<Option<(BatchId, usize)>>,
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
    /// [`ConnectError`] if the address cannot be used with tokens, which need https.
    pub fn new(service: &QueueService, config: &QueueConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            client: service.queue(&config.queue)?,
            config: config.clone(),
            makes_it: service.is_development(),
            made: OnceCell::new(),
            sent: Mutex::default(),
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
        if !self.makes_it {
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
        self.made.get_or_try_init(create).await.copied()
    }

    /// Sends one message, with as many tries as it may take.
    async fn send(&self, text: &str, delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let mut tries = Tries::up_to(delivery.tries_max(self.config.tries_max));
        // Each round that goes on counts a try.
        loop {
            let sent = timeout(self.config.timeout + GRACE, self.send_once(text)).await;
            let sent = sent.unwrap_or_else(|_elapsed| Err(self.resource().timed_out()));
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
        let mut remembered = self.sent.lock().await;
        let before = remembered.as_ref().filter(|(batch, _)| batch == delivery.batch_id);
        let mut sent = before.map_or(0, |(_, events)| *events);
        let rest = delivery.events.get(sent..).unwrap_or_default();
        let limit = self.config.message_events_max;
        for (message, count) in Messages::new(rest, limit, self.config.encoding).zip(1_i64..) {
            let message = message.map_err(|oversize| refused(&oversize, sent))?;
            self.send(&message.text, &delivery).await?;
            Span::current().record("messaging.batch.message_count", count);
            sent += message.events;
            // At once, as the delivery may be dropped at the next await.
            *remembered = Some((delivery.batch_id.clone(), sent));
        }
        Ok(())
    }
}

/// Refuses a row that no message can hold, after `accepted` events that were sent.
fn refused(oversize: &Oversize<'_>, accepted: usize) -> HandlerError {
    let reason = oversize.to_string();
    // Taken first, so that the row comes alone to whoever decides about it.
    if accepted > 0 {
        HandlerError::Partial { accepted, reason }
    } else {
        HandlerError::Rejected(reason)
    }
}

//! Handler: a chain of handlers. Each gets every batch, in order.
//!
//! The engine calls the steps itself: it stores the result of each in the state document before it calls the
//! next. A call of the whole chain, as used by a redrive, runs all steps and stores no results: if one fails,
//! all are called again.

use async_trait::async_trait;

use super::{ChainStep, Delivery, Handler, HandlerError, Step};

/// Passes each batch to several handlers, one after the other.
#[derive(Debug)]
pub struct Chain {
    steps: Vec<Step>,
}

impl Chain {
    /// Returns the chain of `steps`, in this order. No step may itself be a chain.
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps }
    }
}

#[async_trait]
impl Handler for Chain {
    fn steps(&self) -> &[Step] {
        &self.steps
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        for step in &self.steps {
            let batch_id = delivery.batch_id.of_step(&step.name);
            let progress = delivery.progress.of_step();
            let of_step = Delivery {
                batch_id: &batch_id,
                step: Some(ChainStep { name: &step.name, of_batch: delivery.batch_id }),
                progress: &progress,
                ..delivery
            };
            let handled = step.handler.handle(of_step).await;
            handled
                .or_else(|error| error.after_step(&progress, delivery.events.len()))
                .map_err(|error| error.in_step(&step.name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::handler::testing::Sample;
    use crate::testing::RecordingHandler;

    fn chain(handlers: &[Arc<RecordingHandler>]) -> Chain {
        let steps = ["first", "second"]
            .iter()
            .zip(handlers)
            .map(|(name, handler)| Step { name: (*name).to_owned(), handler: handler.clone() });
        Chain::new(steps.collect())
    }

    #[tokio::test]
    async fn each_step_gets_the_batch_in_order_under_its_own_id() {
        let handlers = [Arc::new(RecordingHandler::default()), Arc::default()];
        let sample = Sample::new(2);
        chain(&handlers).handle(sample.delivery()).await.unwrap();
        for (handler, name) in handlers.iter().zip(["first", "second"]) {
            let received = handler.received();
            assert_eq!(received.len(), 1, "{name}");
            assert_eq!(received[0].batch_id, sample.batch_id.of_step(name));
            assert_eq!(received[0].step.as_deref(), Some(name));
            assert_eq!(received[0].started_at, sample.delivery().started_at);
        }
    }

    #[tokio::test]
    async fn a_failing_step_is_named_and_later_steps_are_not_called() {
        let handlers = [Arc::new(RecordingHandler::default()), Arc::default()];
        handlers[0].then_fail(HandlerError::Rejected("422".to_owned()));
        let error = chain(&handlers).handle(Sample::new(2).delivery()).await.unwrap_err();
        assert!(matches!(error, HandlerError::Rejected(_)), "{error:?}");
        assert_eq!(error.to_string(), "step `first`: 422");
        assert_eq!(handlers[1].received(), []);
    }
}

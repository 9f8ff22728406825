//! Signatures, checked by the reference library of Standard Webhooks.

use highwater::config::HttpConfig;
use highwater::handler::HandlerError;

use crate::child::{Server, node};
use crate::sample::{Batch, NEW_SECRET, OLD_SECRET, config};

const ROWS: &[(i64, u64, Option<&str>)] = &[(1, 1, Some("Zoë's “first”\nline")), (2, 2, None)];

fn start(secret: &str) -> Server {
    Server::start(node("tests/webhooks/receive.mjs").env("WEBHOOK_SECRET", secret))
}

#[tokio::test]
async fn a_receiver_accepts_old_and_new_secrets_during_a_rotation() {
    let batch = Batch::of(ROWS);
    for known in [OLD_SECRET, NEW_SECRET] {
        let server = start(known);
        for (secrets, good) in [
            (&[OLD_SECRET][..], known == OLD_SECRET),
            (&[NEW_SECRET, OLD_SECRET], true),
            (&[NEW_SECRET], known == NEW_SECRET),
            (&[], false),
        ] {
            let url = server.url("/webhook");
            for gzip in [false, true] {
                let result = batch.deliver(&HttpConfig { gzip, ..config(&url, secrets) }).await;
                assert_eq!(result.is_ok(), good, "{known} {secrets:?} {result:?}");
                let refused = matches!(result, Err(HandlerError::Misconfigured(_)));
                assert_eq!(refused, !good, "{result:?}");
            }
        }
        let last = server.get("/last").await;
        assert_eq!(last["events"][0]["after"]["name"], "Zoë's “first”\nline");
        assert_eq!(last["batch_id"], batch.id.as_str());
    }
}

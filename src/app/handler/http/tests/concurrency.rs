//! Concurrent requests against a receiver that answers when all requests are in.

use tokio::sync::Barrier;

use super::*;

/// Replies when `at_once` requests are waiting, and refuses the events in `refused`.
async fn start(at_once: usize, refused: &[&str]) -> (Arc<Mutex<Vec<serde_json::Value>>>, String) {
    let seen: Arc<Mutex<Vec<serde_json::Value>>> = Arc::default();
    let barrier = Arc::new(Barrier::new(at_once));
    let refused: Vec<String> = refused.iter().map(|id| (*id).to_owned()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let kept = Arc::clone(&seen);
    let take = move |body: Bytes| {
        let (barrier, refused) = (Arc::clone(&barrier), refused.clone());
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let ids: Vec<String> = json["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect();
        kept.lock().unwrap().push(json);
        async move {
            barrier.wait().await;
            let failures: Vec<serde_json::Value> = ids
                .into_iter()
                .filter(|id| refused.contains(id))
                .map(|id| serde_json::json!({ "itemIdentifier": id }))
                .collect();
            serde_json::json!({ "batchItemFailures": failures }).to_string()
        }
    };
    let router = Router::new().fallback(take);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (seen, url)
}

fn with_concurrency(concurrency: usize, url: &str) -> Http {
    handler_of(&HttpConfig { concurrency, ..config(url, 1) })
}

#[tokio::test]
async fn requests_are_parallel_and_a_key_stays_in_one_of_them() {
    // Keys 0 to 5, three states of each.
    let keys: Vec<u64> = (0..18).map(|n| n % 6).collect();
    let sample = Sample::of_keys(&keys);
    let concurrency = super::super::concurrency::divide(sample.delivery(), 3).len();
    assert_eq!(concurrency, 3);
    let (seen, url) = start(concurrency, &[]).await;
    with_concurrency(3, &url).handle(sample.delivery()).await.unwrap();
    let seen = seen.lock().unwrap();
    let mut rows = 0;
    for body in seen.iter() {
        let events = body["events"].as_array().unwrap();
        assert_eq!(body["rows"], events.len());
        assert_ne!(body["batch_id"], sample.batch_id.as_str());
        rows += events.len();
        for event in events {
            let same_key = events.iter().filter(|other| other["pk"] == event["pk"]);
            assert_eq!(same_key.count(), 3, "all states of a key are in one request");
        }
        let versions: Vec<&str> =
            events.iter().map(|event| event["cursor"]["value"].as_str().unwrap()).collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
    assert_eq!(rows, 18);
}

#[tokio::test]
async fn the_batch_is_accepted_up_to_the_first_failed_row() {
    let keys: Vec<u64> = (0..18).map(|n| n % 6).collect();
    let sample = Sample::of_keys(&keys);
    for refused in [0, 7, 17] {
        let (_, url) = start(3, &[sample.events[refused].id.as_str()]).await;
        let error = with_concurrency(3, &url).handle(sample.delivery()).await.unwrap_err();
        let HandlerError::Partial { accepted, .. } = error else { panic!("{error:?}") };
        assert_eq!(accepted, refused);
    }
}

/// Replies at once, but never to the request with this event.
async fn start_holding(held: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let held = format!("\"{held}\"");
    let take = move |body: Bytes| {
        let is_held = std::str::from_utf8(&body).unwrap().contains(&held);
        async move {
            if is_held {
                std::future::pending::<()>().await;
            }
        }
    };
    let router = Router::new().fallback(take);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn answered_requests_count_up_to_the_first_row_of_one_that_is_open() {
    let keys: Vec<u64> = (0..18).map(|n| n / 3).collect();
    let sample = Sample::of_keys(&keys);
    let parts = super::super::concurrency::divide(sample.delivery(), 3);
    let first_of = |part: &Part<'_>| {
        sample.events.iter().position(|event| event.id == part.events[0].id).unwrap()
    };
    let open = parts.iter().map(first_of).max().unwrap();
    assert!(open > 0, "another request has the first row");
    let url = start_holding(sample.events[open].id.as_str()).await;
    let handler = with_concurrency(3, &url);
    let mut call = std::pin::pin!(handler.handle(sample.delivery()));
    while sample.progress.accepted() < open {
        let some = tokio::time::sleep(Duration::from_millis(5));
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = some => {}
        }
    }
    assert_eq!(sample.progress.accepted(), open);
}

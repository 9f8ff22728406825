//! Runs that follow their source.

use highwater_fakehost::Signal;

use crate::bench::{Bench, logs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_following_run_delivers_new_rows_and_ends_with_the_process() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("FOLLOW_FOR", "2m");
    bench.set("FOLLOW_INTERVAL", "20ms");
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        bench.insert(2..=2);
        bench.receiver.arrived(2).await;
        host.signal(Signal::Terminate).await.unwrap();
    });
    assert!(logs(&outcome)[0].contains("committed 2 rows in 2 batches"), "{outcome:?}");
    assert_eq!(bench.receiver.accepted(), [1, 2]);
}

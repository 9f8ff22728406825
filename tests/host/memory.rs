//! A body of the largest accepted size costs little more memory than its bytes.

use std::fs;

use crate::bench::{Bench, Host, exchange};

/// Just below the largest body of an invocation.
const BODY_BYTES: usize = 15 << 20;
/// Memory that the process may use at its peak: a tree of values of that body would take over 500 MiB. A body is held
/// once as received, and once in one piece.
const PEAK_MIB_MAX: u64 = 120;

fn peak_mib(host: &Host) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_body_costs_little_memory() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let zeros = |before: &str, after: &str| {
        let zeros = "0,".repeat((BODY_BYTES - before.len() - after.len()) / 2);
        format!("{before}{zeros}0{after}")
    };
    let entries = "\"a\":0,".repeat(BODY_BYTES / 6);
    let nested = format!("{}{}", "[".repeat(BODY_BYTES / 2), "]".repeat(BODY_BYTES / 2));
    for (body, status) in [
        (zeros("[", "]"), 400),
        (zeros("{\"Data\":[", "]}"), 200),
        (zeros("{\"Data\":{\"timer\":[", "]},\"Metadata\":{}}"), 200),
        (zeros("{\"Data\":{},\"Metadata\":{\"RetryContext\":{\"Exception\":[", "]}}}"), 200),
        (format!("{{\"Data\":{{{entries}\"b\":0}},\"Metadata\":{{}}}}"), 200),
        (nested, 400),
        (" ".repeat(17 << 20), 413),
    ] {
        let (start, length) = (body.chars().take(24).collect::<String>(), body.len());
        let request = format!(
            "POST /nightly HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (_, reply) = exchange(host.port(), &request).await.unwrap();
        assert_eq!(reply.status, status, "{start}: {reply:?}");
        let peak = peak_mib(&host);
        println!("{start}: {peak} MiB");
        assert!(peak < PEAK_MIB_MAX, "{start}: {peak} MiB");
    }
    host.stop().await.unwrap();
}

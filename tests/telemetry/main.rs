//! The exported telemetry, decoded by the definitions of the OpenTelemetry project and by Prometheus' own
//! parser.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]
#![expect(clippy::print_stdout, reason = "a test that skips says why")]

mod alerts;
#[expect(dead_code, reason = "the other tests with a host need more of it")]
#[path = "../host/bench.rs"]
mod bench;
#[expect(dead_code, reason = "the tests with webhooks need more of it")]
#[path = "../webhooks/child.rs"]
mod child;
mod collector;
#[expect(dead_code, reason = "the other tests with a host need more of it")]
#[path = "../host/data.rs"]
mod data;
mod exports;
mod insights;
mod kql;
mod outages;
mod page;
mod prometheus_alerts;
mod promql;
#[expect(dead_code, reason = "the other tests with a host need more of it")]
#[path = "../host/receiver.rs"]
mod receiver;
mod scrapes;
mod timers;

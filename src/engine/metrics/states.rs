//! The state of each poller, as a set of gauges.

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::{help, named};
use crate::status::health::PollerState;

/// Name of the gauge.
pub const POLLER_STATE: &str = "highwater.poller.state";

/// Creates the gauge of the states that `states` returns when it is collected.
///
/// Each poller has one series per state: 1 for its current one, 0 for the others. That is a state set, like
/// `kube_pod_status_phase`, so an alert can compare `{state="failing"}` with 1.
pub fn export_states(
    meter: &Meter,
    states: impl Fn() -> Vec<(String, PollerState)> + Send + Sync + 'static,
) {
    let gauge = meter
        .u64_observable_gauge(POLLER_STATE)
        .with_description(help(POLLER_STATE))
        .with_callback(move |observer| {
            for (poller, current) in states() {
                for state in PollerState::ALL {
                    let attributes = [named(&poller), KeyValue::new("state", state.as_str())];
                    observer.observe((state == current).into(), &attributes);
                }
            }
        });
    // The meter keeps the callback.
    let _kept_by_meter = gauge.build();
}

//! Settings of metrics that the standard variables do not cover.

use std::net::SocketAddr;

use super::parse::Expected;
use super::read::Reader;
use super::settings;
use super::vars::Vars;

/// Settings of metrics in addition to the standard variables of OpenTelemetry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Address that serves them as Prometheus text.
    pub address: Option<SocketAddr>,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<MetricsConfig> {
    let is_set = reader.text(settings::METRICS_ADDRESS.name).is_some();
    let address = reader.read_if_set(&settings::METRICS_ADDRESS, None, loopback);
    (!is_set || address.is_some()).then_some(MetricsConfig { address })
}

/// Returns the address for metrics, without checking other settings.
pub(crate) fn metrics_address(vars: &dyn Vars) -> Option<SocketAddr> {
    loopback(vars.get(settings::METRICS_ADDRESS.name)?.trim()).ok()
}

/// Accepts only loopback addresses, since there is no authentication.
fn loopback(text: &str) -> Result<SocketAddr, Expected> {
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| {
        Expected::new("an address and port of this machine such as `127.0.0.1:9464`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served_on_loopback_only() {
        for address in ["127.0.0.1:9464", "[::1]:0"] {
            assert_eq!(loopback(address).unwrap().to_string(), address);
        }
        for text in ["0.0.0.0:9464", "10.0.0.1:1", "localhost:9464", "127.0.0.1", "9464"] {
            assert!(loopback(text).is_err(), "{text}");
        }
    }
}

//! Settings of the recovery controller.

use super::Fallback::Text;
use super::Setting;

pub(in crate::config) const RECOVERY_MODE: Setting = Setting::new(
    "HIGHWATER__RECOVERY__MODE",
    Text("repair"),
    "What the function `highwater_recovery` does with its findings: `repair` what is safe, only `report`, \
     or `off`.",
);
pub(in crate::config) const RECOVERY_STUCK_AFTER: Setting = Setting::new(
    "HIGHWATER__RECOVERY__STUCK_AFTER",
    Text("30m"),
    "How long a checkpoint may stay unchanged while rows are pending before it is reported.",
);
pub(in crate::config) const RECOVERY_PAUSED_MAX: Setting = Setting::new(
    "HIGHWATER__RECOVERY__PAUSED_MAX",
    Text("24h"),
    "How long a poller may stay paused before it is reported.",
);

//! Settings of notifications.

use super::Fallback::Words;
use super::Setting;

pub(in crate::config) const NOTIFY_URL: Setting = Setting::new(
    "HIGHWATER__NOTIFY__URL",
    Words("no notifications"),
    "URL that receives a POST when rows are parked or quarantined, a breaker opens or a poller stops. Outputs show its host and a hash of its path.",
);
pub(in crate::config) const NOTIFY_SIGNING_SECRETS: Setting = Setting::new(
    "HIGHWATER__NOTIFY__SIGNING_SECRETS",
    Words("no signature"),
    "Names of settings with a `whsec_…` secret each, separated by commas. Every notification is signed with all of \
     them, like the requests of the `http` handler.",
);

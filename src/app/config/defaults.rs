//! Settings of all pollers: `HIGHWATER__DEFAULTS__LEASE__TTL` is the `LEASE__TTL` of each poller that sets none.

use super::poller::POLLERS;
use super::settings::{self, SETTINGS, Setting};

/// Prefix of the settings of all pollers.
pub(super) const DEFAULTS: &str = "HIGHWATER__DEFAULTS__";

/// Settings that no two pollers share.
const OF_ONE_POLLER: [&Setting; 3] =
    [&settings::SOURCE_TABLE, &settings::SOURCE_QUERY, &settings::HANDLER_STEPS];

/// Returns the setting of the table for the part of a name after the poller, without those of steps and filter
/// parameters.
pub(super) fn of_poller(tail: &str) -> Option<&'static Setting> {
    let prefix = "HIGHWATER__POLLERS__<NAME>__";
    let is_it = |setting: &&Setting| setting.name.strip_prefix(prefix) == Some(tail);
    SETTINGS.iter().find(is_it).filter(|_| !tail.contains('<'))
}

/// Whether all pollers can share a setting, named by the part after the poller.
pub(super) fn is_common(tail: &str) -> bool {
    of_poller(tail)
        .is_some_and(|setting| OF_ONE_POLLER.iter().all(|other| other.name != setting.name))
}

/// Returns the setting of all pollers that applies if a poller does not set `name`, such as
/// `HIGHWATER__DEFAULTS__LEASE__TTL` for `HIGHWATER__POLLERS__ORDERS__LEASE__TTL`.
pub fn default_of(name: &str) -> Option<String> {
    let (_, tail) = name.strip_prefix(POLLERS)?.split_once("__")?;
    is_common(tail).then(|| format!("{DEFAULTS}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_shares_settings_that_do_not_name_its_rows() {
        for (name, shared) in [
            ("HIGHWATER__POLLERS__A__LEASE__TTL", Some("HIGHWATER__DEFAULTS__LEASE__TTL")),
            ("HIGHWATER__POLLERS__A__HANDLER__URL", Some("HIGHWATER__DEFAULTS__HANDLER__URL")),
            ("HIGHWATER__POLLERS__A__SOURCE__TABLE", None),
            ("HIGHWATER__POLLERS__A__SOURCE__FILTER_PARAMS__X", None),
            ("HIGHWATER__POLLERS__A__SOURCE__FILTER_PARAMS__<PARAM>", None),
            ("HIGHWATER__POLLERS__A__HANDLER__STEP__B__URL", None),
            ("HIGHWATER__POLLERS__A__WHATEVER", None),
            ("HIGHWATER__LOG", None),
        ] {
            assert_eq!(default_of(name).as_deref(), shared, "{name}");
        }
    }
}

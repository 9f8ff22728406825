//! The time zone of the host, by the rules of .NET on Linux (`TimeZoneInfo.Unix.NonAndroid.cs`).
//!
//! `TZ` is a file below `TZDIR`, or an absolute path; without it, `/etc/localtime` applies. A missing or invalid
//! file means UTC. Rules in `TZ` itself (`CET-1CEST`) are treated as file names too.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Place, Problem};
use crate::config::Vars;
use crate::schedule::Zone;

const TZ: &str = "TZ";
/// On plans that support it, the platform sets `TZ` from it; the host does not read it.
const WEBSITE_TIME_ZONE: &str = "WEBSITE_TIME_ZONE";
const DATABASE: &str = "/usr/share/zoneinfo";
const LOCAL: &str = "/etc/localtime";

/// The zone of the host.
pub(super) struct HostZone {
    pub(super) zone: Zone,
    is_unknown: bool,
}

/// Returns the zone in which the host's timers fire.
pub(super) fn of_host(vars: &dyn Vars) -> HostZone {
    if plan_without_zones(vars).is_some() {
        return HostZone { zone: Zone::utc(), is_unknown: false };
    }
    let Some(requested) = vars.get(TZ) else {
        let zone = local().unwrap_or_else(Zone::utc);
        return HostZone { zone, is_unknown: false };
    };
    let name = requested.strip_prefix(':').unwrap_or(&requested);
    let database = vars.get("TZDIR").filter(|folder| !folder.is_empty());
    let database = PathBuf::from(database.as_deref().unwrap_or(DATABASE));
    // An absolute path replaces the folder.
    let found = if name.is_empty() { None } else { read(name, &database.join(name)) };
    HostZone {
        is_unknown: found.is_none() && !name.is_empty(),
        zone: found.unwrap_or_else(Zone::utc),
    }
}

/// Returns a problem with the settings of the time zone.
pub(super) fn problem(vars: &dyn Vars) -> Option<Problem> {
    let HostZone { zone, is_unknown } = of_host(vars);
    let warning = |at: &str, found: String, fix: &str| {
        Some(Problem::warning(Place::Settings, at, found, fix))
    };
    let is_set = |name: &str| vars.get(name).is_some_and(|value| !value.is_empty());
    if let Some(plan) = plan_without_zones(vars)
        && let Some(name) = [TZ, WEBSITE_TIME_ZONE].into_iter().find(|name| is_set(name))
    {
        let found = format!(
            "a {plan} plan does not support it: schedules are in UTC, and TLS and metrics may fail"
        );
        return warning(name, found, "remove it, and write the schedules in UTC");
    }
    if is_unknown {
        let name = vars.get(TZ).unwrap_or_default();
        let found = format!("`{name}` is not a time zone on this machine, so schedules are in UTC");
        return warning(
            TZ,
            found,
            "set it to a name such as `Europe/Berlin`, and install `tzdata`",
        );
    }
    if is_set(WEBSITE_TIME_ZONE) && !is_set(TZ) {
        let found = format!("has no effect on the host itself: schedules are in {}", zone.name());
        let fix =
            "set `TZ`; a Flex Consumption plan supports neither, so write its schedules in UTC";
        return warning(WEBSITE_TIME_ZONE, found, fix);
    }
    None
}

/// Returns the name of the plan if it does not support time zones: on Linux, both Consumption plans.
fn plan_without_zones(vars: &dyn Vars) -> Option<&'static str> {
    let sku = vars.get("WEBSITE_SKU")?;
    let plans = [("FlexConsumption", "Flex Consumption"), ("Dynamic", "Consumption")];
    plans.into_iter().find(|(known, _)| sku.eq_ignore_ascii_case(known)).map(|(_, name)| name)
}

fn read(name: &str, path: &Path) -> Option<Zone> {
    Zone::parse(name, &fs::read(path).ok()?).ok()
}

/// Returns the machine's own zone, named after the target of its link.
pub(crate) fn local() -> Option<Zone> {
    let path = Path::new(LOCAL);
    let target = fs::read_link(path).unwrap_or_default();
    let target = target.to_string_lossy();
    let name = target.split_once("zoneinfo/").map_or(LOCAL, |(_, name)| name);
    read(name, path)
}

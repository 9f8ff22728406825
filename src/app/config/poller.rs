//! Settings of a poller, and the constraints between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_mssql::source::{SizeLimits, SourceSettings};

use super::function_segment;
use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected, show_duration};
use super::read::Reader;
use super::settings::{self, Setting};
use crate::journal::JournalMode;
use crate::partition::{PARTITIONS_MAX, Partition, poller_of_partition};
use crate::policy::{FailurePolicy, Flow};
use crate::state::OnMissingState;

use super::{
    FUNCTION_TIMEOUT_ABOVE, FUNCTION_TIMEOUT_RESERVE, FunctionTimeout, HandlerConfig, StateConfig,
    failure, flow, handler, source,
};

/// Prefix of all settings of pollers.
pub(super) const POLLERS: &str = "HIGHWATER__POLLERS__";
/// Prefix of the settings that map functions to pollers.
pub(super) const FUNCTIONS: &str = "HIGHWATER__FUNCTIONS__";

/// Reserved names: these are the functions of the recovery controller and the status page.
const RESERVED: [&str; 2] = ["HIGHWATER_RECOVERY", "HIGHWATER_STATUS"];

/// Largest value of `COUNT_ROWS_MAX`.
const COUNT_ROWS_MAX: u32 = 1_000_000;
/// Largest value of `BATCH_ROWS_MAX`.
const BATCH_ROWS_MAX: u32 = 100_000;
/// Shortest lease in Azure Blob Storage: it must cover two steps of the service's coarse clock and a heartbeat.
const BLOB_LEASE_TTL_MIN: Duration = Duration::from_secs(15);
/// How much longer than the handler's `TIMEOUT` the default of `STALL_MAX` is at least.
const STALL_RESERVE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest lease in other stores, whose clocks have a resolution of milliseconds.
const LEASE_TTL_MIN: Duration = Duration::from_secs(2);

/// One poller.
#[derive(Clone, Debug)]
pub struct PollerConfig {
    /// Its name, `[a-z][a-z0-9_]*`; for a partition followed by `__p` and its number.
    pub name: String,
    /// Where rows are read, and the partition of them if the poller is partitioned.
    pub source: SourceSettings,
    /// Name of the setting that holds the source's connection string.
    pub connection_setting: String,
    /// How long after delivery rows are read again; `None` for never.
    pub audit_after: Option<Duration>,
    /// Whether a new poller waits for `highwater init`, and starts after the rows that exist then.
    pub start_now: bool,
    /// Where batches go.
    pub handler: HandlerConfig,
    /// Settings of its lease.
    pub lease: LeaseConfig,
    /// Limits of one tick.
    pub limits: LimitsConfig,
    /// Prefetch, overlapped commits and follow mode.
    pub flow: Flow,
    /// Age at which the cached state document is read again.
    pub state_refresh: Duration,
    /// How often an idle poller records that it ran; `None` for never.
    pub status_interval: Option<Duration>,
    /// Delay after the first failure.
    pub retry_delay_min: Duration,
    /// Longest delay after failures; at least the first.
    pub retry_delay_max: Duration,
    /// Longest delay that a target may request.
    pub retry_after_max: Duration,
    /// What happens to rows that keep failing.
    pub policy: FailurePolicy,
    /// What to do if the state document of a poller that has run is missing.
    pub on_missing_state: OnMissingState,
    /// Settings of the journal.
    pub journal: JournalConfig,
}

impl PollerConfig {
    /// Returns the settings of a partition of the poller; `None` for the unpartitioned poller.
    #[must_use]
    pub fn part(&self, partition: Option<Partition>) -> Self {
        let whole = poller_of_partition(&self.name);
        let name = partition.map_or_else(|| whole.to_owned(), |partition| partition.name(whole));
        let source = SourceSettings { poller: name.clone(), partition, ..self.source.clone() };
        Self { name, source, ..self.clone() }
    }
}

/// Settings of a poller's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// What it records.
    pub mode: JournalMode,
    /// How long days are kept; `None` for forever.
    pub retention: Option<Duration>,
}

/// Settings of a poller's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// How long it lasts without renewal.
    pub ttl: Duration,
}

/// Limits of one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Maximum rows in one batch.
    pub batch_rows_max: usize,
    /// Maximum batches in one tick; `None` for no limit.
    pub batches_max: Option<u32>,
    /// How long a handler may make no progress; `None` for no limit.
    pub handler_stall_max: Option<Duration>,
    /// Time after which no further batch is started; below the function timeout.
    pub tick_time_max: Duration,
    /// Maximum rows counted after the checkpoint; 0 for none.
    pub count_rows_max: usize,
}

/// Other settings that a poller's settings are checked against.
pub(super) struct Facts<'a> {
    pub(super) function_timeout: Option<Duration>,
    pub(super) state: Option<&'a StateConfig>,
}

/// Returns the names of all pollers in the settings.
pub(super) fn names(reader: &mut Reader<'_>) -> BTreeSet<String> {
    let mut segments = BTreeSet::new();
    for name in reader.names() {
        let rest = name.strip_prefix(POLLERS).and_then(|rest| rest.split_once("__"));
        segments.extend(rest.map(|(segment, _)| segment.to_owned()));
    }
    if segments.is_empty() {
        reader.note(Mistake {
            setting: settings::SOURCE_TABLE.name.to_owned(),
            shown: Shown::Missing,
            expected: "at least one poller".to_owned(),
            hint: Some(format!("for example `{POLLERS}ORDERS__SOURCE__TABLE=dbo.orders`")),
        });
    }
    for reserved in RESERVED {
        if !segments.remove(reserved) {
            continue;
        }
        reader.note(Mistake {
            setting: format!("{POLLERS}{reserved}__…"),
            shown: Shown::Unknown,
            expected: "another name; this one is reserved for a function of Highwater".to_owned(),
            hint: None,
        });
    }
    let (right, wrong): (BTreeSet<_>, BTreeSet<_>) =
        segments.into_iter().partition(|segment| is_segment(segment));
    for segment in wrong {
        let upper = function_segment(&segment);
        let setting = format!("{POLLERS}{segment}__…");
        let expected = "the poller's name in upper case: letters, digits and single `_`, starting with a letter";
        let hint = is_segment(&upper).then(|| format!("write `{POLLERS}{upper}__…`"));
        reader.note(Mistake {
            setting,
            shown: Shown::Unknown,
            expected: expected.to_owned(),
            hint,
        });
    }
    right.into_iter().map(|segment| segment.to_ascii_lowercase()).collect()
}

/// Whether a segment of a setting's name is a valid poller name.
pub(super) fn is_segment(segment: &str) -> bool {
    let name = segment.to_ascii_lowercase();
    parse::is_poller_name(&name) && name.to_ascii_uppercase() == segment
}

/// Reads a poller, or all of its partitions.
pub(super) fn read(
    reader: &mut Reader<'_>,
    name: &str,
    facts: &Facts<'_>,
) -> Option<Vec<PollerConfig>> {
    let max = u32::from(PARTITIONS_MAX);
    let segment = name.to_ascii_uppercase();
    let count = reader.read(&settings::PARTITIONS, Some(&segment), parse::number(1..=max));
    let poller = read_poller(reader, name, facts)?;
    let parts = Partition::all(u16::try_from(count?).unwrap_or(PARTITIONS_MAX));
    Some(parts.into_iter().map(|partition| poller.part(partition)).collect())
}

fn read_poller(reader: &mut Reader<'_>, name: &str, facts: &Facts<'_>) -> Option<PollerConfig> {
    let segment = name.to_ascii_uppercase();
    let at = Some(segment.as_str());
    let sizes = read_size_limits(reader, &segment);
    let source = source::read(reader, &segment, name, sizes);
    let handler = handler::read(reader, &segment);
    handler::check_timeout(reader, &segment, facts.function_timeout);
    let lease = read_lease(reader, &segment, facts.state);
    let timeout = handler.as_ref().and_then(HandlerConfig::timeout);
    let limits = read_limits(reader, &segment, timeout, facts.function_timeout);
    // An invalid maximum has been reported already.
    let rows_max = limits.map(|limits| u32::try_from(limits.batch_rows_max).unwrap_or(u32::MAX));
    let rows_max = rows_max.unwrap_or(BATCH_ROWS_MAX);
    let flow = flow::read(reader, &segment, rows_max);
    let state_refresh = reader.read(&settings::STATE_REFRESH, at, parse::duration);
    let status_interval = reader.read(&settings::STATUS_INTERVAL, at, parse::duration);
    let retry_delays = read_retry_delays(reader, &segment);
    let retry_after_max = reader.read(&settings::RETRY_AFTER_MAX, at, parse::duration);
    let policy = failure::read(reader, &segment);
    let answers = [("stop", OnMissingState::Stop), ("recreate", OnMissingState::Recreate)];
    let on_missing_state = reader.read(&settings::ON_MISSING_STATE, at, parse::one_of(&answers));
    let journal = read_journal(reader, &segment);
    let (retry_delay_min, retry_delay_max) = retry_delays?;
    let (source, handler, flow, policy) = (source?, handler?, flow?, policy?);
    if flow.overlap_commit {
        flow::check_overlap(reader, &segment, (source.audit_after, &handler, &policy))?;
    }
    Some(PollerConfig {
        name: name.to_owned(),
        source: source.settings,
        connection_setting: source.connection_setting,
        audit_after: source.audit_after,
        start_now: source.start_now,
        handler,
        lease: lease?,
        limits: limits?,
        flow,
        state_refresh: state_refresh?,
        status_interval: status_interval
            .map(|interval| (!interval.is_zero()).then_some(interval))?,
        retry_delay_min,
        retry_delay_max,
        retry_after_max: retry_after_max?,
        policy,
        on_missing_state: on_missing_state?,
        journal: journal?,
    })
}

pub(super) fn read_function_timeout(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.read(&settings::FUNCTION_TIMEOUT, None, |text| match parse::duration(text)? {
        read if read > FUNCTION_TIMEOUT_ABOVE => Ok(read),
        _ => Err(above(FUNCTION_TIMEOUT_ABOVE)),
    })
}

/// Checks that a tick fits into the limit of the host, and returns that limit.
pub(super) fn check_host_timeout(
    reader: &mut Reader<'_>,
    host: Option<&FunctionTimeout>,
) -> Option<Duration> {
    let FunctionTimeout { limit, set_by, text } = host?;
    let limit = (*limit)?;
    if limit > FUNCTION_TIMEOUT_ABOVE {
        return Some(limit);
    }
    reader.note(Mistake {
        setting: set_by.clone(),
        shown: Shown::Value(text.clone().unwrap_or_default()),
        expected: format!(
            "more than {}, such as `00:05:00`: a tick stops {} seconds before the host's limit",
            show_duration(FUNCTION_TIMEOUT_ABOVE),
            FUNCTION_TIMEOUT_RESERVE.as_secs()
        ),
        hint: None,
    });
    None
}

/// Returns the time after which a tick starts no further batch, for a limit on function calls.
pub(super) fn tick_time_within(function_timeout: Duration) -> Duration {
    function_timeout.saturating_sub(FUNCTION_TIMEOUT_RESERVE + Duration::from_secs(1))
}

/// Returns which function segments run which of the pollers in `names`.
pub(super) fn read_functions(
    reader: &mut Reader<'_>,
    names: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for name in reader.names() {
        let Some(segment) = function_of(&name) else { continue };
        let poller = reader.read(&settings::FUNCTION_POLLER, Some(segment), |text| {
            let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let what = || format!("the name of a configured poller: {}", known.join(", "));
            names.get(text).cloned().ok_or_else(|| Expected::new(what()))
        });
        functions.extend(poller.map(|poller| (segment.to_owned(), poller)));
    }
    functions
}

/// Reads which functions run several pollers; `functions` run one each.
pub(super) fn read_groups(
    reader: &mut Reader<'_>,
    names: &BTreeSet<String>,
    functions: &BTreeMap<String, String>,
) -> BTreeMap<String, GroupConfig> {
    let mut groups = BTreeMap::new();
    for name in reader.names() {
        let Some(segment) = group_of(&name) else { continue };
        let group = reader.read(&settings::FUNCTION_POLLERS, Some(segment), |text| {
            let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let what = || {
                let known = known.join(", ");
                format!("`all`, or names of pollers separated by commas: {known}")
            };
            if functions.contains_key(segment) {
                let one = settings::FUNCTION_POLLER.name_for(Some(segment));
                return Err(Expected::new(format!(
                    "nothing, since `{one}` is set; remove one of them"
                )));
            }
            if text == "all" {
                return Ok(GroupConfig { pollers: BTreeSet::new(), is_all: true });
            }
            let mut pollers = BTreeSet::new();
            for part in text.split(',').map(str::trim) {
                // The name of a partitioned poller selects all of its partitions.
                let meant =
                    names.iter().filter(|name| *name == part || poller_of_partition(name) == part);
                let before = pollers.len();
                pollers.extend(meant.cloned());
                if pollers.len() == before && !pollers.contains(part) {
                    return Err(Expected::new(what()));
                }
            }
            Ok(GroupConfig { pollers, is_all: false })
        });
        groups.extend(group.map(|group| (segment.to_owned(), group)));
    }
    // `all` excludes pollers that another function is set to run.
    let assigned = groups.values().filter(|group| !group.is_all).flat_map(|group| &group.pollers);
    let assigned: BTreeSet<String> = assigned.chain(functions.values()).cloned().collect();
    for group in groups.values_mut().filter(|group| group.is_all) {
        group.pollers = names.difference(&assigned).cloned().collect();
    }
    groups
}

/// Pollers that one function runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Their names.
    pub pollers: BTreeSet<String>,
    /// Whether this is `all`: every poller that no other function runs.
    pub is_all: bool,
}

/// Returns the function in a setting's name, if the setting maps it to a poller.
pub(super) fn function_of(name: &str) -> Option<&str> {
    function_before(name, "__POLLER")
}

/// The same for a setting that maps a function to several pollers.
pub(super) fn group_of(name: &str) -> Option<&str> {
    function_before(name, "__POLLERS")
}

fn function_before<'a>(name: &'a str, end: &str) -> Option<&'a str> {
    let segment = name.strip_prefix(FUNCTIONS)?.strip_suffix(end)?;
    (!segment.is_empty() && function_segment(segment) == segment).then_some(segment)
}

fn read_lease(
    reader: &mut Reader<'_>,
    segment: &str,
    state: Option<&StateConfig>,
) -> Option<LeaseConfig> {
    let ttl_min = match state {
        Some(StateConfig::Blob { access, .. }) if !access.is_development() => BLOB_LEASE_TTL_MIN,
        Some(StateConfig::Blob { .. } | StateConfig::File { .. } | StateConfig::Sql { .. })
        | None => LEASE_TTL_MIN,
    };
    let at = Some(segment);
    let ttl = reader.read(&settings::LEASE_TTL, at, parse::duration_from(ttl_min));
    Some(LeaseConfig { ttl: ttl? })
}

fn read_journal(reader: &mut Reader<'_>, segment: &str) -> Option<JournalConfig> {
    let at = Some(segment);
    let modes =
        [("off", JournalMode::Off), ("commits", JournalMode::Commits), ("full", JournalMode::Full)];
    let mode = reader.read(&settings::JOURNAL, at, parse::one_of(&modes));
    let retention = reader.read(&settings::JOURNAL_RETENTION, at, |text| {
        let days = text.strip_suffix('d').unwrap_or(if text == "0" { text } else { "" });
        match days.parse::<u16>() {
            Ok(0) => Ok(None),
            Ok(days) => Ok(Some(DAY * u32::from(days))),
            Err(_) => Err(Expected::new("a number of days such as `30d`, or `0`")),
        }
    });
    Some(JournalConfig { mode: mode?, retention: retention? })
}

/// Reads the size limits.
fn read_size_limits(reader: &mut Reader<'_>, segment: &str) -> Option<SizeLimits> {
    let at = Some(segment);
    let batch_bytes_max = reader.read(&settings::BATCH_BYTES_MAX, at, parse::size);
    let value_bytes_max = reader.read(&settings::VALUE_BYTES_MAX, at, parse::size);
    Some(SizeLimits { batch_bytes_max: batch_bytes_max?, value_bytes_max: value_bytes_max? })
}

fn read_limits(
    reader: &mut Reader<'_>,
    segment: &str,
    handler_timeout: Option<Duration>,
    function_timeout: Option<Duration>,
) -> Option<LimitsConfig> {
    let at = Some(segment);
    let rows = reader.read(&settings::BATCH_ROWS_MAX, at, parse::number(1..=BATCH_ROWS_MAX));
    let batches_max = reader.read_if_set(&settings::BATCHES_MAX, at, parse::number(1..=u32::MAX));
    let stall_max = read_stall_max(reader, segment, handler_timeout);
    let tick_time_max = read_tick_time_max(reader, segment, function_timeout);
    let counted = reader.read(&settings::COUNT_ROWS_MAX, at, parse::number(0..=COUNT_ROWS_MAX));
    Some(LimitsConfig {
        batch_rows_max: usize::try_from(rows?).unwrap_or(usize::MAX),
        batches_max,
        handler_stall_max: stall_max.map(|limit| (!limit.is_zero()).then_some(limit))?,
        tick_time_max: tick_time_max?,
        count_rows_max: usize::try_from(counted?).unwrap_or(usize::MAX),
    })
}

/// Reads how long a call may make no progress. The default leaves a handler the time that its `TIMEOUT` gives it.
fn read_stall_max(
    reader: &mut Reader<'_>,
    segment: &str,
    handler_timeout: Option<Duration>,
) -> Option<Duration> {
    let setting = &settings::HANDLER_STALL_MAX;
    let is_set = reader.text(&setting.name_for(Some(segment))).is_some();
    let read = reader.read(setting, Some(segment), parse::duration)?;
    let own = handler_timeout.filter(|_| !is_set).map(|own| own.saturating_add(STALL_RESERVE));
    Some(read.max(own.unwrap_or_default()))
}

fn read_tick_time_max(
    reader: &mut Reader<'_>,
    segment: &str,
    function_timeout: Option<Duration>,
) -> Option<Duration> {
    let setting = &settings::TICK_TIME_MAX;
    let is_set = reader.text(&setting.name_for(Some(segment))).is_some();
    let below = function_timeout
        .map_or(Duration::MAX, |limit| limit.saturating_sub(FUNCTION_TIMEOUT_RESERVE));
    reader.read(setting, Some(segment), |text| {
        let read = parse::duration_from(Duration::from_millis(1))(text)?;
        match (read < below, is_set) {
            (true, _) => Ok(read),
            (false, false) => Ok(function_timeout.map_or(read, tick_time_within)),
            (false, true) => Err(Expected::new(format!(
                "a duration below {} (`{}` minus 15 seconds)",
                show_duration(below),
                settings::FUNCTION_TIMEOUT.name
            ))),
        }
    })
}

fn read_retry_delays(reader: &mut Reader<'_>, segment: &str) -> Option<(Duration, Duration)> {
    let at = Some(segment);
    let delay_min = Duration::from_millis(1);
    let mut read = |setting: &Setting| reader.read(setting, at, parse::duration_from(delay_min));
    let (min, max) = (read(&settings::RETRY_DELAY_MIN), read(&settings::RETRY_DELAY_MAX));
    let (min, max) = (min?, max?);
    if min > max {
        // The defaults are in order, so at least one of them is set; report that one.
        let (min_name, max_name) =
            (settings::RETRY_DELAY_MIN.name_for(at), settings::RETRY_DELAY_MAX.name_for(at));
        let (name, expected) = match reader.text(&max_name) {
            Some(_) => {
                (max_name, format!("at least {}, the value of `{min_name}`", show_duration(min)))
            }
            None => {
                (min_name, format!("at most {}, the value of `{max_name}`", show_duration(max)))
            }
        };
        let text = reader.text(&name).unwrap_or_default();
        reader.wrong(&name, &text, Expected::new(expected));
        return None;
    }
    Some((min, max))
}

fn above(limit: Duration) -> Expected {
    Expected::new(format!("a duration of more than {}", show_duration(limit)))
}

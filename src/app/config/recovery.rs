//! Settings of the recovery controller.

use std::time::Duration;

use super::parse;
use super::read::Reader;
use super::settings;

/// What the controller does with its findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    /// The controller does nothing.
    Off,
    /// Findings are reported.
    Report,
    /// Findings are repaired if that is safe.
    Repair,
}

/// Settings of the recovery controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// What to do with findings.
    pub mode: RecoveryMode,
    /// How long a checkpoint may stay unchanged while rows are pending.
    pub stuck_after: Duration,
    /// How long a pause may last.
    pub paused_max: Duration,
}

/// Smallest allowed value: with less, an ordinary failure and its backoff would count as stuck.
const STUCK_AFTER_MIN: Duration = Duration::from_secs(60);

pub(super) fn read(reader: &mut Reader<'_>) -> Option<RecoveryConfig> {
    let modes = [
        ("repair", RecoveryMode::Repair),
        ("report", RecoveryMode::Report),
        ("off", RecoveryMode::Off),
    ];
    let mode = reader.read(&settings::RECOVERY_MODE, None, parse::one_of(&modes));
    let at_least = parse::duration_from(STUCK_AFTER_MIN);
    let stuck_after = reader.read(&settings::RECOVERY_STUCK_AFTER, None, at_least);
    let paused_max = reader.read(&settings::RECOVERY_PAUSED_MAX, None, parse::duration);
    Some(RecoveryConfig { mode: mode?, stuck_after: stuck_after?, paused_max: paused_max? })
}

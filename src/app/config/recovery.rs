//! Settings of the recovery controller.

use std::time::Duration;

use super::parse;
use super::read::Reader;
use super::settings;

/// What the controller's function does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Nothing is looked for.
    Off,
    /// It is told.
    Report,
    /// What is safe to repair is repaired.
    Repair,
}

/// What counts as stuck, and what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// What is done.
    pub mode: RecoveryMode,
    /// How long a checkpoint may stand still while rows wait.
    pub stuck_after: Duration,
    /// How long a pause may last.
    pub paused_max: Duration,
}

/// Shortest that counts as stuck: below it an ordinary failure with its pauses would.
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

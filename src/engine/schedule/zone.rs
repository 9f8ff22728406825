//! The time zone of schedules. Pure: `project` finds its file like the host does.

use std::sync::Arc;

use thiserror::Error;
use time::{Duration, OffsetDateTime, PrimitiveDateTime, UtcOffset};
use tz::TimeZone;
use tz::timezone::TransitionRule;

/// A time zone with its daylight saving rules.
#[derive(Clone, Debug)]
pub struct Zone {
    name: String,
    /// `None` for UTC.
    rules: Option<Arc<TimeZone>>,
}

/// A file does not hold the rules of a time zone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a time zone file: {reason}")]
pub struct ZoneError {
    /// What is wrong with it.
    pub reason: String,
}

/// When a local time occurs: twice if clocks are set back, otherwise `first` equals `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrences {
    pub(super) first: OffsetDateTime,
    pub(super) last: OffsetDateTime,
}

impl Occurrences {
    pub(super) fn is_ambiguous(self) -> bool {
        self.first != self.last
    }
}

impl Zone {
    /// UTC.
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), rules: None }
    }

    /// Parses the content of a tz database file; a zone that is always at UTC is called that.
    ///
    /// # Errors
    ///
    /// [`ZoneError`] if it is not such a file.
    pub fn parse(name: &str, file: &[u8]) -> Result<Self, ZoneError> {
        let rules = TimeZone::from_tz_data(file);
        let rules = rules.map_err(|error| ZoneError { reason: error.to_string() })?;
        let never_differs = match rules.as_ref().extra_rule() {
            None => true,
            Some(TransitionRule::Fixed(kind)) => kind.ut_offset() == 0,
            Some(TransitionRule::Alternate(_)) => false,
        };
        let mut kinds = rules.as_ref().local_time_types().iter();
        if never_differs && kinds.all(|kind| kind.ut_offset() == 0) {
            return Ok(Self::utc());
        }
        Ok(Self { name: name.to_owned(), rules: Some(Arc::new(rules)) })
    }

    /// The name under which it was requested.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same instant with the zone's offset at that time.
    pub fn local(&self, time: OffsetDateTime) -> OffsetDateTime {
        time.to_offset(self.offset_at(time))
    }

    fn offset_at(&self, time: OffsetDateTime) -> UtcOffset {
        let Some(rules) = &self.rules else { return UtcOffset::UTC };
        let kind = rules.find_local_time_type(time.unix_timestamp());
        let offset = kind.ok().map(|kind| UtcOffset::from_whole_seconds(kind.ut_offset()));
        offset.and_then(Result::ok).unwrap_or(UtcOffset::UTC)
    }

    /// Returns when a local time occurs. A skipped time moves forward by the skipped amount, as in .NET.
    pub(super) fn occurrences(&self, local: PrimitiveDateTime) -> Occurrences {
        // Clock changes are weeks apart, so one day on either side covers all relevant offsets.
        let near =
            |days: i64| self.offset_at(local.assume_utc().saturating_add(Duration::days(days)));
        let (before, after) = (near(-1), near(1));
        let occurs = |offset| {
            let time = local.assume_offset(offset);
            (self.offset_at(time) == offset).then_some(time)
        };
        match (occurs(before), occurs(after)) {
            (Some(first), Some(last)) => Occurrences { first, last },
            (Some(once), None) | (None, Some(once)) => Occurrences { first: once, last: once },
            (None, None) => {
                let moved = self.local(local.assume_offset(before));
                Occurrences { first: moved, last: moved }
            }
        }
    }
}

//! Permanently bad rows: the target never accepts them, or they crash the process.

use highwater_engine::policy::FailurePolicy;

use crate::parked::writes_entries;
use crate::random::Random;

/// What a row does to its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The target rejects it.
    Refused,
    /// The handler fails as in an outage.
    Failing,
    /// The process crashes while handling it.
    Deadly,
}

/// Which row states are bad. Decided by the version alone, so that every reader agrees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadRows {
    seed: u64,
    percent: u64,
    kinds: &'static [Bad],
    /// The bad rows of a scenario, by version. If there are any, no other rows are bad.
    these: &'static [(u64, Bad)],
    /// Whether the handler names the bad row.
    pub(crate) named: bool,
}

impl BadRows {
    pub(crate) const NONE: Self =
        Self { seed: 0, percent: 0, kinds: &[], these: &[], named: false };

    /// Rows of one kind, as a percentage.
    pub(crate) const fn of_kind(seed: u64, percent: u64, kinds: &'static [Bad]) -> Self {
        Self { seed, percent, kinds, ..Self::NONE }
    }

    /// Exactly these rows.
    pub(crate) const fn these(these: &'static [(u64, Bad)]) -> Self {
        Self { these, ..Self::NONE }
    }

    pub(crate) fn draw(seed: u64, random: &mut Random) -> Self {
        const KINDS: [&[Bad]; 6] = [
            &[Bad::Refused],
            &[Bad::Failing],
            &[Bad::Deadly],
            &[Bad::Refused, Bad::Failing],
            &[Bad::Refused, Bad::Deadly],
            &[Bad::Refused, Bad::Failing, Bad::Deadly],
        ];
        Self {
            seed,
            percent: random.pick(&[0, 0, 3, 8, 15]),
            kinds: random.pick(&KINDS),
            these: &[],
            named: random.chance(30),
        }
    }

    /// Returns what is wrong with the row state of this version.
    pub(crate) fn of(self, version: u64) -> Option<Bad> {
        if !self.these.is_empty() {
            let found = self.these.iter().find(|(bad, _)| *bad == version);
            return found.map(|(_, bad)| *bad);
        }
        let mut random = Random::of(self.seed ^ version.rotate_left(32), 6);
        random.chance(self.percent).then(|| random.pick(self.kinds))
    }

    /// Whether `policy` gets past all of these rows without an operator, in batches of `batch_rows`.
    pub(crate) fn are_passed_by(self, policy: FailurePolicy, batch_rows_max: usize) -> bool {
        let found = policy.bisect_on_error || batch_rows_max == 1;
        let told = |bad: &Bad| *bad != Bad::Deadly && self.named;
        writes_entries(&policy)
            && self.kinds.iter().all(|bad| found || told(bad))
            && (found || self.these.is_empty())
    }
}

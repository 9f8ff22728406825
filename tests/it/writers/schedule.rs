//! The actions of the writers, drawn from a seed.

/// Writers with concurrently open transactions.
pub(super) const WRITERS: usize = 6;
/// Rolled-back transactions, in percent.
const ROLLBACKS: u64 = 10;
/// Statements that change a row the writer has committed, in percent.
const UPDATES: u64 = 20;
/// Most statements of a transaction.
const STATEMENTS_MAX: u64 = 3;
/// Most rows of an `INSERT`.
const ROWS_MAX: u64 = 2;
/// Longest time for which a transaction is open.
pub(super) const OPEN_MS_MAX: u64 = 120;

/// Reproducible randomness: `SplitMix64` by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(u64::try_from(length).unwrap())).unwrap()
    }
}

/// One transaction.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) statements: Vec<Statement>,
    pub(super) commits: bool,
    /// How long it stays open.
    pub(super) open_ms: u64,
}

/// One statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Statement {
    /// Adds this many rows.
    Insert(u64),
    /// Changes one of the rows that the writer has committed, if any.
    Update,
}

impl Transaction {
    pub(super) fn draw(rng: &mut Rng, updates: bool) -> Self {
        let count = 1 + rng.below(STATEMENTS_MAX);
        let statements = (0..count).map(|_| {
            if updates && rng.percent(UPDATES) {
                Statement::Update
            } else {
                Statement::Insert(1 + rng.below(ROWS_MAX))
            }
        });
        Self {
            statements: statements.collect(),
            commits: !rng.percent(ROLLBACKS),
            open_ms: rng.below(OPEN_MS_MAX),
        }
    }
}

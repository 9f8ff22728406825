//! Which operations are delivered. Pure.
//!
//! # Design
//!
//! The server selects, so rows that are not delivered cost no transfer, and the position moves past them like past
//! rows that a filter excludes. Existing rows of the table, which change tracking reads first, are not changes:
//! without them the poller would have no position.

use highwater_engine::cursor::CursorMode;
use highwater_engine::event::Operation;

/// The operations to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    is_tracked: bool,
    /// The operations that the source distinguishes, and of them the selected ones.
    known: Vec<Operation>,
    selected: Vec<Operation>,
}

/// An operation that a mode does not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationProblem {
    /// The operation.
    pub operation: Operation,
    /// What the mode reports, and why.
    pub expected: String,
    /// Which modes report what.
    pub hint: &'static str,
}

/// Checks that `mode` reports all of these operations.
///
/// # Errors
///
/// The first operation that it does not report.
pub fn check_operations(
    operations: &[Operation],
    mode: CursorMode,
    has_soft_deletes: bool,
) -> Result<(), OperationProblem> {
    let known = known(mode, has_soft_deletes);
    let Some(operation) = operations.iter().find(|operation| !known.contains(operation)) else {
        return Ok(());
    };
    let expected = match (mode, has_soft_deletes) {
        (CursorMode::ChangeTracking, _) => {
            format!("`insert`, `update` or `delete`, which mode `{mode}` distinguishes")
        }
        (_, true) => format!(
            "`upsert` or `delete`, since mode `{mode}` does not distinguish inserts from updates"
        ),
        (_, false) => format!(
            "`upsert`, since mode `{mode}` does not distinguish inserts, updates and deletes"
        ),
    };
    Err(OperationProblem {
        operation: *operation,
        expected,
        hint: "mode `change_tracking` reports `insert`, `update` and `delete`; the other modes report `upsert`, \
               and `delete` with `SOURCE__SOFT_DELETE`",
    })
}

fn known(mode: CursorMode, has_soft_deletes: bool) -> Vec<Operation> {
    match (mode, has_soft_deletes) {
        (CursorMode::ChangeTracking, _) => {
            vec![Operation::Insert, Operation::Update, Operation::Delete]
        }
        (_, true) => vec![Operation::Upsert, Operation::Delete],
        (_, false) => vec![Operation::Upsert],
    }
}

impl Selection {
    /// Returns the selection of the settings; all operations if they select none.
    ///
    /// # Errors
    ///
    /// The mode does not report one of them.
    pub(super) fn new(
        selected: Option<&[Operation]>,
        mode: CursorMode,
        has_soft_deletes: bool,
    ) -> Result<Self, String> {
        let known = known(mode, has_soft_deletes);
        let selected = selected.unwrap_or(&known).to_vec();
        check_operations(&selected, mode, has_soft_deletes).map_err(|problem| {
            let OperationProblem { operation, expected, hint } = problem;
            format!("`SOURCE__OPERATIONS` has `{operation}`, expected {expected}: {hint}")
        })?;
        Ok(Self { is_tracked: mode == CursorMode::ChangeTracking, known, selected })
    }

    /// Returns the operations that events can have, in the order of [`Operation::ALL`].
    pub(super) fn possible(&self) -> Vec<Operation> {
        let is_possible = |operation: &Operation| {
            self.selected.contains(operation)
                || (self.is_tracked && *operation == Operation::Upsert)
        };
        Operation::ALL.into_iter().filter(is_possible).collect()
    }

    /// Returns the condition on a row of the table, given the condition under which it counts as deleted; `None` if
    /// all rows are delivered.
    pub(super) fn of_row(&self, deleted: Option<&str>) -> Option<String> {
        let possible = self.possible();
        let kind =
            match (possible.contains(&Operation::Upsert), possible.contains(&Operation::Delete)) {
                (true, false) => "U",
                (false, true) => "D",
                (true, true) | (false, false) => return None,
            };
        // The condition can be unknown, so it cannot be negated.
        Some(format!("CASE WHEN {} THEN N'D' ELSE N'U' END = N'{kind}'", deleted?))
    }

    /// Whether updates are delivered, but not inserts.
    ///
    /// A row that was inserted and then updated is an update then. While nothing is delivered the requested version
    /// stays, so the insert may be one that was passed before.
    pub(super) fn has_updates_without_inserts(&self) -> bool {
        self.selected.contains(&Operation::Update) && !self.selected.contains(&Operation::Insert)
    }

    /// Whether inserts are delivered, but not updates.
    pub(super) fn has_inserts_without_updates(&self) -> bool {
        self.selected.contains(&Operation::Insert) && !self.selected.contains(&Operation::Update)
    }

    /// Returns the condition on a change, given the expression for its operation; `None` if all are delivered.
    pub(super) fn of_change(&self, operation: &str) -> Option<String> {
        let letters =
            [(Operation::Insert, "I"), (Operation::Update, "U"), (Operation::Delete, "D")];
        if self.known.iter().all(|known| self.selected.contains(known)) {
            return None;
        }
        let selected = letters.iter().filter(|(known, _)| self.selected.contains(known));
        let selected: Vec<String> = selected.map(|(_, letter)| format!("N'{letter}'")).collect();
        Some(format!("{operation} IN ({})", selected.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::event::Operation::{Delete, Insert, Update, Upsert};

    use super::*;

    #[test]
    fn a_mode_selects_only_what_it_reports() {
        use CursorMode::{ChangeTracking, RowVersion};
        for (mode, has_soft_deletes, selected, expected) in [
            (ChangeTracking, false, vec![Insert, Delete], Ok(vec![Insert, Upsert, Delete])),
            (ChangeTracking, true, vec![Update], Ok(vec![Update, Upsert])),
            (
                ChangeTracking,
                false,
                vec![Upsert],
                Err("has `upsert`, expected `insert`, `update` or `delete`"),
            ),
            (RowVersion, false, vec![Upsert], Ok(vec![Upsert])),
            (
                RowVersion,
                false,
                vec![Insert],
                Err("has `insert`, expected `upsert`, since mode `rowversion`"),
            ),
            (RowVersion, false, vec![Delete], Err("`delete` with `SOURCE__SOFT_DELETE`")),
            (RowVersion, true, vec![Delete], Ok(vec![Delete])),
            (
                RowVersion,
                true,
                vec![Upsert, Update],
                Err("has `update`, expected `upsert` or `delete`"),
            ),
        ] {
            let found = Selection::new(Some(&selected), mode, has_soft_deletes);
            match (found, expected) {
                (Ok(selection), Ok(possible)) => assert_eq!(selection.possible(), possible),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn only_what_is_not_selected_needs_a_condition() {
        let of = |selected: Option<&[Operation]>, mode| {
            let selection = Selection::new(selected, mode, true).unwrap();
            (selection.of_row(Some("x = 1")), selection.of_change("op"))
        };
        let row = |kind: &str| Some(format!("CASE WHEN x = 1 THEN N'D' ELSE N'U' END = N'{kind}'"));
        let change = |letters: &str| Some(format!("op IN ({letters})"));
        let tracked = CursorMode::ChangeTracking;
        assert_eq!(of(None, tracked), (None, None));
        assert_eq!(of(Some(&[Delete, Update, Insert]), tracked), (None, None));
        assert_eq!(of(Some(&[Insert, Delete]), tracked), (None, change("N'I', N'D'")));
        assert_eq!(of(Some(&[Update]), tracked), (row("U"), change("N'U'")));
        let other = CursorMode::TimestampPk;
        assert_eq!(of(None, other).0, None);
        assert_eq!(of(Some(&[Upsert]), other).0, row("U"));
        assert_eq!(of(Some(&[Delete]), other).0, row("D"));
        let plain = Selection::new(Some(&[Upsert]), other, false).unwrap();
        assert_eq!(plain.of_row(None), None, "nothing counts as deleted");
    }
}

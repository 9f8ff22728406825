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
    selected: Vec<Operation>,
}

/// An operation that cannot be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationProblem {
    /// The operation.
    pub operation: Operation,
    /// What can be selected, and why.
    pub expected: String,
    /// What to do.
    pub hint: &'static str,
}

/// Checks that these operations can be selected in `mode`.
///
/// The mode must report all of them. Change tracking reports one net operation per row, relative to a version that is
/// not that of the last delivery. An insert whose row changes before it is read can be an update, and an update after
/// an insert that was not delivered can be an insert. So with one of them alone, rows would be lost.
///
/// # Errors
///
/// The first operation that cannot be selected.
pub fn check_operations(
    operations: &[Operation],
    mode: CursorMode,
    has_soft_deletes: bool,
) -> Result<(), OperationProblem> {
    let known = known(mode, has_soft_deletes);
    let Some(operation) = operations.iter().find(|operation| !known.contains(operation)) else {
        return check_pair(operations);
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

/// Checks that inserts and updates are selected together.
fn check_pair(operations: &[Operation]) -> Result<(), OperationProblem> {
    let has_inserts = operations.contains(&Operation::Insert);
    let has_updates = operations.contains(&Operation::Update);
    let (operation, expected, hint) = match (has_inserts, has_updates) {
        (true, false) => (
            Operation::Insert,
            "`insert` together with `update`, since a row that is inserted and changed before it is read can \
             count as an update and would be lost",
            "select `insert,update`, and ignore updates of known rows in the receiver",
        ),
        (false, true) => (
            Operation::Update,
            "`update` together with `insert`, since an update that follows an unread insert counts as an \
             insert and would be lost",
            "select `insert,update`; an insert can include later updates",
        ),
        (true, true) | (false, false) => return Ok(()),
    };
    Err(OperationProblem { operation, expected: expected.to_owned(), hint })
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
    /// One of them cannot be selected.
    pub(super) fn new(
        selected: Option<&[Operation]>,
        mode: CursorMode,
        has_soft_deletes: bool,
    ) -> Result<Self, String> {
        let known = known(mode, has_soft_deletes);
        let selected = selected.map_or(known, <[Operation]>::to_vec);
        check_operations(&selected, mode, has_soft_deletes).map_err(|problem| {
            let OperationProblem { operation, expected, hint } = problem;
            format!("`SOURCE__OPERATIONS` has `{operation}`, expected {expected}: {hint}")
        })?;
        Ok(Self { is_tracked: mode == CursorMode::ChangeTracking, selected })
    }

    /// Returns the operations that events can have, in the order of [`Operation::ALL`].
    pub(super) fn possible(&self) -> Vec<Operation> {
        Operation::ALL.into_iter().filter(|operation| self.is_possible(*operation)).collect()
    }

    /// Whether events can have this operation.
    pub(super) fn is_possible(&self, operation: Operation) -> bool {
        self.selected.contains(&operation) || (self.is_tracked && operation == Operation::Upsert)
    }

    /// Returns the condition on a row of the table, given the condition under which it counts as deleted; `None` if
    /// all rows are delivered.
    pub(super) fn of_row(&self, deleted: Option<&str>) -> Option<String> {
        self.condition(self.is_possible(Operation::Upsert), deleted?)
    }

    /// Returns the condition on a change, given the condition under which it counts as a delete; `None` if all
    /// changes are delivered.
    pub(super) fn of_change(&self, deleted: &str) -> Option<String> {
        let has_others = self.selected.iter().any(|operation| *operation != Operation::Delete);
        self.condition(has_others, deleted)
    }

    fn condition(&self, has_others: bool, deleted: &str) -> Option<String> {
        let kind = match (has_others, self.selected.contains(&Operation::Delete)) {
            (true, false) => "U",
            (false, true) => "D",
            (true, true) | (false, false) => return None,
        };
        // The condition can be unknown, so it cannot be negated.
        Some(format!("CASE WHEN {deleted} THEN N'D' ELSE N'U' END = N'{kind}'"))
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
            (ChangeTracking, false, vec![Update, Insert], Ok(vec![Insert, Update, Upsert])),
            (ChangeTracking, true, vec![Delete], Ok(vec![Upsert, Delete])),
            (
                ChangeTracking,
                false,
                vec![Delete, Insert],
                Err(
                    "has `insert`, expected `insert` together with `update`, since a row that is inserted and",
                ),
            ),
            (
                ChangeTracking,
                false,
                vec![Update],
                Err("would be lost: select `insert,update`; an insert can include"),
            ),
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
            (selection.of_row(Some("x = 1")), selection.of_change("x = 1"))
        };
        let only =
            |kind: &str| Some(format!("CASE WHEN x = 1 THEN N'D' ELSE N'U' END = N'{kind}'"));
        let tracked = CursorMode::ChangeTracking;
        assert_eq!(of(None, tracked), (None, None));
        assert_eq!(of(Some(&[Delete, Update, Insert]), tracked), (None, None));
        assert_eq!(of(Some(&[Insert, Update]), tracked), (only("U"), only("U")));
        // Existing rows are no changes.
        assert_eq!(of(Some(&[Delete]), tracked), (None, only("D")));
        let other = CursorMode::TimestampPk;
        assert_eq!(of(None, other).0, None);
        assert_eq!(of(Some(&[Upsert]), other).0, only("U"));
        assert_eq!(of(Some(&[Delete]), other).0, only("D"));
        let plain = Selection::new(Some(&[Upsert]), other, false).unwrap();
        assert_eq!(plain.of_row(None), None, "nothing counts as deleted");
    }
}

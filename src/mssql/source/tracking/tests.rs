#![expect(clippy::needless_raw_string_hashes, reason = "as expect-test writes them")]

use std::time::Duration;

use expect_test::{Expect, expect};
use highwater_engine::cursor::KeyValues;
use highwater_engine::event::Operation;

use super::*;
use crate::connection_string::SqlConnection;
use crate::source::Relation;
use crate::source::choice::Choice;
use crate::source::describe::Column;
use crate::source::identity::Identity;
use crate::source::origin::Origin;
use crate::source::plan::ReadSpec;
use crate::source::{SizeLimits, SourceSettings};

const NOON: &str = "2026-01-01T12:00:00";

fn column(name: &str, type_name: &str, primary: bool) -> Column {
    let plain = crate::source::describe::tests::column(type_name, 8, 0, 0);
    Column { name: name.to_owned(), primary, ..plain }
}

fn plan(filter: Option<&str>) -> Plan {
    plan_of(filter, None, None)
}

fn plan_of(
    filter: Option<&str>,
    soft_delete: Option<&str>,
    operations: Option<Vec<Operation>>,
) -> Plan {
    let settings = SourceSettings {
        poller: "p".to_owned(),
        connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
        relation: Relation::Table("t".to_owned()),
        mode: Some(CursorMode::ChangeTracking),
        cursor_column: None,
        key: vec!["a".to_owned(), "b".to_owned()],
        columns: None,
        columns_excluded: Vec::new(),
        mask: crate::source::Mask::default(),
        filter: filter.map(str::to_owned),
        filter_params: std::collections::BTreeMap::new(),
        soft_delete: soft_delete.map(str::to_owned),
        operations,
        settle: Duration::ZERO,
        clock: crate::source::SourceClock::Utc,
        limits: SizeLimits::default(),
        partition: None,
        on_schema_change: crate::source::OnSchemaChange::Follow,
    };
    let gone = Column { nullable: true, ..column("gone", "bit", false) };
    let mut columns =
        vec![column("b", "money", true), column("a", "int", true), column("x", "int", false)];
    columns.extend(soft_delete.map(|_| gone));
    let choice = Choice::of(&settings).unwrap().unwrap();
    let origin = Origin::of(&settings).unwrap();
    let filter = crate::source::origin::filter(&settings).unwrap();
    let read = ReadSpec { origin: &origin, filter: filter.as_ref(), choice: &choice };
    Plan::new(&settings, read, &columns).unwrap()
}

fn at(text: &str) -> Cursor {
    let key = [("a".to_owned(), 1.into()), ("b".to_owned(), "2.0000".into())];
    Cursor::tracked(text.parse().unwrap(), KeyValues::from_iter(key))
}

fn recorded_to(version: &str, noted_at: &str) -> SourceState {
    SourceState::from_iter([
        (COMPLETE_TO.to_owned(), version.into()),
        (NOTED_AT.to_owned(), noted_at.into()),
    ])
}

fn window<'a>(
    after: Option<&'a Cursor>,
    upto: Option<&'a Cursor>,
    state: &'a SourceState,
) -> FetchWindow<'a> {
    FetchWindow { after, upto, rows_max: 9, state }
}

fn range(after: Option<&str>, upto: Option<&str>, known: Option<&str>) -> Range {
    let (after, upto) = (after.map(at), upto.map(at));
    let state = known.map_or_else(SourceState::new, |known| recorded_to(known, NOON));
    Range::of(window(after.as_ref(), upto.as_ref(), &state), "p").unwrap()
}

fn check(filter: Option<&str>, after: Option<&str>, upto: Option<&str>, expected: &Expect) {
    let (after, upto) = (after.map(at), upto.map(at));
    let state = SourceState::new();
    let window = window(after.as_ref(), upto.as_ref(), &state);
    let (sql, params) = plan(filter).tracked_statement(window).unwrap();
    expected.assert_eq(&format!("{sql}\n{params:?}"));
}

#[test]
fn rows_are_read_first_and_changes_after_them() {
    check(
        None,
        None,
        None,
        &expect![[r#"
            DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();
            SELECT @cur AS [__cur], CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) CAST(t.[b] AS decimal(19, 4)) AS [b], t.[a], t.[x], CAST(NULL AS BIGINT) AS [__version], N'U' AS [__op]
            FROM [dbo].[t] AS t
            ORDER BY t.[a], t.[b];
            SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[t]')) AS [__min];
            [BigInt(10)]"#]],
    );
    check(
        Some("x = 1 OR x = 2 -- these"),
        Some("snapshot@7"),
        None,
        &expect![[r#"
            DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();
            SELECT @cur AS [__cur], CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) CAST(t.[b] AS decimal(19, 4)) AS [b], t.[a], t.[x], CAST(NULL AS BIGINT) AS [__version], N'U' AS [__op]
            FROM [dbo].[t] AS t
            WHERE t.[a] >= CAST(@P2 AS int) AND (t.[a] > CAST(@P2 AS int) OR t.[b] > CAST(@P3 AS money))
            AND (x = 1 OR x = 2 -- these
            )
            ORDER BY t.[a], t.[b];
            IF @@ROWCOUNT < @P1
            SELECT TOP (@P1) CAST(c.[b] AS decimal(19, 4)) AS [b], c.[a], t.[x], c.SYS_CHANGE_VERSION AS [__version], CASE WHEN c.SYS_CHANGE_OPERATION = N'D' OR t.[a] IS NULL THEN N'D' WHEN c.SYS_CHANGE_OPERATION = N'I' THEN N'I' ELSE N'U' END AS [__op]
            FROM CHANGETABLE(CHANGES [dbo].[t], @P4) AS c LEFT JOIN [dbo].[t] AS t ON t.[a] = c.[a] AND t.[b] = c.[b]
            WHERE c.SYS_CHANGE_VERSION <= @cur
            AND (c.SYS_CHANGE_OPERATION = N'D' OR t.[a] IS NULL OR EXISTS (SELECT 1 FROM [dbo].[t] AS t WHERE t.[a] = c.[a] AND t.[b] = c.[b] AND (x = 1 OR x = 2 -- these
            )))
            ORDER BY c.SYS_CHANGE_VERSION, c.[a], c.[b];
            SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[t]')) AS [__min];
            [BigInt(10), BigInt(1), Text("2.0000"), BigInt(7)]"#]],
    );
    check(
        None,
        Some("snapshot@7"),
        Some("snapshot@7"),
        &expect![[r#"
            DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();
            SELECT @cur AS [__cur], CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) CAST(t.[b] AS decimal(19, 4)) AS [b], t.[a], t.[x], CAST(NULL AS BIGINT) AS [__version], N'U' AS [__op]
            FROM [dbo].[t] AS t
            WHERE t.[a] >= CAST(@P2 AS int) AND (t.[a] > CAST(@P2 AS int) OR t.[b] > CAST(@P3 AS money))
            AND t.[a] <= CAST(@P4 AS int) AND (t.[a] < CAST(@P4 AS int) OR t.[b] <= CAST(@P5 AS money))
            ORDER BY t.[a], t.[b];
            SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[t]')) AS [__min];
            [BigInt(10), BigInt(1), Text("2.0000"), BigInt(1), Text("2.0000")]"#]],
    );
    check(
        None,
        Some("8"),
        Some("9"),
        &expect![[r#"
            DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();
            SELECT @cur AS [__cur], CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) CAST(c.[b] AS decimal(19, 4)) AS [b], c.[a], t.[x], c.SYS_CHANGE_VERSION AS [__version], CASE WHEN c.SYS_CHANGE_OPERATION = N'D' OR t.[a] IS NULL THEN N'D' WHEN c.SYS_CHANGE_OPERATION = N'I' THEN N'I' ELSE N'U' END AS [__op]
            FROM CHANGETABLE(CHANGES [dbo].[t], @P2) AS c LEFT JOIN [dbo].[t] AS t ON t.[a] = c.[a] AND t.[b] = c.[b]
            WHERE c.SYS_CHANGE_VERSION <= @cur
            AND c.SYS_CHANGE_VERSION >= @P3 AND (c.SYS_CHANGE_VERSION > @P3 OR c.[a] > CAST(@P4 AS int) OR (c.[a] = CAST(@P4 AS int) AND c.[b] > CAST(@P5 AS money)))
            AND c.SYS_CHANGE_VERSION <= @P6 AND (c.SYS_CHANGE_VERSION < @P6 OR c.[a] < CAST(@P7 AS int) OR (c.[a] = CAST(@P7 AS int) AND c.[b] <= CAST(@P8 AS money)))
            ORDER BY c.SYS_CHANGE_VERSION, c.[a], c.[b];
            SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[t]')) AS [__min];
            [BigInt(10), BigInt(7), BigInt(8), BigInt(1), Text("2.0000"), BigInt(9), BigInt(1), Text("2.0000")]"#]],
    );
}

#[test]
fn the_server_selects_operations() {
    let state = SourceState::new();
    let at = at("snapshot@7");
    let window = window(Some(&at), None, &state);
    let texts = |operations: &[Operation]| {
        let plan = plan_of(None, Some("gone"), Some(operations.to_vec()));
        (plan.tracked_statement(window).unwrap().0, plan.tracked_count(window).unwrap().0)
    };
    for (operations, kind, is_row_selected) in [
        (vec![Operation::Insert, Operation::Update], "U", true),
        // Existing rows are no changes.
        (vec![Operation::Delete], "D", false),
    ] {
        let (fetch, count) = texts(&operations);
        let change = format!(
            "\nAND CASE WHEN c.SYS_CHANGE_OPERATION = N'D' OR t.[a] IS NULL OR t.[gone] <> 0 THEN N'D' \
             ELSE N'U' END = N'{kind}'"
        );
        let row =
            "\nAND CASE WHEN t.[gone] <> 0 THEN N'D' ELSE N'U' END = N'U'\nORDER BY t.[a], t.[b];";
        assert!(fetch.contains(&format!("{change}\nORDER BY")), "{fetch}");
        assert!(count.contains(&change), "{count}");
        assert_eq!(fetch.contains(row), is_row_selected, "{fetch}");
    }
    let all = texts(&[Operation::Insert, Operation::Update, Operation::Delete]);
    let plan = plan_of(None, Some("gone"), None);
    assert_eq!(all.0, plan.tracked_statement(window).unwrap().0, "all of them need no condition");
    assert_eq!(all.1, plan.tracked_count(window).unwrap().0);
}

#[test]
fn changes_are_requested_since_the_last_complete_version() {
    for (after, upto, known, rows, since) in [
        (None, None, None, true, None),
        (None, Some("snapshot@7"), None, true, None),
        (Some("snapshot@7"), None, None, true, Some(7)),
        // Its rows were read completely when changes up to 7 and beyond were complete.
        (Some("snapshot@7"), None, Some("7"), false, Some(7)),
        (Some("snapshot@7"), None, Some("9"), false, Some(9)),
        // The known version is of an earlier run.
        (Some("snapshot@7"), None, Some("6"), true, Some(7)),
        (Some("snapshot@7"), Some("snapshot@7"), Some("9"), true, None),
        (Some("snapshot@7"), Some("8"), None, true, Some(7)),
        // Version 8 may not have been delivered completely.
        (Some("8"), None, None, false, Some(7)),
        (Some("8"), None, Some("5"), false, Some(7)),
        (Some("8"), None, Some("8"), false, Some(8)),
        (Some("8"), Some("9"), None, false, Some(7)),
    ] {
        let found = range(after, upto, known);
        assert_eq!(
            (found.rows, found.changes_since),
            (rows, since),
            "{after:?} {upto:?} {known:?}"
        );
    }
    let complete = Cursor::tracked("8".parse().unwrap(), KeyValues::new());
    let state = SourceState::new();
    let found = Range::of(window(Some(&complete), None, &state), "p").unwrap();
    assert_eq!(found.changes_since, Some(8), "a position without a key has all of its version");
}

#[test]
fn expired_and_future_versions_are_distinguished_from_valid_ones() {
    for (range, current, kept_since, expected) in [
        (range(None, None, None), 9, 9, Verdict::Good),
        (range(Some("8"), None, None), 9, 7, Verdict::Good),
        (range(Some("8"), None, None), 9, 8, Verdict::Expired(7)),
        (range(Some("8"), None, Some("8")), 9, 8, Verdict::Good),
        (range(Some("8"), None, Some("9")), 9, 9, Verdict::Good),
        (range(Some("snapshot@8"), None, None), 9, 8, Verdict::Good),
        (range(Some("snapshot@8"), None, None), 9, 9, Verdict::Expired(8)),
        (range(Some("snapshot@8"), Some("snapshot@8"), None), 9, 9, Verdict::Expired(8)),
        (range(Some("8"), None, None), 7, 0, Verdict::TakenBack(8)),
        (range(Some("8"), None, None), 8, 0, Verdict::Good),
    ] {
        assert_eq!(
            verdict(range, current, kept_since),
            expected,
            "{range:?} {current} {kept_since}"
        );
    }
}

#[test]
fn the_complete_version_is_recorded_with_rows_and_sometimes_without() {
    let later = "2026-01-01T12:05:00";
    for (after, known, current, now, is_empty, expected) in [
        ("8", Some("7"), 9, NOON, false, Some(false)),
        ("8", Some("8"), 9, NOON, true, None),
        ("8", Some("8"), 9, "2026-01-01T12:04:59.999", true, None),
        ("8", Some("8"), 9, later, true, Some(true)),
        // Nothing was committed anywhere: the recorded version holds.
        ("9", Some("9"), 9, later, true, None),
        ("9", None, 9, NOON, true, Some(true)),
        // The clock was set back.
        ("8", Some("8"), 9, "2026-01-01T11:00:00", true, Some(true)),
        // The end of the table's rows.
        ("snapshot@9", None, 9, NOON, true, Some(false)),
        ("snapshot@9", Some("9"), 9, later, true, None),
    ] {
        let state = known.map_or_else(SourceState::new, |known| recorded_to(known, NOON));
        let found = recorded(&state, range(Some(after), None, known), current, now, is_empty);
        let wanted = expected.map(|at_once| RetainedState {
            state: recorded_to(&current.to_string(), now),
            at_once,
        });
        assert_eq!(found, wanted, "{after} {known:?} {current} {now} {is_empty}");
    }
}

#[test]
fn a_cut_answer_is_not_used_before_its_changes_are_known_to_be_kept() {
    let plan = plan(None);
    let answer = |is_full, tail| {
        let mut answer = FetchProgress::new(9);
        answer.head = vec![Value::Int(9), Value::Text(NOON.to_owned())];
        (answer.tail, answer.is_full) = (tail, is_full);
        answer
    };
    let (after, state) = (at("8"), SourceState::new());
    let window = window(Some(&after), None, &state);
    assert_eq!(plan.missing_statement(&answer(false, None)), None);
    let asked = plan.missing_statement(&answer(true, None));
    assert!(asked.unwrap().contains("CHANGE_TRACKING_MIN_VALID_VERSION"));
    // `NULL` may mean that tracking is off, or that a permission is missing.
    for (begin, is_lost) in [(Value::Null, true), (Value::Int(3), false)] {
        let mut unknown = answer(true, None);
        let table = [Value::Int(1), Value::Text(NOON.to_owned())];
        unknown.identity = Identity::read(&[&table[..], &[begin, Value::Null]].concat());
        let error = plan.tracked_rows(unknown, window).unwrap_err();
        assert_eq!(
            (error.is_position_lost(), error.is_final_loss()),
            (is_lost, is_lost),
            "{error}"
        );
        assert!(error.reason.contains("GRANT VIEW CHANGE TRACKING ON "), "{error}");
    }
    let error = plan.tracked_rows(answer(true, Some(Value::Int(8))), window).unwrap_err();
    assert!(error.reason.contains("are kept from version `8` on"), "{error}");
    let complete = plan.tracked_rows(answer(false, Some(Value::Int(7))), window).unwrap();
    assert!(!complete.more && complete.remember.is_some());
    let cut = plan.tracked_rows(answer(true, Some(Value::Int(7))), window).unwrap();
    assert!(cut.more && cut.remember.is_none(), "the rest was not read");
}

#[test]
fn a_range_of_changes_without_a_key_includes_its_last_version() {
    let complete = |text: &str| Cursor::tracked(text.parse().unwrap(), KeyValues::new());
    let (after, upto) = (complete("17"), complete("20"));
    let state = SourceState::new();
    let window = window(Some(&after), Some(&upto), &state);
    let (sql, params) = plan(None).tracked_statement(window).unwrap();
    assert!(sql.contains("CHANGETABLE(CHANGES [dbo].[t], @P2)"), "{sql}");
    assert!(
        sql.contains("WHERE c.SYS_CHANGE_VERSION <= @cur\nAND c.SYS_CHANGE_VERSION <= @P3"),
        "{sql}"
    );
    assert_eq!(format!("{params:?}"), "[BigInt(10), BigInt(17), BigInt(20)]");
    let (sql, params) = plan(None).tracked_count(window).unwrap();
    assert!(sql.contains("AND c.SYS_CHANGE_VERSION <= @P3) AS w;"), "{sql}");
    assert_eq!(format!("{params:?}"), "[BigInt(9), BigInt(17), BigInt(20)]");
}

#[test]
fn changes_of_a_partition_go_by_the_key_of_the_change() {
    let mut part = plan(None);
    part.partition = Some(highwater_engine::partition::Partition { index: 1, count: 4 });
    let state = SourceState::new();
    let (rows, _) = part.tracked_statement(window(None, None, &state)).unwrap();
    assert!(rows.contains("t.[a]), N'')") && rows.contains(" % 4 = 1"), "{rows}");
    let after = at("5");
    let (changes, _) = part.tracked_statement(window(Some(&after), None, &state)).unwrap();
    assert!(changes.contains("c.[a]), N'')") && changes.contains(" % 4 = 1"), "{changes}");
}

use highwater_engine::cursor::KeyValues;
use tiberius::{ColumnData, TokenRow};

use crate::connection_string::SqlConnection;
use crate::source::Relation;
use crate::source::SizeLimits;

use super::*;

fn column(name: &str, type_name: &str) -> Column {
    let plain = crate::source::describe::tests::column(type_name, 8, 0, 7);
    Column { name: name.to_owned(), ..plain }
}

static NOTHING: std::sync::LazyLock<SourceState> = std::sync::LazyLock::new(SourceState::new);

pub(in crate::source) fn settings(mode: CursorMode, cursor: &str) -> SourceSettings {
    SourceSettings {
        poller: "p".to_owned(),
        connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
        relation: Relation::Table("t".to_owned()),
        mode: Some(mode),
        cursor_column: Some(cursor.to_owned()),
        key: vec!["ID".to_owned()],
        columns: None,
        columns_excluded: Vec::new(),
        mask: crate::source::Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: None,
        operations: None,
        settle: Duration::from_secs(5),
        clock: SourceClock::Utc,
        limits: SizeLimits::default(),
        partition: None,
        on_schema_change: crate::source::OnSchemaChange::Follow,
    }
}

pub(in crate::source) fn plan(settings: &SourceSettings) -> Result<Plan, FetchError> {
    let origin = Origin::of(settings).unwrap();
    let filter = crate::source::origin::filter(settings).unwrap();
    let columns = [
        Column { primary: settings.cursor_column.is_none(), ..column("id", "int") },
        column("rv", "timestamp"),
        column("at", "smalldatetime"),
        column("place", "geography"),
        column("price", "money"),
        column("any", "sql_variant"),
    ];
    let choice = Choice { mode: settings.mode.unwrap(), cursor: settings.cursor_column.clone() };
    let read = ReadSpec { origin: &origin, filter: filter.as_ref(), choice: &choice };
    Plan::new(settings, read, &columns)
}

fn listed(mode: CursorMode, cursor: &str) -> SourceSettings {
    SourceSettings { columns: Some(vec!["Price".to_owned()]), ..settings(mode, cursor) }
}

fn window<'a>(after: &'a Cursor, upto: Option<&'a Cursor>) -> FetchWindow<'a> {
    FetchWindow { after: Some(after), upto, rows_max: 10, state: &NOTHING }
}

fn key(name: &str, value: impl Into<serde_json::Value>) -> KeyValues {
    KeyValues::from_iter([(name.to_owned(), value.into())])
}

#[test]
fn a_type_without_lossless_form_must_be_excluded() {
    let error = plan(&settings(CursorMode::RowVersion, "rv")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration);
    assert!(error.reason.contains("column `place` is of type `geography`"), "{error}");
    let plan = plan(&listed(CursorMode::RowVersion, "rv")).unwrap();
    assert_eq!(
        (plan.columns.names(), plan.key_at, plan.width),
        (["price".to_owned()].as_slice(), vec![1], 3)
    );
}

#[test]
fn an_empty_table_has_a_range_so_that_its_first_row_has_an_age() {
    let range = lag(CursorMode::IntegerPk, &[Value::Null, Value::Null], &[], None).range;
    assert!(range.is_some_and(|range| range.first.is_none() && range.newest < 1), "{range:?}");
}

#[test]
fn a_page_with_two_rows_at_one_position_is_rejected() {
    let plan = plan(&listed(CursorMode::TimestampPk, "at")).unwrap();
    let read = |rows: [(&'static str, i32); 3]| {
        let mut answer = FetchProgress::new(rows.len());
        answer.head = vec![Value::Text("2020-01-02T00:00:00".to_owned())];
        for (at, id) in rows {
            let mut cells = TokenRow::new();
            cells.push(ColumnData::Numeric(None));
            cells.push(ColumnData::I32(Some(id)));
            cells.push(ColumnData::String(Some(at.into())));
            plan.read_cells(&cells, &mut answer).unwrap();
        }
        let window = FetchWindow { after: None, upto: None, rows_max: 3, state: &NOTHING };
        plan.finish(answer, window)
    };
    let (noon, one) = ("2020-01-01T12:00:00", "2020-01-01T13:00:00");
    assert_eq!(read([(noon, 1), (noon, 2), (one, 2)]).unwrap().rows.len(), 3);
    let error = read([(noon, 1), (noon, 2), (noon, 2)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration);
    let expected = "two rows have `at` = \"2020-01-01T12:00:00\", `id` = 2.";
    assert!(error.reason.contains(expected), "{error}");
    assert!(error.reason.contains("GROUP BY [at], [id] HAVING"), "{error}");
}

#[test]
fn text_with_half_a_utf_16_unit_is_rejected() {
    let columns = Some(vec!["any".to_owned()]);
    let settings = SourceSettings { columns, ..settings(CursorMode::TimestampPk, "at") };
    let plan = plan(&settings).unwrap();
    let read = |text: &'static [u8]| {
        let mut cells = TokenRow::new();
        cells.push(ColumnData::Binary(Some(text.into())));
        cells.push(ColumnData::I32(Some(1)));
        cells.push(ColumnData::String(Some("2020-01-01T12:00:00".into())));
        plan.read_cells(&cells, &mut FetchProgress::new(1))
    };
    read(b"i\0n\0t\0:\x001\0").unwrap();
    let error = read(b"int:1").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration);
    assert!(error.reason.contains("column `any` of `dbo.t` has text of 5 bytes"), "{error}");
}

#[test]
fn a_column_that_cannot_order_rows_cannot_be_a_key() {
    let key = vec!["place".to_owned()];
    let settings = SourceSettings { key, ..listed(CursorMode::RowVersion, "rv") };
    let error = plan(&settings).unwrap_err();
    assert!(error.reason.contains("key column `place`"), "{error}");
    assert!(error.reason.contains("set another as `SOURCE__KEY`"), "{error}");
}

#[test]
fn a_query_of_another_database_needs_a_time_based_mode() {
    let text = "SELECT id, rv, at FROM elsewhere.dbo.t";
    let origin = |mode| {
        let relation = Relation::Query(text.to_owned());
        Origin::of(&SourceSettings { relation, mode, ..settings(CursorMode::RowVersion, "rv") })
    };
    for mode in [None, Some(CursorMode::RowVersion)] {
        let reason = origin(mode).unwrap_err();
        assert!(reason.starts_with("`SOURCE__QUERY`: it reads `elsewhere.dbo.t`"), "{reason}");
    }
    for mode in [CursorMode::TimestampPk, CursorMode::IntegerPk] {
        assert_eq!(origin(Some(mode)), Ok(Origin::Query(text.to_owned())));
    }
}

#[test]
fn parameters_follow_the_order_of_the_text() {
    let plan = plan(&listed(CursorMode::TimestampPk, "at")).unwrap();
    let after = Cursor::timestamp("2013-01-01T10:00:00", key("ID", 1)).unwrap();
    let upto = Cursor::timestamp("2013-01-01T11:00:00", key("ID", 2)).unwrap();
    let (sql, params) = plan.statement(window(&after, Some(&upto))).unwrap();
    assert!(sql.contains("@P6") && !sql.contains("@P7"), "{sql}");
    assert_eq!(
        params,
        [
            Param::BigInt(11),
            // The window and half a minute, by which the type may round up.
            Param::Int(35_000),
            Param::Text("2013-01-01T10:00:00".to_owned()),
            Param::BigInt(1),
            Param::Text("2013-01-01T11:00:00".to_owned()),
            Param::BigInt(2),
        ]
    );
}

#[test]
fn the_text_of_a_fetch_is_built_once_per_kind_of_window() {
    let plan = plan(&listed(CursorMode::RowVersion, "rv")).unwrap();
    let row = Cursor::row_version(RowVersion(1), key("ID", 1));
    let bare = Cursor::row_version(RowVersion(1), KeyValues::new());
    let bounds = [None, Some(&row), Some(&bare)];
    let mut texts = std::collections::BTreeSet::new();
    for (after, upto) in bounds.into_iter().flat_map(|after| bounds.map(|upto| (after, upto))) {
        let window = FetchWindow { after, upto, rows_max: 10, state: &NOTHING };
        let (sql, params) = plan.statement(window).unwrap();
        let [first, again] = [(); 2].map(|()| plan.whole_statement(window).unwrap());
        let identify = plan.identify().unwrap();
        assert_eq!(*first.0, format!("{identify}\n{sql}\n{}", plan.describe));
        assert!(Arc::ptr_eq(&first.0, &again.0));
        assert_eq!((&first.1, &again.1), (&params, &params));
        texts.insert(sql);
    }
    assert_eq!(texts.len(), 9);
}

#[test]
fn a_fetch_asks_for_one_row_more_than_a_batch() {
    for (mode, cursor) in [
        (CursorMode::RowVersion, "rv"),
        (CursorMode::TimestampPk, "at"),
        (CursorMode::IntegerPk, "id"),
        (CursorMode::ChangeTracking, "id"),
    ] {
        let settings = match mode {
            CursorMode::ChangeTracking => {
                SourceSettings { cursor_column: None, ..listed(mode, cursor) }
            }
            CursorMode::RowVersion | CursorMode::TimestampPk | CursorMode::IntegerPk => {
                listed(mode, cursor)
            }
        };
        let plan = plan(&settings).unwrap();
        for (rows_max, asked) in [(1, 2), (10, 11), (1_000, 1_001)] {
            let window = FetchWindow { after: None, upto: None, rows_max, state: &NOTHING };
            let (sql, params) = plan.statement(window).unwrap();
            assert!(sql.contains("SELECT TOP (@P1) "), "{sql}");
            assert_eq!(params[0], Param::BigInt(asked), "{mode} by {rows_max}");
        }
    }
}

#[test]
fn a_checkpoint_of_another_source_is_rejected() {
    let plan = plan(&listed(CursorMode::RowVersion, "rv")).unwrap();
    let timestamp = Cursor::timestamp("2013-01-01", key("ID", 1)).unwrap();
    let version = |key| Cursor::row_version(RowVersion(1), key);
    for (cursor, expected) in [
        (
            timestamp,
            "the checkpoint has mode `timestamp+pk`, but the source has `rowversion`: restore the mode; or deliver \
             everything with `highwater reset p to-beginning --new-source --reason \"other rows\"`",
        ),
        (version(key("other", 1)), "no value of type `int` for key column `ID`"),
        (version(key("ID", serde_json::Value::Null)), "no value of type `int`"),
        (Cursor { value: "1".to_owned(), ..version(key("ID", 1)) }, "rowversion `1` is not"),
    ] {
        let error = plan.statement(window(&cursor, None)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Data);
        assert!(error.reason.contains(expected), "{error}");
    }
    let high = Cursor::row_version(RowVersion(u64::MAX), key("ID", 1));
    assert_eq!(plan.statement(window(&high, None)).unwrap().1[1], Param::BigInt(-1));
}

#[test]
fn a_settle_window_of_months_is_rejected() {
    let settle = Duration::from_secs(3600 * 24 * 60);
    let settings = SourceSettings { settle, ..listed(CursorMode::TimestampPk, "at") };
    assert!(plan(&settings).unwrap_err().reason.contains("at most 24 days"));
}

#[test]
fn an_answer_that_was_cut_advances_no_mark() {
    let plan = plan(&listed(CursorMode::IntegerPk, "id")).unwrap();
    let state = SourceState::new();
    let window = FetchWindow { after: None, upto: None, rows_max: 10, state: &state };
    for (is_full, remembers) in [(false, true), (true, false)] {
        let now = Value::Text("2026-01-01T12:00:00".to_owned());
        let head = vec![Value::Null, Value::Int(3), Value::Null, now];
        let rows =
            plan.finish(FetchProgress { head, is_full, ..FetchProgress::new(10) }, window).unwrap();
        assert_eq!((rows.remember.is_some(), rows.more), (remembers, !remembers));
    }
}

#[test]
fn the_bound_can_be_removed_in_every_mode_that_has_one() {
    for (mode, cursor, bound) in [
        (CursorMode::RowVersion, "rv", "t.[rv] < @hi"),
        (CursorMode::TimestampPk, "at", "t.[at] < @hi"),
        (CursorMode::IntegerPk, "id", "t.[id] <= @hi"),
    ] {
        let after = |window| plan(&listed(mode, cursor)).unwrap().statement(window).unwrap().0;
        let window = FetchWindow { after: None, upto: None, rows_max: 10, state: &NOTHING };
        let bounded = after(window);
        let plan = plan(&listed(mode, cursor)).unwrap().without_bound();
        let unbounded = plan.statement(window).unwrap().0;
        assert_eq!(bounded.matches(bound).count(), 1, "{bounded}");
        assert_eq!(bounded.replace(bound, &format!("t.[{cursor}] IS NOT NULL")), unbounded);
    }
}

fn of_part(partition: Option<(u16, u16)>) -> SourceSettings {
    let partition = partition.map(|(index, count)| Partition { index, count });
    SourceSettings { partition, ..listed(CursorMode::RowVersion, "rv") }
}

#[test]
fn every_statement_of_a_partition_reads_its_rows_only() {
    let part = plan(&of_part(Some((3, 8)))).unwrap();
    let upto = Cursor::row_version(RowVersion(9), key("ID", 2));
    let read = FetchWindow { after: None, upto: Some(&upto), rows_max: 10, state: &NOTHING };
    let first = FetchWindow { upto: None, ..read };
    let statements = [
        part.statement(first).unwrap().0,
        part.statement(read).unwrap().0,
        part.untracked().unwrap().past(Bounds::of(read), 2).0,
    ];
    for sql in statements {
        assert!(
            sql.contains("\nAND CAST(SUBSTRING(HASHBYTES(") && sql.contains(" % 8 = 3"),
            "{sql}"
        );
    }
    let unpartitioned = plan(&of_part(None)).unwrap().statement(first).unwrap().0;
    assert!(!unpartitioned.contains("HASHBYTES"), "{unpartitioned}");
}

#[test]
fn a_partition_is_part_of_the_fingerprint_but_not_of_the_events() {
    let shape = |partition: Option<(u16, u16)>| {
        let settings = SourceSettings { poller: "orders__p3".to_owned(), ..of_part(partition) };
        let choice = Choice::of(&settings).unwrap().unwrap();
        Origin::of(&settings).unwrap().shape(&settings, None, &choice)
    };
    let all = [None, Some((3, 8)), Some((2, 8)), Some((3, 4))].map(shape);
    for (index, one) in all.iter().enumerate() {
        assert_eq!(one.label.poller, "orders");
        assert!(all.iter().skip(index + 1).all(|other| one.fingerprint != other.fingerprint));
    }
}

#[test]
fn a_key_value_with_its_own_type_has_its_own_statement() {
    let settings =
        SourceSettings { key: vec!["any".to_owned()], ..listed(CursorMode::RowVersion, "rv") };
    let plan = plan(&settings).unwrap();
    let at = |value: &str| Cursor::row_version(RowVersion(1), key("any", value));
    let (after, upto) = (at("tinyint:5"), at("decimal(9, 2):1.50"));
    let (sql, params) = plan.whole_statement(window(&after, Some(&upto))).unwrap();
    assert!(sql.contains("t.[any] > CAST(CAST(@P3 AS tinyint) AS sql_variant)"), "{sql}");
    assert!(sql.contains("t.[any] <= CAST(CAST(@P5 AS decimal(9, 2)) AS sql_variant)"), "{sql}");
    let values = [&params[2], &params[4]];
    assert_eq!(values, [&Param::BigInt(5), &Param::Text("1.50".to_owned())]);
    // Not the statement of another type, though the kinds of bounds are the same.
    for (value, declared) in [("int:5", "int"), ("float:0.5", "float")] {
        let (sql, _) = plan.whole_statement(window(&at(value), None)).unwrap();
        let cast = format!("t.[any] > CAST(CAST(@P3 AS {declared}) AS sql_variant)");
        assert!(sql.contains(&cast), "{sql}");
        let (alone, _) = plan.statement(window(&at(value), None)).unwrap();
        assert!(sql.contains(&alone), "{alone}");
    }
    let error = plan.whole_statement(window(&at("int:5)"), None)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    assert!(error.reason.contains("for key column `any`"), "{error}");
    assert!(error.reason.contains("to-beginning"), "{error}");
}

#[test]
fn the_key_of_a_deleted_row_comes_from_its_change() {
    for name in ["ID", "any"] {
        let settings =
            SourceSettings { key: vec![name.to_owned()], ..listed(CursorMode::RowVersion, "rv") };
        let select = plan(&settings).unwrap().select_of_change();
        let [price, key] = select.as_slice() else { panic!("{select:?}") };
        assert!(price.contains("t.[price]") && !price.contains("c.["), "{price}");
        assert!(!key.contains("t.["), "{key}");
    }
}

#[test]
fn the_server_compares_keys_only_if_no_index_rules_out_equal_ones() {
    let by = |key: &str, is_unique: bool| {
        let settings = listed(CursorMode::TimestampPk, "at");
        let settings = SourceSettings { key: vec![key.to_owned()], ..settings };
        let plan = plan(&settings).unwrap().of_unique_key(is_unique);
        let after = Cursor::timestamp("2020-01-01T00:00:00.0000000", KeyValues::new()).unwrap();
        let asks = plan.statement(window(&after, None)).unwrap().0.contains("LAG(");
        assert_eq!(plan.width, 3 + usize::from(asks), "{key}");
        (asks, plan.identify().unwrap().contains("[__unique]"))
    };
    assert_eq!(by("any", false), (true, false));
    assert_eq!(by("any", true), (false, true), "the index may be dropped");
    assert_eq!(by("id", false), (false, false), "its forms are as many as its values");
    assert_eq!(by("id", true), (false, false));
}

//! Rows of the demo's table as returned by the driver: twelve columns, then the cursor.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater::config::{OnSchemaChange, Relation, SourceClock, SqlConnection};
use highwater::cursor::{CursorMode, SourceFingerprint};
use highwater::event::SourceLabel;
use highwater::source::SourceShape;
use highwater::source::mssql::{Mask, SampleTable, SizeLimits, SourceSettings};
use tiberius::time::{Date, DateTime2, Time};
use tiberius::{ColumnData, TokenRow};

/// Name, type, and length in bytes.
const COLUMNS: [(&str, &str, i64); 14] = [
    ("id", "int", 4),
    ("time_hour", "datetime2", 6),
    ("carrier", "varchar", 2),
    ("flight", "int", 4),
    ("tailnum", "varchar", 6),
    ("origin", "char", 3),
    ("dest", "char", 3),
    ("sched_dep_time", "smallint", 2),
    ("dep_delay", "smallint", 2),
    ("arr_delay", "smallint", 2),
    ("distance", "smallint", 2),
    ("note", "nvarchar", 200),
    ("price", "money", 8),
    ("version", "timestamp", 8),
];

fn settings() -> SourceSettings {
    SourceSettings {
        poller: "flights".to_owned(),
        connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
        relation: Relation::Table("dbo.flights".to_owned()),
        mode: Some(CursorMode::RowVersion),
        cursor_column: Some("version".to_owned()),
        key: vec!["id".to_owned()],
        columns: None,
        columns_excluded: vec![],
        mask: Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: None,
        operations: None,
        settle: Duration::from_secs(5),
        clock: SourceClock::Utc,
        limits: SizeLimits::default(),
        on_schema_change: OnSchemaChange::Follow,
        partition: None,
    }
}

pub(crate) fn table() -> SampleTable {
    SampleTable::new(&settings(), &COLUMNS).unwrap()
}

pub(crate) fn shape() -> SourceShape {
    SourceShape {
        label: SourceLabel {
            poller: "flights".to_owned(),
            object: "dbo.flights".to_owned(),
            mode: CursorMode::RowVersion.as_str(),
        },
        mode: CursorMode::RowVersion,
        key: vec!["id".to_owned()],
        fingerprint: SourceFingerprint::of(&[("object", "dbo.flights")]),
        definition: highwater::cursor::SourceDefinition::default(),
    }
}

pub(crate) fn cells(rows: usize) -> Vec<TokenRow<'static>> {
    (1..).take(rows).map(row).collect()
}

fn row(id: i32) -> TokenRow<'static> {
    let text = |text: &str| ColumnData::String(Some(text.to_owned().into()));
    let small = |value| ColumnData::I16(Some(value));
    let seconds = u64::from(id.unsigned_abs()) % 24 * 3_600;
    let note = "line “one”\nand line two".encode_utf16().flat_map(u16::to_le_bytes);
    let cells = [
        ColumnData::I32(Some(id)),
        ColumnData::DateTime2(Some(DateTime2::new(Date::new(734_868), Time::new(seconds, 0)))),
        text("UA"),
        ColumnData::I32(Some(1_545 + id % 900)),
        text("N14228"),
        text("EWR"),
        text("IAH"),
        small(515),
        if id % 40 == 0 { ColumnData::I16(None) } else { small(2) },
        small(-11),
        small(1_400),
        ColumnData::Binary(Some(note.collect::<Vec<u8>>().into())),
        ColumnData::Numeric(Some(tiberius::numeric::Numeric::new_with_scale(1_234_500, 4))),
        // The table's own version, as a column, and then as the cursor.
        ColumnData::Binary(Some(i64::from(id).to_be_bytes().to_vec().into())),
        ColumnData::I64(Some(2_000 + i64::from(id))),
    ];
    let mut row = TokenRow::with_capacity(cells.len());
    for cell in cells {
        row.push(cell);
    }
    row
}

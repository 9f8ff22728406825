//! The bytes that rows become on their way to a handler: a change of them changes every id.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater::config::{OnSchemaChange, Relation, SourceClock, SqlConnection};
use highwater::cursor::{CursorMode, SourceFingerprint};
use highwater::event::{BatchId, BatchIdentity, EventsDigest, SourceLabel};
use highwater::handler::{CallTries, Delivery, Progress, http};
use highwater::normalize::normalize;
use highwater::source::SourceShape;
use highwater::source::mssql::{SampleTable, SizeLimits, SourceSettings};
use highwater::state::{FencingToken, Generation};
use tiberius::numeric::Numeric;
use tiberius::time::{Date, DateTime, DateTime2, DateTimeOffset, SmallDateTime, Time};
use tiberius::xml::XmlData;
use tiberius::{ColumnData, TokenRow, Uuid};
use time::OffsetDateTime;

/// Name, type, and length in bytes; then a value.
fn columns() -> Vec<(&'static str, &'static str, i64, ColumnData<'static>)> {
    let time = Time::new(863_999_999_999, 7);
    let at = DateTime2::new(Date::new(734_868), time);
    let utf16 = |units: Vec<u16>| {
        let bytes: Vec<u8> = units.into_iter().flat_map(u16::to_le_bytes).collect();
        ColumnData::Binary(Some(bytes.into()))
    };
    let text = |text: &str| utf16(text.encode_utf16().collect());
    vec![
        ("id", "int", 4, ColumnData::I32(Some(-7))),
        ("kéy \"2\"", "nvarchar", 40, text("k\"ö\n\u{7f}")),
        ("tiny", "tinyint", 1, ColumnData::U8(Some(255))),
        ("small", "smallint", 2, ColumnData::I16(Some(i16::MIN))),
        ("big", "bigint", 8, ColumnData::I64(Some(i64::MIN))),
        ("real", "real", 4, ColumnData::F32(Some(0.1))),
        ("float", "float", 8, ColumnData::F64(Some(1e300))),
        ("zero", "float", 8, ColumnData::F64(Some(-0.0))),
        ("none", "float", 8, ColumnData::F64(Some(f64::NEG_INFINITY))),
        ("bit", "bit", 1, ColumnData::Bit(Some(true))),
        ("blob", "varbinary", 9, ColumnData::Binary(Some(vec![0, 255, 7].into()))),
        (
            "char",
            "varchar",
            9,
            ColumnData::String(Some("a\"\\/\u{8}\u{c}\r\t\u{1}\u{2028}😀".into())),
        ),
        ("empty", "varchar", 9, ColumnData::String(Some("".into()))),
        ("wide", "nvarchar", 90, text("ä😀\"\\\u{8}\u{c}\r\n\t\u{1f}")),
        ("half", "nvarchar", 90, utf16(vec![0x22, 0x5C, 0x0A, 0xE4, 0xD83D, 0x61, 0xDE00])),
        ("odd", "sql_variant", 90, text("float:1.0000000000000001e-001")),
        ("any", "sql_variant", 90, text("decimal(9, 2):1.50")),
        (
            "xml",
            "xml",
            -1,
            ColumnData::Xml(Some(std::borrow::Cow::Owned(XmlData::new("<a b=\"c\"/>")))),
        ),
        ("guid", "uniqueidentifier", 16, ColumnData::Guid(Some(Uuid::from_u128(0xAB << 120)))),
        ("money", "money", 8, ColumnData::Numeric(Some(Numeric::new_with_scale(-5, 4)))),
        ("date", "date", 3, ColumnData::Date(Some(Date::new(0)))),
        ("time", "time", 5, ColumnData::Time(Some(time))),
        ("at", "datetime2", 8, ColumnData::DateTime2(Some(at))),
        (
            "there",
            "datetimeoffset",
            10,
            ColumnData::DateTimeOffset(Some(DateTimeOffset::new(at, -90))),
        ),
        ("old", "datetime", 8, ColumnData::DateTime(Some(DateTime::new(-53_690, 2)))),
        ("short", "smalldatetime", 4, ColumnData::SmallDateTime(Some(SmallDateTime::new(9, 61)))),
        ("gone", "bit", 1, ColumnData::Bit(Some(false))),
        ("nothing", "nvarchar", 90, ColumnData::Binary(None)),
        (
            "version",
            "timestamp",
            8,
            ColumnData::Binary(Some(vec![0, 0, 0, 0, 0, 0, 7, 0xD1].into())),
        ),
    ]
}

fn settings() -> SourceSettings {
    SourceSettings {
        poller: "örders".to_owned(),
        connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
        relation: Relation::Table("dbo.orders".to_owned()),
        mode: Some(CursorMode::RowVersion),
        cursor_column: Some("version".to_owned()),
        key: vec!["id".to_owned(), "kéy \"2\"".to_owned()],
        columns: None,
        columns_excluded: vec!["gone".to_owned()],
        mask: highwater::source::mssql::Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: Some("gone".to_owned()),
        operations: None,
        settle: Duration::ZERO,
        clock: SourceClock::Utc,
        limits: SizeLimits::default(),
        on_schema_change: OnSchemaChange::Follow,
        partition: None,
    }
}

/// Three rows: one with a value in each column, one without any, one deleted.
fn cells() -> Vec<TokenRow<'static>> {
    let is_delivered = |name: &str| name != "gone";
    let full: Vec<ColumnData<'static>> = columns()
        .into_iter()
        .filter(|(name, ..)| is_delivered(name))
        .map(|(.., value)| value)
        .collect();
    let mut empty = full.clone();
    for cell in empty.iter_mut().skip(2) {
        *cell = ColumnData::String(None);
    }
    let row = |cells: &[ColumnData<'static>], sizes: usize, version: i64, op: &str| {
        let mut row = TokenRow::with_capacity(cells.len() + 2);
        for cell in cells {
            row.push(cell.clone());
        }
        (0..sizes).for_each(|_| row.push(ColumnData::I64(Some(9))));
        row.push(ColumnData::I64(Some(version)));
        row.push(ColumnData::String(Some(op.to_owned().into())));
        row
    };
    // The size of `xml` is read, too.
    vec![row(&full, 1, 2001, "U"), row(&empty, 1, 2002, "U"), row(&full, 1, -1, "D")]
}

/// Returns digest, ids and body of these rows as a batch.
fn digests() -> String {
    let described: Vec<_> =
        columns().iter().map(|(name, ty, length, _)| (*name, *ty, *length)).collect();
    let rows = SampleTable::new(&settings(), &described).unwrap().read(cells()).unwrap();
    let label = SourceLabel {
        poller: "örders".to_owned(),
        object: "dbo.\"orders\"".to_owned(),
        mode: CursorMode::RowVersion.as_str(),
    };
    let shape = SourceShape {
        label,
        mode: CursorMode::RowVersion,
        key: settings().key,
        fingerprint: SourceFingerprint::of(&[]),
        definition: highwater::cursor::SourceDefinition::default(),
    };
    let events = normalize(&shape, &rows).unwrap();
    let digest = EventsDigest::of(&events);
    let batch_id = BatchId::of(&BatchIdentity {
        poller: "örders",
        generation: 1,
        replay_id: None,
        after: None,
        upto: &events.last().unwrap().cursor,
        digest: &digest,
    });
    let delivery = Delivery {
        poller: "örders",
        source: &shape.label,
        batch_id: &batch_id,
        step: None,
        started_at: OffsetDateTime::UNIX_EPOCH,
        generation: Generation(1),
        fencing_token: FencingToken(1),
        attempt: 1,
        tries: CallTries::Several,
        replay_id: None,
        replay_guard: None,
        events: &events,
        traceparent: None,
        tracestate: None,
        progress: &Progress::default(),
    };
    let body = String::from_utf8(http::body_of(delivery).unwrap()).unwrap();
    format!("{}\n{}\n", digest.as_str(), body.replace("{\"id\":\"", "\n{\"id\":\""))
}

#[test]
fn rows_keep_their_bytes() {
    expect_test::expect![[r#"
        d7f8265f7fca1b14f8b6063fe0309013b9f72d998de897df2eccccf18b6ac5d5
        {"batch_id":"batch_38011614eb1cdf7979b4fdb31ad85e80","poller":"örders","generation":1,"fencing_token":1,"attempt":1,"started_at":"1970-01-01T00:00:00Z","replay_id":null,"source":{"poller":"örders","object":"dbo.\"orders\"","mode":"rowversion"},"rows":3,"events":[
        {"id":"dfe3aa39e740025ce90559b47db0f934","op":"upsert","pk":{"id":-7,"kéy \"2\"":"k\"ö\n"},"cursor":{"kind":"rowversion","value":"0x00000000000007D1","tiebreaker":{"id":-7,"kéy \"2\"":"k\"ö\n"}},"before":null,"after":{"id":-7,"kéy \"2\"":"k\"ö\n","tiny":255,"small":-32768,"big":-9223372036854775808,"real":0.1,"float":1e+300,"zero":-0.0,"none":"-Infinity","bit":true,"blob":"AP8H","char":"a\"\\/\b\f\r\t\u0001 😀","empty":"","wide":"ä😀\"\\\b\f\r\n\t\u001f","half":"\"\\\u000aä\ud83da\ude00","odd":"float:0.1","any":"decimal(9, 2):1.50","xml":"<a b=\"c\"/>","guid":"ab000000-0000-0000-0000-000000000000","money":"-0.0005","date":"0001-01-01","time":"23:59:59.9999999","at":"2013-01-01T23:59:59.9999999","there":"2013-01-01T22:29:59.9999999-01:30","old":"1753-01-01T00:00:00.007","short":"1900-01-10T01:01:00","nothing":null,"version":"AAAAAAAAB9E="},"source":{"poller":"örders","object":"dbo.\"orders\"","mode":"rowversion"}},
        {"id":"493188762c5789367c09307fae94adfd","op":"upsert","pk":{"id":-7,"kéy \"2\"":"k\"ö\n"},"cursor":{"kind":"rowversion","value":"0x00000000000007D2","tiebreaker":{"id":-7,"kéy \"2\"":"k\"ö\n"}},"before":null,"after":{"id":-7,"kéy \"2\"":"k\"ö\n","tiny":null,"small":null,"big":null,"real":null,"float":null,"zero":null,"none":null,"bit":null,"blob":null,"char":null,"empty":null,"wide":null,"half":null,"odd":null,"any":null,"xml":null,"guid":null,"money":null,"date":null,"time":null,"at":null,"there":null,"old":null,"short":null,"nothing":null,"version":null},"source":{"poller":"örders","object":"dbo.\"orders\"","mode":"rowversion"}},
        {"id":"c2aadb24759fcf5420024704d4484d42","op":"delete","pk":{"id":-7,"kéy \"2\"":"k\"ö\n"},"cursor":{"kind":"rowversion","value":"0xFFFFFFFFFFFFFFFF","tiebreaker":{"id":-7,"kéy \"2\"":"k\"ö\n"}},"before":null,"after":null,"source":{"poller":"örders","object":"dbo.\"orders\"","mode":"rowversion"}}]}
    "#]]
    .assert_eq(&digests());
}

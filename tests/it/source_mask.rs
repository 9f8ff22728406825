//! Masked columns, read over the wire.

use highwater::config::SqlConnection;
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::ErrorKind;
use highwater::source::Source as _;
use highwater::source::mssql::{Mask, MaskMethod, Mssql, SourceSettings};
use highwater_devdb::{Database, Fault, Server, SqlError};
use sha2::{Digest as _, Sha256};

use crate::sql::{fetch, settings};

/// The values of the hashed columns as they would be delivered, and whether they are text in JSON.
const VALUES: [(&str, &str, &str); 9] = [
    ("email", "nvarchar(99)", "zoë@example.com"),
    ("code", "char(5)", "ab   "),
    ("age", "int", "42"),
    ("score", "float", "0.1"),
    ("vip", "bit", "true"),
    ("balance", "money", "12.3400"),
    ("born", "date", "1990-01-02"),
    ("photo", "varbinary(9)", "AP8="),
    ("token", "uniqueidentifier", "abcdef00-0000-0000-0000-000000000001"),
];

async fn people() -> (Server, SqlConnection) {
    let database = Database::in_memory().unwrap();
    let columns: Vec<String> =
        VALUES.iter().map(|(name, type_name, _)| format!("{name} {type_name} NULL")).collect();
    let names: Vec<&str> = VALUES.iter().map(|(name, _, _)| *name).collect();
    for sql in [
        format!(
            "CREATE TABLE dbo.people (id int NOT NULL PRIMARY KEY, phone nvarchar(20) NULL, {}, city nvarchar(9) NULL, \
             gone bit NOT NULL, at datetime2(7) NOT NULL, rv rowversion NOT NULL)",
            columns.join(", ")
        ),
        format!(
            "INSERT INTO dbo.people (id, phone, {}, city, gone, at) VALUES (1, N'+47 555', N'zoë@example.com', 'ab', 42, \
             0.1, 1, 12.34, '1990-01-02', 0x00FF, 'ABCDEF00-0000-0000-0000-000000000001', N'Oslo', 0, \
             '2020-01-01T00:00:00')",
            names.join(", ")
        ),
        "INSERT INTO dbo.people (id, gone, at) VALUES (2, 0, '2020-01-01T00:00:00')".to_owned(),
        "ALTER TABLE dbo.people ENABLE CHANGE_TRACKING".to_owned(),
    ] {
        database.execute(&sql).unwrap();
    }
    let server = Server::start(database, highwater_devdb::Options::default()).await.unwrap();
    let connection = SqlConnection::parse(&server.connection_string()).unwrap();
    (server, connection)
}

fn mask(columns: &[(&str, MaskMethod)], secret: &[u8]) -> Mask {
    let columns = columns.iter().map(|(name, method)| ((*name).to_owned(), *method)).collect();
    Mask::new(columns, Some(secret.to_vec().into())).unwrap()
}

fn masked(
    connection: &SqlConnection,
    (mode, cursor): (CursorMode, &str),
    columns: &[(&str, MaskMethod)],
) -> SourceSettings {
    let settings = settings(connection.clone(), "people", mode, cursor);
    SourceSettings {
        mask: mask(columns, b"a secret of the mask"),
        settle: std::time::Duration::ZERO,
        ..settings
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn each_type_is_hashed_by_its_delivered_text_in_every_mode() {
    let (server, connection) = people().await;
    let hashed: Vec<(&str, MaskMethod)> =
        VALUES.iter().map(|(name, _, _)| (*name, MaskMethod::Sha256)).collect();
    for by in [(RowVersion, "rv"), (ChangeTracking, ""), (IntegerPk, "id"), (TimestampPk, "at")] {
        let plain = Mssql::new(masked(&connection, by, &[])).unwrap();
        let plain = fetch(&plain, None, 9).await.unwrap();
        let source = Mssql::new(masked(&connection, by, &hashed)).unwrap();
        let rows = fetch(&source, None, 9).await.unwrap();
        let row = |rows: &highwater::source::Rows, at: usize| -> serde_json::Value {
            serde_json::from_str(rows.object(&rows.rows[at])).unwrap()
        };
        for (name, _, text) in VALUES {
            let delivered = &row(&plain, 0)[name];
            let delivered = delivered.as_str().map_or_else(|| delivered.to_string(), str::to_owned);
            assert_eq!(delivered, text, "{name}");
            assert_eq!(row(&rows, 0)[name], sha256(text), "{name} by {by:?}");
            assert!(row(&rows, 1)[name].is_null(), "{name} by {by:?}");
        }
        // The other columns are as before.
        assert_eq!(row(&rows, 0)["city"], "Oslo");
        assert_eq!(row(&rows, 0)["phone"], "+47 555");
    }
    drop(server);
}

#[tokio::test]
async fn a_keyed_hash_depends_on_the_secret_and_a_dropped_column_is_not_read() {
    let (server, connection) = people().await;
    let columns = [("EMAIL", MaskMethod::HmacSha256), ("phone", MaskMethod::Drop)];
    let settings = masked(&connection, (RowVersion, "rv"), &columns);
    // A statement that names the column would fail.
    let error = SqlError::new(50_000, 16, "the column is read".to_owned());
    server.faults().arm_matching("[phone]", 1, Fault::Error(error));
    let email = async |settings: SourceSettings| {
        let rows = fetch(&Mssql::new(settings).unwrap(), None, 9).await.unwrap();
        let object = rows.object(&rows.rows[0]);
        assert!(!object.contains("phone") && !object.contains("555"), "{object}");
        let row: serde_json::Value = serde_json::from_str(object).unwrap();
        row["email"].as_str().unwrap().to_owned()
    };
    // printf %s zoë@example.com | openssl dgst -sha256 -hmac 'a secret of the mask'
    let expected = "706ef20c91c2881452440c4ad21374bdab448c0654110e8e43a9eb33df0e06c6";
    assert_eq!(email(settings.clone()).await, expected);
    let other = mask(&columns, b"another secret here");
    assert_ne!(email(SourceSettings { mask: other, ..settings.clone() }).await, expected);
    // Listed columns are masked in the same way.
    let listed = Some(vec!["email".to_owned(), "phone".to_owned()]);
    assert_eq!(email(SourceSettings { columns: listed, ..settings }).await, expected);
    assert_eq!(server.faults().armed(), 1, "no statement names the column");
}

#[tokio::test]
async fn columns_that_order_rows_or_mark_deletes_cannot_be_masked() {
    let (_server, connection) = people().await;
    for ((mode, cursor), column, expected) in [
        ((Some(RowVersion), Some("rv")), "ID", "is needed as key"),
        ((Some(RowVersion), Some("rv")), "RV", "is needed as cursor"),
        ((None, None), "rv", "column `rv` of `dbo.people` is masked, but is needed as cursor"),
        ((Some(RowVersion), Some("rv")), "gone", "is needed as soft-delete column"),
        ((Some(RowVersion), Some("rv")), "emal", "did you mean `email`?"),
        ((Some(ChangeTracking), None), "nope", "masked column `nope` is not in `dbo.people`"),
    ] {
        let columns = [(column, MaskMethod::Sha256)];
        let settings = SourceSettings {
            mode,
            cursor_column: cursor.map(str::to_owned),
            soft_delete: (mode == Some(RowVersion)).then(|| "gone".to_owned()),
            ..masked(&connection, (RowVersion, "rv"), &columns)
        };
        let source = Mssql::new(settings).unwrap();
        source.open(None).await.unwrap();
        let error = fetch(&source, None, 9).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Configuration, "{error}");
        assert!(error.reason.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_new_mask_is_a_change_of_the_schema() {
    let (_server, connection) = people().await;
    let read = async |columns: &[(&str, MaskMethod)], state| {
        let source = Mssql::new(masked(&connection, (RowVersion, "rv"), columns)).unwrap();
        source.anchor(state).await.unwrap()
    };
    let plain = read(&[], None).await;
    let plain = read(&[], Some(&plain.state)).await;
    let masked = [("email", MaskMethod::Sha256), ("phone", MaskMethod::Drop)];
    let masked = read(&masked, Some(&plain.state)).await;
    let text = masked.changes.join("; ");
    assert!(text.contains("is now `sha256 of nvarchar(99)"), "{text}");
    assert!(text.contains("removed: `phone`"), "{text}");
}

#[tokio::test]
async fn a_database_error_with_a_value_is_reported_without_it_only_if_columns_are_masked() {
    let (server, connection) = people().await;
    let says =
        "Conversion failed when converting the nvarchar value 'zoë@example.com' to data type int.";
    // Conversion, `PARSE`, a CLR type, another server, and a number of the user's own.
    for (number, columns, is_shown) in [
        (245, &[][..], true),
        (245, &[("email", MaskMethod::Sha256)], false),
        (245, &[("phone", MaskMethod::Drop)], false),
        (9819, &[("phone", MaskMethod::Drop)], false),
        (6522, &[("phone", MaskMethod::Drop)], false),
        (46823, &[("phone", MaskMethod::Drop)], false),
        (51000, &[("phone", MaskMethod::Drop)], false),
    ] {
        let error = SqlError::new(number, 16, says.to_owned());
        server.faults().arm_matching("SELECT TOP", 1, Fault::Error(error));
        let source = Mssql::new(masked(&connection, (RowVersion, "rv"), columns)).unwrap();
        let error = fetch(&source, None, 9).await.unwrap_err();
        let text = highwater::error::chain(&error);
        assert_eq!(text.contains("zoë"), is_shown, "{text}");
        assert!(text.contains(&format!("error {number}")), "{text}");
        assert_eq!(text.contains("because `SOURCE__MASK` is set"), !is_shown, "{text}");
        assert!(!format!("{error:?}").contains("zoë") || is_shown, "{error:?}");
    }
}

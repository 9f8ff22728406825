//! Servers that speak the protocol and encode text differently from SQL Server.

use highwater::config::SqlConnection;
use highwater::cursor::CursorMode::{IntegerPk, RowVersion};
use highwater::error::ErrorKind;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater_devdb::{
    Database, Engine, Options, Parameter, Reply, Server, Session, SqlError, Value,
};

use crate::sql::{fetch, settings};

/// How text is cast to bytes.
#[derive(Clone, Copy, Debug)]
enum Cast {
    /// UTF-8, as in another engine with this protocol.
    Utf8,
    /// UTF-16 without its last byte, except for the sample that is read when connecting.
    Cut,
}

/// The development server's engine with different casts of text.
struct Other(Database, Cast);

struct OtherSession(Box<dyn Session>, Cast);

impl Engine for Other {
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError> {
        Ok(Box::new(OtherSession(Engine::connect(&self.0, database)?, self.1)))
    }
}

impl Session for OtherSession {
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply> {
        let is_sample = sql.contains("SET LOCK_TIMEOUT");
        let mut replies = self.0.run(sql, parameters);
        for reply in &mut replies {
            let Reply::Rows { rows, .. } = reply else { continue };
            for value in rows.iter_mut().flatten() {
                let Value::Bytes(bytes) = value else { continue };
                match self.1 {
                    Cast::Utf8 => {
                        let (units, _) = bytes.as_chunks::<2>();
                        let units: Vec<u16> =
                            units.iter().copied().map(u16::from_le_bytes).collect();
                        *bytes = String::from_utf16(&units).unwrap().into_bytes();
                    }
                    Cast::Cut if is_sample => {}
                    Cast::Cut => drop(bytes.pop()),
                }
            }
        }
        replies
    }

    fn begin(&mut self) -> Result<(), SqlError> {
        self.0.begin()
    }

    fn commit(&mut self) -> Result<(), SqlError> {
        self.0.commit()
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        self.0.rollback()
    }

    fn transaction(&self) -> Option<u64> {
        self.0.transaction()
    }

    fn rolled_back(&self) -> bool {
        self.0.rolled_back()
    }
}

const PEOPLE: &str = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(9) NOT NULL, \
     city varchar(9) NOT NULL); INSERT INTO dbo.t VALUES (1, N'Smith', 'Oslo')";

async fn people(cast: Cast) -> (Server, SourceSettings) {
    let database = Database::in_memory().unwrap();
    database.execute(PEOPLE).unwrap();
    let server = Server::start(Other(database, cast), Options::default()).await.unwrap();
    let connection = SqlConnection::parse(&server.connection_string()).unwrap();
    let settings = settings(connection, "t", IntegerPk, "id");
    (server, SourceSettings { settle: std::time::Duration::ZERO, ..settings })
}

#[tokio::test]
async fn text_in_another_encoding_is_an_error_and_never_garbled() {
    let (_server, settings) = people(Cast::Utf8).await;
    let error = fetch(&Mssql::new(settings).unwrap(), None, 9).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration, "{error}");
    for part in ["so `name` of `dbo.t` would arrive garbled", "`SOURCE__COLUMNS_EXCLUDED`"] {
        assert!(error.reason.contains(part), "{error}");
    }
}

#[tokio::test]
async fn the_fix_suggested_by_the_error_works() {
    let (_server, settings) = people(Cast::Utf8).await;
    let columns_excluded = vec!["name".to_owned()];
    let source = Mssql::new(SourceSettings { columns_excluded, ..settings }).unwrap();
    let rows = fetch(&source, None, 9).await.unwrap();
    assert_eq!(rows.object(&rows.rows[0]), r#"{"id":1,"city":"Oslo"}"#);
}

#[tokio::test]
async fn text_with_an_odd_number_of_bytes_is_an_error_and_never_truncated() {
    let (_server, settings) = people(Cast::Cut).await;
    let error = fetch(&Mssql::new(settings).unwrap(), None, 9).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration, "{error}");
    assert!(error.reason.contains("column `name` of `dbo.t` has text of 9 bytes"), "{error}");
}

#[tokio::test]
async fn text_keys_in_another_encoding_are_rejected_too() {
    let database = Database::in_memory().unwrap();
    let tsql = "CREATE TABLE dbo.t (id nvarchar(9) NOT NULL PRIMARY KEY, n int NOT NULL); \
                INSERT INTO dbo.t VALUES (N'Smit', 1)";
    database.execute(tsql).unwrap();
    let server = Server::start(Other(database, Cast::Utf8), Options::default()).await.unwrap();
    let connection = SqlConnection::parse(&server.connection_string()).unwrap();
    let columns = Some(vec!["n".to_owned()]);
    let settings = SourceSettings { columns, ..settings(connection, "t", IntegerPk, "n") };
    let error = fetch(&Mssql::new(settings).unwrap(), None, 9).await.unwrap_err();
    assert!(error.reason.contains("so `id` of `dbo.t` would arrive garbled"), "{error}");
}

#[tokio::test]
async fn the_encoding_is_queried_with_the_session_setup() {
    let world = crate::sql::World::with_flights(5).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    fetch(&source, None, 100).await.unwrap();
    // The session's settings, the description and the rows.
    assert_eq!(world.server.faults().statements(), 3);
}

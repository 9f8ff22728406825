//! Encryption, login, packets.

use tiberius::{AuthMethod, EncryptionLevel};

use super::{config, connect, connect_with, plain, rows};
use crate::{Database, Databases, Options, Server};

async fn one(client: &mut super::Connection) -> i32 {
    rows(client, "SELECT 1 AS one", &[]).await[0].get("one").unwrap()
}

#[tokio::test]
async fn every_encryption_level_connects() {
    let database = Database::in_memory().unwrap();
    let server = Server::start(database, Options::default()).await.unwrap();
    for level in [EncryptionLevel::Off, EncryptionLevel::On, EncryptionLevel::Required] {
        let mut client = connect_with(config(&server, level)).await.unwrap();
        assert_eq!(one(&mut client).await, 1, "{level:?}");
        assert_eq!(one(&mut client).await, 1, "{level:?}");
    }
    let mut strict = connect_with(config(&server, EncryptionLevel::Strict)).await.unwrap();
    assert_eq!(one(&mut strict).await, 1);
    assert_eq!(server.faults().logins(), 4);
}

#[tokio::test]
async fn a_client_without_encryption_is_accepted_only_if_allowed() {
    let database = Database::in_memory().unwrap();
    for (tls, allow_plain, allowed) in
        [(true, false, false), (true, true, true), (false, false, true)]
    {
        let options = Options { tls, allow_plain, ..Options::default() };
        let server = Server::start(database.clone(), options).await.unwrap();
        let result = connect_with(config(&server, EncryptionLevel::NotSupported)).await;
        assert_eq!(result.is_ok(), allowed, "tls {tls}, plain {allow_plain}");
    }
}

#[tokio::test]
async fn a_server_without_tls_reports_it() {
    let (server, _database) = plain().await;
    let error = connect_with(config(&server, EncryptionLevel::Required)).await.unwrap_err();
    assert!(error.to_string().contains("encryption"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_error_18456() {
    let (server, _database) = plain().await;
    let mut config = config(&server, EncryptionLevel::NotSupported);
    config.authentication(AuthMethod::sql_server("sa", "wrong"));
    let error = connect_with(config).await.unwrap_err();
    assert_eq!(error.code(), Some(18456), "{error}");
    assert_eq!(server.faults().logins(), 0);
}

#[tokio::test]
async fn a_missing_database_is_error_4060() {
    let databases = Databases::with("Highwater").unwrap();
    let server = Server::start(databases, Options::default()).await.unwrap();
    let error = connect_with(config(&server, EncryptionLevel::On)).await.unwrap_err();
    assert_eq!(error.code(), Some(4060), "{error}");
}

#[tokio::test]
async fn the_real_client_connects_with_the_connection_string() {
    for tls in [true, false] {
        let options = Options { tls, password: "p;'= \"x".into(), ..Options::default() };
        let server = Server::start(Database::in_memory().unwrap(), options).await.unwrap();
        let config = tiberius::Config::from_ado_string(&server.connection_string()).unwrap();
        let mut client = connect_with(config).await.unwrap();
        let found = rows(&mut client, "SELECT DB_NAME()", &[]).await;
        assert_eq!(found[0].get::<&str, _>(0), Some("Highwater"));
    }
}

#[tokio::test]
async fn large_values_and_results_cross_packets_both_ways() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.L (id int, a nvarchar(max), b varbinary(max))").unwrap();
    let mut client = connect(&server).await;
    let (text, bytes) = ("Zoë😀".repeat(30_000), vec![7_u8; 200_000]);
    let sql = "INSERT INTO dbo.L VALUES (@P1, @P2, @P3)";
    client.execute(sql, &[&1_i32, &text.as_str(), &bytes]).await.unwrap();
    let found = rows(&mut client, "SELECT a, b FROM dbo.L", &[]).await;
    assert_eq!(found[0].get::<&str, _>(0), Some(text.as_str()));
    assert_eq!(found[0].get::<&[u8], _>(1), Some(bytes.as_slice()));
    let values = (0..20_000).map(|n| vec![crate::Value::Int(n)]);
    database.execute("CREATE TABLE dbo.N (n int)").unwrap();
    assert_eq!(database.insert_rows("dbo.N", &["n"], values).unwrap(), 20_000);
    let found = rows(&mut client, "SELECT n FROM dbo.N ORDER BY n", &[]).await;
    assert_eq!(found.len(), 20_000);
    assert_eq!(found[19_999].get::<i32, _>(0), Some(19_999));
}

#[tokio::test]
async fn dropping_the_server_closes_its_connections() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    let port = server.port();
    drop(server);
    let failed = match client.query("SELECT 1", &[]).await {
        Ok(stream) => stream.into_results().await.is_err(),
        Err(_) => true,
    };
    assert!(failed);
    tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
}

#[tokio::test]
async fn the_client_receives_the_row_count_of_each_statement() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int NOT NULL PRIMARY KEY)").unwrap();
    let mut client = connect(&server).await;
    let sql = "INSERT INTO dbo.T VALUES (1), (2), (@P1); DELETE FROM dbo.T WHERE id < 3";
    let execution = client.execute(sql, &[&3_i32]).await.unwrap();
    assert_eq!(execution.rows_affected(), [3, 2]);
    let sql = "SET NOCOUNT ON; DELETE FROM dbo.T WHERE id = @P1";
    let execution = client.execute(sql, &[&3_i32]).await.unwrap();
    assert!(execution.rows_affected().is_empty(), "{execution:?}");
    let sql = "INSERT INTO dbo.T VALUES (7), (8); SELECT @@ROWCOUNT";
    let found = rows(&mut client, sql, &[]).await;
    assert_eq!(found[0].get::<i32, _>(0), Some(2));
    assert_eq!(found[0].columns()[0].name(), "");
    // The connection is fine afterwards.
    let count = rows(&mut client, "SELECT COUNT(*) FROM dbo.T", &[]).await;
    assert_eq!(count[0].get::<i32, _>(0), Some(2));
}

#[tokio::test]
async fn rowcount_is_that_of_the_previous_statement() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int NOT NULL PRIMARY KEY)").unwrap();
    let mut client = connect(&server).await;
    for (before, expected) in [
        ("INSERT INTO dbo.T VALUES (1), (2), (3)", 3),
        ("SELECT id FROM dbo.T", 3),
        ("DECLARE @n int; SELECT @n = id FROM dbo.T WHERE id > 1", 2),
        ("UPDATE dbo.T SET id = 4 WHERE id = 9", 0),
        ("DECLARE @n int; SET @n = 5", 1),
        ("SELECT id FROM dbo.T; IF 1 = 1 PRINT N'x'", 0),
        ("SELECT id FROM dbo.T; SET LOCK_TIMEOUT 5000", 0),
        ("SELECT id FROM dbo.T; BEGIN TRAN; COMMIT", 0),
        ("DELETE FROM dbo.T", 3),
    ] {
        let results = client.simple_query(format!("{before}; SELECT @@ROWCOUNT")).await.unwrap();
        let results = results.into_results().await.unwrap();
        assert_eq!(results.last().unwrap()[0].get::<i32, _>(0), Some(expected), "{before}");
    }
}

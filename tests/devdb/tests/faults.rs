//! Injected faults.

use std::time::Duration;

use tiberius::{EncryptionLevel, error::Error};

use super::{Connection, config, connect, connect_with, error_number, plain, rows};
use crate::{Fault, LoginFault, SqlError};

async fn fails(client: &mut Connection, sql: &str) -> Error {
    match client.query(sql, &[]).await {
        Ok(stream) => stream.into_results().await.unwrap_err(),
        Err(error) => error,
    }
}

#[tokio::test]
async fn the_next_statements_fail_with_a_chosen_error() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    let deadlock = SqlError { number: 1205, class: 13, state: 51, message: "deadlock".into() };
    server.faults().arm(2, Fault::Error(deadlock));
    for _ in 0..2 {
        let error = fails(&mut client, "SELECT 1").await;
        let Error::Server(token) = error else { panic!("{error:?}") };
        assert_eq!((token.code(), token.class(), token.state()), (1205, 13, 51));
    }
    assert_eq!(rows(&mut client, "SELECT 1", &[]).await.len(), 1);
    assert_eq!(server.faults().statements(), 3);
}

#[tokio::test]
async fn only_matching_statements_fail() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    let error = SqlError::new(40613, 20, "not available");
    server.faults().arm_matching("TOP", 1, Fault::Error(error));
    assert_eq!(rows(&mut client, "SELECT 1", &[]).await.len(), 1);
    assert_eq!(error_number(&mut client, "SELECT TOP (1) 1").await, 40613);
}

#[tokio::test]
async fn a_stalled_statement_runs_into_the_client_timeout() {
    let (server, _database) = plain().await;
    let mut config = config(&server, EncryptionLevel::NotSupported);
    config.command_timeout(Some(Duration::from_millis(50)));
    let mut client = connect_with(config).await.unwrap();
    server.faults().arm(1, Fault::Stall(Duration::from_secs(3600)));
    let error = fails(&mut client, "SELECT 1").await;
    assert!(matches!(error, Error::Io { kind: std::io::ErrorKind::TimedOut, .. }), "{error:?}");
}

#[tokio::test]
async fn a_dropped_statement_has_run_or_not_as_chosen() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int)").unwrap();
    for (fault, count) in [(Fault::DropBeforeRun, 0), (Fault::DropBeforeAnswer, 1)] {
        let mut client = connect(&server).await;
        server.faults().arm_matching("INSERT", 1, fault);
        fails(&mut client, "INSERT INTO dbo.T VALUES (1)").await;
        assert_eq!(database.execute("SELECT id FROM dbo.T").unwrap(), count);
    }
}

#[tokio::test]
async fn a_response_can_be_cut_after_any_byte() {
    let (server, _database) = plain().await;
    let mut length = 0;
    loop {
        let mut client = connect(&server).await;
        server.faults().arm(1, Fault::DropAfterBytes(length));
        let result = match client.query("SELECT 1 AS one", &[]).await {
            Ok(stream) => stream.into_results().await,
            Err(error) => Err(error),
        };
        match result {
            Err(_) => length += 1,
            Ok(results) => {
                assert_eq!(results[0][0].get::<i32, _>(0), Some(1));
                break;
            }
        }
        assert!(length < 500, "the answer never came through");
    }
    assert!(length > 20, "cut at {length} already passed as an answer");
}

#[tokio::test]
async fn a_response_can_be_cut_after_some_rows() {
    use futures_util::TryStreamExt;
    let (server, database) = plain().await;
    database
        .execute("CREATE TABLE dbo.T (id int); INSERT INTO dbo.T VALUES (1), (2), (3)")
        .unwrap();
    let mut client = connect(&server).await;
    server.faults().arm(1, Fault::DropAfterRows(2));
    let mut stream = client.query("SELECT id FROM dbo.T", &[]).await.unwrap().into_row_stream();
    let mut seen = 0;
    let end = loop {
        match stream.try_next().await {
            Ok(Some(_)) => seen += 1,
            end => break end,
        }
    };
    assert_eq!(seen, 2);
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test]
async fn logins_can_be_rejected_and_redirected() {
    let (server, _database) = plain().await;
    let plain_config = || config(&server, EncryptionLevel::NotSupported);
    server.faults().reject_logins(1);
    let error = connect_with(plain_config()).await.unwrap_err();
    assert_eq!(error.code(), Some(18456));
    server.faults().redirect_once("127.0.0.1", server.port());
    let Err(Error::Routing { host, port }) = connect_with(plain_config()).await else {
        panic!("not redirected");
    };
    assert_eq!((host.as_str(), port), ("127.0.0.1", server.port()));
    connect_with(plain_config()).await.unwrap();
    assert_eq!(server.faults().logins(), 1);
}

#[tokio::test]
async fn a_login_can_be_rejected_stalled_and_dropped() {
    let (server, _database) = plain().await;
    let plain_config = || config(&server, EncryptionLevel::NotSupported);
    let moved = SqlError::new(40613, 14, "not available");
    server.faults().arm_login(2, LoginFault::Error(moved));
    server.faults().arm_login(1, LoginFault::Drop);
    server.faults().arm_login(1, LoginFault::Stall(Duration::from_secs(3600)));
    for _ in 0..2 {
        assert_eq!(connect_with(plain_config()).await.unwrap_err().code(), Some(40613));
    }
    let error = connect_with(plain_config()).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    let mut hasty = plain_config();
    hasty.handshake_timeout(Some(Duration::from_millis(50)));
    let error = connect_with(hasty).await.unwrap_err();
    assert!(matches!(error, Error::Io { kind: std::io::ErrorKind::TimedOut, .. }), "{error:?}");
    connect_with(plain_config()).await.unwrap();
    assert_eq!((server.faults().logins(), server.faults().logins_tried()), (2, 5));
}

#[tokio::test]
async fn a_correct_token_is_accepted() {
    let (server, _database) = plain().await;
    let with = |token: &str| {
        let mut config = config(&server, EncryptionLevel::NotSupported);
        config.authentication(tiberius::AuthMethod::aad_token(token));
        config
    };
    connect_with(with("any")).await.unwrap();
    server.faults().only_token("tökén-2");
    assert_eq!(connect_with(with("any")).await.unwrap_err().code(), Some(18456));
    connect_with(with("tökén-2")).await.unwrap();
}

#[tokio::test]
async fn responses_use_the_requested_packet_size() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    for size in [9, 100, 40_000] {
        server.faults().arm(1, Fault::PacketBytes(size));
        assert_eq!(rows(&mut client, "SELECT 1 AS one", &[]).await.len(), 1, "{size}");
    }
}

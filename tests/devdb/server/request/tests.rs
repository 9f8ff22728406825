//! Responses byte by byte, compared with the examples of the protocol document MS-TDS if it has them.

use super::*;
use crate::{
    Database, Engine,
    server::framing::{self, HEADER_BYTES},
};

/// The bytes of a dump as printed in the document.
fn dump(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn session() -> Box<dyn Session> {
    Database::in_memory().unwrap().connect("Shop").unwrap()
}

/// The packet that answers a packet.
async fn answered(session: &mut dyn Session, packet: &[u8]) -> Vec<u8> {
    let (header, body) = packet.split_at(HEADER_BYTES);
    let answer = run(session, Request::parse(header[0], body).unwrap()).unwrap();
    let (mut to, mut from) = tokio::io::duplex(1 << 16);
    framing::send(&mut to, &answer.bytes, 4096).await.unwrap();
    drop(to);
    let mut sent = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut from, &mut sent).await.unwrap();
    sent
}

fn batch(session: &mut dyn Session, sql: &str) -> Vec<u8> {
    run(session, Request::Batch(sql.to_owned())).unwrap().bytes
}

fn call(session: &mut dyn Session, sql: &str) -> Vec<u8> {
    run(session, Request::Execute { sql: sql.to_owned(), parameters: Vec::new() }).unwrap().bytes
}

/// Token, status, command and row count of each completion, in a response without result sets.
fn endings(mut bytes: &[u8]) -> Vec<(u8, u16, u16, u64)> {
    let mut endings = Vec::new();
    while let [token, rest @ ..] = bytes {
        let mut reader = Reader::new(rest);
        match token {
            // RETURNSTATUS
            0x79 => assert_eq!(reader.u32().unwrap(), 0),
            0xE3 => {
                let length = reader.u16().unwrap();
                reader.take(length.into()).unwrap();
            }
            0xFD..=0xFF => endings.push((
                *token,
                reader.u16().unwrap(),
                reader.u16().unwrap(),
                reader.u64().unwrap(),
            )),
            other => panic!("token 0x{other:02x} in {bytes:02x?}"),
        }
        bytes = reader.rest();
    }
    endings
}

/// Sections 4.6 and 4.7.
#[tokio::test]
async fn a_batch_is_answered_as_in_the_protocol_document() {
    let request = dump(
        "01 01 00 5C 00 00 01 00 16 00 00 00 12 00 00 00 02 00 00 00 00 00 00 00 00 01 00 00 00 00 \
         0A 00 73 00 65 00 6C 00 65 00 63 00 74 00 20 00 27 00 66 00 6F 00 6F 00 27 00 20 00 \
         61 00 73 00 20 00 27 00 62 00 61 00 72 00 27 00 0A 00 20 00 20 00 20 00 20 00 20 00 20 00 \
         20 00 20 00",
    );
    let expected = dump(
        "04 01 00 33 00 00 01 00 81 01 00 00 00 00 00 20 00 A7 03 00 09 04 D0 00 34 03 62 00 61 00 \
         72 00 D1 03 00 66 6F 6F FD 10 00 C1 00 01 00 00 00 00 00 00 00",
    );
    assert_eq!(answered(&mut *session(), &request).await, expected);
}

/// Section 4.9. Its procedure is not supported here; it also selects into a variable.
#[test]
fn a_call_is_answered_as_in_the_protocol_document() {
    let expected = dump(
        "FF 11 00 C1 00 01 00 00 00 00 00 00 00 79 00 00 00 00 FE 00 00 E0 00 00 00 00 00 00 00 00 \
         00",
    );
    assert_eq!(call(&mut *session(), "DECLARE @v int; SELECT @v = 1"), expected);
}

#[test]
fn a_column_without_a_name_has_an_empty_one() {
    let expected = dump(
        "81 01 00 00 00 00 00 20 00 26 04 00 D1 04 00 00 00 00 FD 10 00 C1 00 01 00 00 00 00 00 00 \
         00",
    );
    assert_eq!(batch(&mut *session(), "SELECT @@ROWCOUNT"), expected);
}

#[test]
fn each_statement_has_its_own_kind_and_count() {
    let mut session = session();
    batch(&mut *session, "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, n int)");
    let sql = "INSERT INTO dbo.t VALUES (1, 1), (2, 2), (3, 3); UPDATE dbo.t SET n = 0 WHERE id > 1; \
               DELETE FROM dbo.t WHERE id = 3; UPDATE dbo.t SET n = 1 WHERE id = 9";
    let kinds = [(0xC3, 3), (0xC5, 2), (0xC4, 1), (0xC5, 0)];
    let done = kinds.iter().enumerate().map(|(at, (kind, count))| {
        let more = u16::from(at + 1 < kinds.len());
        (tokens::DONE, 0x10 | more, *kind, *count)
    });
    assert_eq!(endings(&batch(&mut *session, sql)), done.collect::<Vec<_>>());

    batch(&mut *session, "TRUNCATE TABLE dbo.t");
    let in_procedure = kinds.map(|(kind, count)| (tokens::DONE_IN_PROC, 0x11, kind, count));
    let end = (tokens::DONE_PROC, 0, tokens::PROCEDURE, 0);
    assert_eq!(endings(&call(&mut *session, sql)), [&in_procedure[..], &[end]].concat());
}

#[test]
fn transactions_have_their_own_kind() {
    let mut session = session();
    for (sql, kind) in
        [("BEGIN TRAN", 0xD4), ("COMMIT", 0xD5), ("BEGIN TRAN", 0xD4), ("ROLLBACK", 0xD2)]
    {
        assert_eq!(endings(&batch(&mut *session, sql)), [(tokens::DONE, 0, kind, 0)], "{sql}");
    }
    for (request, kind) in [
        (Request::Begin, 0xD4),
        (Request::Commit, 0xD5),
        (Request::Begin, 0xD4),
        (Request::Rollback, 0xD2),
    ] {
        let answer = run(&mut *session, request).unwrap();
        assert_eq!(endings(&answer.bytes), [(tokens::DONE, 0, kind, 0)]);
    }
}

#[test]
fn nothing_is_counted_while_nocount_is_on() {
    let mut session = session();
    batch(&mut *session, "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY); SET NOCOUNT ON");
    let insert = |id: i32| format!("INSERT INTO dbo.t VALUES ({id})");
    let done = endings(&batch(&mut *session, &insert(1)));
    assert_eq!(done, [(tokens::DONE, 0, 0xC3, 0)]);
    let end = (tokens::DONE_PROC, 0, tokens::PROCEDURE, 0);
    assert_eq!(endings(&call(&mut *session, &insert(2))), [end], "no DONEINPROC");
    // A result set still ends with its rows, and the variable is still counted.
    let sql = format!("{}; SELECT @@ROWCOUNT", insert(3));
    let rows = "81 01 00 00 00 00 00 20 00 26 04 00 D1 04 01 00 00 00 FF 01 00 C1 00 00 00 00 00 00 00 \
                00 00 79 00 00 00 00 FE 00 00 E0 00 00 00 00 00 00 00 00 00";
    assert_eq!(call(&mut *session, &sql), dump(rows));
    batch(&mut *session, "SET NOCOUNT OFF");
    let done = endings(&batch(&mut *session, &insert(4)));
    assert_eq!(done, [(tokens::DONE, 0x10, 0xC3, 1)]);
}

#[test]
fn nocount_set_by_a_call_ends_with_the_call() {
    let mut session = session();
    batch(&mut *session, "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)");
    call(&mut *session, "SET NOCOUNT ON; INSERT INTO dbo.t VALUES (1)");
    let done = endings(&batch(&mut *session, "INSERT INTO dbo.t VALUES (2)"));
    assert_eq!(done, [(tokens::DONE, 0x10, 0xC3, 1)]);
}

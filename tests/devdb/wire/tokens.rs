//! Tokens of a response: metadata, rows, messages, environment changes and completions.

use std::io;

use super::{encode, put_short_text, put_text};
use crate::types::{Column, Command, Completion, SqlError, Type, Value};

/// Ends a statement of a batch.
pub(crate) const DONE: u8 = 0xFD;
/// Ends a procedure call.
pub(crate) const DONE_PROC: u8 = 0xFE;
/// Ends a statement inside a procedure call.
pub(crate) const DONE_IN_PROC: u8 = 0xFF;

/// More results follow.
pub(crate) const MORE: u16 = 0x01;
/// The statement failed.
pub(crate) const ERROR: u16 = 0x02;
/// The row count is valid.
const COUNT: u16 = 0x10;
/// Acknowledges an attention signal.
pub(crate) const ATTENTION: u16 = 0x20;

/// `CurCmd` of the end of a procedure call: section 4.9 of MS-TDS.
pub(crate) const PROCEDURE: u16 = 0xE0;

/// Flags of a column in COLMETADATA.
mod flag {
    pub(super) const NULLABLE: u16 = 0x01;
    /// Whether it can be updated is unknown.
    pub(super) const UNKNOWN: u16 = 0x08;
    pub(super) const COMPUTED: u16 = 0x20;
}

/// Kinds of environment change.
pub(crate) mod change {
    pub(crate) const DATABASE: u8 = 1;
    pub(crate) const PACKET_SIZE: u8 = 4;
    pub(crate) const COLLATION: u8 = 7;
    pub(crate) const BEGIN: u8 = 8;
    pub(crate) const COMMIT: u8 = 9;
    pub(crate) const ROLLBACK: u8 = 10;
    pub(crate) const ROUTING: u8 = 20;
}

/// Appends COLMETADATA.
pub(crate) fn columns(out: &mut Vec<u8>, columns: &[Column]) {
    out.push(0x81);
    out.extend(u16::try_from(columns.len()).unwrap_or(u16::MAX).to_le_bytes());
    for column in columns {
        let user_type: u32 = if column.ty == Type::RowVersion { 80 } else { 0 };
        out.extend(user_type.to_le_bytes());
        let nullable = if column.nullable { flag::NULLABLE } else { 0 };
        let origin = if column.computed { flag::COMPUTED } else { flag::UNKNOWN };
        out.extend((nullable | origin).to_le_bytes());
        encode::put_type(out, column.ty);
        put_short_text(out, &column.name);
    }
}

/// Appends ROW.
///
/// # Errors
/// Fails for a value that is not of its column's type.
pub(crate) fn row(out: &mut Vec<u8>, columns: &[Column], values: &[Value]) -> io::Result<()> {
    out.push(0xD1);
    for (column, value) in columns.iter().zip(values) {
        encode::put_value(out, column.ty, value)?;
    }
    Ok(())
}

/// Appends one of the three completion tokens, for a statement.
pub(crate) fn completed(out: &mut Vec<u8>, token: u8, status: u16, completion: Completion) {
    let count = if completion.rows.is_some() { COUNT } else { 0 };
    let rows = completion.rows.unwrap_or(0);
    ending(out, token, status | count, current_command(completion.command), rows);
}

/// Appends one of the three completion tokens, for something that counts no rows.
pub(crate) fn done(out: &mut Vec<u8>, token: u8, status: u16, command: u16) {
    ending(out, token, status, command, 0);
}

fn ending(out: &mut Vec<u8>, token: u8, status: u16, command: u16, rows: u64) {
    out.push(token);
    out.extend(status.to_le_bytes());
    out.extend(command.to_le_bytes());
    out.extend(rows.to_le_bytes());
}

/// `CurCmd` of a statement. MS-TDS leaves the numbers to the application and shows those of `SELECT`
/// (4.7) and of procedures (4.9); the others are those that clients compare with (`TdsEnums` of
/// Microsoft.Data.SqlClient).
fn current_command(command: Command) -> u16 {
    match command {
        Command::Select => 0xC1,
        Command::Insert => 0xC3,
        Command::Delete => 0xC4,
        Command::Update => 0xC5,
        Command::Rollback => 0xD2,
        Command::Begin => 0xD4,
        Command::Commit => 0xD5,
        Command::Other => 0,
    }
}

/// Appends RETURNSTATUS.
pub(crate) fn return_status(out: &mut Vec<u8>, status: i32) {
    out.push(0x79);
    out.extend(status.to_le_bytes());
}

/// Appends ERROR.
pub(crate) fn error(out: &mut Vec<u8>, error: &SqlError) {
    let mut body = Vec::new();
    body.extend(error.number.to_le_bytes());
    body.extend([error.state, error.class]);
    put_text(&mut body, &error.message);
    put_short_text(&mut body, "highwater-devdb");
    put_short_text(&mut body, "");
    body.extend(1_u32.to_le_bytes());
    sized(out, 0xAA, &body);
}

/// Appends LOGINACK: TDS 7.4, version 16.0.
pub(crate) fn login_acknowledged(out: &mut Vec<u8>) {
    let mut body = vec![1];
    body.extend(0x7400_0004_u32.to_be_bytes());
    put_short_text(&mut body, "Highwater devdb");
    body.extend([16, 0, 0x0F, 0xA0]);
    sized(out, 0xAD, &body);
}

/// Appends ENVCHANGE with raw old and new values.
pub(crate) fn environment(out: &mut Vec<u8>, kind: u8, new: &[u8], old: &[u8]) {
    sized(out, 0xE3, &[&[kind], new, old].concat());
}

/// Appends ENVCHANGE with texts.
pub(crate) fn environment_text(out: &mut Vec<u8>, kind: u8, new: &str, old: &str) {
    let mut values = Vec::new();
    put_short_text(&mut values, new);
    put_short_text(&mut values, old);
    environment(out, kind, &values, &[]);
}

/// Appends ENVCHANGE that redirects the client to another server.
pub(crate) fn routing(out: &mut Vec<u8>, host: &str, port: u16) {
    let mut route = vec![0];
    route.extend(port.to_le_bytes());
    put_text(&mut route, host);
    let mut new = u16::try_from(route.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    new.extend(route);
    environment(out, change::ROUTING, &new, &[0, 0]);
}

/// Appends ENVCHANGE of a transaction: its descriptor is new at the start, old at the end.
pub(crate) fn transaction(out: &mut Vec<u8>, kind: u8, descriptor: u64) {
    let mut value = vec![8];
    value.extend(descriptor.to_le_bytes());
    if kind == change::BEGIN {
        environment(out, kind, &value, &[0]);
    } else {
        environment(out, kind, &[0], &value);
    }
}

fn sized(out: &mut Vec<u8>, token: u8, body: &[u8]) {
    out.push(token);
    out.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(body);
}

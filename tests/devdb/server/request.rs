//! Requests of a client and their responses.

#[cfg(test)]
mod tests;

use std::io;

use super::framing::kind;
use crate::{
    session::Session,
    types::{Command, Completion, Parameter, Reply, SqlError, Value},
    wire::{
        Reader, decode, invalid,
        tokens::{self, change},
        utf16,
    },
};

/// Number of `sp_executesql` among the well-known procedures.
const SP_EXECUTESQL: u16 = 10;

/// A client's request.
#[derive(Debug)]
pub(crate) enum Request {
    Batch(String),
    Execute {
        sql: String,
        parameters: Vec<Parameter>,
    },
    /// A procedure other than `sp_executesql`.
    Procedure(String),
    Begin,
    Commit,
    Rollback,
    Attention,
}

impl Request {
    /// Reads a message after the login.
    ///
    /// # Errors
    ///
    /// Fails for an unsupported message.
    pub(crate) fn parse(message_kind: u8, body: &[u8]) -> io::Result<Self> {
        match message_kind {
            kind::BATCH => Ok(Self::Batch(utf16(after_headers(body)?.rest()))),
            kind::RPC => procedure(body),
            kind::TRANSACTION => match after_headers(body)?.u16()? {
                5 => Ok(Self::Begin),
                7 => Ok(Self::Commit),
                8 => Ok(Self::Rollback),
                code => Err(invalid(format!("transaction request `{code}` is not known"))),
            },
            kind::ATTENTION => Ok(Self::Attention),
            other => Err(invalid(format!("message type `0x{other:02x}` is not known"))),
        }
    }

    /// The statements in a request, used by faults and counters.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Batch(sql) | Self::Execute { sql, .. } => Some(sql),
            Self::Procedure(name) => Some(name),
            Self::Begin | Self::Commit | Self::Rollback | Self::Attention => None,
        }
    }

    /// The response to a request that did not run.
    pub(crate) fn failed(&self, error: &SqlError) -> Answer {
        let mut answer = Answer::default();
        let in_procedure = matches!(self, Self::Execute { .. } | Self::Procedure(_));
        answer.error(error);
        answer.end(in_procedure, true);
        answer
    }
}

/// Most parameters of a procedure, of which `sp_executesql` has two of its own.
/// <https://learn.microsoft.com/sql/sql-server/maximum-capacity-specifications-for-sql-server>
const PARAMETERS_MAX: usize = 2_100;

/// Runs a request.
///
/// # Errors
///
/// Fails if a value cannot be encoded as its column's type, which is a bug in the engine.
pub(crate) fn run(session: &mut dyn Session, request: Request) -> io::Result<Answer> {
    let before = session.transaction();
    let mut answer = Answer::default();
    match request {
        Request::Batch(sql) => answer.replies(session.run(&sql, &[]), false)?,
        Request::Execute { parameters, .. } if parameters.len() + 2 > PARAMETERS_MAX => {
            let text = format!(
                "The incoming request has too many parameters. The server supports a maximum of \
                 {PARAMETERS_MAX} parameters. Reduce the number of parameters and resend the request."
            );
            answer.replies(vec![Reply::Error(SqlError::new(8003, 16, text))], true)?;
        }
        Request::Execute { sql, parameters } => {
            answer.replies(session.run(&sql, &parameters), true)?;
            session.leave_procedure();
        }
        Request::Procedure(name) => {
            let text = format!("Could not find stored procedure '{name}'.");
            answer.replies(vec![Reply::Error(SqlError::new(2812, 16, text))], true)?;
        }
        Request::Begin => answer.result(Command::Begin, session.begin()),
        Request::Commit => answer.result(Command::Commit, session.commit()),
        Request::Rollback => answer.result(Command::Rollback, session.rollback()),
        Request::Attention => {
            tokens::done(&mut answer.bytes, tokens::DONE, tokens::ATTENTION, 0);
        }
    }
    answer.transaction_changed(before, session.transaction(), session.rolled_back());
    Ok(answer)
}

/// A response, and where each row ends in it.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    row_ends: Vec<usize>,
}

impl Answer {
    /// Length of the response up to the end of row `rows`; its full length if it has fewer.
    pub(crate) fn length_of_rows(&self, rows: usize) -> usize {
        match rows.checked_sub(1) {
            // No row: the end of the metadata alone is not recorded, so nothing is sent.
            None => 0,
            Some(last) => self.row_ends.get(last).copied().unwrap_or(self.bytes.len()),
        }
    }

    fn replies(&mut self, replies: Vec<Reply>, in_procedure: bool) -> io::Result<()> {
        let (count, mut failed) = (replies.len(), false);
        let token = if in_procedure { tokens::DONE_IN_PROC } else { tokens::DONE };
        for (index, reply) in replies.into_iter().enumerate() {
            let more = if in_procedure || index + 1 < count { tokens::MORE } else { 0 };
            let out = &mut self.bytes;
            match reply {
                Reply::Rows { columns, rows, completion } => {
                    tokens::columns(out, &columns);
                    for row in &rows {
                        tokens::row(out, &columns, row)?;
                        self.row_ends.push(out.len());
                    }
                    tokens::completed(out, token, more, completion);
                }
                // In a procedure, completions without a count are not reported: that is the effect of
                // NOCOUNT.
                Reply::Done(Completion { rows: None, .. }) if in_procedure => {}
                Reply::Done(completion) => tokens::completed(out, token, more, completion),
                Reply::Error(error) => {
                    failed = true;
                    tokens::error(out, &error);
                    tokens::done(out, token, tokens::ERROR | more, 0);
                }
            }
        }
        if in_procedure || count == 0 {
            self.end(in_procedure, failed);
        }
        Ok(())
    }

    fn result(&mut self, command: Command, result: Result<(), SqlError>) {
        match result {
            Ok(()) => {
                let completion = Completion { command, rows: None };
                tokens::completed(&mut self.bytes, tokens::DONE, 0, completion);
            }
            Err(error) => {
                self.error(&error);
                self.end(false, true);
            }
        }
    }

    fn error(&mut self, error: &SqlError) {
        tokens::error(&mut self.bytes, error);
    }

    fn end(&mut self, in_procedure: bool, failed: bool) {
        let status = if failed { tokens::ERROR } else { 0 };
        if in_procedure {
            tokens::return_status(&mut self.bytes, i32::from(failed));
            tokens::done(&mut self.bytes, tokens::DONE_PROC, status, tokens::PROCEDURE);
        } else {
            tokens::done(&mut self.bytes, tokens::DONE, status, 0);
        }
    }

    /// Reports first that the client's transaction started or ended.
    fn transaction_changed(&mut self, before: Option<u64>, after: Option<u64>, rolled_back: bool) {
        if before == after {
            return;
        }
        let mut changes = Vec::new();
        if let Some(descriptor) = before {
            let kind = if rolled_back { change::ROLLBACK } else { change::COMMIT };
            tokens::transaction(&mut changes, kind, descriptor);
        }
        if let Some(descriptor) = after {
            tokens::transaction(&mut changes, change::BEGIN, descriptor);
        }
        for end in &mut self.row_ends {
            *end += changes.len();
        }
        self.bytes.splice(0..0, changes);
    }
}

fn procedure(body: &[u8]) -> io::Result<Request> {
    let mut reader = after_headers(body)?;
    let units = reader.u16()?;
    let name = match units {
        u16::MAX => match reader.u16()? {
            SP_EXECUTESQL => "sp_executesql".to_owned(),
            number => format!("procedure {number}"),
        },
        units => reader.utf16(units.into())?,
    };
    reader.u16()?;
    if !name.eq_ignore_ascii_case("sp_executesql") {
        return Ok(Request::Procedure(name));
    }
    let mut parameters = Vec::new();
    while !reader.is_empty() {
        let units = reader.u8()?;
        let name = reader.utf16(units.into())?;
        reader.u8()?;
        let (ty, value) = decode::parameter(&mut reader)?;
        parameters.push(Parameter { name, ty, value });
    }
    // The first is the statement, the second declares the types, which the values also contain.
    let mut parameters = parameters.into_iter();
    let Some(Value::Text(sql)) = parameters.next().map(|statement| statement.value) else {
        return Err(invalid("sp_executesql without a statement"));
    };
    Ok(Request::Execute { sql, parameters: parameters.skip(1).collect() })
}

/// Skips the headers before the body of a request.
fn after_headers(body: &[u8]) -> io::Result<Reader<'_>> {
    let mut reader = Reader::new(body);
    let length = usize::try_from(reader.u32()?).map_err(io::Error::other)?;
    reader.take(length.saturating_sub(4))?;
    Ok(reader)
}

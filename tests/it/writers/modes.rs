//! The ways to poll the table: one line per mode, with its guarantees.

use std::time::Duration;

use highwater::cursor::CursorMode;
use highwater::source::mssql::{Mssql, SourceSettings};

use crate::any_server::AnyServer;

/// How far a bounded mode by time stays behind the server's clock.
pub(super) const SETTLE: Duration = Duration::from_secs(1);

/// How long after its delivery a window is audited: longer than any transaction is open.
pub(super) const AUDIT_AFTER: Duration = Duration::from_secs(1);

/// One way to poll.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "none of these facts excludes another")]
pub(super) struct Mode {
    pub(super) name: &'static str,
    /// Whether it guarantees that nothing is lost.
    pub(super) bounded: bool,
    /// Whether it detects changes of a row.
    pub(super) sees_updates: bool,
    /// Whether rows wait for open transactions that started before them.
    pub(super) waits: bool,
    /// Whether closed windows are audited.
    pub(super) audits: bool,
    pub(super) source: fn(&AnyServer) -> Mssql,
}

/// Every mode, with its bound and without.
pub(super) const MODES: &[Mode] = &[
    Mode {
        name: "rowversion",
        bounded: true,
        sees_updates: true,
        waits: true,
        audits: false,
        source: |server| open(rowversion(server)),
    },
    Mode {
        name: "rowversion, bound left out",
        bounded: false,
        sees_updates: true,
        waits: false,
        audits: false,
        source: |server| open(rowversion(server)).without_bound(),
    },
    Mode {
        name: "timestamp+pk, settle 1 s",
        bounded: true,
        sees_updates: true,
        waits: true,
        audits: false,
        source: |server| open(timestamp(server, SETTLE)),
    },
    Mode {
        name: "timestamp+pk, settle 0",
        bounded: false,
        sees_updates: true,
        waits: false,
        audits: false,
        source: |server| open(timestamp(server, Duration::ZERO)),
    },
    Mode {
        name: "timestamp+pk, settle 0, audited",
        bounded: true,
        sees_updates: true,
        waits: false,
        audits: true,
        source: |server| open(timestamp(server, Duration::ZERO)),
    },
    Mode {
        name: "integer+pk, settle 1 s",
        bounded: true,
        sees_updates: false,
        waits: true,
        audits: false,
        source: |server| open(integer(server)),
    },
    Mode {
        name: "integer+pk, bound left out",
        bounded: false,
        sees_updates: false,
        waits: false,
        audits: false,
        source: |server| open(integer(server)).without_bound(),
    },
    Mode {
        name: "integer+pk, no bound, audited",
        bounded: true,
        sees_updates: false,
        waits: false,
        audits: true,
        source: |server| open(integer(server)).without_bound(),
    },
    Mode {
        name: "change_tracking",
        bounded: true,
        sees_updates: true,
        waits: false,
        audits: false,
        source: |server| open(server.settings("writes", CursorMode::ChangeTracking, "")),
    },
];

fn open(settings: SourceSettings) -> Mssql {
    Mssql::new(settings).unwrap()
}

fn rowversion(server: &AnyServer) -> SourceSettings {
    server.settings("writes", CursorMode::RowVersion, "rv")
}

fn integer(server: &AnyServer) -> SourceSettings {
    let settings = server.settings("writes", CursorMode::IntegerPk, "id");
    SourceSettings { settle: SETTLE, ..settings }
}

fn timestamp(server: &AnyServer, settle: Duration) -> SourceSettings {
    SourceSettings { settle, ..server.settings("writes", CursorMode::TimestampPk, "at") }
}

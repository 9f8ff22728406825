//! Settings of a poller's source.

use std::time::Duration;

use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings;
use super::sql_connection::SqlConnection;
use crate::cursor::CursorMode;

/// Tenant of a service principal, by the name that the Azure libraries know.
/// <https://learn.microsoft.com/dotnet/api/overview/azure/identity-readme#environment-variables>
const AZURE_TENANT_ID: &str = "AZURE_TENANT_ID";

/// Rows that are read again at once have had no time to be joined by late ones.
const AUDIT_AFTER_MIN: Duration = Duration::from_secs(1);

/// Where a poller reads rows.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Name of the setting that holds the connection string.
    pub connection_setting: String,
    /// What that connection string says.
    pub connection: SqlConnection,
    /// Table or view, as written.
    pub table: String,
    /// How rows are ordered; `None` to choose by what the table has.
    pub mode: Option<CursorMode>,
    /// Column that they are ordered by; `None` where the mode has or chooses it.
    pub cursor: Option<String>,
    /// Key columns, in key order; never empty.
    pub key: Vec<String>,
    /// Columns to deliver; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Condition that rows must meet.
    pub filter: Option<String>,
    /// How long commits may come late; zero in the modes that need no such limit.
    pub settle: Duration,
    /// How long after their delivery rows are read again; `None` for never.
    pub audit_after: Option<Duration>,
    /// Whether a poller that never ran waits to be started, behind what there is then.
    pub start_now: bool,
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<SourceConfig> {
    let at = Some(segment);
    let connection = read_connection(reader, segment);
    let table = reader.read(&settings::SOURCE_TABLE, at, parse::any);
    let mode = reader.read(&settings::SOURCE_MODE, at, parse::one_of(&MODES));
    let cursor = match mode {
        Some(Some(CursorMode::ChangeTracking)) => {
            reader.read_if_set(&settings::SOURCE_CURSOR, at, |_| no_cursor());
            Some(None)
        }
        Some(None) => Some(reader.read_if_set(&settings::SOURCE_CURSOR, at, parse::any)),
        Some(Some(_)) | None => reader.read(&settings::SOURCE_CURSOR, at, parse::any).map(Some),
    };
    let key = reader.read(&settings::SOURCE_KEY, at, parse::columns);
    let columns = reader.read_if_set(&settings::SOURCE_COLUMNS, at, parse::columns);
    let filter = reader.read_if_set(&settings::SOURCE_FILTER, at, parse::any);
    let settle = match mode {
        Some(Some(mode @ (CursorMode::RowVersion | CursorMode::ChangeTracking))) => {
            reader.read_if_set(&settings::SOURCE_SETTLE, at, |_| no_settle(mode));
            Some(Duration::ZERO)
        }
        Some(Some(CursorMode::TimestampPk | CursorMode::IntegerPk) | None) | None => {
            reader.read(&settings::SOURCE_SETTLE, at, parse::duration)
        }
    };
    let audit_after = match mode {
        Some(Some(mode)) if !mode.goes_by_time() => {
            reader.read_if_set(&settings::SOURCE_AUDIT_AFTER, at, |_| no_settle(mode))
        }
        Some(_) | None => {
            let read = parse::duration_from(AUDIT_AFTER_MIN);
            reader.read_if_set(&settings::SOURCE_AUDIT_AFTER, at, read)
        }
    };
    let starts = [("beginning", false), ("now", true)];
    let start_now = reader.read(&settings::SOURCE_START, at, parse::one_of(&starts));
    let (connection_setting, connection) = connection?;
    Some(SourceConfig {
        connection_setting,
        connection,
        table: table?,
        mode: mode?,
        cursor: cursor?,
        key: key?,
        columns,
        filter,
        settle: settle?,
        audit_after,
        start_now: start_now?,
    })
}

fn read_connection(reader: &mut Reader<'_>, segment: &str) -> Option<(String, SqlConnection)> {
    let setting = &settings::SOURCE_CONNECTION;
    let name = reader.read(setting, Some(segment), parse::setting_name)?;
    let connection = read_sql_connection(reader, &name, &setting.name_for(Some(segment)))?;
    Some((name, connection))
}

/// Reads the connection string in the setting `name`, which another setting, `named_by`, names.
pub(super) fn read_sql_connection(
    reader: &mut Reader<'_>,
    name: &str,
    named_by: &str,
) -> Option<SqlConnection> {
    let Some(text) = reader.text(name) else {
        reader.note(Mistake {
            setting: name.to_owned(),
            shown: Shown::Missing,
            expected: "an ADO.NET connection string".to_owned(),
            hint: Some(format!("`{named_by}` names this setting")),
        });
        return None;
    };
    let tenant = reader.text(AZURE_TENANT_ID);
    match SqlConnection::parse_for_tenant(&text, tenant.as_deref()) {
        Ok(connection) => Some(connection),
        Err(problems) => {
            for problem in problems {
                reader.wrong(name, "", connection_string(&problem));
            }
            None
        }
    }
}

pub(super) fn connection_string(problem: &str) -> Expected {
    Expected::new(format!("a connection string that can be used: {problem}")).shown(Shown::Secret)
}

/// Modes by the names that settings have for them.
const MODES: [(&str, Option<CursorMode>); 5] = [
    ("auto", None),
    ("rowversion", Some(CursorMode::RowVersion)),
    ("change_tracking", Some(CursorMode::ChangeTracking)),
    ("timestamp+pk", Some(CursorMode::TimestampPk)),
    ("integer+pk", Some(CursorMode::IntegerPk)),
];

fn no_cursor() -> Result<String, Expected> {
    Err(Expected::new("nothing, as mode `change_tracking` has no cursor column")
        .hint("remove it, or set the mode to `auto`"))
}

fn no_settle(mode: CursorMode) -> Result<Duration, Expected> {
    Err(Expected::new(format!("nothing, as mode `{mode}` waits for no time to pass"))
        .hint("remove it, or set the mode to `timestamp+pk` or `integer+pk`"))
}

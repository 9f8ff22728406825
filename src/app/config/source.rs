//! Settings of a poller's source.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_mssql::source::{
    OnSchemaChange, Relation, SizeLimits, SourceClock, SourceSettings, check_operations,
};
use highwater_mssql::{Filter, FilterProblem, SqlConnection, check_database, check_query};

use super::mask;
use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings;
use crate::cursor::CursorMode;
use crate::event::Operation;

/// Tenant of a service principal, as named by the Azure libraries.
/// <https://learn.microsoft.com/dotnet/api/overview/azure/identity-readme#environment-variables>
const AZURE_TENANT_ID: &str = "AZURE_TENANT_ID";

/// Reading again too early would find no late rows.
const AUDIT_AFTER_MIN: Duration = Duration::from_secs(1);

/// Largest offset from UTC in SQL Server.
/// <https://learn.microsoft.com/sql/t-sql/data-types/datetimeoffset-transact-sql>
const OFFSET_MAX_MINUTES: i16 = 14 * 60;

/// The settings of a source, and those of its poller in the same group.
pub(super) struct Read {
    pub(super) settings: SourceSettings,
    pub(super) connection_setting: String,
    pub(super) audit_after: Option<Duration>,
    pub(super) start_now: bool,
}

/// Reads the source settings of `poller`.
pub(super) fn read(
    reader: &mut Reader<'_>,
    segment: &str,
    poller: &str,
    limits: Option<SizeLimits>,
) -> Option<Read> {
    let at = Some(segment);
    let connection = read_connection(reader, segment);
    let relation = read_relation(reader, segment);
    let is_query = matches!(relation, Some(Relation::Query(_)));
    let mode = reader.read(&settings::SOURCE_MODE, at, |text| read_mode(text, is_query));
    if let (Some(Relation::Query(text)), Some(mode), Some((_, connection))) =
        (&relation, mode, &connection)
    {
        check_reach(reader, segment, text, mode, connection);
    }
    let cursor = match mode {
        Some(Some(CursorMode::ChangeTracking)) => {
            reader.read_if_set(&settings::SOURCE_CURSOR, at, |_| no_cursor());
            Some(None)
        }
        Some(None) if !is_query => {
            Some(reader.read_if_set(&settings::SOURCE_CURSOR, at, parse::column))
        }
        Some(_) | None => reader.read(&settings::SOURCE_CURSOR, at, parse::column).map(Some),
    };
    let key = reader.read(&settings::SOURCE_KEY, at, parse::columns);
    let columns = reader.read_if_set(&settings::SOURCE_COLUMNS, at, parse::columns);
    let kept: Vec<&str> =
        key.iter().flatten().chain(cursor.iter().flatten()).map(String::as_str).collect();
    let columns_excluded = reader.read_if_set(&settings::SOURCE_COLUMNS_EXCLUDED, at, |text| {
        read_columns_excluded(text, columns.is_some(), &kept)
    });
    let filter_params = read_filter_params(reader, segment);
    let filter = reader.read_if_set(&settings::SOURCE_FILTER, at, parse::any);
    check_filter(reader, segment, filter.as_deref(), &filter_params);
    let soft_delete = reader.read_if_set(&settings::SOURCE_SOFT_DELETE, at, |text| match mode {
        Some(Some(CursorMode::IntegerPk)) => Err(no_soft_delete()),
        Some(_) | None => parse::column(text),
    });
    let mask = mask::read(
        reader,
        segment,
        &mask::Named {
            needed: kept.iter().copied().chain(soft_delete.as_deref()).collect(),
            listed: columns.as_deref().unwrap_or_default(),
        },
    );
    let operations = reader.read_if_set(&settings::SOURCE_OPERATIONS, at, |text| {
        read_operations(text, mode.flatten(), soft_delete.is_some())
    });
    let settle = read_settle(reader, segment, mode.flatten());
    let clock = read_clock(reader, segment, mode.flatten());
    let audit_after = match mode {
        Some(Some(mode)) if !mode.is_time_based() => {
            reader.read_if_set(&settings::SOURCE_AUDIT_AFTER, at, |_| no_settle(mode))
        }
        Some(_) | None => {
            let read = parse::duration_from(AUDIT_AFTER_MIN);
            reader.read_if_set(&settings::SOURCE_AUDIT_AFTER, at, read)
        }
    };
    let answers = [("follow", OnSchemaChange::Follow), ("stop", OnSchemaChange::Stop)];
    let on_schema_change =
        reader.read(&settings::SOURCE_ON_SCHEMA_CHANGE, at, parse::one_of(&answers));
    let starts = [("beginning", false), ("now", true)];
    let start_now = reader.read(&settings::SOURCE_START, at, parse::one_of(&starts));
    let (connection_setting, connection) = connection?;
    let settings = SourceSettings {
        poller: poller.to_owned(),
        connection,
        relation: relation?,
        mode: mode?,
        cursor_column: cursor?,
        key: key?,
        columns,
        columns_excluded: columns_excluded.unwrap_or_default(),
        mask: mask?,
        filter,
        filter_params,
        soft_delete,
        operations,
        settle: settle?,
        clock: clock?,
        limits: limits?,
        on_schema_change: on_schema_change?,
        partition: None,
    };
    Some(Read { settings, connection_setting, audit_after, start_now: start_now? })
}

fn read_relation(reader: &mut Reader<'_>, segment: &str) -> Option<Relation> {
    let at = Some(segment);
    let query = &settings::SOURCE_QUERY;
    let is_table = reader.text(&settings::SOURCE_TABLE.name_for(at)).is_some();
    if reader.text(&query.name_for(at)).is_none() {
        return reader.read(&settings::SOURCE_TABLE, at, parse::any).map(Relation::Table);
    }
    let read = reader.read(query, at, |text| {
        if is_table {
            return Err(Expected::new("nothing, since `SOURCE__TABLE` is set")
                .hint("remove one of them: a poller reads a table or a query"));
        }
        check_query(text).map_err(|reason| Expected::new("one `SELECT`").hint(reason))?;
        Ok(text.to_owned())
    });
    read.map(Relation::Query)
}

/// Reports a query on another database than the connection's, if the mode works within one database only.
fn check_reach(
    reader: &mut Reader<'_>,
    segment: &str,
    text: &str,
    mode: Option<CursorMode>,
    connection: &SqlConnection,
) {
    if mode.is_some_and(CursorMode::is_time_based) {
        return;
    }
    if let Err(reason) = check_database(text, connection.database.as_deref()) {
        let setting = settings::SOURCE_QUERY.name_for(Some(segment));
        let expected = Expected::new("a query that stays in the connection's database");
        reader.wrong(&setting, text, expected.hint(reason));
    }
}

fn read_mode(text: &str, is_query: bool) -> Result<Option<CursorMode>, Expected> {
    let mode = parse::one_of(&MODES)(text)?;
    if is_query && mode == Some(CursorMode::ChangeTracking) {
        return Err(Expected::new("a mode with a cursor column, since `SOURCE__QUERY` is set")
            .hint("change tracking works only for a table: use `SOURCE__TABLE`"));
    }
    Ok(mode)
}

fn read_columns_excluded(
    text: &str,
    is_listed: bool,
    kept: &[&str],
) -> Result<Vec<String>, Expected> {
    if is_listed {
        return Err(Expected::new("nothing, since `SOURCE__COLUMNS` is set")
            .hint("remove one of the two lists"));
    }
    let columns = parse::columns(text)?;
    let is_kept =
        |name: &&String| kept.iter().any(|kept| kept.to_lowercase() == name.to_lowercase());
    match columns.iter().find(is_kept) {
        Some(name) => Err(Expected::new("columns that are neither key nor cursor")
            .hint(format!("remove `{name}` from the list"))),
        None => Ok(columns),
    }
}

/// Returns the filter parameter that a setting defines, if it does.
pub(super) fn filter_param(tail: &str) -> Option<&str> {
    let name = tail.strip_prefix("SOURCE__FILTER_PARAMS__")?;
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name_char)).then_some(name)
}

fn read_filter_params(reader: &mut Reader<'_>, segment: &str) -> BTreeMap<String, String> {
    let prefix = settings::SOURCE_FILTER_PARAMS.name_for(Some(segment)).replace("<PARAM>", "");
    let mut params: BTreeMap<String, String> = BTreeMap::new();
    for setting in reader.names() {
        let Some(name) = setting.strip_prefix(&prefix).filter(|name| !name.is_empty()) else {
            continue;
        };
        let text = reader.text(&setting).unwrap_or_default();
        if let Some(other) = params.keys().find(|other| other.eq_ignore_ascii_case(name)) {
            let what = format!("a unique name; `{prefix}{other}` is the same parameter");
            reader.wrong(&setting, "", Expected::new(what).shown(Shown::Secret));
            continue;
        }
        params.insert(name.to_owned(), text);
    }
    params
}

fn check_filter(
    reader: &mut Reader<'_>,
    segment: &str,
    filter: Option<&str>,
    params: &BTreeMap<String, String>,
) {
    let setting = settings::SOURCE_FILTER.name_for(Some(segment));
    let param = |name: &str| {
        settings::SOURCE_FILTER_PARAMS.name_for(Some(segment)).replace("<PARAM>", name)
    };
    let text = filter.unwrap_or_default();
    for problem in Filter::parse(text, params).err().unwrap_or_default() {
        match problem {
            FilterProblem::Text(reason) => {
                let expected = Expected::new("a condition that is valid between parentheses");
                reader.wrong(&setting, text, expected.hint(reason));
            }
            FilterProblem::Missing(name) => reader.note(Mistake {
                setting: param(&name.to_ascii_uppercase()),
                shown: Shown::Missing,
                expected: format!("the value of `@{name}`"),
                hint: Some(format!("`{setting}` uses it")),
            }),
            FilterProblem::Unused(name) => reader.note(Mistake {
                setting: param(&name),
                shown: Shown::Unknown,
                expected: format!("a parameter used in `{setting}`"),
                hint: Some(format!(
                    "use `@{}` there, or remove this setting",
                    name.to_ascii_lowercase()
                )),
            }),
            FilterProblem::Value(name, reason) => {
                let expected = Expected::new("a value, optionally with a type prefix");
                // Filter values can be as private as the rows.
                reader.wrong(&param(&name), "", expected.hint(reason).shown(Shown::Secret));
            }
        }
    }
}

fn read_connection(reader: &mut Reader<'_>, segment: &str) -> Option<(String, SqlConnection)> {
    let setting = &settings::SOURCE_CONNECTION;
    let name = reader.read(setting, Some(segment), parse::setting_name)?;
    let connection = read_sql_connection(reader, &name, &setting.name_for(Some(segment)))?;
    Some((name, connection))
}

/// Prefixes that the Azure portal adds to the name of a connection string, depending on its type.
pub(super) const PORTAL_PREFIXES: [&str; 3] = ["SQLAZURECONNSTR_", "SQLCONNSTR_", "CUSTOMCONNSTR_"];

/// Reads the connection string in the setting `name`, to which the setting `named_by` refers. The plain name takes
/// precedence over the names with a portal prefix.
pub(super) fn read_sql_connection(
    reader: &mut Reader<'_>,
    name: &str,
    named_by: &str,
) -> Option<SqlConnection> {
    let of_portal = PORTAL_PREFIXES.map(|prefix| format!("{prefix}{name}"));
    let mut names = [name].into_iter().chain(of_portal.iter().map(String::as_str));
    let Some((name, text)) = names.find_map(|name| Some((name, reader.text(name)?))) else {
        reader.note(Mistake {
            setting: name.to_owned(),
            shown: Shown::Missing,
            expected: "an ADO.NET connection string".to_owned(),
            hint: Some(format!("`{named_by}` refers to this setting")),
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
    Expected::new(format!("a valid connection string: {problem}")).shown(Shown::Secret)
}

/// Modes by their names in settings.
const MODES: [(&str, Option<CursorMode>); 5] = [
    ("auto", None),
    ("rowversion", Some(CursorMode::RowVersion)),
    ("change_tracking", Some(CursorMode::ChangeTracking)),
    ("timestamp+pk", Some(CursorMode::TimestampPk)),
    ("integer+pk", Some(CursorMode::IntegerPk)),
];

/// Operations by their names in settings.
const OPERATIONS: [(&str, Operation); 4] = [
    ("insert", Operation::Insert),
    ("update", Operation::Update),
    ("upsert", Operation::Upsert),
    ("delete", Operation::Delete),
];

fn no_cursor() -> Result<String, Expected> {
    Err(Expected::none("nothing, since mode `change_tracking` has no cursor column")
        .hint("remove it, or set the mode to `auto`"))
}

fn no_soft_delete() -> Expected {
    Expected::none("nothing, since mode `integer+pk` sees inserted rows only")
        .hint("remove it, or set the mode to one that sees updates")
}

/// Parses operations. In mode `auto` the source checks them once it has chosen a mode.
fn read_operations(
    text: &str,
    mode: Option<CursorMode>,
    has_soft_deletes: bool,
) -> Result<Vec<Operation>, Expected> {
    let mut operations = Vec::new();
    for word in text.split(',') {
        let operation = parse::one_of(&OPERATIONS)(word.trim())?;
        if operations.contains(&operation) {
            return Err(Expected::new("operations separated by commas, each once"));
        }
        operations.push(operation);
    }
    if let Some(mode) = mode {
        check_operations(&operations, mode, has_soft_deletes)
            .map_err(|problem| Expected::new(problem.expected).hint(problem.hint))?;
    }
    Ok(operations)
}

fn no_settle(mode: CursorMode) -> Result<Duration, Expected> {
    Err(Expected::none(format!("nothing, since mode `{mode}` has no settle time"))
        .hint("remove it, or set the mode to `timestamp+pk` or `integer+pk`"))
}

fn read_settle(
    reader: &mut Reader<'_>,
    segment: &str,
    mode: Option<CursorMode>,
) -> Option<Duration> {
    match mode {
        Some(mode) if !mode.is_time_based() => {
            reader.read_if_set(&settings::SOURCE_SETTLE, Some(segment), |_| no_settle(mode));
            Some(Duration::ZERO)
        }
        Some(_) | None => reader.read(&settings::SOURCE_SETTLE, Some(segment), parse::duration),
    }
}

fn read_clock(
    reader: &mut Reader<'_>,
    segment: &str,
    mode: Option<CursorMode>,
) -> Option<SourceClock> {
    match mode {
        Some(mode) if mode != CursorMode::TimestampPk => {
            reader.read_if_set(&settings::SOURCE_CLOCK, Some(segment), |_| no_clock(mode));
            Some(SourceClock::Utc)
        }
        Some(_) | None => reader.read(&settings::SOURCE_CLOCK, Some(segment), clock),
    }
}

fn no_clock(mode: CursorMode) -> Result<SourceClock, Expected> {
    Err(Expected::none(format!("nothing, since mode `{mode}` does not use a time column"))
        .hint("remove it, or set the mode to `timestamp+pk`"))
}

/// Parses `utc`, `local` or an offset `+hh:mm` of at most 14 hours, the limit of SQL Server.
fn clock(text: &str) -> Result<SourceClock, Expected> {
    let offset = || {
        let (sign, rest) = match text.split_at_checked(1)? {
            ("+", rest) => (1, rest),
            ("-", rest) => (-1, rest),
            _ => return None,
        };
        let (hours, minutes) = rest.split_once(':')?;
        let two_digits =
            |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        if !two_digits(hours) || !two_digits(minutes) {
            return None;
        }
        let (hours, minutes): (i16, i16) = (hours.parse().ok()?, minutes.parse().ok()?);
        let all = hours * 60 + minutes;
        (minutes < 60 && all <= OFFSET_MAX_MINUTES).then_some(SourceClock::Offset(sign * all))
    };
    match text {
        "utc" => Ok(SourceClock::Utc),
        "local" => Ok(SourceClock::Local),
        _ => offset().ok_or_else(|| {
            Expected::new("`utc`, `local`, or an offset from UTC like `+01:00`, up to 14 hours")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_utc_local_or_a_valid_offset() {
        for (text, expected) in [
            ("utc", Some(SourceClock::Utc)),
            ("local", Some(SourceClock::Local)),
            ("+01:00", Some(SourceClock::Offset(60))),
            ("-03:30", Some(SourceClock::Offset(-210))),
            ("+14:00", Some(SourceClock::Offset(840))),
            ("+14:01", None),
            ("+1:00", None),
            ("+01:60", None),
            ("+0100", None),
            ("++1:00", None),
            ("01:00", None),
            ("Europe/Berlin", None),
            ("", None),
        ] {
            assert_eq!(clock(text).ok(), expected, "{text}");
        }
    }
}

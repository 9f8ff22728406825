//! Settings of the handler that writes to a SQL Server table.

use crate::config::mistake::{Mistake, Shown};
use crate::config::parse::{self, Expected};
use crate::config::read::Reader;
use crate::config::settings;
use crate::config::source::{connection_string, read_sql_connection};
use crate::config::{LedgerConfig, SqlConnection, SqlHandlerConfig};

/// Largest value of `LEDGER_DAYS`.
const LEDGER_DAYS_MAX: u32 = 3_650;

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<SqlHandlerConfig> {
    let at = Some(segment);
    let connection = read_connection(reader, segment);
    let table = reader.read(&settings::HANDLER_TABLE, at, parse::any);
    let key_is_set = reader.text(&settings::HANDLER_KEY.name_for(at)).is_some();
    let key = reader.read_if_set(&settings::HANDLER_KEY, at, parse::columns);
    let columns_are_set = reader.text(&settings::HANDLER_COLUMNS.name_for(at)).is_some();
    let columns = reader.read_if_set(&settings::HANDLER_COLUMNS, at, column_pairs);
    let deletes = [("delete", true), ("ignore", false)];
    let deletes = reader.read(&settings::HANDLER_DELETES, at, parse::one_of(&deletes));
    let fence_table = reader.read(&settings::HANDLER_FENCE_TABLE, at, parse::any);
    let (ledger_is_right, ledger) = read_ledger(reader, segment);
    let timeout = super::read_timeout(reader, segment);
    let tries_max = super::read_tries_max(reader, segment);
    let (connection_setting, connection) = connection?;
    let columns_are_right = columns.is_some() || !columns_are_set;
    if key_is_set && key.is_none() || !columns_are_right || !ledger_is_right {
        return None;
    }
    Some(SqlHandlerConfig {
        connection_setting,
        connection,
        table: table?,
        key,
        columns,
        deletes: deletes?,
        fence_table: fence_table?,
        ledger,
        timeout: timeout?,
        tries_max: tries_max?,
    })
}

/// Reads the ledger settings if the ledger is on. The first value is whether they are valid.
fn read_ledger(reader: &mut Reader<'_>, segment: &str) -> (bool, Option<LedgerConfig>) {
    let at = Some(segment);
    let switch = [("off", false), ("on", true)];
    let is_on = reader.read(&settings::HANDLER_LEDGER, at, parse::one_of(&switch));
    if is_on != Some(true) {
        return (is_on.is_some(), None);
    }
    let table = reader.read(&settings::HANDLER_LEDGER_TABLE, at, parse::any);
    let days = parse::number(1..=LEDGER_DAYS_MAX);
    let days = reader.read(&settings::HANDLER_LEDGER_DAYS, at, days);
    let ledger = table.zip(days).map(|(table, days)| LedgerConfig { table, days });
    (ledger.is_some(), ledger)
}

/// Reads a database connection. It must be set, since the default is the host's storage account.
fn read_connection(reader: &mut Reader<'_>, segment: &str) -> Option<(String, SqlConnection)> {
    let (setting, at) = (&settings::HANDLER_CONNECTION, Some(segment));
    let setting_name = setting.name_for(at);
    let Some(name) = reader.text(&setting_name) else {
        reader.note(Mistake {
            setting: setting_name,
            shown: Shown::Missing,
            expected: "the name of a setting with an ADO.NET connection string".to_owned(),
            hint: Some(format!(
                "`{}` is `sql`, which has no default for this",
                settings::HANDLER_KIND.name_for(at)
            )),
        });
        return None;
    };
    reader.read(setting, at, parse::setting_name)?;
    let connection = read_sql_connection(reader, &name, &setting_name)?;
    if connection.application_intent_read_only {
        let problem = "`ApplicationIntent` must not be `ReadOnly`, since rows are written";
        reader.wrong(&name, "", connection_string(problem));
        return None;
    }
    Some((name, connection))
}

/// Parses `id, total:amount`: columns of the source, each with its target column if the name differs.
fn column_pairs(text: &str) -> Result<Vec<(String, String)>, Expected> {
    let expected = || Expected::new("columns such as `id, total:amount`, each target column once");
    let mut pairs = Vec::new();
    for part in text.split(',') {
        let (source, target) = part.split_once(':').unwrap_or((part, part));
        pairs.push((source.trim().to_owned(), target.trim().to_owned()));
    }
    let mut targets: Vec<String> = pairs.iter().map(|(_, target)| target.to_lowercase()).collect();
    targets.sort();
    targets.dedup();
    let named = |(source, target): &(String, String)| !source.is_empty() && !target.is_empty();
    let fits = targets.len() == pairs.len() && pairs.iter().all(named);
    fits.then_some(pairs).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_named_once_or_as_a_pair() {
        let pairs = column_pairs("id, total : amount,id:copy").unwrap();
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(source, target)| (source.as_str(), target.as_str())).collect();
        assert_eq!(pairs, [("id", "id"), ("total", "amount"), ("id", "copy")]);
        for text in ["a,,b", "a:", ":a", "a, b:A", "a,A"] {
            assert!(column_pairs(text).is_err(), "{text}");
        }
    }
}

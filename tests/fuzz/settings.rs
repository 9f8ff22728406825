//! Settings, connection strings, and T-SQL in settings.

use std::fmt::Debug;

use highwater::config::{Config, secrets, set_values};
use highwater_azure::StorageConnection;
use highwater_mssql::ident::QualifiedName;
use highwater_mssql::{Filter, SqlConnection, check_database, check_query, pairs};

use crate::{assignments, text};

/// Occurs in secrets only, and must not be printed.
const SECRET: &str = "S3cretS3cretS3cret";

/// The environment: lines `NAME = value`. Every mistake has a text, and no text shows a password.
pub(crate) fn settings(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let mut vars = assignments(text);
    vars.entry("SQL".to_owned())
        .or_insert_with(|| format!("Server=db;Database=shop;User ID=me;Password={SECRET}"));
    let config = Config::from_vars(&vars);
    match &config {
        Ok(config) => hides(config),
        Err(mistakes) => assert!(!mistakes.to_string().is_empty()),
    }
    let found = secrets(&vars);
    drop((found, set_values(&vars, false)));
}

fn hides(shown: &impl Debug) {
    let shown = format!("{shown:?}");
    assert!(!shown.contains(SECRET), "{shown}");
}

/// Connection strings of SQL Server and of storage accounts.
pub(crate) fn connection_strings(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let secret = format!("{text};Password={SECRET}");
    if let Ok(connection) = SqlConnection::parse(&secret) {
        hides(&connection);
    }
    let problems = SqlConnection::parse(text).err().unwrap_or_default();
    assert!(problems.iter().all(|problem| !problem.is_empty()), "{problems:?}");
    assert!(pairs(text).count() <= text.len());
    let key = format!("{text};AccountKey={SECRET}{SECRET}==");
    if let Ok(connection) = StorageConnection::parse(&key) {
        hides(&connection);
    }
    drop(StorageConnection::parse(text));
}

/// T-SQL in settings: a condition with its parameters, a query, the name of a table. The first line is the text, the
/// rest are parameters.
pub(crate) fn filters(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let (condition, params) = text.split_once('\n').unwrap_or((text, ""));
    let params = assignments(params);
    drop(Filter::parse(condition, &params));
    // A value never becomes part of the statement.
    let hidden = params.into_keys().map(|name| (name, SECRET.to_owned())).collect();
    if let Ok(filter) = Filter::parse(condition, &hidden) {
        let parts = [vec![filter.clone()], filter.conditions()].concat();
        let sql = |filter: &Filter| filter.sql(|at| format!("@P{at}"));
        let is_hidden = |filter: &Filter| !sql(filter).contains(SECRET);
        assert!(condition.contains(SECRET) || parts.iter().all(is_hidden), "{parts:?}");
    }
    drop((check_query(condition), check_database(condition, Some("shop"))));
    if let Ok(name) = QualifiedName::parse(condition) {
        let again = QualifiedName::parse(&name.quoted());
        assert_eq!(again.as_ref().ok(), Some(&name), "{}", name.quoted());
    }
}

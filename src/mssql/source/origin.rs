//! What rows are read from: a table or view by name, or a query as a derived table. Pure.
//!
//! # Design
//!
//! The server describes both, and both follow `FROM` under the name `t`, so nothing else has to distinguish
//! them. For a query the server returns neither a key nor an identity.

use std::fmt;

use highwater_engine::cursor::{SourceDefinition, SourceFingerprint};
use highwater_engine::event::SourceLabel;
use highwater_engine::partition::poller_of_partition;
use highwater_engine::source::SourceShape;

use crate::connection_string::SqlConnection;
use crate::filter::{Filter, FilterProblem};
use crate::ident::{QualifiedName, literal, quote};
use crate::source::Relation;
use crate::tsql::{check_database, check_query, connected_database, without_literals};

use super::SourceSettings;
use super::choice::Choice;

/// The table, view or query to read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Table(QualifiedName),
    Query(String),
}

impl Origin {
    /// Parses the settings.
    ///
    /// # Errors
    ///
    /// Why it cannot be read from, as far as this can be checked without a server.
    pub(super) fn of(settings: &SourceSettings) -> Result<Self, String> {
        let name = match &settings.relation {
            Relation::Table(name) => name,
            Relation::Query(text) => {
                let wrong = |reason| format!("`SOURCE__QUERY`: {reason}");
                check_query(text).map_err(wrong)?;
                if settings.mode.is_none_or(|mode| !mode.is_time_based()) {
                    let connected = settings.connection.database.as_deref();
                    check_database(text, connected).map_err(wrong)?;
                }
                return Ok(Self::Query(text.trim().to_owned()));
            }
        };
        let mut table = QualifiedName::parse(name).map_err(|error| error.to_string())?;
        if let Some(database) = table.database.take() {
            // A rowversion of another database does not order its rows.
            let connected = settings.connection.database.as_deref();
            if !connected.is_some_and(|connected| database.eq_ignore_ascii_case(connected)) {
                return Err(format!(
                    "table `{name}` is in another database than the connection ({}): set `{database}` \
                     in the connection string",
                    connected_database(connected)
                ));
            }
        }
        Ok(Self::Table(table))
    }

    /// Returns the SQL text to follow `FROM`, which needs an alias after it.
    pub(super) fn sql(&self) -> String {
        match self {
            Self::Table(table) => table.quoted(),
            // On a line of its own, so that a comment in the query cannot hide what follows.
            Self::Query(text) => format!("({text}\n)"),
        }
    }

    /// Returns the statement that describes the columns. An alias type is shown as its base type. CLR types
    /// share one system type, so they are identified by their own id.
    pub(super) fn describe(&self) -> String {
        let types = "sys.types AS t ON t.user_type_id = \
                     CASE WHEN c.system_type_id = 240 THEN c.user_type_id ELSE c.system_type_id END";
        match self {
            Self::Table(table) => format!(
                "SELECT c.name, t.name AS type_name, c.max_length, c.precision, c.scale, c.is_nullable, \
                 c.collation_name, c.is_identity, \
                 CAST(CASE WHEN EXISTS (SELECT 1 FROM sys.indexes AS x JOIN sys.index_columns AS i \
                 ON i.object_id = x.object_id AND i.index_id = x.index_id \
                 WHERE x.object_id = c.object_id AND x.is_primary_key = 1 \
                 AND i.column_id = c.column_id) THEN 1 ELSE 0 END AS BIT) AS is_key \
                 FROM sys.columns AS c JOIN {types} \
                 WHERE c.object_id = OBJECT_ID({}) ORDER BY c.column_id;",
                literal(&table.quoted())
            ),
            // In the form in which it is read, so that unnamed columns are detected.
            Self::Query(_) => format!(
                "SELECT c.name, t.name AS type_name, c.max_length, c.precision, c.scale, c.is_nullable, \
                 c.collation_name, CAST(0 AS BIT) AS is_identity, CAST(0 AS BIT) AS is_key, \
                 c.error_number, c.error_message \
                 FROM sys.dm_exec_describe_first_result_set({}, NULL, 0) AS c LEFT JOIN {types} \
                 ORDER BY c.column_ordinal;",
                literal(&format!("SELECT t.* FROM {} AS t", self.sql()))
            ),
        }
    }

    /// Returns the table; `None` for a query.
    pub(super) fn table(&self) -> Option<&QualifiedName> {
        match self {
            Self::Table(table) => Some(table),
            Self::Query(_) => None,
        }
    }

    /// Returns the description for handlers, and the identity that gives a checkpoint its meaning.
    pub(super) fn shape(
        &self,
        settings: &SourceSettings,
        filter: Option<&Filter>,
        choice: &Choice,
    ) -> SourceShape {
        let object = match self {
            Self::Table(table) => table.to_string(),
            Self::Query(_) => "query".to_owned(),
        };
        // A row is the same event whichever partition reads it.
        let label = SourceLabel {
            poller: poller_of_partition(&settings.poller).to_owned(),
            object,
            mode: choice.mode.as_str(),
        };
        SourceShape {
            label,
            mode: choice.mode,
            key: settings.key.clone(),
            fingerprint: self.fingerprint(settings, filter, choice),
            definition: self.definition(settings, filter, choice),
        }
    }

    /// Returns the parts of the fingerprint for display: without the content of literals and parameters.
    fn definition(
        &self,
        settings: &SourceSettings,
        filter: Option<&Filter>,
        choice: &Choice,
    ) -> SourceDefinition {
        let object = match self {
            Self::Table(table) => table.to_string(),
            Self::Query(text) => without_literals(text),
        };
        let filter = filter.map(|filter| without_literals(filter.text())).unwrap_or_default();
        let partition = settings.partition.map(|partition| partition.to_string());
        SourceDefinition::of(&[
            ("server", &shown_server(&settings.connection)),
            ("database", settings.connection.database.as_deref().unwrap_or_default()),
            (if self.table().is_some() { "object" } else { "query" }, &object),
            ("mode", choice.mode.as_str()),
            ("cursor", choice.cursor.as_deref().unwrap_or_default()),
            ("key", &settings.key.join(", ")),
            ("filter", &filter),
            ("partition", partition.as_deref().unwrap_or_default()),
        ])
    }

    fn fingerprint(
        &self,
        settings: &SourceSettings,
        filter: Option<&Filter>,
        choice: &Choice,
    ) -> SourceFingerprint {
        let server = server(&settings.connection);
        let key = settings.key.iter().map(|column| quote(column)).collect::<Vec<_>>().join(",");
        let object = match self {
            Self::Table(table) => ("object", table.quoted()),
            Self::Query(text) => ("query", text.clone()),
        };
        let values = filter.map(Filter::values_text).unwrap_or_default();
        let mut parts = vec![
            ("server", server.as_str()),
            ("database", settings.connection.database.as_deref().unwrap_or_default()),
            (object.0, &object.1),
            ("mode", choice.mode.as_str()),
            ("cursor", choice.cursor.as_deref().unwrap_or_default()),
            ("key", &key),
            ("filter", filter.map(Filter::text).unwrap_or_default()),
        ];
        if !values.is_empty() {
            parts.push(("filter_values", &values));
        }
        // Rows with other keys follow the same position.
        let partition = settings.partition.map(|partition| partition.to_string());
        parts.extend(partition.as_deref().map(|partition| ("partition", partition)));
        SourceFingerprint::of(&parts)
    }
}

fn shown_server(connection: &SqlConnection) -> String {
    let SqlConnection { host, instance, port, .. } = connection;
    let instance = instance.as_ref().map(|name| format!("\\{name}")).unwrap_or_default();
    format!("{host}{instance},{port}").to_lowercase()
}

fn server(connection: &SqlConnection) -> String {
    let SqlConnection { host, instance, port, .. } = connection;
    let instance = instance.as_deref().unwrap_or_default();
    format!("{host}\\{instance},{port}").to_lowercase()
}

/// The name for display.
impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => table.fmt(formatter),
            Self::Query(_) => formatter.write_str("SOURCE__QUERY"),
        }
    }
}

/// Parses the filter condition; `None` if there is none.
///
/// # Errors
///
/// The problem of the condition.
pub(super) fn filter(settings: &SourceSettings) -> Result<Option<Filter>, String> {
    let text = settings.filter.as_deref().unwrap_or_default();
    let filter = Filter::parse(text, &settings.filter_params).map_err(|problems| {
        let problems = problems.into_iter().map(|problem| match problem {
            FilterProblem::Text(reason) => reason,
            FilterProblem::Missing(name) => format!("it uses `@{name}`, which has no value"),
            FilterProblem::Unused(name) => format!("it does not use `@{name}`, which has a value"),
            FilterProblem::Value(name, reason) => format!("the value of `@{name}`: {reason}"),
        });
        format!("`SOURCE__FILTER`: {}", problems.collect::<Vec<_>>().join("; "))
    })?;
    Ok(Some(filter).filter(|filter| !filter.text().is_empty()))
}

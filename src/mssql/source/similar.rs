//! Suggests a table that exists for one that does not.

use highwater_engine::error::ErrorKind;
use highwater_engine::source::FetchError;
use highwater_engine::value::Value;

use crate::closest::closest;
use crate::connection::Connection;
use crate::ident::QualifiedName;

use super::describe::{self, Column};
use super::{Mssql, plan, values};

/// Schema and name of each table and view that the login may see.
const TABLES: &str = "SELECT s.name AS [schema], o.name AS [object] FROM sys.objects AS o \
     JOIN sys.schemas AS s ON s.schema_id = o.schema_id WHERE o.type = N'U' OR o.type = N'V'";

impl Mssql {
    /// Describes the columns; if there is no such table, the error names a similar one.
    ///
    /// Only for a first look: a poller that runs should not search the catalog at each tick.
    pub(super) async fn describe_or_suggest(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<Column>, FetchError> {
        let columns = connection.query(&self.origin.describe(), &[], describe::column).await?;
        if !columns.is_empty() {
            return Ok(columns);
        }
        let error = plan::not_found(&self.origin);
        let Some(name) = self.origin.table() else { return Err(error) };
        let Ok(tables) = connection.query(TABLES, &[], |row| Ok(values(&row))).await else {
            // The suggestion is optional.
            return Err(error);
        };
        let tables = tables.into_iter().filter_map(|row| match <[Value; 2]>::try_from(row) {
            Ok([Value::Text(schema), Value::Text(object)]) => Some((schema, object)),
            Ok(_) | Err(_) => None,
        });
        Err(match similar(name, &tables.collect::<Vec<_>>()) {
            Some(meant) => {
                let text = format!("{error}; did you mean `{meant}`?");
                FetchError::new(ErrorKind::Configuration, text)
            }
            None => error,
        })
    }
}

/// Returns the table of the same name in another schema, or the one with the most similar name.
fn similar(name: &QualifiedName, tables: &[(String, String)]) -> Option<String> {
    let shown = |(schema, object): &(String, String)| {
        let name = QualifiedName { database: None, schema: schema.clone(), object: object.clone() };
        name.to_string()
    };
    let wanted = name.object.to_lowercase();
    let elsewhere = tables.iter().find(|(_, object)| object.to_lowercase() == wanted);
    if let Some(table) = elsewhere {
        return Some(shown(table));
    }
    let names: Vec<String> = tables.iter().map(|(_, object)| object.to_lowercase()).collect();
    let meant = closest(&wanted, names.iter().map(String::as_str))?;
    names.iter().zip(tables).find(|(name, _)| *name == meant).map(|(_, table)| shown(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_in_another_schema_comes_before_a_similar_one() {
        let tables = [("dbo", "Orders"), ("dbo", "order_items"), ("sales", "Customers")];
        let tables = tables.map(|(schema, object)| (schema.to_owned(), object.to_owned()));
        let similar = |name: &str| similar(&QualifiedName::parse(name).unwrap(), &tables);
        assert_eq!(similar("dbo.order").as_deref(), Some("dbo.Orders"));
        assert_eq!(similar("customers").as_deref(), Some("sales.Customers"));
        assert_eq!(similar("items").as_deref(), Some("dbo.order_items"));
        assert_eq!(similar("shipments"), None);
    }
}

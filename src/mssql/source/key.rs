//! The key of a position: its values for comparisons, and their place in a row. Pure.

use highwater_engine::cursor::Cursor;
use highwater_engine::error::{ErrorKind, reset_to_beginning};
use highwater_engine::source::{FetchError, FetchWindow};

use crate::ident::quote;

use super::describe::Column;
use super::form::KeyValue;
use super::plan::Plan;
use super::query::KeyTypes;

impl Plan {
    /// Returns the key values of a position.
    pub(super) fn key_values(&self, cursor: &Cursor) -> Result<Vec<KeyValue>, FetchError> {
        let value = |(column, name): (&Column, &String)| {
            let value = cursor.key.get(name).ok_or_else(|| "it is missing".to_owned());
            value.and_then(|value| column.key_value(value)).map_err(|why| {
                let reason = format!(
                    "the checkpoint has no value of type `{}` for key column `{name}` ({why}): \
                     restore the key, or start over with {}",
                    column.type_name,
                    reset_to_beginning(&self.poller, "key changed")
                );
                FetchError::new(ErrorKind::Data, reason)
            })
        };
        self.key.iter().zip(&self.key_names).map(value).collect()
    }

    /// Whether key values have their own types, which then appear in the statements of a fetch.
    pub(super) fn has_variants(&self) -> bool {
        self.key.iter().any(Column::is_variant)
    }

    /// Returns the types of the key values in a window's bounds: the statement depends on them.
    pub(super) fn key_types(&self, window: FetchWindow<'_>) -> Result<KeyTypes, FetchError> {
        if !self.has_variants() {
            return Ok(KeyTypes::default());
        }
        let of = |cursor: Option<&Cursor>| {
            let values = cursor.filter(|cursor| !cursor.key.is_empty());
            let values = values.map(|cursor| self.key_values(cursor)).transpose()?;
            let bases = values.unwrap_or_default().into_iter().map(|value| value.base).collect();
            Ok::<_, FetchError>(bases)
        };
        Ok(KeyTypes { after: of(window.after)?, upto: of(window.upto)? })
    }

    /// Returns the key columns, qualified with `alias`.
    pub(super) fn key_names_of(&self, alias: &str) -> Vec<String> {
        self.key.iter().map(|column| format!("{alias}.{}", quote(&column.name))).collect()
    }

    /// Returns the select list with the key from the change, since a deleted row has no other.
    pub(super) fn select_of_change(&self) -> Vec<String> {
        let mut select = self.select.clone();
        for (column, at) in self.key.iter().zip(&self.key_at) {
            if let Some(selected) = select.get_mut(*at) {
                let name = quote(&column.name);
                // A name cannot contain its own qualified form, so its alias stays.
                *selected = selected.replace(&format!("t.{name}"), &format!("c.{name}"));
            }
        }
        select
    }
}

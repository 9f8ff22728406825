//! Rows of values in place of a table: `(VALUES (…), (…)) AS v (a, b)`.

use super::{
    coerce::Collation,
    parser::{Parser, quoted},
    query::{Scope, Source, SourceColumn},
};
use crate::types::{SqlError, Type};

impl Parser<'_> {
    /// Parses the rows and the names of their columns; the next token is the opening parenthesis.
    pub(crate) fn value_source(&mut self, body: &mut String) -> Result<Source, SqlError> {
        self.expect_symbol("(")?;
        self.expect("VALUES")?;
        let mut types: Vec<Option<Type>> = Vec::new();
        let mut rows = Vec::new();
        loop {
            let (found, row) = self.value_row()?;
            if rows.is_empty() {
                types = found;
            } else if found != types {
                // Each type would have to be converted to the one of highest precedence.
                return Err(SqlError::unsupported("VALUES of different types in a column"));
            }
            rows.push(row);
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        self.eat("AS");
        let alias = self.name()?;
        let names = self.column_names()?;
        if names.len() != types.len() {
            let text = format!("'{alias}' has another number of columns than of values.");
            return Err(SqlError::new(8158, 16, text));
        }
        let items: Vec<_> = (1..)
            .zip(&names)
            .map(|(number, name)| format!("column{number} AS {}", quoted(name)))
            .collect();
        body.extend(["(SELECT ", &items.join(", "), " FROM (VALUES ", &rows.join(", "), "))"]);
        let columns = names.into_iter().zip(types);
        let columns = columns.map(|(name, ty)| {
            let collation = ty.and_then(|ty| Collation::of(ty, None));
            SourceColumn { name, ty, nullable: true, collation }
        });
        Ok(Source { alias, schema: None, columns: columns.collect() })
    }

    fn value_row(&mut self) -> Result<(Vec<Option<Type>>, String), SqlError> {
        self.expect_symbol("(")?;
        let (mut types, mut values) = (Vec::new(), Vec::new());
        loop {
            let value = self.expression(&Scope::default())?;
            types.push(value.ty);
            values.push(value.sql);
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok((types, format!("({})", values.join(", "))))
    }

    fn column_names(&mut self) -> Result<Vec<String>, SqlError> {
        self.expect_symbol("(")?;
        let mut names = Vec::new();
        loop {
            names.push(self.name()?);
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(names)
    }
}

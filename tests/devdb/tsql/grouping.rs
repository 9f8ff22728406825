//! GROUP BY and HAVING, and which columns a grouped query may name.
//!
//! For a column that is neither grouped by nor aggregated, SQLite returns the value of any row of the group;
//! SQL Server rejects it.

use super::{coerce::Expression, parser::Parser, query::Scope};
use crate::types::SqlError;

/// The columns that an expression names outside of aggregates.
#[derive(Debug)]
pub(super) struct Uses {
    sql: String,
    columns: Vec<String>,
    has_aggregate: bool,
}

impl Uses {
    /// The uses of the expression that was parsed since `first`.
    pub(super) fn since(
        parser: &Parser<'_>,
        first: usize,
        scope: &Scope<'_>,
        expression: &Expression,
    ) -> Self {
        let uses = parser.uses.get(first..).unwrap_or_default();
        let own = uses.iter().filter(|(level, _)| *level == scope.level());
        Self {
            sql: expression.sql.clone(),
            columns: own.map(|(_, column)| column.clone()).collect(),
            has_aggregate: parser.aggregates > 0,
        }
    }

    /// Whether it is the same for all rows.
    pub(super) fn is_constant(&self) -> bool {
        self.columns.is_empty() && !self.has_aggregate && !self.sql.contains(['(', '"'])
    }
}

/// The grouping of a query, and the columns it names outside of aggregates.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    pub(super) items: Vec<Uses>,
    pub(super) order: Vec<Uses>,
    pub(super) has_aggregates: bool,
    having: Vec<Uses>,
    groups: Vec<String>,
}

impl Grouping {
    /// Whether all rows are one group.
    pub(super) fn is_one_group(&self) -> bool {
        self.groups.is_empty() && self.is_grouped()
    }

    fn is_grouped(&self) -> bool {
        self.has_aggregates || !self.groups.is_empty() || !self.having.is_empty()
    }

    /// # Errors
    /// 8120, 8121 and 8127: a column is neither grouped by nor inside of an aggregate.
    pub(super) fn check(&self) -> Result<(), SqlError> {
        if !self.is_grouped() {
            return Ok(());
        }
        let clauses = [
            (&self.items, 8120, "select list"),
            (&self.having, 8121, "HAVING clause"),
            (&self.order, 8127, "ORDER BY clause"),
        ];
        for (uses, number, clause) in clauses {
            let other = uses
                .iter()
                .filter(|uses| !self.groups.contains(&uses.sql))
                .find_map(|uses| uses.columns.iter().find(|column| !self.groups.contains(column)));
            if let Some(column) = other {
                let text = format!(
                    "Column {column} is invalid in the {clause} because it is not contained in \
                     either an aggregate function or the GROUP BY clause."
                );
                return Err(SqlError::new(number, 16, text));
            }
        }
        Ok(())
    }
}

impl Parser<'_> {
    /// Parses GROUP BY and HAVING.
    pub(super) fn groups(
        &mut self,
        scope: &Scope<'_>,
        body: &mut String,
        grouping: &mut Grouping,
    ) -> Result<(), SqlError> {
        if self.eat("GROUP") {
            self.expect("BY")?;
            let mut groups = Vec::new();
            loop {
                let first = self.uses.len();
                let group = self.expression(scope)?;
                if Uses::since(self, first, scope, &group).columns.is_empty() {
                    let text = "Each GROUP BY expression must contain at least one column that is \
                                not an outer reference.";
                    return Err(SqlError::new(164, 15, text));
                }
                groups.push(group.ordered());
                grouping.groups.push(group.sql);
                if !self.eat_symbol(",") {
                    break;
                }
            }
            body.extend([" GROUP BY ", &groups.join(", ")]);
        }
        if self.eat("HAVING") {
            let first = self.uses.len();
            let condition = self.condition(scope)?;
            let uses = Uses::since(self, first, scope, &Expression::condition(condition.clone()));
            grouping.having.push(uses);
            body.extend([" HAVING ", &condition]);
        }
        Ok(())
    }

    /// Parses the argument of an aggregate, whose columns are unrestricted.
    pub(super) fn aggregated<T>(
        &mut self,
        scope: &Scope<'_>,
        argument: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let first = self.uses.len();
        let read = argument(self)?;
        let mut uses = self.uses.split_off(first);
        uses.retain(|(level, _)| *level != scope.level());
        self.uses.append(&mut uses);
        self.aggregates += 1;
        Ok(read)
    }
}

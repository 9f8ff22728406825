//! The rest of a query after its first part: UNION and ORDER BY.

use super::{
    coerce::{Expression, unified},
    expression::same_name,
    grouping::{Grouping, Uses},
    lexer::Token,
    limit::Limit,
    parser::Parser,
    query::{Query, Scope},
};
use crate::types::{SqlError, Type};

impl Parser<'_> {
    pub(super) fn unions(
        &mut self,
        query: &mut Query,
        outer: Option<&Scope<'_>>,
    ) -> Result<(), SqlError> {
        while self.eat("UNION") {
            let keyword = if self.eat("ALL") { "UNION ALL" } else { "UNION" };
            let mut scope = Scope { tables: Vec::new(), outer };
            let aggregates = std::mem::take(&mut self.aggregates);
            let (mut next, mut grouping) = self.nested(|parser| parser.part(&mut scope))?;
            grouping.has_aggregates |= self.aggregates > 0;
            grouping.check()?;
            self.aggregates = aggregates;
            if next.limit != Limit::default() || query.limit != Limit::default() {
                // SQLite would apply it to all rows.
                return Err(SqlError::unsupported("TOP with UNION"));
            }
            if next.items.len() != query.items.len() {
                let text = "All queries combined using a UNION operator must have an equal number \
                            of expressions in their target lists.";
                return Err(SqlError::new(205, 16, text));
            }
            for (item, other) in query.items.iter_mut().zip(&mut next.items) {
                one_type(item, other)?;
            }
            query.unions.push((keyword, next));
        }
        Ok(())
    }

    pub(super) fn order(
        &mut self,
        scope: &Scope<'_>,
        query: &mut Query,
        grouping: &mut Grouping,
    ) -> Result<(), SqlError> {
        if !self.eat("ORDER") {
            grouping.has_aggregates |= self.aggregates > 0;
            return Ok(());
        }
        self.expect("BY")?;
        let mut terms: Vec<(String, &str)> = Vec::new();
        loop {
            let term = self.order_term(scope, query, grouping)?;
            if terms.iter().any(|(known, _)| *known == term) {
                let text = "A column has been specified more than once in the order by list. \
                            Columns in the order by list must be unique.";
                return Err(SqlError::new(169, 15, text));
            }
            let direction = if self.eat("DESC") { " DESC" } else { "" };
            self.eat("ASC");
            terms.push((term, direction));
            if !self.eat_symbol(",") {
                break;
            }
        }
        grouping.has_aggregates |= self.aggregates > 0;
        let terms: Vec<_> =
            terms.iter().map(|(term, direction)| format!("{term}{direction}")).collect();
        query.order = format!(" ORDER BY {}", terms.join(", "));
        Ok(())
    }

    /// An ORDER BY term: an item by its name or number, or an expression of the sources.
    fn order_term(
        &mut self,
        scope: &Scope<'_>,
        query: &Query,
        grouping: &mut Grouping,
    ) -> Result<String, SqlError> {
        let alias = match (self.peek(), self.peek_at(1)) {
            (_, Some(Token::Symbol("." | "("))) => None,
            (Some(Token::Name(name) | Token::Word(name)), _) => {
                query.items.iter().position(|item| same_name(&item.name, name))
            }
            (Some(Token::Number(number)), _) => {
                let place = number.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
                let place = place.filter(|place| *place < query.items.len());
                let text = "The ORDER BY position number is out of range of the select list.";
                Some(place.ok_or_else(|| SqlError::new(108, 16, text))?)
            }
            _ => None,
        };
        let item = alias.and_then(|place| query.items.get(place));
        let (term, uses) = if let Some(item) = item {
            self.next();
            (item.clone(), None)
        } else {
            let uses = self.uses.len();
            let term = self.expression(scope)?;
            let uses = Uses::since(self, uses, scope, &term);
            (term, Some(uses))
        };
        let place = query.items.iter().position(|item| item.sql == term.sql);
        if !query.unions.is_empty() {
            let text = "ORDER BY items must appear in the select list if the statement contains a \
                        UNION operator.";
            let place = place.ok_or_else(|| SqlError::new(104, 16, text))?;
            if term.ordered() != term.sql && !term.ty.is_some_and(Type::is_text) {
                return Err(SqlError::unsupported("ORDER BY an offset with UNION"));
            }
            return Ok((place + 1).to_string());
        }
        if query.distinct && place.is_none() {
            let text = "ORDER BY items must appear in the select list if SELECT DISTINCT is \
                        specified.";
            return Err(SqlError::new(145, 15, text));
        }
        if let Some(uses) = uses {
            if uses.is_constant() && place.is_none() {
                let text = "A constant expression was encountered in the ORDER BY list.";
                return Err(SqlError::new(408, 16, text));
            }
            grouping.order.push(uses);
        }
        Ok(term.ordered())
    }
}

/// Gives two items in one column of a UNION their common type.
fn one_type(first: &mut Expression, second: &mut Expression) -> Result<(), SqlError> {
    let mut both = [first.clone(), second.clone()];
    let (ty, collation) = unified(&mut both)?;
    let [one, other] = both;
    let nullable = one.nullable || other.nullable;
    *first = Expression { ty, collation, nullable, name: first.name.clone(), ..one };
    *second = Expression { ty, collation, ..other };
    Ok(())
}

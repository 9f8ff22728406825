//! Checks of the table's columns: types, `NULL`, uniqueness, order.

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::Finding;
use highwater_engine::value::Value;

use super::super::describe::Column;
use super::super::mask::MaskMethod;
use super::super::unique_key::IS_VIEW;
use super::index::{self, INDEXES, Index, Support};
use super::server::unexpected_answer;
use super::{Examination, Table};
use crate::connection::Param;
use crate::ident::{QualifiedName, quote};

/// Most rows to count: what matters is whether there are any.
const COUNTED_MAX: i64 = 1_000;

impl Examination<'_> {
    /// Reports each delivered column with its JSON form.
    pub(super) fn types(&mut self, table: &Table) {
        let check = "column types";
        let delivered = |column: &&Column| table.plan.columns.names().contains(&column.name);
        let forms: Vec<String> = table
            .columns
            .iter()
            .filter(delivered)
            .map(|column| {
                let hash = self.mask_of(column).and_then(MaskMethod::hash_name);
                let form = hash.unwrap_or_else(|| form(column));
                format!("{} {} as {form}", column.name, type_name(column))
            })
            .collect();
        self.add(Finding::ok(check, forms.join(", ")));
    }

    /// Returns how a column is masked, if it is.
    fn mask_of(&self, column: &Column) -> Option<MaskMethod> {
        let columns = self.source.settings.mask.columns();
        // As written, or else ignoring case, like the columns of a read.
        let exact = columns.iter().find(|(name, _)| name.trim() == column.name);
        let found = exact.or_else(|| columns.iter().find(|(name, _)| same(name, &column.name)));
        found.map(|(_, method)| *method)
    }

    /// Reports each column that has no lossless form; returns the reasons, worded as in a tick.
    pub(super) fn unreadable(&mut self, columns: &[Column]) -> Vec<String> {
        let settings = &self.source.settings;
        let named =
            |names: &[String], column: &Column| names.iter().any(|name| same(name, &column.name));
        let is_read = |column: &&Column| {
            settings.columns.as_ref().is_none_or(|names| named(names, column))
                && !named(&settings.columns_excluded, column)
                && self.mask_of(column) != Some(MaskMethod::Drop)
        };
        let read = columns.iter().filter(is_read);
        let reasons: Vec<String> = read.filter_map(|column| column.expression().err()).collect();
        for reason in &reasons {
            let (found, fix) = reason.split_once(": ").unwrap_or((reason, "exclude it"));
            self.add(Finding::error("column types", found, fix));
        }
        reasons
    }

    /// Rows whose cursor or key is `NULL` have no place in the order.
    pub(super) async fn nulls(&mut self, table: &Table) {
        let check = "nullability";
        let cursor = table.plan.cursor.iter().map(|column| (column, true));
        let key = table.plan.key.iter().map(|column| (column, false));
        let nullable: Vec<(&Column, bool)> =
            cursor.chain(key).filter(|(column, _)| column.nullable).collect();
        if nullable.is_empty() {
            self.add(Finding::ok(check, "no row can have NULL in its cursor or key"));
        }
        for (column, is_cursor) in nullable {
            let name = quote(&column.name);
            let sql = format!(
                "SELECT COUNT(*) AS n FROM (SELECT TOP ({COUNTED_MAX}) 1 AS x FROM {} AS t \
                 WHERE t.{name} IS NULL) AS q",
                table.plan.quoted
            );
            let select = self.grant("SELECT");
            let Some(row) = self.ask_row(check, (&sql, &[]), &select).await else { continue };
            let finding = match row.as_slice() {
                [Value::Int(rows)] => nullable_finding(&self.object(), column, is_cursor, *rows),
                _ => unexpected_answer(check),
            };
            self.add(finding);
        }
    }

    /// Checks which index makes rows unique, and which one returns them in order.
    pub(super) async fn indexes(&mut self, table: &Table) {
        let Some(name) = self.source.origin.table() else {
            self.add(depends_on_tables(table, "a query"));
            return;
        };
        let param = [Param::Text(name.quoted())];
        let rows = match self.ask(INDEXES, &param).await {
            Ok(rows) => rows,
            Err(error) => {
                let right = self.grant("VIEW DEFINITION");
                self.add(self.unanswered("index", &error, &right));
                return;
            }
        };
        let view = self.ask(IS_VIEW, &param).await;
        let is_view = matches!(view.as_deref(), Ok([row]) if row.as_slice() == [Value::Int(1)]);
        let Some(indexes) = index::read(&rows) else {
            self.add(unexpected_answer("index"));
            return;
        };
        if is_view && indexes.is_empty() {
            self.add(depends_on_tables(table, "a view"));
            return;
        }
        self.add(unique(table, name, &indexes));
        let statement = |columns: &[&str]| index::create_index(name, columns);
        let finding = supporting(table, &indexes, statement);
        self.add(finding);
    }
}

fn unique(table: &Table, name: &QualifiedName, indexes: &[Index]) -> Finding {
    let check = "unique key";
    let columns = table.plan.identity();
    if let Some(name) = index::unique_in(indexes, &columns) {
        return Finding::ok(check, format!("`{name}` makes the position of every row unique"));
    }
    // Several rows may share a key at different positions: the position must be unique.
    let quoted: Vec<String> = columns.iter().copied().map(quote).collect();
    let (names, plain) = (columns.join("`, `"), quoted.join(", "));
    let found = format!("no unique index keeps two rows from having the same `{names}`");
    let fix = format!(
        "set `SOURCE__KEY` to the primary key's columns, or run `{}`; that fails while rows share these values: list them with \
         `SELECT {plain}, COUNT(*) AS n FROM {} AS t GROUP BY {plain} HAVING COUNT(*) > 1` and remove the duplicates first",
        index::create_unique_index(name, &columns),
        table.plan.quoted
    );
    match table.choice.mode {
        // The server gives each row its own value; only SELECT INTO copies one.
        CursorMode::RowVersion => Finding::warning(check, found, fix),
        CursorMode::TimestampPk | CursorMode::IntegerPk | CursorMode::ChangeTracking => {
            Finding::error(
                check,
                format!(
                    "{found}: a tick that reads two such rows fails, and a row inserted after the \
                     other was delivered is missed"
                ),
                fix,
            )
        }
    }
}

fn supporting(table: &Table, indexes: &[Index], statement: impl Fn(&[&str]) -> String) -> Finding {
    let check = "index";
    let columns = table.plan.identity();
    let fix = || {
        format!(
            "`{}`, with `WITH (ONLINE = ON)` if the edition supports it, otherwise off-peak",
            statement(&columns)
        )
    };
    match index::support(indexes, &columns) {
        Support::Full(name) => Finding::ok(
            check,
            format!("`{name}` returns rows in order of `{}`", columns.join("`, `")),
        ),
        Support::Leading(name) => Finding::warning(
            check,
            format!(
                "`{name}` starts with `{}`, but does not continue with `{}` in one direction: rows that share \
                 the first are sorted at every read",
                columns.first().copied().unwrap_or_default(),
                columns.get(1..).unwrap_or_default().join("`, `")
            ),
            fix(),
        ),
        Support::None => Finding::warning(
            check,
            format!(
                "no index starts with `{}`: every tick scans the whole table",
                columns.join("`, `")
            ),
            fix(),
        ),
    }
}

fn depends_on_tables(table: &Table, what: &str) -> Finding {
    let name = &table.plan.table;
    Finding::unknown(
        "index",
        format!("`{name}` is {what}: uniqueness and order depend on its tables"),
        format!(
            "index its tables by `{}`, and make sure that these columns are unique",
            table.plan.identity().join("`, `")
        ),
    )
}

fn nullable_finding(object: &str, column: &Column, is_cursor: bool, rows: i64) -> Finding {
    let check = "nullability";
    let name = &column.name;
    let null_rows = match rows {
        1 => "1 row has NULL".to_owned(),
        COUNTED_MAX => format!("{COUNTED_MAX} or more rows have NULL"),
        _ => format!("{rows} rows have NULL"),
    };
    let alter = format!(
        "`ALTER TABLE {} ALTER COLUMN {} {} NOT NULL`, after giving the rows a value",
        object,
        quote(name),
        column.declared()
    );
    match (is_cursor, rows) {
        (true, 0) => Finding::warning(
            check,
            format!(
                "cursor `{name}` is nullable; no row has NULL now, but such a row would never be read"
            ),
            alter,
        ),
        (true, _) => Finding::error(
            check,
            format!("{null_rows} in cursor `{name}`; such a row is never read"),
            format!("{alter}, or exclude them with a `FILTER`"),
        ),
        (false, 0) => Finding::warning(
            check,
            format!(
                "key `{name}` is nullable; no row has NULL now, but such a row would stop the poller"
            ),
            alter,
        ),
        (false, _) => Finding::error(
            check,
            format!("{null_rows} in key `{name}`: the first one stops the poller"),
            format!("{alter}, or set another key as `SOURCE__KEY`"),
        ),
    }
}

fn type_name(column: &Column) -> String {
    match column.type_name.as_str() {
        "timestamp" | "rowversion" => "rowversion".to_owned(),
        _ => column.declared(),
    }
}

/// Returns the JSON form in a few words; `docs/reference/types.md` has the details.
fn form(column: &Column) -> &'static str {
    match column.type_name.as_str() {
        "bit" => "boolean",
        "tinyint" | "smallint" | "int" | "bigint" | "real" | "float" => "number",
        "decimal" | "numeric" | "money" | "smallmoney" => "string of digits",
        "binary" | "varbinary" | "image" | "timestamp" | "rowversion" => "base64",
        "sql_variant" => "string with its type",
        "date" | "time" | "datetime" | "smalldatetime" | "datetime2" | "datetimeoffset" => {
            "string of time"
        }
        _ => "string",
    }
}

fn same(one: &str, other: &str) -> bool {
    one.trim().to_lowercase() == other.to_lowercase()
}

//! CREATE, ALTER, DROP and TRUNCATE.

use super::{
    Definition,
    coerce::{Class, Collation, class},
    expression::same_name,
    lexer::Token,
    parser::{Parser, TableColumn, quoted},
    query::Scope,
};
use crate::{
    codepage::CodePage,
    types::{Named, SqlError, Type},
};

/// A table to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<TableColumn>,
    pub(crate) primary_key: Vec<String>,
    unique: Vec<Vec<String>>,
    /// The catalog entries of its keys, the primary one first.
    pub(crate) indexes: Vec<Index>,
}

/// The catalog entry of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Empty if the server has to generate one.
    pub(crate) name: String,
    pub(crate) clustered: bool,
    pub(crate) unique: bool,
    pub(crate) kind: IndexKind,
    /// Key columns, each with whether it descends.
    pub(crate) key: Vec<(String, bool)>,
    pub(crate) included: Vec<String>,
}

/// The origin of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// `CREATE INDEX`.
    #[default]
    Plain,
    PrimaryKey,
    /// `UNIQUE` of a table.
    Constraint,
}

impl Table {
    /// SQLite text.
    pub(crate) fn sql(&self) -> String {
        let list =
            |names: &[String]| names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        let mut parts: Vec<_> = self.columns.iter().map(|c| column_sql(c, stored_as(c))).collect();
        if !self.primary_key.is_empty() {
            parts.push(format!("PRIMARY KEY ({})", list(&self.primary_key)));
        }
        parts.extend(self.unique.iter().map(|names| format!("UNIQUE ({})", list(names))));
        format!("CREATE TABLE dbo.{} ({})", quoted(&self.name), parts.join(", "))
    }

    /// A primary key is clustered by default.
    fn add_primary_key(&mut self, name: &str, clustered: Option<bool>, key: Vec<(String, bool)>) {
        self.primary_key = key.iter().map(|(name, _)| name.clone()).collect();
        self.indexes.insert(
            0,
            Index {
                name: name.to_owned(),
                clustered: clustered.unwrap_or(true),
                unique: true,
                kind: IndexKind::PrimaryKey,
                key,
                included: Vec::new(),
            },
        );
    }

    fn add_unique(&mut self, name: &str, clustered: Option<bool>, key: Vec<(String, bool)>) {
        self.unique.push(key.iter().map(|(name, _)| name.clone()).collect());
        self.indexes.push(Index {
            name: name.to_owned(),
            clustered: clustered.unwrap_or(false),
            unique: true,
            kind: IndexKind::Constraint,
            key,
            included: Vec::new(),
        });
    }
}

impl Parser<'_> {
    /// `CREATE TABLE | VIEW | INDEX`.
    pub(crate) fn create(&mut self) -> Result<Definition, SqlError> {
        self.expect("CREATE")?;
        if self.eat("TABLE") {
            return self.create_table();
        }
        if self.eat("VIEW") {
            let name = self.table_name()?;
            self.expect("AS")?;
            let query = self.subquery(None)?;
            query.check_derived()?;
            let sql = format!("CREATE VIEW dbo.{} AS {}", quoted(&name), query.sql());
            let collations = query.items.iter().map(|item| item.collation);
            let columns = query.columns().into_iter().zip(collations);
            let columns = columns.map(|(column, collation)| TableColumn {
                name: column.name,
                ty: column.ty,
                nullable: column.nullable,
                identity: false,
                default: None,
                collation: (collation == Some(Collation::Binary)).then(|| BINARY.to_owned()),
            });
            return Ok(Definition::View { name, sql, columns: columns.collect() });
        }
        let unique = self.eat("UNIQUE");
        let clustered = self.clustering().unwrap_or(false);
        self.expect("INDEX")?;
        self.create_index(unique, clustered)
    }

    fn create_table(&mut self) -> Result<Definition, SqlError> {
        let mut table = Table { name: self.table_name()?, ..Table::default() };
        self.expect_symbol("(")?;
        loop {
            let is_constraint = ["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"]
                .iter()
                .any(|word| self.is_word(word));
            if is_constraint {
                self.table_constraint(&mut table)?;
            } else {
                let column = self.column_definition(&mut table)?;
                table.columns.push(column);
            }
            if !self.eat_symbol(",") || self.is_symbol(")") {
                break;
            }
        }
        self.expect_symbol(")")?;
        let mut keys = table.indexes.iter().flat_map(|index| &index.key);
        keys.try_for_each(|(name, _)| known(&table.columns, name))?;
        for column in &mut table.columns {
            column.nullable &= !table.primary_key.contains(&column.name);
        }
        Ok(Definition::Table(table))
    }

    /// A column with its constraints; keys go to the table.
    fn column_definition(&mut self, table: &mut Table) -> Result<TableColumn, SqlError> {
        let name = self.name()?;
        let ty = self.data_type()?;
        let nullable = ty != Type::RowVersion;
        let mut column =
            TableColumn { name, ty, nullable, identity: false, default: None, collation: None };
        loop {
            if self.eat("CONSTRAINT") {
                self.name()?;
            } else if self.eat("NOT") {
                self.expect("NULL")?;
                column.nullable = false;
            } else if self.eat("NULL") {
                column.nullable = true;
            } else if self.eat("IDENTITY") {
                column.identity = true;
                column.nullable = false;
                self.seed()?;
            } else if self.eat("DEFAULT") {
                let start = self.position();
                self.sum(&Scope::default())?.value()?;
                column.default = Some(self.text_since(start));
            } else if self.eat("COLLATE") {
                let collation = self.name()?;
                code_page(&collation)?;
                column.collation = Some(collation);
            } else if self.eat("PRIMARY") {
                self.expect("KEY")?;
                let clustered = self.clustering();
                table.add_primary_key("", clustered, vec![(column.name.clone(), false)]);
                column.nullable = false;
            } else if self.eat("UNIQUE") {
                let clustered = self.clustering();
                table.add_unique("", clustered, vec![(column.name.clone(), false)]);
            } else if self.is_at_end() || [",", ")", ";"].iter().any(|s| self.is_symbol(s)) {
                return Ok(column);
            } else {
                return Err(self.unexpected());
            }
        }
    }

    /// `(1, 1)` after `IDENTITY`.
    fn seed(&mut self) -> Result<(), SqlError> {
        if !self.eat_symbol("(") {
            return Ok(());
        }
        for end in [",", ")"] {
            match self.next() {
                Some(Token::Number(number)) if number == "1" => {}
                _ => {
                    return Err(SqlError::unsupported(
                        "An identity with a seed or increment other than 1",
                    ));
                }
            }
            self.expect_symbol(end)?;
        }
        Ok(())
    }

    fn table_constraint(&mut self, table: &mut Table) -> Result<(), SqlError> {
        let name = if self.eat("CONSTRAINT") { self.name()? } else { String::new() };
        if self.eat("PRIMARY") {
            self.expect("KEY")?;
            let clustered = self.clustering();
            let mut key = self.key_columns()?;
            // The names as the columns spell them, so that both compare equal later.
            for (name, _) in &mut key {
                let column = table.columns.iter().find(|c| c.name.eq_ignore_ascii_case(name));
                if let Some(column) = column {
                    name.clone_from(&column.name);
                }
            }
            table.add_primary_key(&name, clustered, key);
            return Ok(());
        }
        if self.eat("UNIQUE") {
            let clustered = self.clustering();
            let key = self.key_columns()?;
            table.add_unique(&name, clustered, key);
            return Ok(());
        }
        Err(SqlError::unsupported("CHECK or FOREIGN KEY"))
    }

    fn create_index(&mut self, unique: bool, clustered: bool) -> Result<Definition, SqlError> {
        let name = self.name()?;
        self.expect("ON")?;
        let table = self.table_name()?;
        let key = self.key_columns()?;
        let included = if self.eat("INCLUDE") { self.key_columns()? } else { Vec::new() };
        let columns = self.table_columns(&table)?;
        key.iter().chain(&included).try_for_each(|(name, _)| known(&columns, name))?;
        let list: Vec<_> = key
            .iter()
            .map(|(name, descending)| {
                format!("{}{}", quoted(name), if *descending { " DESC" } else { "" })
            })
            .collect();
        let sql = format!(
            "CREATE {}INDEX dbo.{} ON {} ({})",
            if unique { "UNIQUE " } else { "" },
            quoted(&index_name(&table, &name)),
            quoted(&table),
            list.join(", ")
        );
        let included = included.into_iter().map(|(name, _)| name).collect();
        let index = Index { name, clustered, unique, kind: IndexKind::Plain, key, included };
        Ok(Definition::Index { table, index, sql })
    }

    /// `ALTER TABLE table ADD column …`, `DROP COLUMN column`, or its change tracking.
    pub(crate) fn alter(&mut self) -> Result<Definition, SqlError> {
        self.expect("ALTER")?;
        self.expect("TABLE")?;
        let name = self.table_name()?;
        self.table_columns(&name)?;
        if self.is_word("ENABLE") || self.is_word("DISABLE") {
            return self.track(name);
        }
        if self.eat("DROP") {
            self.expect("COLUMN")?;
            return Ok(Definition::DropColumn { table: name, column: self.name()? });
        }
        self.expect("ADD")?;
        let mut table = Table { name, ..Table::default() };
        let column = self.column_definition(&mut table)?;
        if !table.primary_key.is_empty() || !table.unique.is_empty() || column.identity {
            return Err(SqlError::unsupported("A key in ALTER TABLE"));
        }
        let (name, target) = (quoted(&column.name), quoted(&table.name));
        let add = format!("ALTER TABLE dbo.{target} ADD COLUMN {name} {}", stored_as(&column));
        let value = if column.ty == Type::RowVersion {
            Some("hw_next_rowversion()".to_owned())
        } else if let Some(default) = &column.default {
            let tokens = super::lexer::tokens(default)?;
            let value = Parser::new(&tokens, 0, self.schema).sum(&Scope::default())?;
            Some(value.cast(column.ty).sql)
        } else {
            None
        };
        // Without a value to fill in, no row changes, so nothing is tracked.
        let fill = value.map(|value| format!("UPDATE dbo.{target} SET {name} = {value}"));
        let sql = std::iter::once(add).chain(fill).collect();
        Ok(Definition::Column { table: table.name, column, sql })
    }

    /// `DROP TABLE | VIEW | INDEX [IF EXISTS]`.
    pub(crate) fn drop(&mut self) -> Result<Definition, SqlError> {
        self.expect("DROP")?;
        if self.eat("INDEX") {
            let if_exists = if self.eat_if_exists()? { "IF EXISTS " } else { "" };
            let name = self.name()?;
            self.expect("ON")?;
            let table = self.table_name()?;
            let sql = format!("DROP INDEX {if_exists}dbo.{}", quoted(&index_name(&table, &name)));
            return Ok(Definition::DropIndex { table, name, sql });
        }
        let kind = if self.eat("VIEW") { "VIEW" } else { "TABLE" };
        if kind == "TABLE" {
            self.expect("TABLE")?;
        }
        let if_exists = self.eat_if_exists()?;
        let name = self.table_name()?;
        let sql = format!("DROP {kind} dbo.{}", quoted(&name));
        Ok(Definition::Drop { name, sql, if_exists })
    }

    /// `TRUNCATE TABLE table`.
    pub(crate) fn truncate(&mut self) -> Result<Definition, SqlError> {
        self.expect("TRUNCATE")?;
        self.expect("TABLE")?;
        let name = self.table_name()?;
        self.table_columns(&name)?;
        let sql = format!("DELETE FROM dbo.{}", quoted(&name));
        Ok(Definition::Truncate { name, sql })
    }

    fn eat_if_exists(&mut self) -> Result<bool, SqlError> {
        let found = self.eat("IF");
        if found {
            self.expect("EXISTS")?;
        }
        Ok(found)
    }

    /// Whether an index is declared as clustered; `None` if it is not declared.
    fn clustering(&mut self) -> Option<bool> {
        let clustered = self.eat("CLUSTERED");
        (clustered || self.eat("NONCLUSTERED")).then_some(clustered)
    }

    /// `(a [ASC|DESC], b)`; each with whether it descends.
    fn key_columns(&mut self) -> Result<Vec<(String, bool)>, SqlError> {
        self.expect_symbol("(")?;
        let mut columns = Vec::new();
        loop {
            let name = self.name()?;
            let descending = self.eat("DESC");
            self.eat("ASC");
            columns.push((name, descending));
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(columns)
    }
}

/// A binary collation, for a view's column.
const BINARY: &str = "Latin1_General_100_BIN2";

/// SQLite would treat an unknown column name as a string.
fn known(columns: &[TableColumn], name: &str) -> Result<(), SqlError> {
    if columns.iter().any(|column| same_name(&column.name, name)) {
        return Ok(());
    }
    let text = format!("Column name '{name}' does not exist in the target table or view.");
    Err(SqlError::new(1911, 16, text))
}

/// The code page of a collation, which must be known.
pub(crate) fn code_page(collation: &str) -> Result<CodePage, SqlError> {
    let text = format!("Invalid collation '{collation}'.");
    CodePage::of(collation).ok_or_else(|| SqlError::new(448, 16, text))
}

/// SQLite keeps index names in one space, SQL Server one for each table.
fn index_name(table: &str, index: &str) -> String {
    format!("{table}/{index}")
}

fn column_sql(column: &TableColumn, storage: &str) -> String {
    let null = if column.nullable { "" } else { " NOT NULL" };
    let rowversion = if column.ty == Type::RowVersion { " UNIQUE" } else { "" };
    format!("{} {storage}{null}{rowversion}", quoted(&column.name))
}

/// Type that gives a column its affinity, and text the order of its collation.
pub(crate) fn stored_as(column: &TableColumn) -> &'static str {
    match (storage(column.ty), Collation::of(column.ty, column.collation.as_deref())) {
        (FOLDED_TEXT, Some(Collation::Binary)) => "TEXT COLLATE HW_BINARY",
        (other, _) => other,
    }
}

/// How text is stored and compared unless a collation is declared.
const FOLDED_TEXT: &str = "TEXT COLLATE HW_FOLDED";

/// Type that gives a column the right affinity and, for text, the server's collation.
fn storage(ty: Type) -> &'static str {
    match class(ty) {
        Class::Number if ty.decimal().is_some() => "REAL",
        Class::Number if matches!(ty, Type::Real | Type::Float) => "REAL",
        // Not INTEGER, which would make a key an alias of the row id and fill in missing values.
        Class::Number => "INT",
        Class::Text if ty == Type::Named(Named::Variant) => "TEXT COLLATE HW_VARIANT",
        Class::Text => FOLDED_TEXT,
        Class::Binary => "BLOB",
        Class::Offset => "TEXT COLLATE HW_INSTANT",
        Class::Decimal(_) | Class::Guid | Class::Date | Class::Time | Class::Stamp => "TEXT",
    }
}

//! The catalog of tables and indexes, as shown by `sys.tables`, `sys.columns`, `sys.indexes` and similar
//! views.

use rusqlite::{Connection, OptionalExtension, params};

use super::functions::read_type;
use crate::{
    codepage::CodePage,
    tsql::{
        definition::{Index, IndexKind},
        parser::TableColumn,
    },
    types::{Facts, Named, Type},
};

/// Tables of the catalog, stored in the database itself. `hw.meta` stores the last row version.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS dbo.\"hw.meta\" (name TEXT PRIMARY KEY, value INT NOT NULL);
    INSERT OR IGNORE INTO dbo.\"hw.meta\" VALUES ('last_version', 2000);
    CREATE TABLE IF NOT EXISTS dbo.\"sys.tables\" (
        object_id INTEGER PRIMARY KEY, name TEXT NOT NULL, physical TEXT NOT NULL, create_date TEXT
    );
    CREATE UNIQUE INDEX IF NOT EXISTS dbo.\"sys.tables/physical\"
        ON \"sys.tables\" (physical COLLATE NOCASE);
    CREATE TABLE IF NOT EXISTS dbo.\"sys.columns\" (
        object_id INT NOT NULL, column_id INT NOT NULL, name TEXT NOT NULL,
        system_type_id INT NOT NULL, user_type_id INT NOT NULL, max_length INT NOT NULL,
        precision INT NOT NULL, scale INT NOT NULL, is_nullable INT NOT NULL,
        is_identity INT NOT NULL, declared TEXT NOT NULL, default_text TEXT, collation_name TEXT,
        PRIMARY KEY (object_id, column_id)
    );
    CREATE TABLE IF NOT EXISTS dbo.\"sys.indexes\" (
        object_id INT NOT NULL, index_id INT NOT NULL, name TEXT, type INT NOT NULL,
        is_unique INT NOT NULL, is_primary_key INT NOT NULL, is_unique_constraint INT NOT NULL,
        is_disabled INT NOT NULL, has_filter INT NOT NULL, is_hypothetical INT NOT NULL,
        PRIMARY KEY (object_id, index_id)
    );
    CREATE TABLE IF NOT EXISTS dbo.\"sys.index_columns\" (
        object_id INT NOT NULL, index_id INT NOT NULL, index_column_id INT NOT NULL,
        column_id INT NOT NULL, key_ordinal INT NOT NULL, is_descending_key INT NOT NULL,
        is_included_column INT NOT NULL, PRIMARY KEY (object_id, index_id, index_column_id)
    );
    CREATE TABLE IF NOT EXISTS dbo.\"sys.change_tracking_tables\" (
        object_id INTEGER PRIMARY KEY, min_valid_version INT NOT NULL, begin_version INT,
        internal_id INT
    );
    CREATE TABLE IF NOT EXISTS dbo.\"sys.types\" (
        name TEXT PRIMARY KEY, system_type_id INT NOT NULL, user_type_id INT NOT NULL,
        max_length INT NOT NULL, precision INT NOT NULL, scale INT NOT NULL
    );
";

/// Views of the catalog, and columns that files of earlier versions lack.
const VIEWS: &str = "
    INSERT OR IGNORE INTO dbo.\"hw.meta\"
        SELECT 'last_object', coalesce(max(object_id), 1000000000) FROM dbo.\"sys.tables\";
    UPDATE dbo.\"sys.tables\" SET create_date = hw_now() WHERE create_date IS NULL;
    DROP VIEW IF EXISTS dbo.\"sys.internal_tables\";
    CREATE VIEW dbo.\"sys.internal_tables\" AS
        SELECT c.internal_id AS object_id, 'change_tracking_' || c.object_id AS name,
            c.object_id AS parent_object_id, 209 AS internal_type
        FROM \"sys.change_tracking_tables\" AS c WHERE c.internal_id IS NOT NULL;
    DROP VIEW IF EXISTS dbo.\"sys.objects\";
    DROP VIEW IF EXISTS dbo.\"sys.schemas\";
    CREATE VIEW dbo.\"sys.schemas\" AS
        SELECT 1 AS schema_id, 'dbo' AS name
        UNION ALL SELECT min(t.object_id), substr(t.physical, 1, length(t.physical) - length(t.name) - 1)
        FROM \"sys.tables\" AS t WHERE t.physical <> t.name GROUP BY 2;
    CREATE VIEW dbo.\"sys.objects\" AS
        SELECT o.object_id, o.name, o.create_date, o.type, CASE WHEN o.physical = o.table_name THEN 1 ELSE (
            SELECT s.schema_id FROM \"sys.schemas\" AS s
            WHERE s.name = substr(o.physical, 1, length(o.physical) - length(o.table_name) - 1)) END AS schema_id
        FROM (SELECT t.object_id, t.name, t.create_date, CASE WHEN EXISTS (SELECT 1 FROM sqlite_master AS m
                WHERE m.type = 'view' AND m.name = t.physical) THEN 'V' ELSE 'U' END AS type,
                t.physical, t.name AS table_name
            FROM \"sys.tables\" AS t
            UNION ALL SELECT 2000000000 + (x.object_id - 1000000000) * 16 + x.index_id, x.name,
                t.create_date, CASE WHEN x.is_primary_key THEN 'PK' ELSE 'UQ' END, t.physical, t.name
            FROM \"sys.indexes\" AS x JOIN \"sys.tables\" AS t ON t.object_id = x.object_id
            WHERE x.is_primary_key OR x.is_unique_constraint
            UNION ALL SELECT 1500000000 + (c.object_id - 1000000000) * 1024 + c.column_id,
                'DF of ' || c.name, t.create_date, 'D', t.physical, t.name
            FROM \"sys.columns\" AS c JOIN \"sys.tables\" AS t ON t.object_id = c.object_id
            WHERE c.default_text IS NOT NULL) AS o;
    CREATE VIEW IF NOT EXISTS dbo.\"sys.default_constraints\" AS
        SELECT c.object_id AS parent_object_id, c.column_id AS parent_column_id,
            c.default_text AS definition
        FROM \"sys.columns\" AS c WHERE c.default_text IS NOT NULL;
    CREATE VIEW IF NOT EXISTS dbo.\"sys.databases\" AS
        SELECT hw_database() AS name, 1 AS is_read_committed_snapshot_on;
";

/// Columns that were added to catalog tables later.
const ADDED: [(&str, &str, &str); 3] = [
    ("sys.tables", "create_date", "TEXT"),
    ("sys.change_tracking_tables", "begin_version", "INT"),
    ("sys.change_tracking_tables", "internal_id", "INT"),
];

/// Every type once, with its maximum sizes.
const TYPES: [Type; 24] = [
    Type::Bit,
    Type::TinyInt,
    Type::SmallInt,
    Type::Int,
    Type::BigInt,
    Type::Real,
    Type::Float,
    Type::Decimal(38, 38),
    Type::Money,
    Type::SmallMoney,
    Type::NVarChar(Some(4000)),
    Type::VarChar(Some(8000)),
    Type::NChar(4000),
    Type::Char(8000),
    Type::VarBinary(Some(8000)),
    Type::Binary(8000),
    Type::RowVersion,
    Type::Guid,
    Type::Date,
    Type::Time(7),
    Type::SmallDateTime,
    Type::DateTime,
    Type::DateTime2(7),
    Type::DateTimeOffset(7),
];

/// Creates the catalog if it is missing, and returns the last row version.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<u64> {
    connection.execute_batch(TABLES)?;
    for (table, column, ty) in ADDED {
        let sql = "SELECT count(*) FROM pragma_table_info(?1, 'dbo') WHERE name = ?2";
        if connection.query_row(sql, [table, column], |row| row.get::<_, i64>(0))? == 0 {
            let add = format!("ALTER TABLE dbo.\"{table}\" ADD COLUMN {column} {ty}");
            connection.execute_batch(&add)?;
        }
    }
    connection.execute_batch(VIEWS)?;
    for ty in TYPES.into_iter().chain(Named::ALL.map(Type::Named)) {
        let Facts { name, id, user_id, length, precision, scale } = ty.facts();
        connection.execute(
            "INSERT OR IGNORE INTO dbo.\"sys.types\" VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![name, id, user_id, length, precision, scale],
        )?;
    }
    // The one alias type that every database has.
    let sql = "INSERT OR IGNORE INTO dbo.\"sys.types\" VALUES ('sysname', 231, 256, 256, 0, 0)";
    connection.execute(sql, [])?;
    let sql = "SELECT value FROM dbo.\"hw.meta\" WHERE name = 'last_version'";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Stores the last row version.
pub(crate) fn save_version(connection: &Connection, version: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE dbo.\"hw.meta\" SET value = ?1 WHERE name = 'last_version' AND value < ?1";
    connection.prepare_cached(sql)?.execute([version]).map(drop)
}

/// Columns of a table by its physical name.
pub(crate) fn columns(
    connection: &Connection,
    table: &str,
) -> rusqlite::Result<Option<Vec<TableColumn>>> {
    if let Some(columns) = system_columns(table) {
        return Ok(Some(columns));
    }
    let Some(id) = object_id(connection, table)? else {
        return Ok(None);
    };
    let sql = "SELECT name, declared, is_nullable, is_identity, default_text, collation_name \
               FROM dbo.\"sys.columns\" WHERE object_id = ?1 ORDER BY column_id";
    let mut statement = connection.prepare_cached(sql)?;
    let columns = statement.query_map([id], |row| {
        Ok(TableColumn {
            name: row.get(0)?,
            ty: read_type(&row.get::<_, String>(1)?)?,
            nullable: row.get(2)?,
            identity: row.get(3)?,
            default: row.get(4)?,
            collation: row.get(5)?,
        })
    })?;
    columns.collect::<rusqlite::Result<Vec<_>>>().map(Some)
}

/// Adds a table or a view.
pub(crate) fn add(
    connection: &Connection,
    table: &str,
    columns: &[TableColumn],
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO dbo.\"sys.tables\" (object_id, name, physical, create_date) \
               VALUES (?1, ?2, ?3, hw_now())";
    let name = table.rsplit('.').next().unwrap_or(table);
    connection.execute(sql, params![next_object(connection)?, name, table])?;
    columns.iter().try_for_each(|column| add_column(connection, table, column))
}

/// Assigns an object id that no object, existing or dropped, has had.
pub(crate) fn next_object(connection: &Connection) -> rusqlite::Result<i64> {
    let sql =
        "UPDATE dbo.\"hw.meta\" SET value = value + 1 WHERE name = 'last_object' RETURNING value";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Updates the entry of a table without a clustered index: the heap, which is index 0.
pub(crate) fn note_heap(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    let Some(id) = object_id(connection, table)? else { return Ok(()) };
    let sql = "DELETE FROM dbo.\"sys.indexes\" WHERE object_id = ?1 AND index_id = 0";
    connection.execute(sql, [id])?;
    let sql = "INSERT INTO dbo.\"sys.indexes\" SELECT ?1, 0, NULL, 0, 0, 0, 0, 0, 0, 0 WHERE NOT EXISTS \
               (SELECT 1 FROM dbo.\"sys.indexes\" WHERE object_id = ?1 AND index_id = 1)";
    connection.execute(sql, [id]).map(drop)
}

/// Adds an index of a table to `sys.indexes` and `sys.index_columns`.
pub(crate) fn add_index(
    connection: &Connection,
    table: &str,
    index: &Index,
) -> rusqlite::Result<()> {
    let Some(id) = object_id(connection, table)? else { return Ok(()) };
    let highest =
        "SELECT max(coalesce(max(index_id), 1), 1) FROM dbo.\"sys.indexes\" WHERE object_id = ?1";
    let highest: i64 = connection.query_row(highest, [id], |row| row.get(0))?;
    // The clustered index of a table is always number 1.
    let number = if index.clustered { 1 } else { highest + 1 };
    let primary = index.kind == IndexKind::PrimaryKey;
    let constraint = index.kind == IndexKind::Constraint;
    let name = match index.name.as_str() {
        "" if primary => format!("PK of {table}"),
        "" => format!("UQ {number} of {table}"),
        name => name.to_owned(),
    };
    let kind = if index.clustered { 1 } else { 2 };
    connection.execute(
        "INSERT INTO dbo.\"sys.indexes\" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 0)",
        params![id, number, name, kind, index.unique, primary, constraint],
    )?;
    let key = index.key.iter().zip(1_i64..).map(|((name, down), at)| (name, at, *down, false));
    let included = index.included.iter().map(|name| (name, 0, false, true));
    for ((name, ordinal, descending, included), at) in key.chain(included).zip(1_i64..) {
        let sql = "INSERT INTO dbo.\"sys.index_columns\" SELECT object_id, ?2, ?3, column_id, ?4, \
                   ?5, ?6 FROM dbo.\"sys.columns\" WHERE object_id = ?1 AND name = ?7 COLLATE NOCASE";
        connection.execute(sql, params![id, number, at, ordinal, descending, included, name])?;
    }
    Ok(())
}

/// Removes an index of a table.
pub(crate) fn remove_index(
    connection: &Connection,
    table: &str,
    name: &str,
) -> rusqlite::Result<()> {
    let Some(id) = object_id(connection, table)? else { return Ok(()) };
    let sql = "DELETE FROM dbo.\"sys.index_columns\" WHERE object_id = ?1 AND index_id IN \
               (SELECT index_id FROM dbo.\"sys.indexes\" WHERE object_id = ?1 AND name = ?2 COLLATE NOCASE)";
    connection.execute(sql, params![id, name])?;
    let sql = "DELETE FROM dbo.\"sys.indexes\" WHERE object_id = ?1 AND name = ?2 COLLATE NOCASE";
    connection.execute(sql, params![id, name]).map(drop)
}

/// Columns of a table's primary key, in key order.
pub(crate) fn key(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT c.name FROM dbo.\"sys.index_columns\" AS i JOIN dbo.\"sys.columns\" AS c \
               ON c.object_id = i.object_id AND c.column_id = i.column_id JOIN dbo.\"sys.tables\" AS t \
               ON t.object_id = i.object_id JOIN dbo.\"sys.indexes\" AS x ON x.object_id = i.object_id \
               AND x.index_id = i.index_id WHERE x.is_primary_key = 1 \
               AND t.physical = ?1 COLLATE NOCASE ORDER BY i.key_ordinal";
    connection.prepare_cached(sql)?.query_map([table], |row| row.get(0))?.collect()
}

/// Adds a column after the others of a table.
pub(crate) fn add_column(
    connection: &Connection,
    table: &str,
    column: &TableColumn,
) -> rusqlite::Result<()> {
    let Facts { id, user_id, length, precision, scale, .. } = column.ty.facts();
    let collation = column
        .collation
        .clone()
        .or_else(|| column.ty.is_collated().then(|| CodePage::default().collation().to_owned()));
    let sql = "INSERT INTO dbo.\"sys.columns\" \
        SELECT t.object_id, (SELECT coalesce(max(c.column_id), 0) + 1 FROM dbo.\"sys.columns\" AS c \
                             WHERE c.object_id = t.object_id), \
            ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 \
        FROM dbo.\"sys.tables\" AS t WHERE t.physical = ?1 COLLATE NOCASE";
    let values = params![
        table,
        column.name,
        id,
        user_id,
        length,
        precision,
        scale,
        column.nullable,
        column.identity,
        column.ty.to_string(),
        column.default,
        collation
    ];
    connection.execute(sql, values).map(drop)
}

/// Removes a column.
pub(crate) fn remove_column(
    connection: &Connection,
    table: &str,
    column: &str,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM dbo.\"sys.columns\" WHERE name = ?2 AND object_id = ?1";
    connection.execute(sql, params![object_id(connection, table)?, column]).map(drop)
}

/// Renames a column.
pub(crate) fn rename_column(
    connection: &Connection,
    table: &str,
    column: &str,
    to: &str,
) -> rusqlite::Result<()> {
    let sql = "UPDATE dbo.\"sys.columns\" SET name = ?3 WHERE name = ?2 AND object_id = ?1";
    connection.execute(sql, params![object_id(connection, table)?, column, to]).map(drop)
}

/// Renames a table, which remains the same object.
pub(crate) fn rename(connection: &Connection, table: &str, to: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE dbo.\"sys.tables\" SET name = ?2, physical = ?3 WHERE object_id = ?1";
    let name = to.rsplit('.').next().unwrap_or(to);
    connection.execute(sql, params![object_id(connection, table)?, name, to]).map(drop)
}

/// Whether an index of a table has a column.
pub(crate) fn is_indexed(
    connection: &Connection,
    table: &str,
    column: &str,
) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM dbo.\"sys.index_columns\" AS i JOIN dbo.\"sys.columns\" AS c \
               ON c.object_id = i.object_id AND c.column_id = i.column_id \
               WHERE i.object_id = ?1 AND c.name = ?2";
    let values = params![object_id(connection, table)?, column];
    connection.query_row(sql, values, |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// Whether this is a table without indexes other than those of its keys.
pub(crate) fn is_without_indexes(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM dbo.\"sys.objects\" WHERE object_id = ?1 AND type = 'U') \
               AND NOT EXISTS (SELECT 1 FROM dbo.\"sys.indexes\" WHERE object_id = ?1 AND index_id > 0 \
               AND NOT is_primary_key AND NOT is_unique_constraint)";
    connection.query_row(sql, [object_id(connection, table)?], |row| row.get(0))
}

/// Removes a table or a view.
pub(crate) fn remove(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    if let Some(id) = object_id(connection, table)? {
        for view in ["sys.index_columns", "sys.indexes", "sys.columns", "sys.tables"] {
            let sql = format!("DELETE FROM dbo.\"{view}\" WHERE object_id = ?1");
            connection.execute(&sql, [id])?;
        }
    }
    Ok(())
}

fn object_id(connection: &Connection, table: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT object_id FROM dbo.\"sys.tables\" WHERE physical = ?1 COLLATE NOCASE";
    connection.prepare_cached(sql)?.query_row([table], |row| row.get(0)).optional()
}

/// Columns of the catalog's own views.
fn system_columns(table: &str) -> Option<Vec<TableColumn>> {
    let sysname = Type::NVarChar(Some(128));
    let sizes =
        [("max_length", Type::SmallInt), ("precision", Type::TinyInt), ("scale", Type::TinyInt)];
    let ids = [("system_type_id", Type::TinyInt), ("user_type_id", Type::Int)];
    let name = table.to_ascii_lowercase();
    let mut columns = match name.as_str() {
        "sys.tables" => {
            vec![("object_id", Type::Int), ("name", sysname), ("create_date", Type::DateTime)]
        }
        "sys.columns" => vec![
            ("object_id", Type::Int),
            ("column_id", Type::Int),
            ("name", sysname),
            ("is_nullable", Type::Bit),
            ("is_identity", Type::Bit),
            ("collation_name", sysname),
        ],
        "sys.types" => vec![("name", sysname)],
        "sys.indexes" => vec![
            ("object_id", Type::Int),
            ("index_id", Type::Int),
            ("name", sysname),
            ("type", Type::TinyInt),
            ("is_unique", Type::Bit),
            ("is_primary_key", Type::Bit),
            ("is_unique_constraint", Type::Bit),
            ("is_disabled", Type::Bit),
            ("has_filter", Type::Bit),
            ("is_hypothetical", Type::Bit),
        ],
        "sys.index_columns" => vec![
            ("object_id", Type::Int),
            ("index_id", Type::Int),
            ("index_column_id", Type::Int),
            ("column_id", Type::Int),
            ("key_ordinal", Type::TinyInt),
            ("is_descending_key", Type::Bit),
            ("is_included_column", Type::Bit),
        ],
        "sys.objects" => vec![
            ("object_id", Type::Int),
            ("name", sysname),
            ("schema_id", Type::Int),
            ("type", Type::Char(2)),
            ("create_date", Type::DateTime),
        ],
        "sys.schemas" => vec![("schema_id", Type::Int), ("name", sysname)],
        "sys.internal_tables" => vec![
            ("object_id", Type::Int),
            ("name", sysname),
            ("parent_object_id", Type::Int),
            ("internal_type", Type::TinyInt),
        ],
        "sys.databases" => vec![("name", sysname), ("is_read_committed_snapshot_on", Type::Bit)],
        "sys.default_constraints" => vec![
            ("parent_object_id", Type::Int),
            ("parent_column_id", Type::Int),
            ("definition", Type::NVarChar(None)),
        ],
        "sys.change_tracking_tables" => vec![
            ("object_id", Type::Int),
            ("min_valid_version", Type::BigInt),
            ("begin_version", Type::BigInt),
        ],
        _ => return None,
    };
    if matches!(name.as_str(), "sys.columns" | "sys.types") {
        columns.extend(ids);
        columns.extend(sizes);
    }
    let column = |(name, ty): (&str, Type)| TableColumn {
        name: name.into(),
        ty,
        nullable: name == "collation_name" || (table == "sys.indexes" && name == "name"),
        identity: false,
        default: None,
        collation: None,
    };
    Some(columns.into_iter().map(column).collect())
}

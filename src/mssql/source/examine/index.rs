//! Finds the index that serves a poller, and the one that makes its rows unique. Pure.

use highwater_engine::value::Value;

use crate::ident::{QualifiedName, quote};

/// Indexes of the object `@P1`, one row per column.
pub(in crate::source) const INDEXES: &str = "\
SELECT x.name, x.type, x.is_unique, x.is_disabled, x.has_filter, c.name AS column_name, \
i.key_ordinal, i.is_descending_key \
FROM sys.indexes AS x JOIN sys.index_columns AS i \
ON i.object_id = x.object_id AND i.index_id = x.index_id \
JOIN sys.columns AS c ON c.object_id = i.object_id AND c.column_id = i.column_id \
WHERE x.object_id = OBJECT_ID(@P1) AND x.is_hypothetical = 0 \
ORDER BY x.index_id, i.key_ordinal, i.index_column_id";

/// Index types that keep rows in order.
/// <https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-indexes-transact-sql>
const CLUSTERED: i64 = 1;
const NONCLUSTERED: i64 = 2;
/// Longest index name.
const NAME_CHARS_MAX: usize = 128;

/// An index as described by the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source) struct Index {
    pub(super) name: String,
    kind: i64,
    unique: bool,
    disabled: bool,
    filtered: bool,
    /// Key columns in order, each with whether it is descending. Included columns are omitted.
    key: Vec<(String, bool)>,
}

impl Index {
    /// Whether it contains every row, in order.
    fn is_usable(&self) -> bool {
        matches!(self.kind, CLUSTERED | NONCLUSTERED) && !self.disabled && !self.filtered
    }

    /// Returns the columns that its rows are ordered by. If it is not unique, the server appends the key of
    /// the clustered index to its own.
    fn order(&self, all: &[Self]) -> Vec<(String, bool)> {
        let mut order = self.key.clone();
        let clustered = all.iter().find(|index| index.kind == CLUSTERED && !index.disabled);
        if let Some(clustered) = clustered.filter(|_| self.kind == NONCLUSTERED && !self.unique) {
            let added = clustered.key.iter().filter(|(name, _)| !has(&self.key, name));
            order.extend(added.cloned());
        }
        order
    }
}

/// How well an index serves reads ordered by some columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Support {
    /// Rows are returned in exactly that order.
    Full(String),
    /// Rows are returned in the order of the first column; rows that share it have to be sorted.
    Leading(String),
    /// Every row has to be read.
    None,
}

/// Returns how well the best of `indexes` serves reads ordered by `wanted`.
pub(super) fn support(indexes: &[Index], wanted: &[&str]) -> Support {
    let usable = || indexes.iter().filter(|index| index.is_usable());
    let serves = |index: &&Index| serves(index, &index.order(indexes), wanted);
    if let Some(index) = usable().find(serves) {
        return Support::Full(index.name.clone());
    }
    let leads = |index: &&Index| {
        index.key.first().zip(wanted.first()).is_some_and(|((name, _), wanted)| same(name, wanted))
    };
    usable().find(leads).map_or(Support::None, |index| Support::Leading(index.name.clone()))
}

fn serves(index: &Index, order: &[(String, bool)], wanted: &[&str]) -> bool {
    let Some((_, direction)) = order.first() else { return false };
    // An index that is descending throughout can be read backwards.
    let fits = |((name, descends), wanted): (&(String, bool), &&str)| {
        same(name, wanted) && descends == direction
    };
    let long_enough = order.len() >= wanted.len() || index.unique;
    long_enough && order.iter().zip(wanted).all(fits)
}

/// Returns the name of an index that makes the values in `columns` unique.
pub(in crate::source) fn unique_in<'a>(indexes: &'a [Index], columns: &[&str]) -> Option<&'a str> {
    let is_unique = |index: &&Index| {
        index.unique
            && !index.disabled
            && !index.filtered
            && !index.key.is_empty()
            && index.key.iter().all(|(name, _)| columns.iter().any(|column| same(name, column)))
    };
    indexes.iter().find(is_unique).map(|index| index.name.as_str())
}

/// Returns the statement that creates the index over `columns`.
pub(super) fn create_index(table: &QualifiedName, columns: &[&str]) -> String {
    create("INDEX", "ix", table, columns)
}

/// Returns the statement that creates the unique index over `columns`.
pub(super) fn create_unique_index(table: &QualifiedName, columns: &[&str]) -> String {
    create("UNIQUE INDEX", "ux", table, columns)
}

fn create(what: &str, prefix: &str, table: &QualifiedName, columns: &[&str]) -> String {
    let name = format!("{prefix}_{}_{}", table.object, columns.join("_"));
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    let columns: Vec<String> = columns.iter().map(|column| quote(column)).collect();
    format!("CREATE {what} {} ON {} ({})", quote(&name), table.quoted(), columns.join(", "))
}

/// Reads the answer to [`INDEXES`]; `None` if it has an unexpected form.
pub(in crate::source) fn read(rows: &[Vec<Value>]) -> Option<Vec<Index>> {
    let mut indexes: Vec<Index> = Vec::new();
    for row in rows {
        let [
            Value::Text(name),
            Value::Int(kind),
            Value::Bool(unique),
            Value::Bool(disabled),
            Value::Bool(filtered),
            Value::Text(column),
            Value::Int(ordinal),
            Value::Bool(descends),
        ] = row.as_slice()
        else {
            return None;
        };
        if indexes.last().is_none_or(|index| index.name != *name) {
            indexes.push(Index {
                name: name.clone(),
                kind: *kind,
                unique: *unique,
                disabled: *disabled,
                filtered: *filtered,
                key: Vec::new(),
            });
        }
        // Ordinal 0 marks included columns.
        if let Some(index) = indexes.last_mut().filter(|_| *ordinal > 0) {
            index.key.push((column.clone(), *descends));
        }
    }
    Some(indexes)
}

fn has(key: &[(String, bool)], name: &str) -> bool {
    key.iter().any(|(other, _)| same(other, name))
}

fn same(one: &str, other: &str) -> bool {
    one.to_lowercase() == other.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index written as `unique clustered name: a, b desc`.
    fn index(text: &str) -> Index {
        let (head, key) = text.split_once(": ").unwrap();
        let words: Vec<&str> = head.split(' ').collect();
        let is = |word| words.contains(&word);
        Index {
            name: words.last().copied().unwrap_or_default().to_owned(),
            kind: if is("clustered") { 1 } else { 2 + i64::from(is("columnstore")) * 4 },
            unique: is("unique"),
            disabled: is("disabled"),
            filtered: is("filtered"),
            key: key
                .split(", ")
                .map(|column| match column.strip_suffix(" desc") {
                    Some(column) => (column.to_owned(), true),
                    None => (column.to_owned(), false),
                })
                .collect(),
        }
    }

    fn supported(indexes: &[&str]) -> String {
        let indexes: Vec<Index> = indexes.iter().map(|text| index(text)).collect();
        format!("{:?}", support(&indexes, &["at", "id"]))
    }

    #[test]
    fn an_index_serves_in_its_own_order_or_backwards() {
        for (key, expected) in [
            ("at, id", "Full(\"ix\")"),
            ("AT, ID", "Full(\"ix\")"),
            ("at, id, x", "Full(\"ix\")"),
            ("at desc, id desc", "Full(\"ix\")"),
            ("at, id desc", "Leading(\"ix\")"),
            ("at", "Leading(\"ix\")"),
            ("at, x, id", "Leading(\"ix\")"),
            ("id, at", "None"),
            ("x, at, id", "None"),
        ] {
            assert_eq!(supported(&[&format!("ix: {key}")]), expected, "{key}");
        }
        assert_eq!(supported(&[]), "None");
    }

    #[test]
    fn the_clustered_key_is_appended_to_every_other_index() {
        let clustered = "unique clustered pk: id";
        assert_eq!(supported(&[clustered, "ix: at"]), "Full(\"ix\")");
        // The clustered key is not part of a unique index's order, but then there is nothing left to order.
        assert_eq!(supported(&[clustered, "unique ix: at"]), "Full(\"ix\")");
        assert_eq!(supported(&["unique clustered pk: id desc", "ix: at"]), "Leading(\"ix\")");
        assert_eq!(supported(&["unique pk: id", "ix: at"]), "Leading(\"ix\")");
    }

    #[test]
    fn an_index_without_all_rows_or_without_order_is_not_used() {
        for kind in ["disabled", "filtered", "columnstore"] {
            assert_eq!(supported(&[&format!("{kind} ix: at, id")]), "None", "{kind}");
        }
    }

    #[test]
    fn rows_are_unique_by_an_index_over_no_other_columns() {
        let unique = |text: &str, columns: &[&str]| unique_in(&[index(text)], columns).is_some();
        assert!(unique("unique ix: id", &["ID"]));
        assert!(unique("unique ix: id", &["id", "at"]));
        assert!(unique("unique ix: at, id", &["id", "at"]));
        assert!(!unique("unique ix: at, id", &["id"]));
        assert!(!unique("ix: id", &["id"]));
        assert!(!unique("unique filtered ix: id", &["id"]));
        assert!(!unique("unique disabled ix: id", &["id"]));
    }

    #[test]
    fn the_statement_quotes_every_name() {
        let table = QualifiedName::parse("[s]]1].[my table]").unwrap();
        assert_eq!(
            create_index(&table, &["a]t", "id"]),
            "CREATE INDEX [ix_my table_a]]t_id] ON [s]]1].[my table] ([a]]t], [id])"
        );
        let long = "x".repeat(128);
        let text = create_index(&table, &[&long]);
        let cut: String = format!("ix_my table_{long}").chars().take(128).collect();
        assert!(text.contains(&format!("[{cut}] ON")), "{text}");
    }

    #[test]
    fn included_columns_are_not_part_of_the_key() {
        let row = |column: &str, ordinal, descends| {
            vec![
                Value::Text("ix".to_owned()),
                Value::Int(2),
                Value::Bool(true),
                Value::Bool(false),
                Value::Bool(false),
                Value::Text(column.to_owned()),
                Value::Int(ordinal),
                Value::Bool(descends),
            ]
        };
        // The server lists included columns first, since their ordinal is 0.
        let rows = [row("x", 0, false), row("at", 1, true), row("id", 2, false)];
        assert_eq!(read(&rows).unwrap(), [index("unique ix: at desc, id")]);
        assert_eq!(read(&[vec![Value::Null]]), None);
        assert_eq!(read(&[]), Some(Vec::new()));
    }
}

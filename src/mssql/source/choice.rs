//! How rows are ordered: as the settings say, or chosen by what the table has. Pure.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::source::FetchError;

use super::SourceSettings;
use super::columns::{self, Role};
use super::describe::Column;
use super::origin::Origin;

/// A mode, and the column that it orders by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: CursorMode,
    /// `None` in the mode that has none.
    pub(super) cursor: Option<String>,
}

/// A choice, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reasoned {
    pub(super) choice: Choice,
    pub(super) reason: String,
}

impl Choice {
    /// Returns what the settings say; `None` where the mode is left open.
    pub(super) fn of(settings: &SourceSettings) -> Result<Option<Self>, FetchError> {
        let cursor = settings.cursor_column.clone();
        match (settings.mode, &cursor) {
            (None, _) => Ok(None),
            (Some(CursorMode::ChangeTracking), Some(column)) => Err(configuration(format!(
                "cursor column `{column}` is named, mode `change_tracking` has none: remove it"
            ))),
            (Some(CursorMode::ChangeTracking), None) => {
                Ok(Some(Self { mode: CursorMode::ChangeTracking, cursor }))
            }
            (Some(mode), None) => Err(configuration(format!(
                "no cursor column is named, mode `{mode}` orders rows by one"
            ))),
            (Some(mode), Some(_)) => Ok(Some(Self { mode, cursor })),
        }
    }
}

/// What is known of a table when a mode is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survey<'a> {
    pub(super) origin: &'a Origin,
    pub(super) columns: &'a [Column],
    /// Whether its changes are tracked, and may be seen; only asked where the choice depends on it.
    pub(super) tracked: bool,
}

/// Whether the choice depends on whether changes are tracked: not where settings or state decide, and not
/// where the table has something better.
///
/// # Errors
///
/// As [`choose`].
pub(super) fn depends_on_tracking(
    settings: &SourceSettings,
    survey: Survey<'_>,
    is_stored: impl Fn(&Choice) -> bool,
) -> Result<bool, FetchError> {
    let possible = possible(settings, survey)?;
    let best = possible.first().map(|found| found.choice.mode);
    Ok(best == Some(CursorMode::ChangeTracking)
        && !possible.iter().any(|found| is_stored(&found.choice)))
}

/// Chooses the mode that promises most.
///
/// A source that has run before stays with what it chose then, whatever the table has got since:
/// `is_stored` tells whether a choice is that one.
///
/// # Errors
///
/// [`FetchError`] if the table has nothing to order its rows by.
pub(super) fn choose(
    settings: &SourceSettings,
    survey: Survey<'_>,
    is_stored: impl Fn(&Choice) -> bool,
) -> Result<Reasoned, FetchError> {
    let possible = possible(settings, survey)?;
    let before = possible.iter().find(|reasoned| is_stored(&reasoned.choice));
    if let Some(Reasoned { choice, .. }) = before {
        let reason = "it was chosen when the poller first ran".to_owned();
        return Ok(Reasoned { choice: choice.clone(), reason });
    }
    // Where changes are not tracked now, they may have been chosen before, but not anew.
    let is_offered =
        |found: &Reasoned| survey.tracked || found.choice.mode != CursorMode::ChangeTracking;
    possible.into_iter().find(is_offered).ok_or_else(|| {
        configuration(format!(
            "`{0}` has nothing that mode `auto` can order its rows by: add a column with `ALTER TABLE {1} \
             ADD rv ROWVERSION`, track its changes, or name a time column as `SOURCE__CURSOR`",
            survey.origin,
            survey.origin.sql()
        ))
    })
}

/// Returns every mode that the table's columns allow, the one that promises most first.
fn possible(settings: &SourceSettings, survey: Survey<'_>) -> Result<Vec<Reasoned>, FetchError> {
    let reasoned = |mode, cursor: Option<&str>, reason: String| Reasoned {
        choice: Choice { mode, cursor: cursor.map(str::to_owned) },
        reason,
    };
    if let Some(name) = settings.cursor_column.as_deref() {
        let role = Role::Cursor(None);
        let column = columns::find(settings, survey.origin, survey.columns, role, name)?;
        let modes = [CursorMode::RowVersion, CursorMode::TimestampPk, CursorMode::IntegerPk];
        let mode = modes.into_iter().find(|mode| column.fits(*mode).is_ok()).ok_or_else(|| {
            configuration(format!(
                "cursor column `{name}` of `{}` is of type `{}`, by which no mode can order rows",
                survey.origin, column.type_name
            ))
        })?;
        let reason = format!("cursor column `{name}` is of type `{}`", column.type_name);
        return Ok(vec![reasoned(mode, Some(name), reason)]);
    }
    let mut found = Vec::new();
    let fits = |mode| move |column: &&Column| column.fits(mode).is_ok() && !column.nullable;
    if let Some(column) = survey.columns.iter().find(fits(CursorMode::RowVersion)) {
        let reason = format!("`{}` is a rowversion, so no commit can come too late", column.name);
        found.push(reasoned(CursorMode::RowVersion, Some(&column.name), reason));
    }
    if key_is_primary(survey.columns, &settings.key) {
        let reason = "its changes are tracked, deletes too".to_owned();
        found.push(reasoned(CursorMode::ChangeTracking, None, reason));
    }
    let is_identity =
        |column: &&Column| column.identity && column.fits(CursorMode::IntegerPk).is_ok();
    if let Some(column) = survey.columns.iter().find(is_identity) {
        let reason = format!(
            "`{}` is an identity; only inserted rows are seen, and there is nothing better to go by",
            column.name
        );
        found.push(reasoned(CursorMode::IntegerPk, Some(&column.name), reason));
    }
    Ok(found)
}

/// Checks that changes, which are known by the primary key, are ordered by it.
pub(super) fn check_key(
    table: &Origin,
    described: &[Column],
    key: &[Column],
) -> Result<(), String> {
    let names: Vec<String> = key.iter().map(|column| column.name.clone()).collect();
    if key_is_primary(described, &names) {
        return Ok(());
    }
    let primary: Vec<&str> = primary(described).collect();
    Err(match primary.as_slice() {
        [] => format!(
            "`{table}` has no primary key, mode `change_tracking` needs one: choose another mode"
        ),
        primary => format!(
            "the key is `{}`, mode `change_tracking` needs the primary key of `{table}`, `{}`: name \
             these columns as `SOURCE__KEY`",
            names.join("`, `"),
            primary.join("`, `")
        ),
    })
}

fn primary(described: &[Column]) -> impl Iterator<Item = &str> {
    described.iter().filter(|column| column.primary).map(|column| column.name.as_str())
}

fn key_is_primary(described: &[Column], key: &[String]) -> bool {
    let is_named = |name: &str| key.iter().any(|named| same(named, name));
    primary(described).count() == key.len() && primary(described).all(is_named)
}

fn same(one: &str, other: &str) -> bool {
    one.trim().to_lowercase() == other.trim().to_lowercase()
}

fn configuration(reason: String) -> FetchError {
    FetchError::new(ErrorKind::Configuration, reason)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::connection_string::SqlConnection;
    use crate::source::Relation;
    use crate::source::SizeLimits;

    use super::*;

    fn settings(cursor: Option<&str>) -> SourceSettings {
        SourceSettings {
            poller: "p".to_owned(),
            connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
            relation: Relation::Table("t".to_owned()),
            mode: None,
            cursor_column: cursor.map(str::to_owned),
            key: vec!["ID".to_owned()],
            columns: None,
            columns_excluded: Vec::new(),
            filter: None,
            filter_params: std::collections::BTreeMap::new(),
            soft_delete: None,
            settle: Duration::ZERO,
            clock: crate::source::SourceClock::Utc,
            limits: SizeLimits::default(),
            partition: None,
            on_schema_change: crate::source::OnSchemaChange::Follow,
        }
    }

    fn column(name: &str, type_name: &str) -> Column {
        Column {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            max_length: 8,
            precision: 0,
            scale: 7,
            nullable: false,
            collation: None,
            identity: name == "id",
            primary: name == "id",
        }
    }

    fn chosen(
        cursor: Option<&str>,
        columns: &[Column],
        tracked: bool,
        stored: Option<CursorMode>,
    ) -> Result<String, String> {
        let origin = Origin::of(&settings(cursor)).unwrap();
        let survey = Survey { origin: &origin, columns, tracked };
        let is_stored = |choice: &Choice| Some(choice.mode) == stored;
        let found = choose(&settings(cursor), survey, is_stored);
        found
            .map(|Reasoned { choice, reason }| {
                format!("{} {}: {reason}", choice.mode, choice.cursor.unwrap_or_default())
            })
            .map_err(|error| error.reason)
    }

    #[test]
    fn the_mode_that_promises_most_is_chosen_and_says_why() {
        let (id, rv) = (column("id", "int"), column("rv", "timestamp"));
        let at = column("at", "datetime2");
        for (columns, tracked, expected) in [
            (
                vec![id.clone(), at.clone(), rv.clone()],
                true,
                "rowversion rv: `rv` is a rowversion, so no commit can come too late",
            ),
            (
                vec![id.clone(), at.clone()],
                true,
                "change_tracking : its changes are tracked, deletes too",
            ),
            (
                vec![id, at.clone()],
                false,
                "integer+pk id: `id` is an identity; only inserted rows are seen, and there is nothing \
                 better to go by",
            ),
        ] {
            assert_eq!(chosen(None, &columns, tracked, None).unwrap(), expected);
        }
        let error = chosen(None, std::slice::from_ref(&at), true, None).unwrap_err();
        assert!(
            error.contains("`dbo.t` has nothing that mode `auto` can order its rows by"),
            "{error}"
        );
        let null = Column { nullable: true, ..rv };
        assert!(
            chosen(None, &[at, null], true, None).is_err(),
            "rows without a version are not seen"
        );
    }

    #[test]
    fn a_cursor_that_is_named_decides_by_its_type() {
        let columns = [
            column("id", "bigint"),
            column("rv", "rowversion"),
            column("at", "date"),
            column("x", "xml"),
        ];
        for (cursor, expected) in [
            ("ID", "integer+pk ID: cursor column `ID` is of type `bigint`"),
            ("rv", "rowversion rv: cursor column `rv` is of type `rowversion`"),
            ("at", "timestamp+pk at: cursor column `at` is of type `date`"),
        ] {
            assert_eq!(chosen(Some(cursor), &columns, true, None).unwrap(), expected);
        }
        let error = chosen(Some("x"), &columns, true, None).unwrap_err();
        assert!(error.contains("`x` of `dbo.t` is of type `xml`, by which no mode"), "{error}");
        let error = chosen(Some("y"), &columns, true, None).unwrap_err();
        assert!(error.contains("cursor column `y` is not in `dbo.t`"), "{error}");
        assert!(error.contains("correct `HIGHWATER__POLLERS__P__SOURCE__CURSOR`"), "{error}");
        // `x` is one letter off as well, but no mode can order rows by it.
        let columns = [column("x", "xml"), column("xv", "rowversion")];
        let error = chosen(Some("x_"), &columns, true, None).unwrap_err();
        assert!(error.ends_with("; did you mean `xv`?"), "{error}");
    }

    #[test]
    fn tracking_is_asked_for_only_where_the_answer_decides() {
        let asks = |cursor, columns: &[Column], stored: Option<CursorMode>| {
            let origin = Origin::of(&settings(cursor)).unwrap();
            let survey = Survey { origin: &origin, columns, tracked: false };
            let is_stored = |choice: &Choice| Some(choice.mode) == stored;
            depends_on_tracking(&settings(cursor), survey, is_stored).unwrap()
        };
        let (id, rv) = (column("id", "int"), column("rv", "timestamp"));
        let plain = [id.clone(), column("at", "date")];
        assert!(asks(None, &plain, None));
        assert!(!asks(Some("at"), &plain, None), "the cursor is named");
        assert!(!asks(None, &[id.clone(), rv], None), "a rowversion is better");
        assert!(!asks(None, &[Column { primary: false, ..id }], None), "no primary key");
        for mode in [CursorMode::ChangeTracking, CursorMode::IntegerPk] {
            assert!(!asks(None, &plain, Some(mode)), "{mode} was chosen before");
        }
    }

    #[test]
    fn what_was_chosen_before_stays_chosen() {
        let columns = [column("id", "int"), column("rv", "timestamp")];
        let before = |mode, tracked| chosen(None, &columns, tracked, Some(mode)).unwrap();
        let integer = before(CursorMode::IntegerPk, true);
        assert_eq!(integer, "integer+pk id: it was chosen when the poller first ran");
        // Even where changes are tracked no more: to read on otherwise would skip some.
        assert!(before(CursorMode::ChangeTracking, false).starts_with("change_tracking "));
        // What the table cannot have been read by is for the fingerprint to refuse.
        assert!(before(CursorMode::TimestampPk, false).starts_with("rowversion "));
    }
}

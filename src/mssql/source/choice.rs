//! Chooses how rows are ordered: by the settings, or by what the table offers. Pure.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::source::FetchError;

use super::SourceSettings;
use super::columns::{self, Role};
use super::describe::Column;
use super::origin::Origin;

/// A mode, and its cursor column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: CursorMode,
    /// `None` in the mode without a cursor.
    pub(super) cursor: Option<String>,
}

/// A choice with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReasonedChoice {
    pub(super) choice: Choice,
    pub(super) reason: String,
}

impl Choice {
    /// Returns the choice of the settings; `None` if they leave the mode open.
    pub(super) fn of(settings: &SourceSettings) -> Result<Option<Self>, FetchError> {
        let cursor = settings.cursor_column.clone();
        match (settings.mode, &cursor) {
            (None, _) => Ok(None),
            (Some(CursorMode::ChangeTracking), Some(column)) => Err(configuration(format!(
                "cursor column `{column}` is set, but mode `change_tracking` has none: remove it"
            ))),
            (Some(CursorMode::ChangeTracking), None) => {
                Ok(Some(Self { mode: CursorMode::ChangeTracking, cursor }))
            }
            (Some(mode), None) => Err(configuration(format!(
                "no cursor column is set, but mode `{mode}` orders rows by one"
            ))),
            (Some(mode), Some(_)) => Ok(Some(Self { mode, cursor })),
        }
    }
}

/// Facts about a table, for choosing a mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survey<'a> {
    pub(super) origin: &'a Origin,
    pub(super) columns: &'a [Column],
    /// Whether its changes are tracked and visible; only queried if the choice depends on it.
    pub(super) tracked: bool,
}

/// Whether the choice depends on change tracking. It does not if settings or state decide, or if the table
/// offers something better.
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

/// Chooses the mode with the strongest guarantees.
///
/// A source that has run before keeps its earlier choice, even if the table now offers more: `is_stored`
/// returns whether a choice is that one.
///
/// # Errors
///
/// [`FetchError`] if the table has nothing to order its rows by.
pub(super) fn choose(
    settings: &SourceSettings,
    survey: Survey<'_>,
    is_stored: impl Fn(&Choice) -> bool,
) -> Result<ReasonedChoice, FetchError> {
    let possible = possible(settings, survey)?;
    let before = possible.iter().find(|reasoned| is_stored(&reasoned.choice));
    if let Some(ReasonedChoice { choice, .. }) = before {
        let reason = "it was chosen when the poller first ran".to_owned();
        return Ok(ReasonedChoice { choice: choice.clone(), reason });
    }
    // If changes are not tracked now, tracking may be the earlier choice, but not a new one.
    let is_offered =
        |found: &ReasonedChoice| survey.tracked || found.choice.mode != CursorMode::ChangeTracking;
    possible.into_iter().find(is_offered).ok_or_else(|| {
        configuration(format!(
            "`{0}` has nothing that mode `auto` can order its rows by: add a column with `ALTER TABLE {1} \
             ADD rv ROWVERSION`, track its changes, or set a time column as `SOURCE__CURSOR`",
            survey.origin,
            survey.origin.sql()
        ))
    })
}

/// Returns every mode that the columns allow, the strongest guarantees first.
fn possible(
    settings: &SourceSettings,
    survey: Survey<'_>,
) -> Result<Vec<ReasonedChoice>, FetchError> {
    let reasoned = |mode, cursor: Option<&str>, reason: String| ReasonedChoice {
        choice: Choice { mode, cursor: cursor.map(str::to_owned) },
        reason,
    };
    if let Some(name) = settings.cursor_column.as_deref() {
        let role = Role::Cursor(None);
        let column = columns::find(settings, survey.origin, survey.columns, role, name)?;
        let modes = [CursorMode::RowVersion, CursorMode::TimestampPk, CursorMode::IntegerPk];
        let mode = modes.into_iter().find(|mode| column.fits(*mode).is_ok()).ok_or_else(|| {
            configuration(format!(
                "cursor column `{name}` of `{}` is of type `{}`, which no mode can order rows by",
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
            "`{}` is an identity; only inserted rows are seen, and the table has no better cursor",
            column.name
        );
        found.push(reasoned(CursorMode::IntegerPk, Some(&column.name), reason));
    }
    Ok(found)
}

/// Checks that the key is the primary key, by which tracked changes are identified.
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
            "`{table}` has no primary key, but mode `change_tracking` needs one: choose another mode"
        ),
        primary => format!(
            "the key is `{}`, but mode `change_tracking` needs the primary key of `{table}`, `{}`: set \
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
            mask: crate::source::Mask::default(),
            filter: None,
            filter_params: std::collections::BTreeMap::new(),
            soft_delete: None,
            operations: None,
            settle: Duration::ZERO,
            clock: crate::source::SourceClock::Utc,
            limits: SizeLimits::default(),
            partition: None,
            on_schema_change: crate::source::OnSchemaChange::Follow,
        }
    }

    fn column(name: &str, type_name: &str) -> Column {
        let plain = crate::source::describe::tests::column(type_name, 8, 0, 7);
        Column { name: name.to_owned(), identity: name == "id", primary: name == "id", ..plain }
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
            .map(|ReasonedChoice { choice, reason }| {
                format!("{} {}: {reason}", choice.mode, choice.cursor.unwrap_or_default())
            })
            .map_err(|error| error.reason)
    }

    #[test]
    fn the_mode_with_the_strongest_guarantees_is_chosen_with_a_reason() {
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
                "integer+pk id: `id` is an identity; only inserted rows are seen, and the table has no \
                 better cursor",
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
    fn the_type_of_a_configured_cursor_decides() {
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
        assert!(error.contains("`x` of `dbo.t` is of type `xml`, which no mode"), "{error}");
        let error = chosen(Some("y"), &columns, true, None).unwrap_err();
        assert!(error.contains("cursor column `y` is not in `dbo.t`"), "{error}");
        assert!(error.contains("correct `HIGHWATER__POLLERS__P__SOURCE__CURSOR`"), "{error}");
        // `x` is one letter off as well, but no mode can order rows by it.
        let columns = [column("x", "xml"), column("xv", "rowversion")];
        let error = chosen(Some("x_"), &columns, true, None).unwrap_err();
        assert!(error.ends_with("; did you mean `xv`?"), "{error}");
    }

    #[test]
    fn tracking_is_queried_only_if_the_answer_matters() {
        let asks = |cursor, columns: &[Column], stored: Option<CursorMode>| {
            let origin = Origin::of(&settings(cursor)).unwrap();
            let survey = Survey { origin: &origin, columns, tracked: false };
            let is_stored = |choice: &Choice| Some(choice.mode) == stored;
            depends_on_tracking(&settings(cursor), survey, is_stored).unwrap()
        };
        let (id, rv) = (column("id", "int"), column("rv", "timestamp"));
        let plain = [id.clone(), column("at", "date")];
        assert!(asks(None, &plain, None));
        assert!(!asks(Some("at"), &plain, None), "the cursor is set");
        assert!(!asks(None, &[id.clone(), rv], None), "a rowversion is better");
        assert!(!asks(None, &[Column { primary: false, ..id }], None), "no primary key");
        for mode in [CursorMode::ChangeTracking, CursorMode::IntegerPk] {
            assert!(!asks(None, &plain, Some(mode)), "{mode} was chosen before");
        }
    }

    #[test]
    fn an_earlier_choice_is_kept() {
        let columns = [column("id", "int"), column("rv", "timestamp")];
        let before = |mode, tracked| chosen(None, &columns, tracked, Some(mode)).unwrap();
        let integer = before(CursorMode::IntegerPk, true);
        assert_eq!(integer, "integer+pk id: it was chosen when the poller first ran");
        // Even if changes are no longer tracked: continuing in another mode would skip rows.
        assert!(before(CursorMode::ChangeTracking, false).starts_with("change_tracking "));
        // A mode that this table cannot have used is rejected by the fingerprint.
        assert!(before(CursorMode::TimestampPk, false).starts_with("rowversion "));
    }
}

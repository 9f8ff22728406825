//! Selects the columns to read. Columns in the settings must exist; a typo gets a suggestion. Pure.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::partition::poller_of_partition;
use highwater_engine::source::FetchError;

use crate::closest::closest;

use super::SourceSettings;
use super::choice::Choice;
use super::describe::Column;
use super::mask::MaskMethod;
use super::origin::Origin;

/// The role of a column in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Orders rows; the mode is `None` if it is not chosen yet.
    Cursor(Option<CursorMode>),
    Key,
    Listed,
    Excluded,
    Masked,
    SoftDelete,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cursor(_) => "cursor",
            Self::Key => "key",
            Self::Listed => "listed",
            Self::Excluded => "excluded",
            Self::Masked => "masked",
            Self::SoftDelete => "soft-delete",
        }
    }

    /// Returns the name of the setting for this role.
    fn setting(self, settings: &SourceSettings) -> String {
        let name = match self {
            Self::Cursor(_) => "CURSOR",
            Self::Key => "KEY",
            Self::Listed => "COLUMNS",
            Self::Excluded => "COLUMNS_EXCLUDED",
            Self::Masked => "MASK",
            Self::SoftDelete => "SOFT_DELETE",
        };
        let poller = poller_of_partition(&settings.poller).to_ascii_uppercase();
        format!("HIGHWATER__POLLERS__{poller}__SOURCE__{name}")
    }

    /// Whether the column's type suits the role.
    fn fits(self, column: &Column) -> bool {
        let any = [CursorMode::RowVersion, CursorMode::TimestampPk, CursorMode::IntegerPk];
        match self {
            Self::Cursor(Some(mode)) => column.fits(mode).is_ok(),
            Self::Cursor(None) => any.into_iter().any(|mode| column.fits(mode).is_ok()),
            Self::Key => column.can_be_key(),
            Self::SoftDelete => column.deleted().is_ok(),
            Self::Listed | Self::Excluded | Self::Masked => true,
        }
    }
}

/// Returns the columns to deliver, in the order of the list, or else of the table.
///
/// If the table has columns whose names differ only in case, a masked one demands that all of them that are delivered are masked
/// too: a mask for `Email` would otherwise look as if it covered `email`.
///
/// # Errors
///
/// [`FetchError`] if the settings name a column that does not exist, or that cannot be excluded, or do not mask a column
/// that differs from a masked one only in case.
pub(super) fn delivered(
    settings: &SourceSettings,
    origin: &Origin,
    choice: &Choice,
    described: &[Column],
) -> Result<Vec<Column>, FetchError> {
    let masked = masked(settings, origin, choice, described)?;
    let is_dropped = |column: &Column| {
        masked.iter().any(|(other, method)| other == column && *method == MaskMethod::Drop)
    };
    if let Some(names) = &settings.columns {
        let listed = names.iter().map(|name| find(settings, origin, described, Role::Listed, name));
        let listed: Vec<Column> = listed
            .filter(|column| !column.as_ref().is_ok_and(is_dropped))
            .collect::<Result<_, _>>()?;
        check_similar(origin, &masked, &listed)?;
        return Ok(listed);
    }
    let mut delivered = described.to_vec();
    delivered.retain(|column| !is_dropped(column));
    for name in &settings.columns_excluded {
        let column = find(settings, origin, described, Role::Excluded, name)?;
        let is_needed = |kept: &String| alike(kept, &column.name);
        if settings.key.iter().any(is_needed) || choice.cursor.as_ref().is_some_and(is_needed) {
            return Err(configuration(format!(
                "column `{}` of `{origin}` is excluded, but is needed as key or cursor: remove it from \
                 `SOURCE__COLUMNS_EXCLUDED`",
                column.name
            )));
        }
        delivered.retain(|other| *other != column);
    }
    check_similar(origin, &masked, &delivered)?;
    Ok(delivered)
}

/// Checks that no delivered column without a mask differs from a masked one only in case.
fn check_similar(
    origin: &Origin,
    masked: &[(Column, MaskMethod)],
    delivered: &[Column],
) -> Result<(), FetchError> {
    for column in delivered {
        if masked.iter().any(|(other, _)| other == column) {
            continue;
        }
        if let Some((similar, _)) =
            masked.iter().find(|(other, _)| alike(&other.name, &column.name))
        {
            return Err(configuration(format!(
                "column `{}` of `{origin}` is masked, but `{}`, which differs only in case, is not: mask it in \
                 `SOURCE__MASK` too, or list columns without it in `SOURCE__COLUMNS`",
                similar.name, column.name
            )));
        }
    }
    Ok(())
}

/// Returns the masked columns, each with its method.
///
/// # Errors
///
/// [`FetchError`] if the settings name a column that does not exist, or one that positions or operations depend on.
pub(super) fn masked(
    settings: &SourceSettings,
    origin: &Origin,
    choice: &Choice,
    described: &[Column],
) -> Result<Vec<(Column, MaskMethod)>, FetchError> {
    let mut masked: Vec<(Column, MaskMethod)> = Vec::new();
    for (name, method) in settings.mask.columns() {
        let column = find(settings, origin, described, Role::Masked, name)?;
        let is_it = |needed: &String| alike(needed, &column.name);
        let role = if settings.key.iter().any(is_it) {
            Some("key")
        } else if choice.cursor.as_ref().is_some_and(is_it) {
            Some("cursor")
        } else if settings.soft_delete.as_ref().is_some_and(is_it) {
            Some("soft-delete column")
        } else {
            None
        };
        if let Some(role) = role {
            return Err(configuration(format!(
                "column `{}` of `{origin}` is masked, but is needed as {role}: remove it from `SOURCE__MASK`",
                column.name
            )));
        }
        if masked.iter().any(|(other, _)| *other == column) {
            return Err(configuration(format!(
                "column `{}` of `{origin}` is masked twice: remove `{name}` from `SOURCE__MASK`",
                column.name
            )));
        }
        masked.push((column, *method));
    }
    Ok(masked)
}

/// Returns the condition under which a row counts as deleted; `None` without a soft-delete column.
///
/// # Errors
///
/// [`FetchError`] if the column does not exist or has an unsuitable type, or the mode would not see its
/// change.
pub(super) fn deleted(
    settings: &SourceSettings,
    origin: &Origin,
    mode: CursorMode,
    described: &[Column],
) -> Result<Option<String>, FetchError> {
    let Some(name) = &settings.soft_delete else { return Ok(None) };
    if mode == CursorMode::IntegerPk {
        let reason = format!(
            "soft-delete column `{name}` is set, but mode `{mode}` sees inserted rows only: choose \
             another mode, or remove it"
        );
        return Err(configuration(reason));
    }
    let column = find(settings, origin, described, Role::SoftDelete, name)?;
    column.deleted().map(Some).map_err(configuration)
}

/// Finds a column by name: as written, or else ignoring case, as most collations do.
///
/// # Errors
///
/// [`FetchError`] if it does not exist, or if several differ from the name only in case; the error has the `role` of the column, and its setting.
pub(super) fn find(
    settings: &SourceSettings,
    origin: &Origin,
    described: &[Column],
    role: Role,
    name: &str,
) -> Result<Column, FetchError> {
    let name = name.trim();
    let same = |column: &&Column| column.name == name;
    let exact = described.iter().find(same);
    let mut similar = described.iter().filter(|column| alike(&column.name, name));
    let found = exact.or_else(|| similar.next());
    if let Some(other) = similar.next().filter(|_| exact.is_none()) {
        let one = found.map_or(name, |column| column.name.as_str());
        let (role, setting) = (role.as_str(), role.setting(settings));
        return Err(configuration(format!(
            "{role} column `{name}` of `{origin}` may be `{one}` or `{}`: write the name with its case in `{setting}`",
            other.name
        )));
    }
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = described.iter().map(|column| column.name.as_str()).collect();
        let fitting = described.iter().filter(|column| role.fits(column));
        let meant = closest(name, fitting.map(|column| column.name.as_str()));
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        let (role, setting, names) = (role.as_str(), role.setting(settings), names.join("`, `"));
        configuration(format!(
            "{role} column `{name}` is not in `{origin}`, which has `{names}`: correct `{setting}`{meant}"
        ))
    })
}

/// Returns the index at which `column` is read, adding it if necessary.
pub(super) fn position(read: &mut Vec<Column>, column: &Column) -> usize {
    read.iter().position(|other| other == column).unwrap_or_else(|| {
        read.push(column.clone());
        read.len() - 1
    })
}

/// Whether two names are equal when case is ignored.
fn alike(one: &str, other: &str) -> bool {
    one.trim().to_lowercase() == other.trim().to_lowercase()
}

fn configuration(reason: impl Into<String>) -> FetchError {
    FetchError::new(ErrorKind::Configuration, reason)
}

#[cfg(test)]
mod tests {
    use super::super::mask::Mask;
    use super::super::plan::tests::settings;
    use super::*;

    fn read(masked: &str, listed: Option<&str>, columns: &[&str]) -> Result<String, String> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let masked = words(masked).into_iter().map(|name| match name.strip_prefix('-') {
            Some(name) => (name.to_owned(), MaskMethod::Drop),
            None => (name, MaskMethod::Sha256),
        });
        let settings = SourceSettings {
            mask: Mask::new(masked.collect(), None).unwrap(),
            columns: listed.map(words),
            ..settings(CursorMode::RowVersion, "rv")
        };
        let plain = super::super::describe::tests::column("int", 4, 10, 0);
        let column = |name: &&str| Column { name: (*name).to_owned(), ..plain.clone() };
        let described: Vec<Column> = columns.iter().map(column).collect();
        let choice = Choice { mode: CursorMode::RowVersion, cursor: Some("rv".to_owned()) };
        let origin = Origin::of(&settings).unwrap();
        let found = delivered(&settings, &origin, &choice, &described);
        let names =
            found.map(|found| found.into_iter().map(|column| column.name).collect::<Vec<_>>());
        names.map(|names| names.join(" ")).map_err(|error| error.reason)
    }

    /// In a database with a case-sensitive collation.
    #[test]
    fn a_mask_leaves_no_column_open_that_differs_only_in_case() {
        let both = ["ID", "Email", "email"];
        // Both are masked, or the other one is not delivered.
        assert_eq!(read("Email email", None, &both).unwrap(), "ID Email email");
        assert_eq!(read("-Email email", None, &both).unwrap(), "ID email");
        assert_eq!(read("Email", Some("ID Email"), &both).unwrap(), "ID Email");
        for mask in ["Email", "-Email", "email"] {
            let error = read(mask, None, &both).unwrap_err();
            assert!(error.contains("is masked, but `"), "{mask}: {error}");
            assert!(error.contains("differs only in case, is not: mask it"), "{mask}: {error}");
        }
        let error = read("-Email", Some("ID email"), &both).unwrap_err();
        assert!(error.contains("column `Email` of `dbo.t` is masked, but `email`"), "{error}");
        // Which one is meant is not guessed.
        let error = read("EMAIL", None, &both).unwrap_err();
        assert_eq!(
            error,
            "masked column `EMAIL` of `dbo.t` may be `Email` or `email`: write the name with its case in \
             `HIGHWATER__POLLERS__P__SOURCE__MASK`"
        );
        // With a single such column, case does not matter.
        assert_eq!(read("-EMAIL", None, &["ID", "Email"]).unwrap(), "ID");
        let error = read("Email email", None, &["ID", "Email"]).unwrap_err();
        assert!(error.contains("`Email` of `dbo.t` is masked twice: remove `email`"), "{error}");
    }
}

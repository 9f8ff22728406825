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
/// # Errors
///
/// [`FetchError`] if the settings name a column that does not exist, or that cannot be excluded.
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
        return listed.filter(|column| !column.as_ref().is_ok_and(is_dropped)).collect();
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
    Ok(delivered)
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
    for (name, method) in &settings.mask.columns {
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
/// [`FetchError`] if it does not exist; the error has the `role` of the column, and its setting.
pub(super) fn find(
    settings: &SourceSettings,
    origin: &Origin,
    described: &[Column],
    role: Role,
    name: &str,
) -> Result<Column, FetchError> {
    let name = name.trim();
    let same = |column: &&Column| column.name == name;
    let found = described.iter().find(same);
    let found = found.or_else(|| described.iter().find(|column| alike(&column.name, name)));
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

//! Mistakes in the settings, with messages that explain the fix.

use std::fmt;

use thiserror::Error;

use super::settings::page_of;
use super::unknown::setting_named;
use crate::printable::printable_char;
use crate::redaction::looks_like;

/// Longest value that is shown.
const VALUE_CHARS_MAX: usize = 120;

/// All mistakes in the settings, ordered by the names of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigErrors(pub Vec<Mistake>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mistakes) = self;
        let noun = if mistakes.len() == 1 { "mistake" } else { "mistakes" };
        write!(formatter, "{} {noun} in the settings", mistakes.len())?;
        mistakes.iter().try_for_each(|mistake| {
            write!(formatter, "\n{mistake}")?;
            match mistake.page() {
                Some(page) => write!(formatter, "\n  see {page}"),
                None => Ok(()),
            }
        })
    }
}

/// One mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the setting.
    pub setting: String,
    /// The value as it may be shown.
    pub shown: Shown,
    /// The expected value; empty if the setting should be removed.
    pub expected: String,
    /// How to fix it, if that is not obvious.
    pub hint: Option<String>,
}

impl Mistake {
    /// Returns where the documentation explains the setting.
    pub fn page(&self) -> Option<String> {
        setting_named(&self.setting).map(page_of)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, shown, expected, hint } = self;
        write!(formatter, "setting `{setting}` {shown}")?;
        if !expected.is_empty() {
            write!(formatter, ", expected {expected}")?;
        }
        match hint {
            Some(hint) => write!(formatter, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What may be shown of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The setting is not set.
    Missing,
    /// The value itself.
    Value(String),
    /// The value is or may be a secret.
    Secret,
    /// The value looks like a secret: only its length and what it looks like are shown.
    LooksSecret(String),
    /// The value is a URL that cannot be parsed: only its scheme is shown.
    Scheme(String),
    /// The name is unknown.
    Unknown,
    /// Earlier versions had this setting.
    Removed,
}

impl Shown {
    /// Returns a value as it may be shown. A value that looks like a misplaced secret is only described.
    pub(super) fn of(text: &str) -> Self {
        if let Some(kind) = looks_like(text) {
            return Self::LooksSecret(format!(
                "{} characters, looks like {kind}",
                text.chars().count()
            ));
        }
        // The URL of a receiver in the wrong setting.
        let lower = text.to_ascii_lowercase();
        if ["http://", "https://"].iter().any(|scheme| lower.contains(scheme)) {
            return Self::of_address(text);
        }
        Self::Value(text.to_owned())
    }

    /// Returns a value that should have been a number or one of a few words. A longer value is not a typo, and may
    /// be a key.
    pub(super) fn of_choice(text: &str) -> Self {
        const TYPO_CHARS_MAX: usize = 16;
        let count = text.chars().count();
        let shown = Self::of(text);
        if matches!(shown, Self::Value(_)) && count > TYPO_CHARS_MAX && !text.contains(' ') {
            return Self::LooksSecret(format!("{count} characters, too long for this setting"));
        }
        shown
    }

    /// Returns the value alone, as it may be shown.
    pub(super) fn value(&self) -> String {
        match self {
            Self::Value(value) => value.clone(),
            Self::Secret => "(not shown)".to_owned(),
            Self::LooksSecret(form) => format!("(not shown: {form})"),
            Self::Scheme(scheme) => format!("{scheme}://…"),
            Self::Missing => String::new(),
            Self::Unknown => "(unknown setting: not shown)".to_owned(),
            Self::Removed => "(removed setting: not shown)".to_owned(),
        }
    }

    /// Returns an invalid address as it may be shown: only its scheme, since secret parts cannot be located.
    pub(super) fn of_address(text: &str) -> Self {
        let is_scheme = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
        };
        match text.split_once("://") {
            Some((scheme, _)) if is_scheme(scheme) => Self::Scheme(scheme.to_owned()),
            Some(_) | None => Self::Secret,
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => formatter.write_str("is not set"),
            Self::Value(value) => write!(formatter, "is `{}`", printable(value, VALUE_CHARS_MAX)),
            Self::Secret => formatter.write_str("is `(not shown)`"),
            Self::LooksSecret(form) => write!(formatter, "is `(not shown)` ({form})"),
            Self::Scheme(scheme) => write!(formatter, "is `{scheme}://…`"),
            Self::Unknown => formatter.write_str("is unknown"),
            Self::Removed => formatter.write_str("was removed"),
        }
    }
}

/// Returns at most `chars_max` characters of `text`, as it may be printed.
fn printable(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(printable_char).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

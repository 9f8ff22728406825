//! What is wrong with the settings, said so that it can be mended without reading code.

use std::fmt;

use thiserror::Error;

use crate::redaction::looks_like;

/// Longest value that a mistake shows.
const VALUE_CHARS_MAX: usize = 120;

/// Every mistake in the settings, in the order of the settings' names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigErrors(pub Vec<Mistake>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mistakes) = self;
        let noun = if mistakes.len() == 1 { "mistake" } else { "mistakes" };
        write!(formatter, "{} {noun} in the settings", mistakes.len())?;
        mistakes.iter().try_for_each(|mistake| write!(formatter, "\n{mistake}"))
    }
}

/// One setting that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the setting.
    pub setting: String,
    /// What it is.
    pub shown: Shown,
    /// What it should be; empty where the setting should not be there.
    pub expected: String,
    /// What to do, where that is not plain from the rest.
    pub hint: Option<String>,
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

/// What may be told of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing is set.
    Missing,
    /// The value itself.
    Value(String),
    /// There is a value, which is or may be a secret.
    Secret,
    /// There is a value that looks like a secret: its length and what it looks like are all that is shown.
    LooksSecret(String),
    /// There is a URL that cannot be read as one, whose parts cannot be told apart: its scheme.
    Scheme(String),
    /// The name itself is the mistake.
    Unknown,
    /// Earlier builds read the setting.
    Removed,
}

impl Shown {
    /// Returns a value as it may be shown: only its form where it looks as if a secret had ended up in the
    /// wrong setting, and only its scheme where it is an address.
    pub(super) fn of(text: &str) -> Self {
        if let Some(kind) = looks_like(text) {
            return Self::LooksSecret(format!(
                "{} characters, looks like {kind}",
                text.chars().count()
            ));
        }
        Self::Value(text.to_owned())
    }

    /// Returns a value that should have been a number or one of a few words: what is longer than those is no slip
    /// of the pen, and may be a key.
    pub(super) fn of_choice(text: &str) -> Self {
        const SLIP_CHARS_MAX: usize = 16;
        let count = text.chars().count();
        let shown = Self::of(text);
        if matches!(shown, Self::Value(_)) && count > SLIP_CHARS_MAX && !text.contains(' ') {
            return Self::LooksSecret(format!("{count} characters, too long for this setting"));
        }
        shown
    }

    /// Returns an address as it may be shown: its scheme, since the parts
    /// of one that cannot be read cannot be told apart.
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

/// Returns at most `chars_max` characters of `text`, none of them a control character.
fn printable(text: &str, chars_max: usize) -> String {
    let mut shown: String =
        text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

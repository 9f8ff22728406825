//! What is wrong with the settings, said so that it can be mended without reading code.

use std::fmt;

use thiserror::Error;

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
    /// What it should be.
    pub expected: String,
    /// What to do, where that is not plain from the rest.
    pub hint: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, shown, expected, hint } = self;
        write!(formatter, "setting `{setting}` {shown}, expected {expected}")?;
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
    /// The name itself is the mistake.
    Unknown,
}

impl Shown {
    /// Returns a value as it may be shown: not at all where it looks as if a connection string or
    /// a URL with a key had ended up in the wrong setting.
    pub(super) fn of(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let is_list = lower.contains('=') && lower.contains([';', '?']);
        let has_secret =
            ["key=", "password=", "pwd=", "sig="].iter().any(|key| lower.contains(key));
        if is_list || has_secret { Self::Secret } else { Self::Value(text.to_owned()) }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => formatter.write_str("is not set"),
            Self::Value(value) => write!(formatter, "is `{}`", printable(value, VALUE_CHARS_MAX)),
            Self::Secret => formatter.write_str("is `(not shown)`"),
            Self::Unknown => formatter.write_str("is unknown"),
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

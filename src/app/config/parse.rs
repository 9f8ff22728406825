//! Parsers for durations, sizes, numbers and names. Pure; errors describe the expected value.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use highwater_mssql::closest;
use tracing_subscriber::filter::Targets;

use super::mistake::Shown;
use crate::redaction::is_guid;

const DAY: Duration = Duration::from_secs(86_400);

/// Longest duration in a setting: a longer one is probably a wrong unit.
const DURATION_MAX: Duration = DAY;

/// The expected value of a setting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Completes "expected …".
    pub(super) what: String,
    /// How to fix it.
    pub(super) hint: Option<String>,
    /// What may be shown of the value, if not all of it.
    pub(super) shown: Option<Shown>,
    /// Whether the value has no effect because of other settings of the poller. A setting of all pollers may have none.
    pub(super) is_without_effect: bool,
}

impl Expected {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, shown: None, is_without_effect: false }
    }

    /// Expects no value, since it has no effect.
    pub(super) fn none(what: impl Into<String>) -> Self {
        Self { is_without_effect: true, ..Self::new(what) }
    }

    /// Expects a number or one of a few words instead of `text`.
    pub(super) fn choice(what: impl Into<String>, text: &str) -> Self {
        Self::new(what).shown(Shown::of_choice(text))
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Suggests the most similar of the accepted words, in whatever case it was written.
    fn meant(self, text: &str, words: &[&str]) -> Self {
        let written = text.trim().to_lowercase();
        match closest(&written, words.iter().copied()) {
            Some(word) => self.hint(format!("did you mean `{word}`?")),
            None => self,
        }
    }

    pub(super) fn shown(self, shown: Shown) -> Self {
        Self { shown: Some(shown), ..self }
    }
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `1h`; `0` needs no unit.
pub(super) fn duration(text: &str) -> Result<Duration, Expected> {
    let expected = || {
        Expected::choice("a duration such as `500ms`, `30s`, `5m` or `1h`, up to 24 hours", text)
    };
    let (number, unit) = split_unit(text);
    let number: u64 = number.parse().ok().ok_or_else(expected)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" if number == 0 => 1,
        "" => return Err(expected().hint(format!("add the unit, as in `{number}s`"))),
        _ => return Err(expected()),
    };
    let duration = number.checked_mul(unit_ms).map(Duration::from_millis);
    duration.filter(|duration| *duration <= DURATION_MAX).ok_or_else(expected)
}

/// Parses a duration for the option of a command.
///
/// # Errors
///
/// A description of the expected value.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    duration(text).map_err(|expected| format!("expected {}", expected.what))
}

/// Parses a duration of at least `min`.
pub(super) fn duration_from(min: Duration) -> impl Fn(&str) -> Result<Duration, Expected> {
    move |text| match duration(text)? {
        read if read >= min => Ok(read),
        _ => Err(Expected::new(format!("a duration of at least {}", show_duration(min)))),
    }
}

/// Parses whole days, or a shorter duration of at least a second.
pub(super) fn days_or_duration(text: &str) -> Result<Duration, Expected> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok());
    match days {
        Some(days @ 1..=365) => Ok(DAY * u32::from(days)),
        _ => duration_from(Duration::from_secs(1))(text).map_err(|_other| {
            Expected::new("days such as `7d`, up to 365, or a duration such as `12h`")
        }),
    }
}

/// Parses an age, such as `7d` or `12h`, for the option of a command.
///
/// # Errors
///
/// A description of the expected value.
pub fn parse_age(text: &str) -> Result<Duration, String> {
    days_or_duration(text).map_err(|expected| format!("expected {}", expected.what))
}

/// Formats a duration as in settings.
pub(super) fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = units.iter().find(|(size, _)| ms > 0 && ms.is_multiple_of(*size));
    unit.map_or_else(|| format!("`{ms}ms`"), |(size, unit)| format!("`{}{unit}`", ms / size))
}

/// Parses a size such as `4MiB`, `512KiB` or `1000000`, up to one GiB.
pub(super) fn size(text: &str) -> Result<usize, Expected> {
    let expected = || {
        Expected::choice(
            "a size of 1 byte to 1024 MiB, such as `4MiB`, `512KiB` or `1000000`",
            text,
        )
    };
    let (number, unit) = split_unit(text);
    let number: usize = number.parse().ok().ok_or_else(expected)?;
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "kB" | "KB" | "MB" => {
            return Err(expected().hint("supported units are `KiB` and `MiB`"));
        }
        _ => return Err(expected()),
    };
    let size = number.checked_mul(1 << shift);
    size.filter(|size| (1..=1 << 30).contains(size)).ok_or_else(expected)
}

/// Parses a whole number within `range`.
pub(super) fn number(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, Expected> {
    move |text| {
        let read = text.parse().ok().filter(|number| range.contains(number));
        read.ok_or_else(|| {
            let what = match (range.start(), range.end()) {
                (start, &u32::MAX) => format!("a whole number of at least {start}"),
                (start, end) => format!("a whole number from {start} to {end}"),
            };
            Expected::choice(what, text)
        })
    }
}

/// Parses `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Expected::choice("`true` or `false`", text).meant(text, &["true", "false"])),
    }
}

/// Accepts any text.
#[expect(clippy::unnecessary_wraps, reason = "has the signature of the other parsers")]
pub(super) fn any(text: &str) -> Result<String, Expected> {
    Ok(text.to_owned())
}

/// Parses one of a few words.
pub(super) fn one_of<T: Copy>(words: &[(&str, T)]) -> impl Fn(&str) -> Result<T, Expected> {
    move |text| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let words: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
            let what = match words.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            };
            Expected::choice(what, text).meant(text, &known)
        })
    }
}

/// Parses the name of a column: plain, in brackets or in quotation marks.
pub(super) fn column(text: &str) -> Result<String, Expected> {
    let text = text.trim();
    if !text.starts_with(['[', '"']) {
        return Ok(text.to_owned());
    }
    match first_column(text) {
        Some((name, "")) if !name.is_empty() => Ok(name),
        _ => Err(Expected::new("the name of a column").hint(COLUMN_QUOTES)),
    }
}

/// How to fix a misplaced bracket or quotation mark.
const COLUMN_QUOTES: &str = "write `[a,b]` or `\"a,b\"`, with `]]` for `]` and `\"\"` for `\"`";

/// Splits off the first of several names; the rest starts with the comma. `None` if a bracket or quotation mark is
/// misplaced.
fn first_column(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    if !text.starts_with(['[', '"']) {
        let (name, rest) = text.split_at(text.find(',').unwrap_or(text.len()));
        return Some((name.trim().to_owned(), rest));
    }
    let (name, rest) = quoted_column(text)?;
    (rest.is_empty() || rest.starts_with(',')).then_some((name, rest))
}

/// Splits off a name in brackets or quotation marks. `None` if it is not closed.
fn quoted_column(text: &str) -> Option<(String, &str)> {
    let closing = if text.starts_with('[') { ']' } else { '"' };
    let mut name = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == closing && chars.next_if(|(_, next)| *next == closing).is_none() {
            return Some((name, text.get(at + c.len_utf8()..)?.trim_start()));
        }
        name.push(c);
    }
    None
}

/// Parses names of columns separated by commas, each once. A name that contains a comma must be in brackets or
/// quotation marks, and any name may be.
pub(super) fn columns(text: &str) -> Result<Vec<String>, Expected> {
    let mut columns = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let (name, after) = first_column(text).ok_or_else(|| {
            Expected::new("names of columns separated by commas").hint(COLUMN_QUOTES)
        })?;
        columns.push(name);
        rest = after.strip_prefix(',');
    }
    let expected = || Expected::new("names of columns separated by commas, each once");
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    are_different(&names).then_some(columns).ok_or_else(expected)
}

/// Parses names of columns, each with a word: `a:x, [b,c]:y`. Each column appears once.
pub(super) fn column_words(text: &str) -> Result<Vec<(String, String)>, Expected> {
    let expected = || {
        Expected::new("columns with a method each, separated by commas, such as `email:sha256`")
            .hint(COLUMN_QUOTES)
    };
    let mut columns = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest.map(str::trim_start) {
        let (name, after) = if text.starts_with(['[', '"']) {
            let (name, after) = quoted_column(text).ok_or_else(expected)?;
            (name, after.strip_prefix(':').ok_or_else(expected)?)
        } else {
            let pair = text.split_once(':').filter(|(name, _)| !name.contains(','));
            let (name, after) = pair.ok_or_else(expected)?;
            (name.trim().to_owned(), after)
        };
        let (word, after) = after.split_at(after.find(',').unwrap_or(after.len()));
        columns.push((name, word.trim().to_owned()));
        rest = after.strip_prefix(',');
    }
    // Names that differ in case may be different columns: reading the table shows it.
    let names: BTreeSet<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() < columns.len() || names.contains("") {
        return Err(Expected::new("columns with a method each, every column once"));
    }
    Ok(columns)
}

/// Whether none of the names is empty, and no two are equal. The default collations of SQL Server ignore case.
fn are_different(names: &[&str]) -> bool {
    let folded: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
    folded.len() == names.len() && names.iter().all(|name| !name.is_empty())
}

/// Parses the name of another setting.
///
/// The most likely mistake is to put the connection string itself here, so a text that could be one is not shown.
pub(super) fn setting_name(text: &str) -> Result<String, Expected> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':');
    if text.chars().all(is_name_char) && text.len() <= 128 && !is_guid(text) {
        return Ok(text.to_owned());
    }
    Err(Expected::new("the name of a setting")
        .hint("put the connection string into another setting, and the name of that setting here")
        .shown(Shown::Secret))
}

/// Parses the name of an application, which becomes a folder in a blob's path.
pub(super) fn app_name(text: &str) -> Result<String, Expected> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let fits = text.len() <= 100
        && text.chars().all(is_name_char)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.ends_with('.');
    fits.then(|| text.to_owned()).ok_or_else(|| {
        Expected::new(
            "up to 100 letters, digits, `-`, `_` and `.`, starting with a letter or digit and not ending with `.`",
        )
    })
}

/// Parses the name of a blob container.
/// <https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata>
pub(super) fn container_name(text: &str) -> Result<String, Expected> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = (3..=63).contains(&text.len())
        && text.chars().all(|c| is_plain(c) || c == '-')
        && text.starts_with(is_plain)
        && text.ends_with(is_plain)
        && !text.contains("--");
    fits.then(|| text.to_owned()).ok_or_else(|| {
        Expected::new(
            "3 to 63 lowercase letters, digits and single `-`, not starting or ending with `-`",
        )
    })
}

/// Parses a filter for `tracing`.
pub(super) fn log_filter(text: &str) -> Result<String, Expected> {
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Expected::new("a log filter such as `info` or `warn,highwater=debug`")
            .hint(error.to_string())),
    }
}

/// Whether a text is a valid poller name: `[a-z][a-z0-9_]*`, without `__`, which is the separator.
pub fn is_poller_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !text.contains("__")
        && !text.ends_with('_')
        && text.len() <= 64
}

fn split_unit(text: &str) -> (&str, &str) {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    (number, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_nearly_right_gets_a_suggestion() {
        let mode = one_of(&[("rowversion", 1), ("timestamp+pk", 2), ("change_tracking", 3)]);
        let hint = |text: &str| mode(text).unwrap_err().hint;
        for (text, word) in [
            ("rowverson", "rowversion"),
            ("RowVersion", "rowversion"),
            ("changetracking", "change_tracking"),
            ("timestamp_pk", "timestamp+pk"),
        ] {
            assert_eq!(hint(text), Some(format!("did you mean `{word}`?")));
        }
        assert_eq!(hint("webhook"), None);
        let hint = boolean("tru").unwrap_err().hint;
        assert_eq!(hint.as_deref(), Some("did you mean `true`?"));
    }

    #[test]
    fn durations_need_a_unit_and_are_at_most_a_day() {
        for (text, ms) in
            [("0", 0), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "5 min", "25h", "99999999999999999999h", "1S"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration("30").unwrap_err().hint.as_deref(), Some("add the unit, as in `30s`"));
    }

    #[test]
    fn durations_are_shown_as_in_settings() {
        for text in ["500ms", "1500ms", "90s", "5m", "1h"] {
            assert_eq!(show_duration(duration(text).unwrap()), format!("`{text}`"));
        }
    }

    #[test]
    fn sizes_are_in_powers_of_two_or_plain() {
        for (text, bytes) in [("4MiB", 4 << 20), ("512KiB", 512 << 10), ("1000000", 1_000_000)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "0", "4MB", "4 GiB", "-1", "1025MiB", "99999999999999MiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn columns_with_a_word_each_may_be_quoted_too() {
        for (text, expected) in [
            ("email:sha256,phone:drop", &[("email", "sha256"), ("phone", "drop")][..]),
            (" a b : x ,[c:d]: y,\"e,f\":z", &[("a b", "x"), ("c:d", "y"), ("e,f", "z")]),
            ("a:", &[("a", "")]),
            ("a:x,A:y", &[("a", "x"), ("A", "y")]),
        ] {
            let read = column_words(text).unwrap();
            let read: Vec<(&str, &str)> =
                read.iter().map(|(name, word)| (name.as_str(), word.as_str())).collect();
            assert_eq!(read, expected, "{text}");
        }
        for text in ["", "a", "a,b:drop", "a:x,", ":x", "a:x,a:y", "[a:x", "[a]x", "[]:x"] {
            assert!(column_words(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_columns_may_be_quoted_as_in_sql() {
        for (text, expected) in [
            ("a, b c ,d", &["a", "b c", "d"][..]),
            ("[a,b],\"c,d\" , e", &["a,b", "c,d", "e"]),
            ("[a]]b],\"c\"\"d\",[e\"f]", &["a]b", "c\"d", "e\"f"]),
            ("a[1],b\"", &["a[1]", "b\""]),
            (" [x] ", &["x"]),
        ] {
            assert_eq!(columns(text).unwrap(), expected, "{text}");
        }
        for text in ["", "a,,b", "a,", "[]", "a,[A]", "[a", "[a]b", "\"a\"\"", "[a] b,c", "[a]]"] {
            assert!(columns(text).is_err(), "{text}");
        }
        assert!(columns("[a,b").unwrap_err().hint.unwrap().contains("with `]]` for `]`"));
        for (text, expected) in
            [("a,b", "a,b"), ("[a,b]", "a,b"), ("\"c\"\"\"", "c\""), ("[a]]]", "a]")]
        {
            assert_eq!(column(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["[a", "[a],[b]", "[]", "[a]b"] {
            assert!(column(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_connection_string_in_place_of_a_name_is_not_shown() {
        assert_eq!(setting_name("SQL_CONNECTION"), Ok("SQL_CONNECTION".to_owned()));
        let expected = setting_name("Server=db;Password=secret").unwrap_err();
        assert_eq!(expected.shown, Some(Shown::Secret));
    }

    #[test]
    fn names_used_in_paths_have_no_special_characters() {
        for name in ["local", "my-app_1.test"] {
            assert!(app_name(name).is_ok(), "{name}");
        }
        for name in ["", "..", ".a", "a/b", "a\\b", "a b", "a.", "é"] {
            assert!(app_name(name).is_err(), "{name}");
        }
        for name in ["ab", "Db-state", "-ab", "ab-", "a--b", "a_b"] {
            assert!(container_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn poller_names_do_not_contain_the_separator() {
        for name in ["orders", "a1_b"] {
            assert!(is_poller_name(name), "{name}");
        }
        for name in ["", "1a", "_a", "a_", "a__b", "Orders", "a-b"] {
            assert!(!is_poller_name(name), "{name}");
        }
    }
}

//! Positions in a source's change order.
//!
//! A position is stored as the server's own text and compared by the server. This module only compares the leading
//! part, whose text is normalised so that text order is its order. Keys are never compared here: SQL Server orders
//! strings and identifiers differently than Rust.

mod definition;
mod key;
mod key_id;

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

pub use self::definition::SourceDefinition;
pub use self::key::KeyValues;
pub use self::key_id::KeyId;

/// How a source orders its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CursorMode {
    /// An 8-byte `rowversion` column, then the key.
    #[serde(rename = "rowversion")]
    RowVersion,
    /// A date and time column, then the key.
    #[serde(rename = "timestamp+pk")]
    TimestampPk,
    /// An integer column whose values only grow, then the key; rows are only added.
    #[serde(rename = "integer+pk")]
    IntegerPk,
    /// The table's rows by key, then the changes that SQL Server's change tracking reports.
    #[serde(rename = "change_tracking")]
    ChangeTracking,
}

impl CursorMode {
    /// Every mode.
    pub const ALL: [Self; 4] =
        [Self::RowVersion, Self::TimestampPk, Self::IntegerPk, Self::ChangeTracking];

    /// Returns the name used in settings and in the state document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RowVersion => "rowversion",
            Self::TimestampPk => "timestamp+pk",
            Self::IntegerPk => "integer+pk",
            Self::ChangeTracking => "change_tracking",
        }
    }

    /// Whether rows count as complete after some time, so that a row can be too late.
    pub fn is_time_based(self) -> bool {
        matches!(self, Self::TimestampPk | Self::IntegerPk)
    }
}

impl fmt::Display for CursorMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What a source stores in the state document besides the cursor. Losing it may cost time or cause a stop with
/// advice, but never a row.
pub type SourceState = serde_json::Map<String, serde_json::Value>;

/// A position in the source: every row at or before it has been seen.
///
/// A position without a key is after every row with its leading part. The JSON format is that of the state document:
/// `kind`, `value`, `tiebreaker`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The kind of the leading part.
    #[serde(rename = "kind")]
    pub mode: CursorMode,
    /// The leading part: `0x` and 16 hex digits, a timestamp with seven digits, a whole number, or a
    /// [`TrackedPosition`].
    pub value: String,
    /// The key of the row, which orders rows that share the leading part.
    #[serde(rename = "tiebreaker")]
    pub key: KeyValues,
}

/// A leading part that cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CursorError {
    /// Not `0x` and 16 hex digits.
    #[error("rowversion `{0}` is not `0x` followed by 16 hex digits")]
    RowVersion(String),
    /// Not an ISO 8601 timestamp or date.
    #[error(
        "timestamp `{0}` does not have the format `2026-04-07T01:23:45.1234567`, with `Z` for an offset type"
    )]
    Timestamp(String),
    /// Not a whole number.
    #[error("integer `{0}` is not a 64-bit integer")]
    Integer(String),
    /// Not a version of change tracking.
    #[error("change tracking position `{0}` does not have the format `17` or `snapshot@17`")]
    Tracked(String),
}

impl Cursor {
    /// Returns the position of a row with this rowversion and key.
    pub fn row_version(value: RowVersion, key: KeyValues) -> Self {
        Self { mode: CursorMode::RowVersion, value: value.text(), key }
    }

    /// Returns the position of a row with this timestamp, as the server wrote it, and key.
    ///
    /// # Errors
    ///
    /// [`CursorError::Timestamp`] if the text is not a timestamp.
    pub fn timestamp(text: &str, key: KeyValues) -> Result<Self, CursorError> {
        let value = normalize_timestamp(text)?;
        Ok(Self { mode: CursorMode::TimestampPk, value, key })
    }

    /// Returns the position of a row with this integer and key.
    pub fn integer(value: i64, key: KeyValues) -> Self {
        Self { mode: CursorMode::IntegerPk, value: value.to_string(), key }
    }

    /// Returns the position of a row of the table, or of a change.
    pub fn tracked(position: TrackedPosition, key: KeyValues) -> Self {
        Self { mode: CursorMode::ChangeTracking, value: position.to_string(), key }
    }

    /// Returns the leading part as a number.
    ///
    /// # Errors
    ///
    /// [`CursorError::Integer`] if it is not one.
    pub fn integer_value(&self) -> Result<i64, CursorError> {
        integer(&self.value)
    }

    /// Returns the leading part as a number, if the mode counts positions.
    pub fn number(&self) -> Option<i64> {
        match self.mode {
            CursorMode::RowVersion => i64::try_from(self.value.parse::<RowVersion>().ok()?.0).ok(),
            CursorMode::IntegerPk => self.integer_value().ok(),
            CursorMode::ChangeTracking => {
                self.value.parse::<TrackedPosition>().ok().map(|at| at.version)
            }
            CursorMode::TimestampPk => None,
        }
    }

    /// Compares the leading parts; `None` if they are of different kinds.
    ///
    /// Equal leading parts do not order the rows: only the server can compare their keys.
    pub fn compare_leading(&self, other: &Self) -> Option<Ordering> {
        if self.mode != other.mode {
            return None;
        }
        let (one, two) = (&self.value, &other.value);
        match self.mode {
            // Both forms have a fixed width per mode and type, so text order is value order.
            CursorMode::RowVersion | CursorMode::TimestampPk => Some(one.cmp(two)),
            CursorMode::IntegerPk => Some(integer(one).ok()?.cmp(&integer(two).ok()?)),
            CursorMode::ChangeTracking => {
                let order = |text: &str| text.parse::<TrackedPosition>().ok();
                Some(order(one)?.cmp(&order(two)?))
            }
        }
    }

    /// Whether this is known to be a position before `other`, by the leading parts alone.
    pub fn is_before(&self, other: &Self) -> bool {
        self.compare_leading(other) == Some(Ordering::Less)
    }

    /// Checks what serde cannot: that the leading part has the format of its mode.
    ///
    /// # Errors
    ///
    /// [`CursorError`] if it does not.
    pub fn validate(&self) -> Result<(), CursorError> {
        match self.mode {
            CursorMode::RowVersion => self.value.parse::<RowVersion>().map(|_| ()),
            CursorMode::TimestampPk => normalize_timestamp(&self.value).map(|_| ()),
            CursorMode::IntegerPk => integer(&self.value).map(|_| ()),
            CursorMode::ChangeTracking => self.value.parse::<TrackedPosition>().map(|_| ()),
        }
    }
}

fn integer(text: &str) -> Result<i64, CursorError> {
    text.parse().ok().ok_or_else(|| CursorError::Integer(text.to_owned()))
}

/// Leading part of a position under change tracking: first the rows of the table, then changes.
///
/// Versions are assigned by SQL Server at commit. Positions are ordered by version. Rows that were read while a
/// version was current come before the changes of later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrackedPosition {
    /// The version of the change, or the version that was current when the snapshot was started.
    pub version: i64,
    /// Snapshot or changes.
    pub phase: TrackedPhase,
}

/// What is being read under change tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrackedPhase {
    /// The rows of the table.
    Snapshot,
    /// Changes since the snapshot.
    Changes,
}

impl fmt::Display for TrackedPosition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase {
            TrackedPhase::Snapshot => write!(formatter, "snapshot@{}", self.version),
            TrackedPhase::Changes => self.version.fmt(formatter),
        }
    }
}

impl std::str::FromStr for TrackedPosition {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (phase, digits) = match text.strip_prefix("snapshot@") {
            Some(digits) => (TrackedPhase::Snapshot, digits),
            None => (TrackedPhase::Changes, text),
        };
        let version = digits.parse().ok().filter(|version| *version >= 0);
        version
            .map(|version| Self { version, phase })
            .ok_or_else(|| CursorError::Tracked(text.to_owned()))
    }
}

/// SQL Server's 8-byte `rowversion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowVersion(pub u64);

impl RowVersion {
    fn text(self) -> String {
        let mut text = String::with_capacity(2 + 2 * size_of::<u64>());
        text.push_str("0x");
        push_hex(&mut text, b'A', &self.0.to_be_bytes());
        text
    }
}

impl fmt::Display for RowVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text())
    }
}

impl std::str::FromStr for RowVersion {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        text.strip_prefix("0x")
            .filter(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| CursorError::RowVersion(text.to_owned()))
    }
}

/// Returns `text` with exactly seven digits after the seconds, or a date unchanged.
///
/// `CONVERT` with style 126 omits a zero fraction, and shorter types print fewer digits; without this, text order
/// would not be time order.
///
/// # Errors
///
/// [`CursorError::Timestamp`] if the text is neither `yyyy-mm-ddThh:mm:ss[.fffffff][Z]` nor
/// `yyyy-mm-dd`.
pub fn normalize_timestamp(text: &str) -> Result<String, CursorError> {
    let bad = || CursorError::Timestamp(text.to_owned());
    let (body, zone) = text.strip_suffix('Z').map_or((text, ""), |body| (body, "Z"));
    let (seconds, fraction) = body.split_once('.').unwrap_or((body, ""));
    if body.contains('.') && fraction.is_empty() {
        return Err(bad());
    }
    let is_date = matches_shape(seconds, "0000-00-00") && body.len() == 10 && zone.is_empty();
    if is_date {
        return Ok(text.to_owned());
    }
    let digits_ok = fraction.len() <= 7 && fraction.bytes().all(|b| b.is_ascii_digit());
    if !digits_ok || !matches_shape(seconds, "0000-00-00T00:00:00") {
        return Err(bad());
    }
    Ok(format!("{seconds}.{fraction:0<7}{zone}"))
}

/// Whether `text` has a digit wherever `shape` has a zero, and is equal to it elsewhere.
fn matches_shape(text: &str, shape: &str) -> bool {
    text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(have, want)| match want {
            b'0' => have.is_ascii_digit(),
            other => have == other,
        })
}

/// Hash of everything that a checkpoint refers to: server, database, object, cursor, key and filter.
///
/// It has a version prefix, so that a later rule can recognise the old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceFingerprint(String);

impl SourceFingerprint {
    /// Hashes the named parts of a source's definition.
    pub fn of(parts: &[(&str, &str)]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"fingerprint-1");
        for (name, value) in parts {
            update_sized(&mut hash, name.as_bytes());
            update_sized(&mut hash, value.as_bytes());
        }
        Self(format!("sha256:{}", hex(&hash.finalize())))
    }

    /// Returns the text form, `sha256:` and 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SourceFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Adds `bytes` prefixed with their length, so that different lists of parts have different hashes.
pub(crate) fn update_sized(hash: &mut Sha256, bytes: &[u8]) {
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    hash.update(length.to_be_bytes());
    hash.update(bytes);
}

/// Returns lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push_hex(&mut text, b'a', bytes);
    text
}

/// Returns the first 32 digits of the hex of a hash.
pub(crate) fn short_hex(hash: &[u8; 32]) -> [u8; 32] {
    let mut text = [0; 32];
    let (words, _) = hash.as_chunks();
    for (eight, word) in text.as_chunks_mut().0.iter_mut().zip(words) {
        *eight = digits(b'a', u32::from_be_bytes(*word));
    }
    text
}

/// Reads what [`short_hex`] wrote; `None` if the text is not 32 hex digits in lower case.
pub(crate) fn parse_short_hex(text: &str) -> Option<[u8; 32]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = text.as_bytes().try_into().ok()?;
    text.bytes().all(is_hex).then_some(digits)
}

/// Writes hex, with the letter `ten` as the digit for ten.
fn push_hex(text: &mut String, ten: u8, bytes: &[u8]) {
    let mut push = |digits: &[u8]| text.push_str(str::from_utf8(digits).unwrap_or_default());
    let (words, rest) = bytes.as_chunks();
    for word in words {
        push(&digits(ten, u32::from_be_bytes(*word)));
    }
    for byte in rest {
        let [.., high, low] = digits(ten, (*byte).into());
        push(&[high, low]);
    }
}

/// Returns the eight digits of a number, computed at once: every row has two hashes and a position.
fn digits(ten: u8, number: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // Four bits per byte.
    let mut spread = u64::from(number);
    spread = (spread | spread << 16) & 0x0000_FFFF_0000_FFFF;
    spread = (spread | spread << 8) & 0x00FF_00FF_00FF_00FF;
    spread = (spread | spread << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    let is_letter = ((spread + 6 * EACH) >> 4) & EACH;
    let letters = is_letter * u64::from(ten - b'0' - 10);
    (spread + u64::from(b'0') * EACH + letters).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hex_is_that_of_the_standard_library(bytes: Vec<u8>, version: u64) {
            use fmt::Write as _;
            let mut expected = String::new();
            for byte in &bytes {
                write!(expected, "{byte:02x}").unwrap();
            }
            prop_assert_eq!(hex(&bytes), expected);
            let mut hash = [7; 32];
            hash.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            prop_assert!(hex(&hash).as_bytes().starts_with(&short_hex(&hash)));
            prop_assert_eq!(RowVersion(version).to_string(), format!("0x{version:016X}"));
        }
    }

    #[test]
    fn timestamps_get_seven_digits() {
        for (text, normal) in [
            ("2013-01-01T10:00:00", "2013-01-01T10:00:00.0000000"),
            ("2013-01-01T10:00:00.003", "2013-01-01T10:00:00.0030000"),
            ("2013-01-01T10:00:00.1234567Z", "2013-01-01T10:00:00.1234567Z"),
            ("2013-01-01", "2013-01-01"),
        ] {
            assert_eq!(normalize_timestamp(text).unwrap(), normal);
        }
    }

    #[test]
    fn other_texts_are_rejected_with_their_value() {
        for text in [
            "",
            "now",
            "2013-01-01 10:00:00",
            "2013-01-01T10:00:00.12345678",
            "2013-01-01T10:00:00.",
        ] {
            let error = normalize_timestamp(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn a_cursor_reads_back_from_its_json() {
        let key: KeyValues = serde_json::from_str(r#"{"b":1,"a":"x"}"#).unwrap();
        let cursor = Cursor::row_version(RowVersion(2001), key);
        let json = serde_json::to_string(&cursor).unwrap();
        assert_eq!(
            json,
            r#"{"kind":"rowversion","value":"0x00000000000007D1","tiebreaker":{"b":1,"a":"x"}}"#
        );
        assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
    }

    #[test]
    fn numbers_order_as_numbers_and_a_snapshot_before_later_changes() {
        let integer = |value| Cursor::integer(value, KeyValues::new());
        let tracked = |text: &str| {
            let position: TrackedPosition = text.parse().unwrap();
            assert_eq!(position.to_string(), text);
            Cursor::tracked(position, KeyValues::new())
        };
        for (low, high) in [
            (integer(9), integer(10)),
            (integer(i64::MIN), integer(-1)),
            (tracked("9"), tracked("10")),
            (tracked("snapshot@9"), tracked("10")),
            (tracked("snapshot@9"), tracked("9")),
        ] {
            assert_eq!(low.compare_leading(&high), Some(Ordering::Less), "{low:?} {high:?}");
            assert_eq!(high.compare_leading(&low), Some(Ordering::Greater));
        }
        assert_eq!(integer(1).compare_leading(&tracked("1")), None);
        for text in ["", "x", "-1", "snapshot@", "snapshot@-1"] {
            let error = text.parse::<TrackedPosition>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn each_byte_is_two_digits_at_any_length() {
        assert_eq!(hex(&[0, 1, 0xAB, 0, 0, 0, 0, 0xFF, 9, 0x10]), "0001ab00000000ff0910");
    }

    #[test]
    fn fingerprints_differ_if_any_part_differs() {
        let one = SourceFingerprint::of(&[("table", "ab"), ("key", "c")]);
        let other = SourceFingerprint::of(&[("table", "a"), ("key", "bc")]);
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), "sha256:".len() + 64);
    }

    proptest! {
        #[test]
        fn rowversions_order_as_their_text(a: u64, b: u64) {
            let cursor = |v| Cursor::row_version(RowVersion(v), KeyValues::new());
            prop_assert_eq!(cursor(a).compare_leading(&cursor(b)), Some(a.cmp(&b)));
            prop_assert_eq!(RowVersion(a).to_string().parse(), Ok(RowVersion(a)));
        }
    }
}

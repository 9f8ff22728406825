//! Rows returned by the server, and the tag that clients keep.

use highwater_engine::cursor::RowVersion;
use highwater_engine::error::ErrorKind;
use highwater_engine::store::{ETag, ReadResult, StoredValue, WriteResult};
use tiberius::time::DateTime2;
use tiberius::{ColumnData, Row};
use time::format_description::BorrowedFormatItem;
use time::macros::{datetime, format_description};
use time::{Duration, OffsetDateTime};

use crate::connection::SqlError;

/// Day 0 of `datetime2`.
const DAY_0: OffsetDateTime = datetime!(0001-01-01 0:00 UTC);
/// All digits of `datetime2(7)`, in the one format that every language setting parses the same way.
const STAMP: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]");

/// The precondition for replacing a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) version: [u8; 8],
    /// The time of the write, in the server's format.
    pub(super) last_modified: String,
}

impl Tag {
    /// Parses a tag; `None` if this store did not issue it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (version, last_modified) = text.split_once('@')?;
        let RowVersion(version) = version.parse().ok()?;
        Some(Self { version: version.to_be_bytes(), last_modified: last_modified.to_owned() })
    }
}

/// Reads the single row of a load.
pub(super) fn loaded(row: Row) -> Result<ReadResult, SqlError> {
    let [content, version, last_modified, now] = cells(row)?;
    let stored = match (content, version, last_modified) {
        (
            ColumnData::Binary(Some(content)),
            ColumnData::Binary(Some(version)),
            ColumnData::DateTime2(Some(last_modified)),
        ) => {
            let last_modified = instant(last_modified)?;
            let etag = etag(&version, last_modified)?;
            Some(StoredValue { bytes: content.into_owned(), etag, last_modified })
        }
        (ColumnData::Binary(None), ColumnData::Binary(None), ColumnData::DateTime2(None)) => None,
        _ => return Err(other_columns()),
    };
    let ColumnData::DateTime2(Some(now)) = now else { return Err(other_columns()) };
    Ok(ReadResult { stored, date: instant(now)? })
}

/// Reads the single row of a write.
pub(super) fn written(row: Row) -> Result<WriteResult, SqlError> {
    let [ColumnData::Binary(Some(version)), ColumnData::DateTime2(Some(last_modified))] =
        cells(row)?
    else {
        return Err(other_columns());
    };
    let date = instant(last_modified)?;
    Ok(WriteResult { etag: etag(&version, date)?, date })
}

/// Reads the single name of a row.
pub(crate) fn name(row: Row) -> Result<String, SqlError> {
    match cells(row)? {
        [ColumnData::String(Some(name))] => Ok(name.into_owned()),
        _ => Err(other_columns()),
    }
}

/// Returns the cells of a row that must have exactly `N`.
pub(crate) fn cells<const N: usize>(row: Row) -> Result<[ColumnData<'static>; N], SqlError> {
    let cells: Vec<_> = row.into_token_row().into_iter().collect();
    cells.try_into().map_err(|_cells: Vec<_>| other_columns())
}

fn etag(version: &[u8], last_modified: OffsetDateTime) -> Result<ETag, SqlError> {
    let Ok(version) = version.try_into().map(u64::from_be_bytes) else {
        return Err(other_columns());
    };
    match last_modified.format(STAMP) {
        Ok(stamp) => Ok(ETag(format!("{}@{stamp}", RowVersion(version)))),
        Err(_unprintable) => Err(other_columns()),
    }
}

fn instant(value: DateTime2) -> Result<OffsetDateTime, SqlError> {
    let time = value.time();
    let ticks = i64::try_from(time.increments()).ok();
    // The driver has checked that the scale is at most 7.
    let unit = 10_i64.checked_pow(9 - u32::from(time.scale()).min(9));
    let since_midnight = ticks.zip(unit).and_then(|(ticks, unit)| ticks.checked_mul(unit));
    let day = DAY_0.checked_add(Duration::days(value.date().days().into()));
    day.zip(since_midnight)
        .and_then(|(day, nanos)| day.checked_add(Duration::nanoseconds(nanos)))
        .ok_or_else(other_columns)
}

pub(crate) fn other_columns() -> SqlError {
    SqlError::new(ErrorKind::Configuration, "unexpected column types")
}

#[cfg(test)]
mod tests {
    use tiberius::time::{Date, Time};

    use super::*;

    #[test]
    fn a_tag_holds_the_version_and_every_digit_of_the_time() {
        let value = DateTime2::new(Date::new(739_000), Time::new(863_999_999_999, 7));
        let instant = instant(value).unwrap();
        assert_eq!(instant, datetime!(2024-04-25 23:59:59.999_999_9 UTC));
        let ETag(text) = etag(&[0, 0, 0, 0, 0, 0, 7, 0xD1], instant).unwrap();
        assert_eq!(text, "0x00000000000007D1@2024-04-25T23:59:59.9999999");
        let tag = Tag {
            version: [0, 0, 0, 0, 0, 0, 7, 0xD1],
            last_modified: "2024-04-25T23:59:59.9999999".to_owned(),
        };
        assert_eq!(Tag::parse(&text), Some(tag));
        let coarse = DateTime2::new(Date::new(0), Time::new(7, 0));
        assert_eq!(super::instant(coarse).unwrap(), datetime!(0001-01-01 0:00:07 UTC));
    }

    #[test]
    fn a_tag_of_another_store_is_rejected() {
        for text in ["", "17", "\"0x8DE\"", "0x17", "x@2024-04-28T23:59:59.9999999"] {
            assert_eq!(Tag::parse(text), None, "{text}");
        }
    }
}

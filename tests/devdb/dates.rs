//! Calendar arithmetic and the text forms of dates.
//!
//! The engine stores every date as fixed-width text, so that text order is time order:
//! `YYYY-MM-DDTHH:MM:SS.fffffff`, always seven digits. Days count from 0001-01-01; times are
//! ticks of 100 ns since midnight.

/// Ticks of a second.
pub(crate) const SECOND: u64 = 10_000_000;
/// Ticks of a day.
pub(crate) const DAY: u64 = 86_400 * SECOND;
/// Days of 1900-01-01, from which `datetime` counts.
pub(crate) const DAYS_1900: u32 = 693_595;
/// Days of 1970-01-01.
pub(crate) const DAYS_1970: u32 = 719_162;

/// Days and ticks of a point in time.
pub(crate) type Stamp = (u32, u64);

/// Year, month and day of a day number.
pub(crate) fn civil(days: u32) -> (i64, u32, u32) {
    // Howard Hinnant's algorithm, with the era counted from 0000-03-01.
    let shifted = i64::from(days) + 306;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// Day number of a date, if it exists.
pub(crate) fn days(year: i64, month: u32, day: u32) -> Option<u32> {
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let shifted_year = year - i64::from(month <= 2);
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let month_index = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let day_of_year = (153 * month_index + 2) / 5 + i64::from(day) - 1;
    let number =
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 306;
    let number = u32::try_from(number).ok()?;
    (civil(number) == (year, month, day)).then_some(number)
}

/// Text of a date: `2026-11-20`.
pub(crate) fn date_text(days: u32) -> String {
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Text of a time with `scale` digits after the second; a scale of 0 has no point.
pub(crate) fn time_text(ticks: u64, scale: u8) -> String {
    let seconds = ticks / SECOND;
    let whole = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if scale == 0 {
        return whole;
    }
    let digits = usize::from(scale.min(7));
    let fraction = ticks % SECOND / 10_u64.pow(7 - u32::from(scale.min(7)));
    format!("{whole}.{fraction:0digits$}")
}

/// Stored text of a date and time: all seven digits.
pub(crate) fn stamp_text((days, ticks): Stamp) -> String {
    format!("{}T{}", date_text(days), time_text(ticks, 7))
}

/// Text of `CONVERT(…, 126)`: no fraction if it is zero.
pub(crate) fn iso_text((days, ticks): Stamp, scale: u8) -> String {
    let scale = if ticks % SECOND == 0 { 0 } else { scale };
    format!("{}T{}", date_text(days), time_text(ticks, scale))
}

/// Text of an offset: `+05:30`.
pub(crate) fn offset_text(minutes: i16) -> String {
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.unsigned_abs();
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

/// Rounds half up to a scale, carrying into the next day.
pub(crate) fn round((days, ticks): Stamp, scale: u8) -> Stamp {
    let unit = 10_u64.pow(7 - u32::from(scale.min(7)));
    let ticks = (ticks + unit / 2) / unit * unit;
    if ticks >= DAY { (days + 1, ticks - DAY) } else { (days, ticks) }
}

/// Moves a point in time by ticks; [`None`] outside the calendar.
pub(crate) fn shift((days, ticks): Stamp, by: i128) -> Option<Stamp> {
    let day = i128::from(DAY);
    let total = i128::from(days) * day + i128::from(ticks) + by;
    let days = u32::try_from(total.div_euclid(day)).ok()?;
    let ticks = u64::try_from(total.rem_euclid(day)).ok()?;
    (days <= 3_652_058).then_some((days, ticks))
}

/// Rounds to the 1/300 s of `datetime`, with the milliseconds that it prints.
pub(crate) fn round_to_datetime((days, ticks): Stamp) -> Stamp {
    let three_hundredths = (ticks * 300 + SECOND / 2) / SECOND;
    let milliseconds = (three_hundredths * 10 + 1) / 3;
    let ticks = milliseconds * 10_000;
    if ticks >= DAY { (days + 1, ticks - DAY) } else { (days, ticks) }
}

/// The exact 1/300 s value of the milliseconds that a `datetime` prints, in ticks.
pub(crate) fn exact_datetime((days, ticks): Stamp) -> Stamp {
    let three_hundredths = (ticks * 300 + SECOND / 2) / SECOND;
    (days, (three_hundredths * SECOND + 150) / 300)
}

/// A parsed text: local time, and the offset in minutes if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) stamp: Stamp,
    pub(crate) offset: Option<i16>,
}

/// Reads `date`, `dateTtime`, `date time`, each with an optional `Z` or `±hh:mm`.
pub(crate) fn parse(text: &str) -> Option<Parsed> {
    let text = text.trim();
    let (date, rest) = match text.split_once(['T', 't', ' ']) {
        Some((date, rest)) => (date, rest.trim()),
        None => (text, ""),
    };
    let days = parse_date(date)?;
    if rest.is_empty() {
        return Some(Parsed { stamp: (days, 0), offset: None });
    }
    let (time, offset) = split_offset(rest)?;
    Some(Parsed { stamp: (days, parse_time(time)?), offset })
}

/// Reads `hh:mm[:ss[.fffffff]]`; an eighth digit rounds.
pub(crate) fn parse_time(text: &str) -> Option<u64> {
    let mut parts = text.trim().split(':');
    let hours: u64 = digits(parts.next()?)?;
    let minutes: u64 = digits(parts.next()?)?;
    let seconds = parts.next().unwrap_or("0");
    if parts.next().is_some() {
        return None;
    }
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let whole: u64 = digits(whole)?;
    if hours > 23 || minutes > 59 || whole > 59 {
        return None;
    }
    let ticks: u64 = if fraction.is_empty() { 0 } else { digits(&format!("{fraction:0<7}"))? };
    let places = u32::try_from(fraction.len().max(7)).ok()? - 7;
    Some(((hours * 60 + minutes) * 60 + whole) * SECOND + ticks / 10_u64.checked_pow(places)?)
}

fn parse_date(text: &str) -> Option<u32> {
    if text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit()) {
        let number: u32 = text.parse().ok()?;
        return days(i64::from(number / 10_000), number / 100 % 100, number % 100);
    }
    let mut parts = text.split('-');
    let year: u64 = digits(parts.next()?)?;
    let month: u64 = digits(parts.next()?)?;
    let day: u64 = digits(parts.next()?)?;
    if parts.next().is_some() {
        return None;
    }
    days(i64::try_from(year).ok()?, u32::try_from(month).ok()?, u32::try_from(day).ok()?)
}

fn split_offset(text: &str) -> Option<(&str, Option<i16>)> {
    if let Some(time) = text.strip_suffix(['Z', 'z']) {
        return Some((time.trim_end(), Some(0)));
    }
    let Some(at) = text.rfind(['+', '-']) else {
        return Some((text, None));
    };
    let (time, offset) = text.split_at(at);
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let minutes = i16::try_from(digits(hours)? * 60 + digits(minutes)?).ok()?;
    if minutes > 14 * 60 {
        return None;
    }
    Some((time.trim_end(), Some(if offset.starts_with('-') { -minutes } else { minutes })))
}

fn digits(text: &str) -> Option<u64> {
    let fine = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    fine.then(|| text.parse().ok()).flatten()
}

/// Ticks of a date part; nanoseconds return 1 and are divided later.
pub(crate) fn unit_ticks(part: &str) -> Option<u64> {
    Some(match part {
        "week" | "wk" | "ww" => 7 * DAY,
        "day" | "dd" | "d" | "dayofyear" => DAY,
        "hour" | "hh" => 3600 * SECOND,
        "minute" | "mi" | "n" => 60 * SECOND,
        "second" | "ss" | "s" => SECOND,
        "millisecond" | "ms" => SECOND / 1000,
        "microsecond" | "mcs" => SECOND / 1_000_000,
        "nanosecond" | "ns" => 1,
        _ => return None,
    })
}

/// Whether `DATEADD` and `DATEDIFF` support a date part.
pub(crate) fn is_date_part(part: &str) -> bool {
    unit_ticks(part).is_some()
        || matches!(part, "year" | "yy" | "yyyy" | "quarter" | "qq" | "q" | "month" | "mm" | "m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_civil_are_inverse() {
        assert_eq!(days(1, 1, 1), Some(0));
        assert_eq!(days(1900, 1, 1), Some(DAYS_1900));
        assert_eq!(days(1970, 1, 1), Some(DAYS_1970));
        assert_eq!(days(9999, 12, 31), Some(3_652_058));
        for day in (0..3_652_059).step_by(97) {
            let (y, m, d) = civil(day);
            assert_eq!(days(y, m, d), Some(day));
        }
        assert_eq!(days(2026, 2, 29), None);
        assert_eq!(days(2024, 2, 29).map(date_text).as_deref(), Some("2024-02-29"));
    }

    #[test]
    fn stored_text_keeps_seven_digits_and_iso_text_drops_a_zero_fraction() {
        let stamp = parse("2026-11-20T10:00:00.1234567").unwrap().stamp;
        assert_eq!(stamp_text(stamp), "2026-11-20T10:00:00.1234567");
        assert_eq!(iso_text(stamp, 7), "2026-11-20T10:00:00.1234567");
        assert_eq!(iso_text(round(stamp, 3), 3), "2026-11-20T10:00:00.123");
        assert_eq!(iso_text((stamp.0, 0), 7), "2026-11-20T00:00:00");
    }

    #[test]
    fn rounding_carries_into_the_next_day() {
        let stamp = parse("2026-12-31 23:59:59.9999999").unwrap().stamp;
        assert_eq!(stamp_text(round(stamp, 3)), "2027-01-01T00:00:00.0000000");
        assert_eq!(stamp_text(round_to_datetime(stamp)), "2027-01-01T00:00:00.0000000");
    }

    #[test]
    fn datetime_rounds_to_three_hundredths_of_a_second() {
        for (text, rounded) in [(".001", ".0000000"), (".002", ".0030000"), (".008", ".0070000")] {
            let stamp = parse(&format!("2026-01-01T00:00:00{text}")).unwrap().stamp;
            let ended = stamp_text(round_to_datetime(stamp));
            assert!(ended.ends_with(rounded), "{text} became {ended}");
        }
        let exact = exact_datetime(parse("2026-01-01T00:00:00.003").unwrap().stamp);
        assert!(stamp_text(exact).ends_with(".0033333"));
        let exact = exact_datetime(parse("2026-01-01T00:00:00.007").unwrap().stamp);
        assert!(stamp_text(exact).ends_with(".0066667"));
    }

    #[test]
    fn offsets_are_parsed() {
        assert_eq!(parse("2026-01-01T00:00:00Z").unwrap().offset, Some(0));
        assert_eq!(parse("2026-01-01 00:00:00 +05:30").unwrap().offset, Some(330));
        assert_eq!(parse("2026-01-01T00:00:00.1-14:00").unwrap().offset, Some(-840));
        assert_eq!(parse("2026-01-01T00:00:00+15:00"), None);
        assert_eq!(offset_text(-330), "-05:30");
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for text in ["", "x", "2026-13-01", "2026-01-01T25:00", "2026-01-01T1", "2026-1-1-1"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("20260102").unwrap().stamp.0, days(2026, 1, 2).unwrap());
    }
}

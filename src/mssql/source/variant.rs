//! `sql_variant`: each value has its own type, which prefixes its JSON form. Pure.
//!
//! The form is one text, `type:value`, such as `decimal(9, 2):1.50`. The server produces it: the driver knows
//! neither the declared type nor the collation of such a value, and reads money as a binary fraction.
//! Floating-point numbers are written with all digits that they may need, and shortened here to the digits
//! that read back as the same number.
//!
//! On the way back, as part of a key, the type has to be part of the statement, since no parameter can
//! contain one. A checkpoint can be edited by hand, so none of its text gets there: the type is matched
//! against a list of known types and written out again, and the value is sent as a parameter.

use highwater_engine::value::Value;

use crate::connection::Param;
use crate::ident;

/// Most characters of a key's text in an error.
const SHOWN_CHARS_MAX: usize = 60;
/// Longest value of bytes, or of text with a code page.
/// <https://learn.microsoft.com/sql/t-sql/data-types/sql-variant-transact-sql>
const BYTES_MAX: u16 = 8_000;
/// Longest value of Unicode text, in UTF-16 units.
const UNITS_MAX: u16 = 4_000;
/// Most digits of a `decimal`.
const PRECISION_MAX: u16 = 38;
/// Most decimal places that style 126 writes.
const FRACTION_DIGITS_MAX: usize = 7;

/// The type of one value, as a statement has to state it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueType {
    declared: String,
    /// For text only, which is ordered by it before anything else.
    collation: Option<String>,
}

impl ValueType {
    /// Returns the expression that converts the parameter `value` to a variant.
    pub(super) fn cast(&self, value: &str) -> String {
        let collate = self.collation.as_ref().map(|name| format!(" COLLATE {name}"));
        let (collate, declared) = (collate.unwrap_or_default(), &self.declared);
        format!("CAST(CAST({value}{collate} AS {declared}) AS sql_variant)")
    }
}

/// Returns the type and the parameter of a value in its JSON form.
///
/// # Errors
///
/// The problem of the text, and the expected form.
pub(super) fn parameter(text: &str) -> Result<(ValueType, Param), String> {
    read(text).ok_or_else(|| {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        format!(
            "`{shown}` is not a `sql_variant` value, which has its type as prefix, as in \
             `decimal(9, 2):-1.50`"
        )
    })
}

fn read(text: &str) -> Option<(ValueType, Param)> {
    let (declared, value) = text.split_once(':')?;
    let (plain, collation) = match declared.split_once(" COLLATE ") {
        Some((plain, name)) => (plain, Some(ident::collation(name)?)),
        None => (declared, None),
    };
    let (name, sizes) = match plain.split_once('(') {
        Some((name, sizes)) => (name, numbers(sizes.strip_suffix(')')?)?),
        None => (plain, Vec::new()),
    };
    let (declared, param) = match collation {
        Some(_) => of_text(name, &sizes, value)?,
        None => of_others(name, &sizes, value)?,
    };
    Some((ValueType { declared, collation: collation.map(str::to_owned) }, param))
}

/// Parses `9` and `9, 2`, without signs or blanks.
fn numbers(sizes: &str) -> Option<Vec<u16>> {
    let number = |digits: &str| digits.parse().ok().filter(|_| are_digits(digits));
    sizes.split(", ").map(number).collect()
}

/// Variable-length types get their maximum length: the value is the same, and there are fewer statements.
fn of_text(name: &str, sizes: &[u16], value: &str) -> Option<(String, Param)> {
    let &[length] = sizes else { return None };
    let longest = match name {
        "char" | "varchar" => BYTES_MAX,
        "nchar" | "nvarchar" => UNITS_MAX,
        _ => return None,
    };
    // Text longer than its declared length would be truncated, and be another position.
    if length > longest || value.encode_utf16().count() > length.into() {
        return None;
    }
    let declared = match name {
        "varchar" | "nvarchar" => format!("{name}({longest})"),
        _ => format!("{name}({})", length.max(1)),
    };
    Some((declared, Param::Text(value.to_owned())))
}

fn of_others(name: &str, sizes: &[u16], value: &str) -> Option<(String, Param)> {
    let integer = |low: i64, high: i64| {
        let number = value.parse().ok().filter(|number| (low..=high).contains(number))?;
        Some((name.to_owned(), Param::BigInt(number)))
    };
    let text =
        |declared: String, fits: bool| fits.then(|| (declared, Param::Text(value.to_owned())));
    let plain = |fits: bool| text(name.to_owned(), fits);
    match (name, sizes) {
        ("bit", []) => integer(0, 1),
        ("tinyint", []) => integer(0, u8::MAX.into()),
        ("smallint", []) => integer(i16::MIN.into(), i16::MAX.into()),
        ("int", []) => integer(i32::MIN.into(), i32::MAX.into()),
        ("bigint", []) => integer(i64::MIN, i64::MAX),
        ("real", []) => {
            let number = value.parse().ok().filter(|number: &f32| number.is_finite())?;
            Some((name.to_owned(), Param::Real(number)))
        }
        ("float", []) => {
            let number = value.parse().ok().filter(|number: &f64| number.is_finite())?;
            Some((name.to_owned(), Param::Float(number)))
        }
        ("money", []) => plain(is_decimal(value, 19, 4)),
        ("smallmoney", []) => plain(is_decimal(value, 10, 4)),
        ("decimal" | "numeric", &[precision @ 1..=PRECISION_MAX, scale]) if scale <= precision => {
            text(format!("{name}({precision}, {scale})"), is_decimal(value, precision, scale))
        }
        ("date", []) => plain(is_like(value, "0000-00-00")),
        ("smalldatetime" | "datetime", []) => plain(is_stamp(value)),
        ("time", &[scale @ 0..=7]) => text(format!("{name}({scale})"), is_time(value)),
        ("datetime2", &[scale @ 0..=7]) => text(format!("{name}({scale})"), is_stamp(value)),
        ("datetimeoffset", &[scale @ 0..=7]) => {
            let (stamp, offset) = value.split_at_checked(value.len().checked_sub(6)?)?;
            let fits = is_like(offset, "+00:00") || is_like(offset, "-00:00");
            text(format!("{name}({scale})"), fits && is_stamp(stamp))
        }
        ("uniqueidentifier", []) => plain(is_identifier(value)),
        ("binary", &[length @ ..=BYTES_MAX]) => {
            Some((format!("{name}({})", length.max(1)), bytes(value, length)?))
        }
        ("varbinary", &[length @ ..=BYTES_MAX]) => {
            Some((format!("{name}({BYTES_MAX})"), bytes(value, length)?))
        }
        _ => None,
    }
}

fn are_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the text matches the pattern, in which `0` stands for any digit.
fn is_like(text: &str, pattern: &str) -> bool {
    let fits = |(byte, wanted): (u8, u8)| match wanted {
        b'0' => byte.is_ascii_digit(),
        wanted => byte == wanted,
    };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(fits)
}

fn is_time(text: &str) -> bool {
    let (integer, fraction) = text.split_once('.').unwrap_or((text, "0"));
    is_like(integer, "00:00:00") && are_digits(fraction) && fraction.len() <= FRACTION_DIGITS_MAX
}

fn is_stamp(text: &str) -> bool {
    text.split_once('T').is_some_and(|(date, time)| is_like(date, "0000-00-00") && is_time(time))
}

fn is_identifier(text: &str) -> bool {
    let is_hex = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_hex)
}

/// Whether text is a number with at most this precision and scale.
fn is_decimal(text: &str, precision: u16, scale: u16) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (integer, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    are_digits(integer)
        && are_digits(fraction)
        && integer.trim_start_matches('0').len() <= usize::from(precision.saturating_sub(scale))
        && fraction.trim_end_matches('0').len() <= scale.into()
}

/// Parses bytes in the form `0x00FF`.
fn bytes(text: &str, length: u16) -> Option<Param> {
    let digits = text.strip_prefix("0x")?.as_bytes();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() > length.into() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(Param::Bytes)
}

/// Returns the expression for the text form of a column or value.
pub(super) fn expression(of: &str) -> String {
    let property =
        |name: &str, ty: &str| format!("CAST(SQL_VARIANT_PROPERTY({of}, N'{name}') AS {ty})");
    let base = property("BaseType", "nvarchar(128)");
    let (precision, scale) = (property("Precision", "int"), property("Scale", "int"));
    let (length, collation) =
        (property("MaxLength", "int"), property("Collation", "nvarchar(128)"));
    let as_type =
        |ty: &str, style: u8| format!("CONVERT(nvarchar(max), CAST({of} AS {ty}), {style})");
    let time = |ty: &str| as_type(ty, 126);
    format!(
        "CASE WHEN {of} IS NOT NULL THEN CONCAT({base}, \
         CASE WHEN {base} IN (N'decimal', N'numeric') THEN CONCAT(N'(', {precision}, N', ', {scale}, N')') \
         WHEN {base} IN (N'time', N'datetime2', N'datetimeoffset') THEN CONCAT(N'(', {scale}, N')') \
         WHEN {base} IN (N'binary', N'varbinary') THEN CONCAT(N'(', {length}, N')') \
         WHEN {base} IN (N'char', N'varchar') THEN CONCAT(N'(', {length}, N') COLLATE ', {collation}) \
         WHEN {base} IN (N'nchar', N'nvarchar') THEN CONCAT(N'(', {length} / 2, N') COLLATE ', {collation}) \
         ELSE N'' END, N':', \
         CASE WHEN {base} IN (N'binary', N'varbinary') THEN {} \
         WHEN {base} IN (N'money', N'smallmoney') THEN {} \
         WHEN {base} = N'real' THEN {} WHEN {base} = N'float' THEN {} \
         WHEN {base} = N'date' THEN {} WHEN {base} = N'time' THEN {} \
         WHEN {base} = N'datetime' THEN {} WHEN {base} = N'smalldatetime' THEN {} \
         WHEN {base} = N'datetime2' THEN {} WHEN {base} = N'datetimeoffset' THEN {} \
         WHEN {base} = N'uniqueidentifier' THEN LOWER(CAST({of} AS nvarchar(max))) \
         ELSE CAST({of} AS nvarchar(max)) END) END",
        as_type("varbinary(8000)", 1),
        as_type("money", 2),
        as_type("real", 3),
        as_type("float", 3),
        time("date"),
        time("time(7)"),
        time("datetime"),
        time("smalldatetime"),
        time("datetime2(7)"),
        time("datetimeoffset(7)"),
    )
}

/// Returns the form with a floating-point number in its shortest exact text.
pub(super) fn shortest(value: Value) -> Value {
    let Value::Text(text) = &value else { return value };
    let number = match text.split_once(':') {
        Some(("real", digits)) => digits.trim().parse().ok().map(Value::Real),
        Some(("float", digits)) => digits.trim().parse().ok().map(Value::Float),
        Some(_) | None => None,
    };
    let Some(number) = number else { return value };
    let base = if matches!(number, Value::Real(_)) { "real" } else { "float" };
    Value::Text(format!("{base}:{}", number.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shortened_to_the_digits_they_need() {
        let cut = |text: &str| shortest(Value::Text(text.to_owned()));
        for (text, expected) in [
            ("float:1.0000000000000001e-001", "float:0.1"),
            ("real:1.00000001e-001", "real:0.1"),
            ("float:1.0000000000000000e+300", "float:1e+300"),
            ("nvarchar(9) COLLATE x:float:0.10", "nvarchar(9) COLLATE x:float:0.10"),
            ("decimal(9, 2):1.50", "decimal(9, 2):1.50"),
        ] {
            assert_eq!(cut(text), Value::Text(expected.to_owned()));
        }
        assert_eq!(shortest(Value::Null), Value::Null);
    }

    fn converted(text: &str) -> (String, Param) {
        let (base, param) = parameter(text).unwrap();
        (base.cast("@P1"), param)
    }

    #[test]
    fn a_value_is_sent_as_a_parameter_with_its_type_in_the_statement() {
        let text = |text: &str| Param::Text(text.to_owned());
        let guid = "abcdef00-0000-0000-0000-000000000001";
        let latin = "SQL_Latin1_General_CP1_CI_AS";
        for (form, declared, param) in [
            ("bit:1", "bit", Param::BigInt(1)),
            ("tinyint:255", "tinyint", Param::BigInt(255)),
            ("smallint:-32768", "smallint", Param::BigInt(-32_768)),
            ("int:7", "int", Param::BigInt(7)),
            ("bigint:-9223372036854775808", "bigint", Param::BigInt(i64::MIN)),
            ("real:0.1", "real", Param::Real(0.1)),
            ("float:5e-324", "float", Param::Float(5e-324)),
            ("decimal(9, 2):-1.50", "decimal(9, 2)", text("-1.50")),
            ("numeric(38, 38):0.5", "numeric(38, 38)", text("0.5")),
            ("money:922337203685477.5807", "money", text("922337203685477.5807")),
            ("smallmoney:-214748.3648", "smallmoney", text("-214748.3648")),
            ("date:0001-01-01", "date", text("0001-01-01")),
            ("time(0):23:59:59", "time(0)", text("23:59:59")),
            ("time(7):23:59:59.9999999", "time(7)", text("23:59:59.9999999")),
            ("datetime:1753-01-01T00:00:00.003", "datetime", text("1753-01-01T00:00:00.003")),
            ("smalldatetime:2079-06-06T23:59:00", "smalldatetime", text("2079-06-06T23:59:00")),
            (
                "datetime2(3):2020-01-01T00:00:00.123",
                "datetime2(3)",
                text("2020-01-01T00:00:00.123"),
            ),
            (
                "datetimeoffset(7):2020-01-01T00:00:00.1234567-14:00",
                "datetimeoffset(7)",
                text("2020-01-01T00:00:00.1234567-14:00"),
            ),
            (&format!("uniqueidentifier:{guid}"), "uniqueidentifier", text(guid)),
            ("binary(2):0x00fF", "binary(2)", Param::Bytes(vec![0, 255])),
            ("varbinary(4):0x", "varbinary(8000)", Param::Bytes(Vec::new())),
        ] {
            let expected = format!("CAST(CAST(@P1 AS {declared}) AS sql_variant)");
            assert_eq!(converted(form), (expected, param), "{form}");
        }
        for (form, declared, value) in [
            (format!("char(3) COLLATE {latin}:a: "), "char(3)", "a: "),
            (format!("varchar(9) COLLATE {latin}:"), "varchar(8000)", ""),
            (format!("nchar(1) COLLATE {latin}:日"), "nchar(1)", "日"),
            (format!("nvarchar(2) COLLATE {latin}:😀"), "nvarchar(4000)", "😀"),
        ] {
            let expected = format!("CAST(CAST(@P1 COLLATE {latin} AS {declared}) AS sql_variant)");
            assert_eq!(converted(&form), (expected, text(value)), "{form}");
        }
    }

    /// Texts of a checkpoint that was damaged, or edited maliciously.
    const HOSTILE: [&str; 67] = [
        "",
        ":",
        "5",
        "int",
        "INT:5",
        " int:5",
        "int :5",
        "int:",
        "int:5 ",
        "int:2147483648",
        "int(4):5",
        "int) AS sql_variant); DROP TABLE t; --:5",
        "int COLLATE Latin1_General_CI_AS:5",
        "bit:2",
        "tinyint:-1",
        "real:inf",
        "float:NaN",
        "float:1e400",
        "float(53):1",
        "decimal:1",
        "decimal(9):1",
        "decimal(9,2):1",
        "decimal(9, 2:1",
        "decimal(9, 10):0.1",
        "decimal(39, 0):1",
        "decimal(0, 0):0",
        "decimal(+9, 2):1",
        "decimal(9, 2):1e5",
        "decimal(9, 2):1.505",
        "decimal(3, 2):10.00",
        "decimal(9, 2):--1",
        "decimal(9, 2):.5",
        "decimal(9, 2)):1",
        "money:1,5",
        "date:2020-1-1",
        "date:20200101 ",
        "datetime:2020-01-01 00:00:00",
        "datetime2(8):2020-01-01T00:00:00",
        "datetime2:2020-01-01T00:00:00",
        "datetime2(7):2020-01-01T00:00:00.12345678",
        "datetime2(7):2020-01-01T00:00:00.",
        "datetimeoffset(7):2020-01-01T00:00:00",
        "datetimeoffset(7):+14:00",
        "datetimeoffset(7):日本",
        "time(7):24",
        "uniqueidentifier:abcdef00-0000-0000-0000-00000000000",
        "uniqueidentifier:abcdef00-0000-0000-0000-00000000000g",
        "uniqueidentifier:abcdef00000000-0000-0000-0000-000001",
        "binary(1):0x0000",
        "binary(2):00",
        "varbinary(2):0x0",
        "varbinary(2):0xzz",
        "varbinary(8001):0x00",
        "varbinary(max):0x00",
        "nvarchar(9):a",
        "nvarchar(4001) COLLATE x:a",
        "nvarchar(max) COLLATE x:a",
        "nvarchar(1) COLLATE x:ab",
        "nvarchar(9) COLLATE :a",
        "nvarchar(9) COLLATE x y:a",
        "nvarchar(9) COLLATE x) AS sql_variant) OR 1 = 1 --:a",
        "nvarchar(9) COLLATE x COLLATE y:a",
        "nvarchar(9, 2) COLLATE x:a",
        "sysname COLLATE x:a",
        "xml:<a/>",
        "sql_variant:int:5",
        "hierarchyid:/1/",
    ];

    #[test]
    fn only_known_types_get_into_a_statement() {
        for form in HOSTILE {
            let error = parameter(form).unwrap_err();
            assert!(error.contains("is not a `sql_variant` value"), "{form}: {error}");
        }
        let long = "x".repeat(200);
        assert!(parameter(&long).unwrap_err().len() < 200, "an error shows only a part of it");
    }
}

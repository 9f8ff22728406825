//! Lengths, precisions and scales of types, within SQL Server's limits.
//! <https://learn.microsoft.com/sql/t-sql/data-types/data-types-transact-sql>

use crate::types::{SqlError, Type};

/// The type for a name and its arguments; `max` is [`u16::MAX`].
///
/// # Errors
///
/// 2715 for an unknown name, 2716 for a type without a size, 1001, 1002, 192, 2717 and 2750 for an invalid
/// size.
pub(super) fn sized_type(name: &str, arguments: &[u16]) -> Result<Type, SqlError> {
    let largest: &[u16] = match name.to_ascii_lowercase().as_str() {
        "nvarchar" | "nchar" => &[4000],
        "varchar" | "varbinary" | "char" | "binary" => &[8000],
        "decimal" | "numeric" | "dec" => &[38, 38],
        "float" => &[53],
        "time" | "datetime2" | "datetimeoffset" => &[7],
        _ => &[],
    };
    let refused = |number: i32, what: &str| {
        let sizes: Vec<_> = arguments.iter().map(u16::to_string).collect();
        SqlError::new(number, 16, format!("{name}({}): {what}.", sizes.join(", ")))
    };
    let ty = Type::parse(name, arguments);
    if largest.is_empty() && !arguments.is_empty() && Type::parse(name, &[]).is_some() {
        return Err(refused(2716, "a type without a size"));
    }
    if arguments.len() > largest.len() {
        return Err(SqlError::new(2715, 16, format!("Cannot find data type {name}.")));
    }
    let is_max =
        matches!(ty, Some(Type::NVarChar(None) | Type::VarChar(None) | Type::VarBinary(None)));
    let too_large = |(size, largest): (&u16, &u16)| size > largest;
    if !is_max && arguments.iter().zip(largest).any(too_large) {
        return Err(match largest {
            [38, ..] => refused(2750, "a precision above the maximum of 38"),
            [7] => refused(1002, "a scale above 7"),
            _ => refused(2717, "a size above the maximum"),
        });
    }
    let has_fraction =
        matches!(ty, Some(Type::Time(_) | Type::DateTime2(_) | Type::DateTimeOffset(_)));
    if arguments.first() == Some(&0) && !has_fraction {
        return Err(refused(1001, "a size of 0"));
    }
    if let [precision, scale] = arguments
        && scale > precision
    {
        return Err(refused(192, "a scale above the precision"));
    }
    // Up to 24 bits of a float are a real.
    let ty =
        if matches!((ty, arguments), (Some(Type::Float), [..=24])) { Some(Type::Real) } else { ty };
    ty.ok_or_else(|| SqlError::new(2715, 16, format!("Cannot find data type {name}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_size_for_a_type_is_rejected() {
        for (name, arguments, number) in [
            ("nonsense", [].as_slice(), 2715),
            ("nonsense", &[1], 2715),
            ("int", &[4], 2716),
            ("xml", &[4], 2716),
            ("nvarchar", &[0], 1001),
            ("nvarchar", &[4001], 2717),
            ("varchar", &[8001], 2717),
            ("nchar", &[u16::MAX], 2717),
            ("nvarchar", &[1, 2], 2715),
            ("decimal", &[39], 2750),
            ("decimal", &[50, 2], 2750),
            ("decimal", &[5, 6], 192),
            ("time", &[8], 1002),
            ("float", &[54], 2717),
        ] {
            let refused = sized_type(name, arguments).map_err(|error| error.number);
            assert_eq!(refused, Err(number), "{name} {arguments:?}");
        }
        for (name, arguments, ty) in [
            ("int", [].as_slice(), Type::Int),
            ("nvarchar", &[u16::MAX], Type::NVarChar(None)),
            ("nvarchar", &[4000], Type::NVarChar(Some(4000))),
            ("decimal", &[38, 38], Type::Decimal(38, 38)),
            ("time", &[0], Type::Time(0)),
            ("float", &[24], Type::Real),
            ("float", &[25], Type::Float),
            ("sysname", &[], Type::NVarChar(Some(128))),
        ] {
            assert_eq!(sized_type(name, arguments), Ok(ty), "{name} {arguments:?}");
        }
    }
}

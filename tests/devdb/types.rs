//! The vocabulary of the development server: SQL types, values, columns, replies and errors.
//!
//! Independent of wire and engine, so that both can be tested alone.

use std::fmt;

/// Type of a column, a variable or an expression, as T-SQL declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `bit`
    Bit,
    /// `tinyint`
    TinyInt,
    /// `smallint`
    SmallInt,
    /// `int`
    Int,
    /// `bigint`
    BigInt,
    /// `real`
    Real,
    /// `float`
    Float,
    /// `decimal(precision, scale)`
    Decimal(u8, u8),
    /// `money`
    Money,
    /// `smallmoney`
    SmallMoney,
    /// `nvarchar(n)`; [`None`] is `max`
    NVarChar(Option<u16>),
    /// `varchar(n)`; [`None`] is `max`
    VarChar(Option<u16>),
    /// `nchar(n)`
    NChar(u16),
    /// `char(n)`
    Char(u16),
    /// `varbinary(n)`; [`None`] is `max`
    VarBinary(Option<u16>),
    /// `binary(n)`
    Binary(u16),
    /// `rowversion`, called `timestamp` in the catalog
    RowVersion,
    /// `uniqueidentifier`
    Guid,
    /// `date`
    Date,
    /// `time(scale)`
    Time(u8),
    /// `smalldatetime`
    SmallDateTime,
    /// `datetime`
    DateTime,
    /// `datetime2(scale)`
    DateTime2(u8),
    /// `datetimeoffset(scale)`
    DateTimeOffset(u8),
    /// A type that is stored as another.
    Named(Named),
}

/// Types that are known by name, and stored and sent as others. Statements must cast them, since a real SQL
/// Server sends most of them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// `xml`
    Xml,
    /// `text`
    Text,
    /// `ntext`
    NText,
    /// `image`
    Image,
    /// `sql_variant`
    Variant,
    /// `hierarchyid`
    HierarchyId,
    /// `geometry`
    Geometry,
    /// `geography`
    Geography,
}

impl Named {
    pub(crate) const ALL: [Self; 8] = [
        Self::Xml,
        Self::Text,
        Self::NText,
        Self::Image,
        Self::Variant,
        Self::HierarchyId,
        Self::Geometry,
        Self::Geography,
    ];

    /// Name, id, user type id, and length.
    fn facts(self) -> (&'static str, i64, i64, i64) {
        match self {
            Self::Xml => ("xml", 241, 241, -1),
            Self::Text => ("text", 35, 35, 16),
            Self::NText => ("ntext", 99, 99, 16),
            Self::Image => ("image", 34, 34, 16),
            Self::Variant => ("sql_variant", 98, 98, 8016),
            Self::HierarchyId => ("hierarchyid", 240, 128, 892),
            Self::Geometry => ("geometry", 240, 129, -1),
            Self::Geography => ("geography", 240, 130, -1),
        }
    }

    fn base(self) -> Type {
        match self {
            Self::Xml | Self::NText => Type::NVarChar(None),
            Self::Text => Type::VarChar(None),
            Self::Image | Self::Geometry | Self::Geography => Type::VarBinary(None),
            Self::Variant | Self::HierarchyId => Type::NVarChar(Some(4000)),
        }
    }
}

/// The entry of a type in `sys.columns` and `sys.types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) id: i64,
    /// Differs from the other id only for CLR types, which share the latter.
    pub(crate) user_id: i64,
    /// Bytes; −1 for `max`.
    pub(crate) length: i64,
    pub(crate) precision: u8,
    pub(crate) scale: u8,
}

impl Type {
    /// Name, id and sizes as in the catalog of SQL Server.
    /// <https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-columns-transact-sql>
    pub(crate) fn facts(self) -> Facts {
        let facts = |name, id, length, precision, scale| Facts {
            name,
            id,
            user_id: id,
            length,
            precision,
            scale,
        };
        let sized = |n: Option<u16>, width: i64| n.map_or(-1, |n| i64::from(n) * width);
        match self {
            Self::Bit => facts("bit", 104, 1, 1, 0),
            Self::TinyInt => facts("tinyint", 48, 1, 3, 0),
            Self::SmallInt => facts("smallint", 52, 2, 5, 0),
            Self::Int => facts("int", 56, 4, 10, 0),
            Self::BigInt => facts("bigint", 127, 8, 19, 0),
            Self::Real => facts("real", 59, 4, 24, 0),
            Self::Float => facts("float", 62, 8, 53, 0),
            Self::Decimal(p, s) => facts("decimal", 106, i64::from(decimal_length(p)), p, s),
            Self::Money => facts("money", 60, 8, 19, 4),
            Self::SmallMoney => facts("smallmoney", 122, 4, 10, 4),
            Self::NVarChar(n) => facts("nvarchar", 231, sized(n, 2), 0, 0),
            Self::VarChar(n) => facts("varchar", 167, sized(n, 1), 0, 0),
            Self::NChar(n) => facts("nchar", 239, i64::from(n) * 2, 0, 0),
            Self::Char(n) => facts("char", 175, i64::from(n), 0, 0),
            Self::VarBinary(n) => facts("varbinary", 165, sized(n, 1), 0, 0),
            Self::Binary(n) => facts("binary", 173, i64::from(n), 0, 0),
            Self::RowVersion => facts("timestamp", 189, 8, 0, 0),
            Self::Guid => facts("uniqueidentifier", 36, 16, 0, 0),
            Self::Date => facts("date", 40, 3, 10, 0),
            Self::Time(s) => facts("time", 41, time_length(s), fraction_width(8, s), s),
            Self::SmallDateTime => facts("smalldatetime", 58, 4, 16, 0),
            Self::DateTime => facts("datetime", 61, 8, 23, 3),
            Self::DateTime2(s) => {
                facts("datetime2", 42, time_length(s) + 3, fraction_width(19, s), s)
            }
            Self::DateTimeOffset(s) => {
                facts("datetimeoffset", 43, time_length(s) + 5, fraction_width(26, s), s)
            }
            Self::Named(named) => {
                let (name, id, user_id, length) = named.facts();
                Facts { user_id, ..facts(name, id, length, 0, 0) }
            }
        }
    }

    /// The type for a T-SQL name and its arguments; `max` is [`u16::MAX`].
    pub(crate) fn parse(name: &str, arguments: &[u16]) -> Option<Self> {
        let first = arguments.first().copied();
        let length = |default: u16| match first {
            Some(u16::MAX) => None,
            Some(n) => Some(n),
            None => Some(default),
        };
        let small = |index: usize, default: u8| {
            arguments.get(index).map_or(Some(default), |n| u8::try_from(*n).ok())
        };
        let fraction = || small(0, 7).filter(|scale| *scale <= 7);
        Some(match name.to_ascii_lowercase().as_str() {
            "bit" => Self::Bit,
            "tinyint" => Self::TinyInt,
            "smallint" => Self::SmallInt,
            "int" | "integer" => Self::Int,
            "bigint" => Self::BigInt,
            "real" => Self::Real,
            "float" => Self::Float,
            "decimal" | "numeric" | "dec" => Self::Decimal(small(0, 18)?, small(1, 0)?),
            "money" => Self::Money,
            "smallmoney" => Self::SmallMoney,
            "nvarchar" => Self::NVarChar(length(1)),
            "sysname" => Self::NVarChar(Some(128)),
            "varchar" => Self::VarChar(length(1)),
            "nchar" => Self::NChar(first.unwrap_or(1)),
            "char" => Self::Char(first.unwrap_or(1)),
            "varbinary" => Self::VarBinary(length(1)),
            "binary" => Self::Binary(first.unwrap_or(1)),
            "rowversion" | "timestamp" => Self::RowVersion,
            "uniqueidentifier" => Self::Guid,
            "date" => Self::Date,
            "time" => Self::Time(fraction()?),
            "smalldatetime" => Self::SmallDateTime,
            "datetime" => Self::DateTime,
            "datetime2" => Self::DateTime2(fraction()?),
            "datetimeoffset" => Self::DateTimeOffset(fraction()?),
            name => Self::Named(Named::ALL.into_iter().find(|named| named.facts().0 == name)?),
        })
    }

    /// Parses the display form of a type.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (name, arguments) = text.split_once('(').unwrap_or((text, ""));
        let arguments: Vec<u16> = arguments
            .trim_end_matches(')')
            .split(',')
            .filter_map(|n| if n == "max" { Some(u16::MAX) } else { n.parse().ok() })
            .collect();
        Self::parse(name, &arguments)
    }

    /// The type that values are stored and sent as.
    pub(crate) fn base(self) -> Self {
        if let Self::Named(named) = self { named.base() } else { self }
    }

    /// Whether values are character strings of UTF-16.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self.base(), Self::NVarChar(_) | Self::NChar(_))
    }

    /// Whether values are character strings in a code page.
    pub(crate) fn is_coded(self) -> bool {
        matches!(self.base(), Self::VarChar(_) | Self::Char(_))
    }

    /// Whether columns have a collation.
    pub(crate) fn is_collated(self) -> bool {
        if let Self::Named(named) = self {
            return matches!(named, Named::Text | Named::NText);
        }
        self.is_text()
    }

    /// Whether values are character strings.
    pub(crate) fn is_text(self) -> bool {
        matches!(self.base(), Self::NVarChar(_) | Self::VarChar(_) | Self::NChar(_) | Self::Char(_))
    }

    /// Whether values are byte strings.
    pub(crate) fn is_binary(self) -> bool {
        matches!(self.base(), Self::VarBinary(_) | Self::Binary(_) | Self::RowVersion)
    }

    /// Whether values are exact numbers with a fraction: precision and scale.
    pub(crate) fn decimal(self) -> Option<(u8, u8)> {
        match self {
            Self::Decimal(precision, scale) => Some((precision, scale)),
            Self::Money => Some((19, 4)),
            Self::SmallMoney => Some((10, 4)),
            Self::Bit
            | Self::TinyInt
            | Self::SmallInt
            | Self::Int
            | Self::BigInt
            | Self::Real
            | Self::Float
            | Self::NVarChar(_)
            | Self::VarChar(_)
            | Self::NChar(_)
            | Self::Char(_)
            | Self::VarBinary(_)
            | Self::Binary(_)
            | Self::RowVersion
            | Self::Guid
            | Self::Date
            | Self::Time(_)
            | Self::SmallDateTime
            | Self::DateTime
            | Self::DateTime2(_)
            | Self::DateTimeOffset(_)
            | Self::Named(_) => None,
        }
    }

    /// Whether values are dates, times or both.
    pub(crate) fn is_temporal(self) -> bool {
        matches!(
            self,
            Self::Date
                | Self::Time(_)
                | Self::SmallDateTime
                | Self::DateTime
                | Self::DateTime2(_)
                | Self::DateTimeOffset(_)
        )
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if *self == Self::RowVersion { "rowversion" } else { self.facts().name };
        match self {
            Self::Decimal(p, s) => write!(f, "{name}({p},{s})"),
            Self::NVarChar(None) | Self::VarChar(None) | Self::VarBinary(None) => {
                write!(f, "{name}(max)")
            }
            Self::NVarChar(Some(n)) | Self::VarChar(Some(n)) | Self::VarBinary(Some(n)) => {
                write!(f, "{name}({n})")
            }
            Self::NChar(n) | Self::Char(n) | Self::Binary(n) => write!(f, "{name}({n})"),
            Self::Time(s) | Self::DateTime2(s) | Self::DateTimeOffset(s) => {
                write!(f, "{name}({s})")
            }
            Self::Bit
            | Self::TinyInt
            | Self::SmallInt
            | Self::Int
            | Self::BigInt
            | Self::Real
            | Self::Float
            | Self::Money
            | Self::SmallMoney
            | Self::RowVersion
            | Self::Guid
            | Self::Date
            | Self::SmallDateTime
            | Self::DateTime
            | Self::Named(_) => f.write_str(name),
        }
    }
}

/// Bytes of a decimal on the wire, without its length byte.
pub(crate) fn decimal_length(precision: u8) -> u8 {
    match precision {
        0..=9 => 5,
        10..=19 => 9,
        20..=28 => 13,
        _ => 17,
    }
}

/// Bytes of a time of day of this scale on the wire.
pub(crate) fn time_length(scale: u8) -> i64 {
    match scale {
        0..=2 => 3,
        3..=4 => 4,
        _ => 5,
    }
}

fn fraction_width(base: u8, scale: u8) -> u8 {
    if scale == 0 { base } else { base + 1 + scale }
}

/// A value. Days count from 0001-01-01, times are 100 ns ticks since midnight.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `NULL` of any type.
    Null,
    /// A bit.
    Bool(bool),
    /// Any integer type.
    Int(i64),
    /// `real` or `float`.
    Float(f64),
    /// Unscaled number and scale: `12.50` is `(1250, 2)`.
    Decimal(i128, u8),
    /// Any string type.
    Text(String),
    /// Any binary type, and `rowversion`; also UTF-16 text with an unpaired surrogate.
    Bytes(Vec<u8>),
    /// The 16 bytes in the order they are printed.
    Guid([u8; 16]),
    /// Days.
    Date(u32),
    /// Ticks.
    Time(u64),
    /// Days and ticks; also `datetime` and `smalldatetime`.
    DateTime2(u32, u64),
    /// Days and ticks in UTC, and the offset in minutes.
    DateTimeOffset(u32, u64, i16),
}

/// Column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, empty for an expression without an alias.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Whether it may hold `NULL`.
    pub nullable: bool,
    /// Whether it is computed by an expression and not a table's column.
    pub computed: bool,
}

/// Parameter of a remote procedure call, or a variable of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name with its `@`.
    pub name: String,
    /// Type it was sent as.
    pub ty: Type,
    /// Its value.
    pub value: Value,
}

/// An error as SQL Server would send it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({number})")]
pub struct SqlError {
    /// Error number, such as 208.
    pub number: i32,
    /// Severity: 11–16 is the caller's error.
    pub class: u8,
    /// State, which distinguishes the places that raise the same number.
    pub state: u8,
    /// The text.
    pub message: String,
}

impl SqlError {
    /// An error with state 1.
    pub fn new(number: i32, class: u8, message: impl Into<String>) -> Self {
        Self { number, class, state: 1, message: message.into() }
    }

    /// A statement outside the supported list: Azure SQL uses number 40515 for these.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(40515, 16, format!("{what} is not supported by the development server."))
    }

    pub(crate) fn syntax(near: &str) -> Self {
        Self::new(102, 15, format!("Incorrect syntax near '{near}'."))
    }
}

/// One result of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A result set.
    Rows {
        /// What the rows are made of.
        columns: Vec<Column>,
        /// The rows, each as long as `columns`.
        rows: Vec<Vec<Value>>,
        /// The completion of the statement.
        completion: Completion,
    },
    /// Done, without a result set.
    Done(Completion),
    /// Failed; the rest of the batch did not run.
    Error(SqlError),
}

impl Reply {
    /// Rows of the result set, or rows that were written.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Rows { rows, .. } => rows.len().try_into().unwrap_or(u64::MAX),
            Self::Done(completion) => completion.written(),
            Self::Error(_) => 0,
        }
    }
}

/// The completion of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The kind of statement.
    pub command: Command,
    /// Rows read or written; [`None`] if nothing is counted or `NOCOUNT` is on.
    pub rows: Option<u64>,
}

impl Completion {
    /// Rows inserted, updated or deleted.
    pub fn written(self) -> u64 {
        match self.command {
            Command::Insert | Command::Update | Command::Delete => self.rows.unwrap_or(0),
            Command::Select
            | Command::Begin
            | Command::Commit
            | Command::Rollback
            | Command::Other => 0,
        }
    }
}

/// The kind of a statement, by which a client may distinguish rows read from rows written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `SELECT`.
    Select,
    /// `INSERT`.
    Insert,
    /// `UPDATE`.
    Update,
    /// `DELETE`.
    Delete,
    /// `BEGIN TRANSACTION`.
    Begin,
    /// `COMMIT`.
    Commit,
    /// `ROLLBACK`.
    Rollback,
    /// Anything else.
    Other,
}

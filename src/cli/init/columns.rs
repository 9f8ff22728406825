//! The columns of a table as typed fields of a receiver, and sample values for its tests.
//!
//! Types come from the JSON Schema of the table's rows, whose descriptions are the SQL types.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};

use super::receiver::Language;

/// A delivered column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    name: String,
    /// The SQL type with its sizes, such as `decimal(9, 2)`.
    declared: String,
    nullable: bool,
    /// The longest text, in characters.
    length_max: Option<u64>,
}

/// What a column holds, as far as receivers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    U8,
    I16,
    I32,
    I64,
    F32,
    F64,
    /// A number with this many digits, and this many after the point.
    Decimal(u32, u32),
    Date,
    /// A time of day, with this many digits after the seconds.
    Time(u32),
    /// A date and time without an offset.
    DateTime(u32),
    DateTimeOffset(u32),
    Uuid,
    Binary,
    Text,
}

impl Column {
    /// Returns the columns of an object's schema.
    pub(super) fn all(object: &Json) -> Vec<Self> {
        let properties = object.get("properties").and_then(Json::as_object);
        let of = |(name, schema): (&String, &Json)| Self {
            name: name.clone(),
            declared: text(schema, "description").to_owned(),
            // A nullable column has two types.
            nullable: schema.get("type").is_some_and(Json::is_array),
            length_max: schema.get("maxLength").and_then(Json::as_u64),
        };
        properties.into_iter().flatten().map(of).collect()
    }

    fn kind(&self) -> Kind {
        let (name, sizes) = self.declared.split_once('(').unwrap_or((&self.declared, ""));
        let sizes: Vec<u32> = sizes
            .trim_end_matches(')')
            .split(',')
            .filter_map(|size| size.trim().parse().ok())
            .collect();
        let size = |at: usize| sizes.get(at).copied().unwrap_or(0);
        match name {
            "bit" => Kind::Bool,
            "tinyint" => Kind::U8,
            "smallint" => Kind::I16,
            "int" => Kind::I32,
            "bigint" => Kind::I64,
            "real" => Kind::F32,
            "float" => Kind::F64,
            "decimal" | "numeric" => Kind::Decimal(size(0), size(1)),
            "money" => Kind::Decimal(19, 4),
            "smallmoney" => Kind::Decimal(10, 4),
            "date" => Kind::Date,
            "time" => Kind::Time(size(0)),
            "smalldatetime" => Kind::DateTime(0),
            "datetime" => Kind::DateTime(3),
            "datetime2" => Kind::DateTime(size(0)),
            "datetimeoffset" => Kind::DateTimeOffset(size(0)),
            "uniqueidentifier" => Kind::Uuid,
            "binary" | "varbinary" | "image" | "rowversion" => Kind::Binary,
            _ => Kind::Text,
        }
    }

    /// Returns a value of the column, another one for each `number` below ten.
    fn sample(&self, number: u32) -> Json {
        let fraction = |scale: u32| {
            let zeros = "0".repeat(usize::try_from(scale).unwrap_or_default());
            if scale == 0 { String::new() } else { format!(".{zeros}") }
        };
        match self.kind() {
            Kind::Bool => json!(number.is_multiple_of(2)),
            Kind::U8 | Kind::I16 | Kind::I32 | Kind::I64 => json!(number),
            Kind::F32 | Kind::F64 => json!(f64::from(number) + 0.5),
            Kind::Decimal(digits, scale) if digits > scale => {
                json!(format!("{number}{}", fraction(scale)))
            }
            Kind::Decimal(_, scale) => json!(format!("0{}", fraction(scale))),
            Kind::Date => json!(format!("2026-11-0{number}")),
            Kind::Time(scale) => json!(format!("09:30:0{number}{}", fraction(scale))),
            Kind::DateTime(scale) => {
                json!(format!("2026-11-21T09:30:0{number}{}", fraction(scale)))
            }
            Kind::DateTimeOffset(scale) => {
                json!(format!("2026-11-21T09:30:0{number}{}+01:00", fraction(scale)))
            }
            Kind::Uuid => json!(format!("00000000-0000-4000-8000-00000000000{number}")),
            Kind::Binary => json!(STANDARD.encode([
                0,
                0,
                0,
                0,
                0,
                0,
                7,
                u8::try_from(number).unwrap_or_default()
            ])),
            Kind::Text if self.declared == "hierarchyid" => json!(format!("/{number}/")),
            Kind::Text if self.declared == "sql_variant" => json!(format!("int:{number}")),
            Kind::Text => {
                let length = self.length_max.and_then(|length| usize::try_from(length).ok());
                let text = format!("{number} text");
                json!(text.chars().take(length.unwrap_or(usize::MAX)).collect::<String>())
            }
        }
    }
}

fn text<'a>(schema: &'a Json, name: &str) -> &'a str {
    schema.get(name).and_then(Json::as_str).unwrap_or_default()
}

/// Returns sample values of columns, other ones for each `number` below ten.
pub(super) fn sample(columns: &[Column], number: u32) -> Json {
    let values = columns.iter().map(|column| (column.name.clone(), column.sample(number)));
    Json::Object(values.collect::<Map<String, Json>>())
}

/// Returns the declarations of fields, and the expressions that read them from JSON; both are lines.
///
/// `class` begins the names of the C# types that have the fields.
pub(super) fn fields(language: Language, class: &str, columns: &[Column]) -> (String, String) {
    let mut used = BTreeSet::new();
    let (mut fields, mut values) = (Vec::new(), Vec::new());
    for column in columns {
        let base = identifier(language, class, &column.name);
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        // The numbers do not end.
        let name = names.find(|name| used.insert(name.clone())).unwrap_or(base);
        let (field, value) = field(language, &name, column);
        fields.push(field);
        values.push(value);
    }
    (fields.join("\n"), values.join("\n"))
}

fn field(language: Language, name: &str, column: &Column) -> (String, String) {
    let (kind, declared, nullable) = (column.kind(), &column.declared, column.nullable);
    let key = json!(column.name).to_string();
    match language {
        Language::Python => {
            let (of, read) = python(kind);
            let (of, rest) = if nullable {
                (format!("{of} | None"), ", nullable=True")
            } else {
                (of.to_owned(), "")
            };
            (
                format!("    {name}: {of}  # {declared}"),
                format!("            {name}=column(columns, {key}, {read}{rest}),"),
            )
        }
        Language::Rust => {
            let (of, read) = rust(kind);
            let (of, column) = if nullable {
                (format!("Option<{of}>"), "nullable")
            } else {
                (of.to_owned(), "column")
            };
            (
                format!("    /// `{declared}`\n    pub {name}: {of},"),
                format!("            {name}: {column}(columns, {key}, {read})?,"),
            )
        }
        Language::Typescript => {
            let (of, read) = typescript(kind);
            let (of, column) = if nullable {
                (format!("{of} | null"), "nullable")
            } else {
                (of.to_owned(), "column")
            };
            (
                format!("  {name}: {of}; // {declared}"),
                format!("    {name}: {column}(columns, {key}, {read}),"),
            )
        }
        Language::Csharp | Language::Http => {
            let (of, read) = csharp(kind);
            let is_reference = matches!(of, "string" | "byte[]");
            let (of, column) = match (nullable, is_reference) {
                (false, _) => (of.to_owned(), "Required"),
                (true, true) => (format!("{of}?"), "NullableReference"),
                (true, false) => (format!("{of}?"), "Nullable"),
            };
            (
                format!(
                    "    /// <summary><c>{declared}</c></summary>\n    public required {of} {name} {{ get; init; }}\n"
                ),
                format!("        {name} = Column.{column}(columns, {key}, {read}),"),
            )
        }
    }
}

/// Returns the type and the function that reads it.
fn python(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Bool => ("bool", "boolean"),
        Kind::U8 | Kind::I16 | Kind::I32 | Kind::I64 => ("int", "integer"),
        Kind::F32 | Kind::F64 => ("float", "number"),
        Kind::Decimal(..) => ("Decimal", "decimal"),
        Kind::Date => ("date", "date.fromisoformat"),
        Kind::Time(_) => ("time", "time.fromisoformat"),
        Kind::DateTime(_) | Kind::DateTimeOffset(_) => ("datetime", "datetime.fromisoformat"),
        Kind::Uuid => ("UUID", "uuid"),
        Kind::Binary => ("bytes", "from_base64"),
        Kind::Text => ("str", "text"),
    }
}

fn rust(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Bool => ("bool", "json"),
        Kind::U8 => ("u8", "json"),
        Kind::I16 => ("i16", "json"),
        Kind::I32 => ("i32", "json"),
        Kind::I64 => ("i64", "json"),
        Kind::F32 => ("f32", "json"),
        Kind::F64 => ("f64", "json"),
        Kind::Decimal(..) => ("Decimal", "decimal"),
        Kind::Date => ("Date", "date"),
        Kind::Time(_) => ("Time", "time"),
        Kind::DateTime(_) => ("PrimitiveDateTime", "date_time"),
        Kind::DateTimeOffset(_) => ("OffsetDateTime", "date_time_offset"),
        Kind::Uuid => ("Uuid", "uuid"),
        Kind::Binary => ("Vec<u8>", "base64"),
        Kind::Text => ("String", "json"),
    }
}

fn typescript(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Bool => ("boolean", "bool"),
        Kind::U8 | Kind::I16 | Kind::I32 => ("number", "integer"),
        // A number is exact up to 2^53 only.
        Kind::I64 => ("bigint", "int64"),
        Kind::F32 | Kind::F64 => ("number", "float"),
        Kind::Binary => ("Buffer", "base64"),
        Kind::Decimal(..)
        | Kind::Date
        | Kind::Time(_)
        | Kind::DateTime(_)
        | Kind::DateTimeOffset(_)
        | Kind::Uuid
        | Kind::Text => ("string", "text"),
    }
}

fn csharp(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Bool => ("bool", "Column.AsBool"),
        Kind::U8 => ("byte", "Column.AsByte"),
        Kind::I16 => ("short", "Column.AsInt16"),
        Kind::I32 => ("int", "Column.AsInt32"),
        Kind::I64 => ("long", "Column.AsInt64"),
        Kind::F32 => ("float", "Column.AsSingle"),
        Kind::F64 => ("double", "Column.AsDouble"),
        // `decimal` has at least 28 digits.
        Kind::Decimal(digits, _) if digits <= 28 => ("decimal", "Column.AsDecimal"),
        Kind::Date => ("DateOnly", "Column.AsDate"),
        Kind::Time(_) => ("TimeOnly", "Column.AsTime"),
        Kind::DateTime(_) => ("DateTime", "Column.AsDateTime"),
        Kind::DateTimeOffset(_) => ("DateTimeOffset", "Column.AsDateTimeOffset"),
        Kind::Uuid => ("Guid", "Column.AsGuid"),
        Kind::Binary => ("byte[]", "Column.AsBytes"),
        Kind::Decimal(..) | Kind::Text => ("string", "Column.AsText"),
    }
}

/// Returns the name of a column as an identifier of a type whose name begins with `class`.
fn identifier(language: Language, class: &str, name: &str) -> String {
    let cased = match language {
        Language::Python | Language::Typescript => name.to_owned(),
        Language::Rust => snake(name),
        Language::Csharp | Language::Http => pascal(name),
    };
    let plain: String =
        cased.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let starts_well = plain.starts_with(|c: char| c.is_ascii_alphabetic());
    if !starts_well {
        // Python treats two leading underscores specially.
        return format!("column_{}", plain.trim_start_matches('_'));
    }
    if is_reserved(language, &plain) || is_type_of(language, class, &plain) {
        format!("{plain}_")
    } else {
        plain
    }
}

fn is_reserved(language: Language, word: &str) -> bool {
    let words = match language {
        Language::Python => {
            "False None True and as assert async await break class continue def del elif else except finally for \
             from global if import in is lambda nonlocal not or pass raise return try while with yield \
             from_json cls column columns date datetime time Decimal UUID from_base64 bool bytes dict float int str"
        }
        Language::Rust => {
            "abstract as async await become box break const continue crate do dyn else enum extern false final fn \
             for gen if impl in let loop macro match mod move mut override priv pub ref return self static \
             struct super trait true try type typeof unsafe unsized use virtual where while yield"
        }
        // Any word can be the name of a property; that of a C# type cannot be the name of its own member.
        Language::Typescript => "",
        // So are members that each record has, and the class that reads columns.
        Language::Csharp | Language::Http => {
            "Key Row FromJson Column Clone Deconstruct EqualityContract Equals Finalize GetHashCode GetType \
             MemberwiseClone PrintMembers ReferenceEquals ToString"
        }
    };
    words.split_whitespace().any(|reserved| reserved == word)
}

/// Whether a name is that of a C# type made from the table.
fn is_type_of(language: Language, class: &str, word: &str) -> bool {
    let suffix = word.strip_prefix(class).filter(|_| language == Language::Csharp);
    suffix.is_some_and(|suffix| ["Key", "Row"].contains(&suffix))
}

/// Returns the name of a poller as the beginning of the names of its C# types and files.
pub(super) fn class(poller: &str) -> String {
    let name = pascal(poller);
    // Program.cs starts the receiver; file names may ignore case.
    if name.eq_ignore_ascii_case("program") { format!("{name}_") } else { name }
}

/// Returns a name as `snake_case`.
pub(super) fn snake(name: &str) -> String {
    let mut snake = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && was_lower {
            snake.push('_');
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Returns a name as `PascalCase`.
pub(super) fn pascal(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let upper = words.map(|word| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
    });
    upper.collect::<Vec<String>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, declared: &str, nullable: bool) -> Column {
        let declared = declared.to_owned();
        Column { name: name.to_owned(), declared, nullable, length_max: None }
    }

    #[test]
    fn names_are_identifiers_of_each_language() {
        for (name, python, rust, csharp) in [
            ("OrderId", "OrderId", "order_id", "OrderId"),
            ("order id", "order_id", "order_id", "OrderId"),
            ("type", "type", "type_", "Type"),
            ("class", "class_", "class", "Class"),
            ("date", "date_", "date", "Date"),
            ("2nd", "column_2nd", "column_2nd", "column_2nd"),
            ("__x", "column_x", "column_x", "X"),
            ("Größe", "Gr__e", "gr__e", "GrE"),
            ("key", "key", "key", "Key_"),
        ] {
            assert_eq!(identifier(Language::Python, "Orders", name), python, "{name}");
            assert_eq!(identifier(Language::Rust, "Orders", name), rust, "{name}");
            assert_eq!(identifier(Language::Csharp, "Orders", name), csharp, "{name}");
        }
    }

    #[test]
    fn members_of_a_csharp_record_are_no_names_of_columns() {
        for name in [
            "orders_key",
            "OrdersRow",
            "column",
            "Clone",
            "equals",
            "ToString",
            "GetHashCode",
            "GetType",
            "Deconstruct",
            "EqualityContract",
            "PrintMembers",
            "MemberwiseClone",
            "row",
        ] {
            let renamed = identifier(Language::Csharp, "Orders", name);
            assert_eq!(renamed, format!("{}_", pascal(name)), "{name}");
        }
        assert_eq!(identifier(Language::Csharp, "Orders", "ShopKey"), "ShopKey");
        assert_eq!(identifier(Language::Python, "Orders", "OrdersKey"), "OrdersKey");
    }

    #[test]
    fn the_types_of_a_poller_do_not_replace_the_program() {
        for (poller, class) in
            [("program", "Program_"), ("pro_gram", "ProGram_"), ("programs", "Programs")]
        {
            assert_eq!(super::class(poller), class);
        }
    }

    #[test]
    fn columns_with_equal_identifiers_are_numbered() {
        let columns = [column("a b", "int", false), column("a-b", "int", true)];
        let (fields, values) = fields(Language::Python, "Orders", &columns);
        assert_eq!(fields, "    a_b: int  # int\n    a_b_2: int | None  # int");
        let read = "            a_b=column(columns, \"a b\", integer),\n            \
            a_b_2=column(columns, \"a-b\", integer, nullable=True),";
        assert_eq!(values, read);
    }

    #[test]
    fn a_number_with_too_many_digits_for_its_type_is_text() {
        let of = |digits| csharp(Kind::Decimal(digits, 2)).0;
        assert_eq!((of(28), of(29)), ("decimal", "string"));
    }
}

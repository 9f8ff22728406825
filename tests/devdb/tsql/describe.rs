//! `sys.dm_exec_describe_first_result_set`: the columns of a query, without running it.

use super::{
    coerce::Collation,
    lexer,
    lexer::Token,
    parser::{Parser, quoted, text},
    query::{Source, SourceColumn},
};
use crate::{
    codepage::CodePage,
    types::{Column, Facts, SqlError, Type},
};

/// Stored name of the function, like that of a table.
pub(crate) const DESCRIBE: &str = "sys.dm_exec_describe_first_result_set";

/// The supported columns of the result, with their types.
const COLUMNS: [(&str, Type); 11] = [
    ("column_ordinal", Type::Int),
    ("name", Type::NVarChar(Some(128))),
    ("is_nullable", Type::Bit),
    ("system_type_id", Type::Int),
    ("user_type_id", Type::Int),
    ("max_length", Type::SmallInt),
    ("precision", Type::TinyInt),
    ("scale", Type::TinyInt),
    ("collation_name", Type::NVarChar(Some(128))),
    ("error_number", Type::Int),
    ("error_message", Type::NVarChar(Some(4000))),
];

impl Parser<'_> {
    /// Parses `(N'query', NULL, 0)`: a constant query without parameters. A query that cannot be described is
    /// a row with its error.
    pub(super) fn described(&mut self, body: &mut String) -> Result<Source, SqlError> {
        self.expect_symbol("(")?;
        let Some(Token::Text(query) | Token::Coded(query)) = self.next() else {
            return Err(SqlError::unsupported("A description of a query that is not constant"));
        };
        self.expect_symbol(",")?;
        self.expect("NULL")?;
        self.expect_symbol(",")?;
        if self.next() != Some(&Token::Number("0".to_owned())) {
            return Err(SqlError::unsupported("A description with browse information"));
        }
        self.expect_symbol(")")?;
        let rows = match self.columns_of(query) {
            Ok(columns) => columns.iter().zip(1..).map(|(c, at)| described_row(c, at)).collect(),
            Err(error) => vec![error_row(&error)],
        };
        body.extend(["(", &rows.join(" UNION ALL "), ")"]);
        let columns = COLUMNS.map(|(name, ty)| SourceColumn {
            name: name.into(),
            ty: Some(ty),
            nullable: true,
            collation: Collation::of(ty, None),
        });
        Ok(Source::of_table(DESCRIBE, columns.into()))
    }

    fn columns_of(&self, query: &str) -> Result<Vec<Column>, SqlError> {
        let tokens = lexer::tokens(query)?;
        let mut parser = Parser::new(&tokens, 0, self.schema);
        let query = parser.query()?;
        if parser.is_at_end() { Ok(query.columns()) } else { Err(parser.unexpected()) }
    }
}

fn described_row(column: &Column, ordinal: usize) -> String {
    let Facts { id, user_id, length, precision, scale, .. } = column.ty.facts();
    let collation = column.ty.is_collated().then(|| text(CodePage::default().collation()));
    row([
        ordinal.to_string(),
        text(&column.name),
        i64::from(column.nullable).to_string(),
        id.to_string(),
        if id == user_id { "NULL".to_owned() } else { user_id.to_string() },
        length.to_string(),
        precision.to_string(),
        scale.to_string(),
        collation.unwrap_or_else(|| "NULL".to_owned()),
        "NULL".to_owned(),
        "NULL".to_owned(),
    ])
}

fn error_row(error: &SqlError) -> String {
    let mut cells = COLUMNS.map(|_| "NULL".to_owned());
    let [.., number, message] = &mut cells;
    *number = error.number.to_string();
    *message = text(&error.message);
    row(cells)
}

fn row(cells: [String; COLUMNS.len()]) -> String {
    let named =
        COLUMNS.iter().zip(cells).map(|((name, _), cell)| format!("{cell} AS {}", quoted(name)));
    format!("SELECT {}", named.collect::<Vec<_>>().join(", "))
}

//! Translations of statements.

use expect_test::{Expect, expect};

use super::{
    Statement, Write, lexer,
    parser::{Parser, Schema, TableColumn},
};
use crate::types::{SqlError, Type};

/// One table `T (id int, c datetime2(3), o datetimeoffset(7), d decimal(38,2), rv rowversion)`.
struct OneTable;

impl Schema for OneTable {
    fn columns(&self, table: &str) -> Result<Option<Vec<TableColumn>>, SqlError> {
        let column = |(name, ty): (&str, Type)| TableColumn {
            name: name.into(),
            ty,
            nullable: false,
            identity: false,
            default: None,
            collation: None,
        };
        let columns = [
            ("id", Type::Int),
            ("c", Type::DateTime2(3)),
            ("o", Type::DateTimeOffset(7)),
            ("d", Type::Decimal(38, 2)),
            ("rv", Type::RowVersion),
        ];
        Ok(table.eq_ignore_ascii_case("t").then(|| columns.map(column).to_vec()))
    }

    fn key(&self, _table: &str) -> Result<Vec<String>, SqlError> {
        Ok(vec!["id".to_owned()])
    }

    fn is_tracked(&self, _table: &str) -> Result<bool, SqlError> {
        Ok(false)
    }

    fn variable(&self, name: &str) -> Option<Type> {
        match name {
            "@n" => Some(Type::Int),
            "@text" => Some(Type::NVarChar(Some(4000))),
            _ => None,
        }
    }

    fn database(&self) -> &'static str {
        "Shop"
    }

    fn identity_insert(&self, _: &str) -> bool {
        false
    }
}

fn check(sql: &str, expected: &Expect) {
    let tokens = lexer::tokens(sql).unwrap();
    let mut parser = Parser::new(&tokens, 0, &OneTable);
    let mut shown = String::new();
    loop {
        match parser.statement() {
            Ok(None) => break,
            Ok(Some(Statement::Query { sql, .. } | Statement::Write(Write { sql, .. }))) => {
                shown.extend([&sql, "\n"]);
            }
            Ok(Some(other)) => shown.extend([&format!("{other:?}"), "\n"]),
            Err(error) => {
                shown.extend([&error.to_string(), "\n"]);
                break;
            }
        }
    }
    expected.assert_eq(&shown);
}

#[test]
fn top_becomes_limit() {
    check(
        "SELECT TOP (@n) id FROM dbo.T ORDER BY id DESC;",
        &expect![[r#"
            SELECT "T"."id" AS "id" FROM dbo."T" AS "T" ORDER BY "T"."id" DESC LIMIT hw_count('TOP', @n)
        "#]],
    );
    check(
        "SELECT id FROM T ORDER BY id OFFSET 2 ROWS FETCH NEXT 3 ROWS ONLY",
        &expect![[r#"
            SELECT "T"."id" AS "id" FROM dbo."T" AS "T" ORDER BY "T"."id" LIMIT hw_count('FETCH', 3) OFFSET hw_count('OFFSET', 2)
        "#]],
    );
}

#[test]
fn comparisons_convert_the_side_of_lower_precedence() {
    check(
        "SELECT id FROM T WHERE c > @text AND @text = d AND rv >= 5",
        &expect![[r#"
        SELECT "T"."id" AS "id" FROM dbo."T" AS "T" WHERE "T"."c" > hw_cast(@text, 'nvarchar(4000)', 'datetime2(3)', 0) AND hw_cast(@text, 'nvarchar(4000)', 'decimal(38,2)', 0) = "T"."d" AND hw_cast("T"."rv", 'rowversion', 'bigint', 0) >= 5
    "#]],
    );
    check(
        "SELECT id FROM T AS t WHERE t.o > c ORDER BY t.o",
        &expect![[r#"
        SELECT "t"."id" AS "id" FROM dbo."T" AS "t" WHERE substr("t"."o", 1, 27) > substr(hw_cast("t"."c", 'datetime2(3)', 'datetimeoffset(7)', 0), 1, 27) ORDER BY substr("t"."o", 1, 27)
    "#]],
    );
}

#[test]
fn rowversions_are_filled_in() {
    check(
        "UPDATE T SET id += 1 WHERE id = @n",
        &expect![[r#"
            UPDATE dbo."T" AS "T" SET "id" = hw_calculate('+', "id", 1, 'int'), "rv" = hw_next_rowversion() WHERE "T"."id" = @n
        "#]],
    );
    check(
        "INSERT INTO T (id) SELECT id + 1 FROM T",
        &expect![[r#"
            INSERT INTO dbo."T" ("id", "rv") SELECT hw_calculate('+', "T"."id", 1, 'int'), hw_next_rowversion() FROM dbo."T" AS "T"
        "#]],
    );
}

#[test]
fn unsupported_statements_are_reported() {
    check(
        "SELECT 1; MERGE INTO T",
        &expect![[r"
        SELECT 1
        Statement 'MERGE' is not supported by the development server. (40515)
    "]],
    );
    check(
        "SELECT id FROM T WHERE",
        &expect![[r"
        Incorrect syntax near 'WHERE'. (102)
    "]],
    );
    check(
        "FETCH NEXT",
        &expect![[r"
        Incorrect syntax near 'FETCH'. (102)
    "]],
    );
    check(
        &format!("SELECT {}1", "(".repeat(500)),
        &expect![[r"
        Some part of your statement is nested too deeply. (191)
    "]],
    );
}

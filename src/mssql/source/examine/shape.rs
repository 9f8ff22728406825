//! How an estimated plan reads a table: seek, scan or sort. Pure.
//!
//! Only a few attributes of the plan's XML matter, in elements fixed by the schema. They are extracted from
//! the text; if one is missing, the plan is not classified.
//! <https://schemas.microsoft.com/sqlserver/2004/07/showplan/>

use highwater_engine::cursor::{Cursor, CursorMode, KeyValues, RowVersion};

use crate::connection::Param;

use super::super::describe::Column;

/// How a poller's statement finds its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// By a range of an index, already in order.
    Seek(String),
    /// By a range of an index, with a sort before the first row.
    SeekAndSort(String),
    /// By reading every row; the operator, and the index if any.
    Scan(String),
}

/// Returns the shape of the last statement in `plan` that reads a table; `None` if there is none.
pub(super) fn shape(plan: &str) -> Option<Shape> {
    let statements: Vec<&str> = plan.split("<StmtSimple").skip(1).collect();
    statements.into_iter().rev().find_map(of_statement)
}

fn of_statement(statement: &str) -> Option<Shape> {
    let mut seek = None;
    let mut sorted = false;
    for operator in statement.split("<RelOp ").skip(1) {
        let (tag, _) = operator.split_once('>')?;
        let physical = attribute(tag, "PhysicalOp").unwrap_or_default();
        sorted |= physical == "Sort";
        // A lookup fetches the rest of rows that were already found.
        let looks_up = operator.contains("Lookup=\"1\"") || operator.contains("Lookup=\"true\"");
        let Some((_, object)) = operator.split_once("<Object ") else { continue };
        let object = object.split('>').next().unwrap_or_default();
        let name = attribute(object, "Index").or_else(|| attribute(object, "Table"));
        let name = name.unwrap_or_default();
        if physical.ends_with("Scan") {
            return Some(Shape::Scan(format!("{physical} of {name}")));
        }
        if physical.ends_with("Seek") && !looks_up {
            seek.get_or_insert(format!("{physical} of {name}"));
        }
    }
    seek.map(if sorted { Shape::SeekAndSort } else { Shape::Seek })
}

/// Returns an attribute's value, with the five named entities of XML resolved.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let start = format!(" {name}=\"");
    let tag = format!(" {tag}");
    let (_, rest) = tag.split_once(&start)?;
    let (value, _) = rest.split_once('"')?;
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(entities.iter().fold(value.to_owned(), |text, (from, to)| text.replace(from, to)))
}

/// Returns a placeholder position if there is no checkpoint: the plan does not depend on it.
pub(super) fn placeholder(mode: CursorMode, cursor: &Column) -> Cursor {
    let key = KeyValues::new();
    match mode {
        CursorMode::RowVersion => Cursor::row_version(RowVersion(0), key),
        CursorMode::IntegerPk | CursorMode::ChangeTracking => Cursor::integer(0, key),
        CursorMode::TimestampPk => {
            let zone = if cursor.type_name == "datetimeoffset" { "Z" } else { "" };
            let time = if cursor.type_name == "date" { "" } else { "T00:00:00.0000000" };
            Cursor { mode, value: format!("2000-01-01{time}{zone}"), key }
        }
    }
}

/// Returns a statement as a batch that can be planned: its parameters become variables. Their values would
/// not change the plan, so they are not set.
pub(super) fn batch(statement: &str, params: &[Param]) -> String {
    let declared = |(number, param): (usize, &Param)| {
        let type_name = match param {
            Param::Bool(_) => "bit",
            Param::Int(_) => "int",
            Param::BigInt(_) => "bigint",
            Param::Real(_) => "real",
            Param::Float(_) => "float",
            Param::Null | Param::Text(_) => "nvarchar(4000)",
            Param::Bytes(_) => "varbinary(8000)",
        };
        format!("@P{number} {type_name}")
    };
    let declared: Vec<String> = (1..).zip(params).map(declared).collect();
    format!("DECLARE {};\n{statement}", declared.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators as `physical|index|more`, in a plan with a constant statement before it.
    fn plan(operators: &[&str]) -> String {
        let operators: Vec<String> = operators
            .iter()
            .map(|text| {
                let mut parts = text.split('|');
                let mut part = || parts.next().unwrap_or_default();
                let (physical, index, more) = (part(), part(), part());
                let object = match index {
                    "" => String::new(),
                    "heap" => {
                        "<Object Database=\"[d]\" Table=\"[t]\" IndexKind=\"Heap\" />".to_owned()
                    }
                    index => format!("<Object Database=\"[d]\" Table=\"[t]\" Index=\"{index}\" />"),
                };
                format!(
                    "<RelOp NodeId=\"1\" PhysicalOp=\"{physical}\" LogicalOp=\"x\"><OutputList>\
                     <ColumnReference Table=\"[t]\" Column=\"id\" /></OutputList>\
                     <IndexScan Ordered=\"true\" {more}>{object}</IndexScan></RelOp>"
                )
            })
            .collect();
        let operators = operators.concat();
        format!(
            "<ShowPlanXML xmlns=\"x\"><BatchSequence><Batch><Statements>\
             <StmtSimple StatementText=\"DECLARE @hi\" StatementType=\"ASSIGN\"><QueryPlan>\
             <RelOp NodeId=\"0\" PhysicalOp=\"Constant Scan\"></RelOp></QueryPlan></StmtSimple>\
             <StmtSimple StatementText=\"SELECT TOP\" StatementType=\"SELECT\"><QueryPlan>{operators}\
             </QueryPlan></StmtSimple></Statements></Batch></BatchSequence></ShowPlanXML>"
        )
    }

    fn describe(operators: &[&str]) -> Option<String> {
        shape(&plan(operators)).map(|shape| format!("{shape:?}"))
    }

    #[test]
    fn a_range_of_an_index_differs_from_a_scan() {
        for (operators, expected) in [
            (&["Top", "Index Seek|[ix &amp; rv]"][..], "Seek(\"Index Seek of [ix & rv]\")"),
            (&["Top", "Clustered Index Seek|[pk]"], "Seek(\"Clustered Index Seek of [pk]\")"),
            (&["Top", "Index Scan|[ix]"], "Scan(\"Index Scan of [ix]\")"),
            (&["Top", "Clustered Index Scan|[pk]"], "Scan(\"Clustered Index Scan of [pk]\")"),
            (&["Sort", "Table Scan|heap"], "Scan(\"Table Scan of [t]\")"),
            (&["Sort", "Index Seek|[ix]"], "SeekAndSort(\"Index Seek of [ix]\")"),
        ] {
            assert_eq!(describe(operators).as_deref(), Some(expected), "{operators:?}");
        }
    }

    #[test]
    fn a_lookup_of_found_rows_does_not_count_as_access() {
        let nested = ["Nested Loops", "Clustered Index Seek|[pk]|Lookup=\"1\"", "Index Seek|[ix]"];
        assert_eq!(describe(&nested).unwrap(), "Seek(\"Index Seek of [ix]\")");
        let nested = ["Nested Loops", "Index Scan|[ix]", "Clustered Index Seek|[pk]|Lookup=\"1\""];
        assert_eq!(describe(&nested).unwrap(), "Scan(\"Index Scan of [ix]\")");
    }

    #[test]
    fn plans_that_read_no_table_are_not_classified() {
        assert_eq!(describe(&["Constant Scan"]), None);
        assert_eq!(shape(""), None);
        assert_eq!(shape("<StmtSimple><RelOp "), None);
    }

    #[test]
    fn parameters_become_variables() {
        let params = [Param::BigInt(2), Param::Text("x".to_owned()), Param::Bytes(vec![1])];
        assert_eq!(
            batch("SELECT 1", &params),
            "DECLARE @P1 bigint, @P2 nvarchar(4000), @P3 varbinary(8000);\nSELECT 1"
        );
    }
}

//! The filter condition on rows, and its named values. Pure.
//!
//! # Design
//!
//! A value is sent to the server as a parameter, never as part of the text. An untyped value is sent as text,
//! which the server converts to the type it is compared with. That is right for all types except `varchar`:
//! there the server converts the column instead, and scans all rows. So a value can declare its type, as in
//! `varchar(9):EU`. The type is parsed here and written out again, so that no other text can get into the
//! statement.

use std::collections::BTreeMap;

use super::tsql::{self, Kind};

/// Types that a value can have: the name, and the minimum and maximum number of sizes.
const TYPES: &[(&str, usize, usize)] = &[
    ("bit", 0, 0),
    ("tinyint", 0, 0),
    ("smallint", 0, 0),
    ("int", 0, 0),
    ("bigint", 0, 0),
    ("real", 0, 0),
    ("float", 0, 0),
    ("money", 0, 0),
    ("smallmoney", 0, 0),
    ("decimal", 2, 2),
    ("numeric", 2, 2),
    ("date", 0, 0),
    ("time", 0, 1),
    ("smalldatetime", 0, 0),
    ("datetime", 0, 0),
    ("datetime2", 0, 1),
    ("datetimeoffset", 0, 1),
    ("char", 1, 1),
    ("varchar", 0, 1),
    ("nchar", 1, 1),
    ("nvarchar", 0, 1),
    ("binary", 1, 1),
    ("varbinary", 0, 1),
    ("uniqueidentifier", 0, 0),
];

/// A condition in T-SQL, with values named as `@name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    /// The text in parts: literal text, or the index of a value.
    parts: Vec<Part>,
    values: Vec<TypedValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(usize),
}

/// A value and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TypedValue {
    name: String,
    /// As T-SQL declares it; `None` to let the server convert the text.
    declared: Option<String>,
    text: String,
}

/// Why a condition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterProblem {
    /// The text itself is invalid.
    Text(String),
    /// A value used in the condition is not defined.
    Missing(String),
    /// A defined value is not used in the condition.
    Unused(String),
    /// The type of a value is invalid.
    Value(String, String),
}

impl Filter {
    /// Parses a condition. Names of values ignore case.
    ///
    /// # Errors
    ///
    /// All problems of the condition.
    pub fn parse(
        text: &str,
        values: &BTreeMap<String, String>,
    ) -> Result<Self, Vec<FilterProblem>> {
        let text = text.trim();
        let tokens = tsql::tokens(text)
            .and_then(|tokens| {
                tsql::check_part(&tokens)?;
                tsql::check_hints(&tokens)?;
                Ok(tokens)
            })
            .map_err(|reason| vec![FilterProblem::Text(reason)])?;
        let mut filter = Self { text: text.to_owned(), ..Self::default() };
        let mut problems = Vec::new();
        let mut at = 0;
        for token in tokens.iter().filter(|token| token.kind == Kind::Variable) {
            // A name that starts with `@@` is the server's own.
            let Some(name) = token.text.strip_prefix('@').filter(|name| !name.starts_with('@'))
            else {
                continue;
            };
            let given = values.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let Some((known, written)) = given else {
                problems.push(FilterProblem::Missing(name.to_owned()));
                continue;
            };
            filter.push_text(text.get(at..token.at));
            at = token.at + token.text.len();
            match filter.index_of(known, written) {
                Ok(index) => filter.parts.push(Part::Value(index)),
                Err(reason) => problems.push(FilterProblem::Value(known.clone(), reason)),
            }
        }
        filter.push_text(text.get(at..));
        for name in values.keys() {
            let is_used = filter.values.iter().any(|value| value.name == *name);
            let is_reported = problems
                .iter()
                .any(|known| matches!(known, FilterProblem::Value(of, _) if of == name));
            if !is_used && !is_reported {
                problems.push(FilterProblem::Unused(name.clone()));
            }
        }
        problems.dedup();
        if problems.is_empty() { Ok(filter) } else { Err(problems) }
    }

    /// Returns the condition as written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the condition in parentheses; `place` returns the parameter of a value.
    pub fn sql(&self, place: impl Fn(usize) -> String) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(index) => {
                let declared = self.values.get(*index).and_then(|value| value.declared.as_deref());
                let place = place(*index);
                match declared {
                    // In the form `0x00FF`.
                    Some(declared) if declared.contains("binary") => {
                        format!("CONVERT({declared}, {place}, 1)")
                    }
                    Some(declared) => format!("CAST({place} AS {declared})"),
                    None => place,
                }
            }
        };
        // On a line of its own, so that a comment in the condition cannot hide what follows.
        format!("({}\n)", self.parts.iter().map(part).collect::<String>())
    }

    /// Returns the values in the order of their indexes.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| value.text.as_str())
    }

    /// Returns the conditions that this one connects with `AND`; itself if it is a single condition.
    ///
    /// All have the values of this one, so that the parameters of one list fit each of them.
    pub fn conditions(&self) -> Vec<Self> {
        let Ok(tokens) = tsql::tokens(&self.text) else { return vec![self.clone()] };
        let (mut depth, mut open_between, mut at) = (0_usize, 0_usize, 0);
        let mut found = Vec::new();
        for token in &tokens {
            let word = if token.kind == Kind::Word { token.text } else { "" };
            let is = |name: &str| word.eq_ignore_ascii_case(name);
            if token.text == "(" || is("CASE") {
                depth += 1;
            } else if token.text == ")" || is("END") {
                depth = depth.saturating_sub(1);
            } else if depth > 0 {
                // Part of an expression.
            } else if is("OR") {
                return vec![self.clone()];
            } else if is("BETWEEN") {
                open_between += 1;
            } else if is("AND") && open_between > 0 {
                open_between -= 1;
            } else if is("AND") {
                found.extend(self.text.get(at..token.at).map(|text| self.part(text)));
                at = token.at + token.text.len();
            }
        }
        found.extend(self.text.get(at..).map(|text| self.part(text)));
        found
    }

    /// Returns the condition `text`, which is a part of this one.
    fn part(&self, text: &str) -> Self {
        let text = text.trim();
        let mut part =
            Self { text: text.to_owned(), parts: Vec::new(), values: self.values.clone() };
        let mut at = 0;
        for token in tsql::tokens(text).unwrap_or_default() {
            let name = token.text.strip_prefix('@').filter(|_| token.kind == Kind::Variable);
            let is_of =
                |value: &TypedValue| name.is_some_and(|name| value.name.eq_ignore_ascii_case(name));
            if let Some(index) = self.values.iter().position(is_of) {
                part.push_text(text.get(at..token.at));
                part.parts.push(Part::Value(index));
                at = token.at + token.text.len();
            }
        }
        part.push_text(text.get(at..));
        part
    }

    /// Returns names, types and values as one text that identifies them; empty if there are none.
    pub(crate) fn values_text(&self) -> String {
        let written = self.values.iter().map(|TypedValue { name, declared, text }| {
            let declared = declared.as_deref().unwrap_or_default();
            format!("{}:{name}:{declared}:{}:{text}", name.len(), text.len())
        });
        written.collect::<Vec<_>>().join(",")
    }

    fn push_text(&mut self, text: Option<&str>) {
        self.parts.push(Part::Text(text.unwrap_or_default().to_owned()));
    }

    fn index_of(&mut self, name: &str, written: &str) -> Result<usize, String> {
        if let Some(index) = self.values.iter().position(|value| value.name == name) {
            return Ok(index);
        }
        let (declared, text) = typed(written)?;
        let (name, text) = (name.to_owned(), text.to_owned());
        self.values.push(TypedValue { name, declared, text });
        Ok(self.values.len() - 1)
    }
}

/// Splits `int:5`; a value without a known type is text.
fn typed(written: &str) -> Result<(Option<String>, &str), String> {
    let Some((declared, text)) = written.split_once(':') else { return Ok((None, written)) };
    let (name, sizes) = declared.trim().split_once('(').unwrap_or((declared.trim(), ""));
    let name = name.trim().to_ascii_lowercase();
    let Some((name, least, most)) = TYPES.iter().find(|(known, ..)| *known == name) else {
        return Ok((None, written));
    };
    let is_size = |size: &str| {
        size.eq_ignore_ascii_case("max") || size.parse::<u16>().is_ok_and(|size| size <= 8_000)
    };
    let sizes: Vec<&str> =
        sizes.trim_end().trim_end_matches(')').split(',').map(str::trim).collect();
    let sizes: Vec<&str> = sizes.into_iter().filter(|size| !size.is_empty()).collect();
    if !(*least..=*most).contains(&sizes.len()) || !sizes.iter().all(|size| is_size(size)) {
        let needed = match (least, most) {
            (0, 0) => format!("`{name}`"),
            (_, 1) => format!("`{name}(9)`"),
            _ => format!("`{name}(9, 2)`"),
        };
        return Err(format!("`{}` is not a valid type; write {needed}", declared.trim()));
    }
    let declared = match (*name, sizes.as_slice()) {
        // Without a length, a conversion would truncate at 30 characters.
        ("varchar" | "varbinary", []) => format!("{name}(8000)"),
        ("nvarchar", []) => "nvarchar(4000)".to_owned(),
        (name, []) => name.to_owned(),
        (name, sizes) => format!("{name}({})", sizes.join(", ").to_ascii_lowercase()),
    };
    Ok((Some(declared), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(values: &[(&str, &str)]) -> BTreeMap<String, String> {
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn parsed(text: &str, given: &[(&str, &str)]) -> Result<Filter, Vec<FilterProblem>> {
        Filter::parse(text, &values(given))
    }

    fn written(text: &str, given: &[(&str, &str)]) -> String {
        let filter = parsed(text, given).unwrap();
        let values: Vec<&str> = filter.values().collect();
        format!("{} {values:?}", filter.sql(|index| format!("@P{}", index + 5)))
    }

    #[test]
    fn values_are_named_in_the_text_and_sent_as_parameters() {
        for (text, given, expected) in [
            ("a = 1 OR b = 2 -- x", vec![], "(a = 1 OR b = 2 -- x\n) []"),
            (
                "a = @a AND b = @B OR a > @A",
                vec![("A", "1"), ("B", "x")],
                "(a = @P5 AND b = @P6 OR a > @P5\n) [\"1\", \"x\"]",
            ),
            (
                "a = @a AND [@b] = '@c' -- @d\n",
                vec![("A", "int:5")],
                "(a = CAST(@P5 AS int) AND [@b] = '@c' -- @d\n) [\"5\"]",
            ),
            ("@@SPID = @a", vec![("A", "-1")], "(@@SPID = @P5\n) [\"-1\"]"),
            ("a = @a", vec![("A", "varchar:EU")], "(a = CAST(@P5 AS varchar(8000))\n) [\"EU\"]"),
            (
                "a = @a",
                vec![("A", "DECIMAL(9,2):1.50")],
                "(a = CAST(@P5 AS decimal(9, 2))\n) [\"1.50\"]",
            ),
            (
                "a = @a",
                vec![("A", "nvarchar(MAX):int:5")],
                "(a = CAST(@P5 AS nvarchar(max))\n) [\"int:5\"]",
            ),
            (
                "a = @a",
                vec![("A", "varbinary(2):0x00FF")],
                "(a = CONVERT(varbinary(2), @P5, 1)\n) [\"0x00FF\"]",
            ),
            ("a = @a", vec![("A", "https://x'; DROP")], "(a = @P5\n) [\"https://x'; DROP\"]"),
        ] {
            assert_eq!(written(text, &given), expected, "{text}");
        }
    }

    #[test]
    fn missing_unused_and_invalid_values_are_reported() {
        let missing = |name: &str| FilterProblem::Missing(name.to_owned());
        let unused = |name: &str| FilterProblem::Unused(name.to_owned());
        assert_eq!(
            parsed("a = @a AND b = @b", &[("C", "1")]).unwrap_err(),
            [missing("a"), missing("b"), unused("C")]
        );
        for value in ["decimal:1", "int(5):1", "varchar(x):1", "varchar(9) OR 1=1 --(9):1"] {
            match parsed("a = @a", &[("A", value)]) {
                Err(problems) => {
                    assert!(matches!(problems.as_slice(), [FilterProblem::Value(..)]), "{value}");
                }
                // No type, so it is text.
                Ok(filter) => assert!(filter.sql(|_| "@P1".to_owned()).contains("a = @P1\n")),
            }
        }
        for text in [
            "a = 1) OR (1 = 1",
            "a = 1; DROP TABLE t",
            "(a = 1",
            "a = 'x",
            "a IN (SELECT a FROM u WITH (NOLOCK))",
        ] {
            let problems = parsed(text, &[]).unwrap_err();
            assert!(matches!(problems.as_slice(), [FilterProblem::Text(_)]), "{text}");
        }
    }

    #[test]
    fn a_condition_is_divided_where_and_connects_it() {
        for (text, expected) in [
            ("a = 1", &["(a = 1\n)"][..]),
            (
                "a = @x AND [and] = 'b AND c' and d = @Y",
                &["(a = @P1\n)", "([and] = 'b AND c'\n)", "(d = @P2\n)"],
            ),
            ("a BETWEEN 1 AND 2 AND b = 3", &["(a BETWEEN 1 AND 2\n)", "(b = 3\n)"]),
            ("(a = 1 AND b = 2) AND c = 3", &["((a = 1 AND b = 2)\n)", "(c = 3\n)"]),
            (
                "CASE WHEN a = 1 AND b = 2 THEN 1 END = 1 AND c = 3",
                &["(CASE WHEN a = 1 AND b = 2 THEN 1 END = 1\n)", "(c = 3\n)"],
            ),
            ("a = 1 AND b = 2 OR c = 3", &["(a = 1 AND b = 2 OR c = 3\n)"]),
            ("a = 1 -- AND\nAND b = 2 -- end", &["(a = 1 -- AND\n)", "(b = 2 -- end\n)"]),
        ] {
            let values: &[(&str, &str)] =
                if text.contains('@') { &[("X", "1"), ("Y", "2")] } else { &[] };
            let parts = parsed(text, values).unwrap().conditions();
            let parts = parts.iter().map(|part| part.sql(|index| format!("@P{}", index + 1)));
            assert_eq!(parts.collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn conditions_differ_by_their_values() {
        let text = |given: &[(&str, &str)]| parsed("a = @a", given).unwrap().values_text();
        assert_eq!(text(&[("A", "1")]), text(&[("A", "1")]));
        assert_ne!(text(&[("A", "1")]), text(&[("A", "2")]));
        assert_ne!(text(&[("A", "1")]), text(&[("A", "int:1")]));
        assert_eq!(parsed("a = 1", &[]).unwrap().values_text(), "");
    }
}

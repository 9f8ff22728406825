//! Which databases a query reads from, as far as its text names them.
//!
//! A column name can have as many parts as a table name. So only names in table position are checked: after
//! `FROM`, `JOIN` and `APPLY`, and after the commas of such a list.

use super::{Kind, Token, tokens};

/// Functions that read from another server.
/// <https://learn.microsoft.com/sql/t-sql/functions/rowset-functions-transact-sql>
const ELSEWHERE: [&str; 3] = ["OPENQUERY", "OPENROWSET", "OPENDATASOURCE"];
/// Keywords that end a list of tables.
const ENDS: [&str; 8] =
    ["SELECT", "VALUES", "WHERE", "GROUP", "HAVING", "ORDER", "UNION", "EXCEPT"];

/// Checks that a query reads from no database other than `connected`, the database of the connection.
///
/// The contents of views, synonyms and functions are not checked.
///
/// # Errors
///
/// What it reads from elsewhere, and what to do instead.
pub fn check_database(text: &str, connected: Option<&str>) -> Result<(), String> {
    let tokens = tokens(text)?;
    let is_elsewhere = |source: &&Source<'_>| source.is_elsewhere(connected.unwrap_or_default());
    match sources(&tokens).iter().find(is_elsewhere) {
        None => Ok(()),
        Some(Source { parts, .. }) => Err(format!(
            "it reads `{}`, outside of the connection's database ({}), and rowversions are tracked in that \
             one only, so late commits would be lost: connect to the database that has the rows, or use \
             `timestamp+pk` as the mode",
            parts.join("."),
            connected_database(connected)
        )),
    }
}

/// The database of a connection, for messages.
pub(crate) fn connected_database(connected: Option<&str>) -> String {
    connected.map_or_else(|| "not set: add `Database=…`".to_owned(), |name| format!("`{name}`"))
}

/// A table or function that is read from, by the parts of its name.
struct Source<'a> {
    parts: Vec<&'a str>,
    /// Whether it is called, that is, followed by a parenthesis.
    called: bool,
}

impl Source<'_> {
    fn is_elsewhere(&self, connected: &str) -> bool {
        match self.parts.as_slice() {
            [name] => self.called && is_one_of(&ELSEWHERE, name),
            [_, _] => false,
            // A method of an `xml` column; its name is case-sensitive.
            [.., "nodes"] if self.called => false,
            [database, _, _] => !unquoted(database).eq_ignore_ascii_case(connected),
            _ => true,
        }
    }
}

/// Position of the parser within one pair of parentheses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParserPlace {
    /// The next name is read from.
    Before,
    /// After a name that is read from: a comma leads to the next one.
    After,
    Elsewhere,
}

/// Returns the tables and functions that a query reads from.
fn sources<'a>(tokens: &[Token<'a>]) -> Vec<Source<'a>> {
    let mut found = Vec::new();
    let mut around = Vec::new();
    let mut place = ParserPlace::Elsewhere;
    let mut rest = tokens;
    let mut before = "";
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        let word = if token.kind == Kind::Word { token.text } else { "" };
        if token.text == "(" {
            let after = if place == ParserPlace::Before { ParserPlace::After } else { place };
            around.push(after);
            // A join in parentheses, or else a query, which starts with `SELECT`.
            place = if place == ParserPlace::Before { place } else { ParserPlace::Elsewhere };
        } else if token.text == ")" {
            place = around.pop().unwrap_or(ParserPlace::Elsewhere);
        } else if is_one_of(&["FROM"], word) {
            // `IS DISTINCT FROM` compares.
            place = if is_one_of(&["DISTINCT"], before) { place } else { ParserPlace::Before };
        } else if is_one_of(&["JOIN", "APPLY"], word)
            || (token.text == "," && place == ParserPlace::After)
        {
            place = ParserPlace::Before;
        } else if is_one_of(&ENDS, word) || is_one_of(&["INTERSECT"], word) {
            place = ParserPlace::Elsewhere;
        } else if place == ParserPlace::Before && matches!(token.kind, Kind::Word | Kind::Quoted) {
            let source;
            (source, rest) = name(token.text, rest);
            found.push(source);
            place = ParserPlace::After;
        }
        before = word;
    }
    found
}

/// Reads a name of several parts, some of which may be empty, as in `db..t`.
fn name<'a, 'b>(first: &'a str, rest: &'b [Token<'a>]) -> (Source<'a>, &'b [Token<'a>]) {
    let mut parts = vec![first];
    let mut rest = rest;
    while let Some((Token { text: ".", .. }, after)) = rest.split_first() {
        rest = after;
        match rest.split_first() {
            Some((Token { kind: Kind::Word | Kind::Quoted, text, .. }, after)) => {
                parts.push(*text);
                rest = after;
            }
            _ => parts.push(""),
        }
    }
    let called = rest.first().is_some_and(|token| token.text == "(");
    (Source { parts, called }, rest)
}

fn is_one_of(words: &[&str], word: &str) -> bool {
    words.iter().any(|known| known.eq_ignore_ascii_case(word))
}

fn unquoted(name: &str) -> String {
    let inside = |closing: &str| {
        let inside = name.get(1..)?.strip_suffix(closing)?;
        Some(inside.replace(&closing.repeat(2), closing))
    };
    let quoted = match name.chars().next() {
        Some('[') => inside("]"),
        Some('"') => inside("\""),
        _ => None,
    };
    quoted.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_reads_another_database_is_rejected() {
        for (text, expected) in [
            ("SELECT id, rv FROM elsewhere.dbo.orders", "elsewhere.dbo.orders"),
            ("SELECT id, rv FROM elsewhere..orders AS o", "elsewhere..orders"),
            ("SELECT 1 FROM a, [else]]where] . \"dbo\" . t", "[else]]where].\"dbo\".t"),
            ("SELECT 1 FROM a join far.shop.dbo.t ON 1 = 1", "far.shop.dbo.t"),
            ("SELECT 1 FROM far...t", "far...t"),
            ("SELECT 1 FROM (a JOIN x.dbo.t ON a.i = t.i)", "x.dbo.t"),
            ("SELECT 1 FROM (SELECT b FROM x.dbo.t) AS u", "x.dbo.t"),
            ("SELECT 1 FROM (SELECT b FROM u) AS u, x.dbo.t", "x.dbo.t"),
            ("SELECT 1 FROM a CROSS APPLY x.dbo.f(a.i) AS f", "x.dbo.f"),
            ("SELECT 1 FROM a UNION ALL SELECT 1 FROM x.dbo.t", "x.dbo.t"),
            ("SELECT 1 FROM a WHERE EXISTS (SELECT 1 FROM x.dbo.t)", "x.dbo.t"),
            ("SELECT 1 FROM a WITH (INDEX(i)), x.dbo.t", "x.dbo.t"),
            ("SELECT 1 FROM OpenQuery(far, 'SELECT 1')", "OpenQuery"),
            ("SELECT 1 FROM OPENDATASOURCE('p', 's').d.dbo.t", "OPENDATASOURCE"),
        ] {
            let error = check_database(text, Some("shop")).unwrap_err();
            assert!(
                error.starts_with(&format!("it reads `{expected}`, outside")),
                "{text}: {error}"
            );
        }
        let own = "SELECT 1 FROM shop.dbo.t";
        let error = check_database(own, None).unwrap_err();
        assert!(error.contains("`shop.dbo.t`"), "the login's default is unknown: {error}");
        assert!(error.contains("database (not set: add `Database=…`)"), "{error}");
    }

    #[test]
    fn names_that_only_look_like_another_database_are_accepted() {
        for text in [
            "SELECT dbo.t.id, x.dbo.t.rv FROM dbo.t WHERE dbo.t.id > 1",
            "SELECT id FROM [SHOP].dbo.t, \"shop\"..u",
            "SELECT t.x.value('(/a)[1]', 'int'), a.b.c FROM t ORDER BY a.b.c, d.e.f",
            "SELECT 1 FROM t CROSS APPLY t.x.nodes('/a') AS n(c)",
            "SELECT 1 FROM t JOIN u ON dbo.t.id = dbo.u.id AND 1.5 > dbo.t.x",
            "SELECT 1 FROM t WHERE dbo.t.a IS DISTINCT FROM dbo.t.b",
            "SELECT 1 FROM dbo.f(a.b.c, d.e.g) AS f, OPENJSON('[]') AS j",
            "SELECT 1 FROM t -- x.dbo.u\nWHERE a = 'FROM x.dbo.u' AND [FROM] = b.c.d",
            "SELECT 1 FROM (VALUES (1), (2)) AS v(a), [x.dbo.t]",
            "SELECT COUNT(*), a.b.c FROM t GROUP BY dbo.t.a, a.b.c HAVING MAX(dbo.t.a) > 1",
        ] {
            assert_eq!(check_database(text, Some("Shop")), Ok(()), "{text}");
        }
    }
}

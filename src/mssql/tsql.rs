//! Checks of T-SQL from settings that need no server.
//!
//! Such a text is put into parentheses, so it must not be able to close them. Everything else is left to the
//! server: this module knows words, names, constants, comments and parentheses, but no grammar.

mod database;

pub use database::check_database;
pub(crate) use database::connected_database;

/// Hints that make a read return uncommitted rows, or skip locked rows.
/// <https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table>
const LOOSE_HINTS: [&str; 3] = ["NOLOCK", "READUNCOMMITTED", "READPAST"];

/// A piece of T-SQL that is neither white space nor a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Byte offset of its start.
    pub(crate) at: usize,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A keyword, a bare name or a number.
    Word,
    /// `@name`, or `@@name`.
    Variable,
    /// A string, or a name in brackets or quotation marks.
    Quoted,
    /// One character of punctuation.
    Symbol,
}

/// Splits a text into tokens.
///
/// # Errors
///
/// The construct that is not closed.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match first {
            c if c.is_whitespace() => (None, c.len_utf8()),
            '-' if rest.starts_with("--") => (None, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (None, comment(rest)?),
            '\'' => (Some(Kind::Quoted), quoted(rest, '\'', "a string")?),
            '"' => (Some(Kind::Quoted), quoted(rest, '"', "a quotation mark")?),
            '[' => (Some(Kind::Quoted), quoted(rest, ']', "a bracket")?),
            '@' => (Some(Kind::Variable), word(rest)),
            c if is_name(c) => (Some(Kind::Word), word(rest)),
            c => (Some(Kind::Symbol), c.len_utf8()),
        };
        let (token, after) = rest.split_at(length);
        let at = text.len() - rest.len();
        found.extend(kind.map(|kind| Token { kind, text: token, at }));
        rest = after;
    }
    Ok(found)
}

/// Returns `text` without comments and without the content of string and binary literals, which may be
/// secret. If the text is invalid, returns none of it.
pub(crate) fn without_literals(text: &str) -> String {
    let Ok(tokens) = tokens(text) else { return "…".to_owned() };
    let mut shown = String::new();
    let mut end = 0;
    for token in tokens {
        if !shown.is_empty() && token.at > end {
            shown.push(' ');
        }
        end = token.at + token.text.len();
        let is_string = token.kind == Kind::Quoted && token.text.starts_with('\'');
        let is_binary =
            token.kind == Kind::Word && token.text.to_ascii_lowercase().starts_with("0x");
        shown.push_str(match token.text {
            _ if is_string => "'…'",
            _ if is_binary => "0x…",
            other => other,
        });
    }
    shown
}

/// Checks that a text can be put into parentheses: it closes everything that it opens, and is a single part
/// of a statement.
///
/// # Errors
///
/// The problem of the text.
pub(crate) fn check_part(tokens: &[Token<'_>]) -> Result<(), String> {
    let mut depth = 0_usize;
    for token in tokens {
        match token.text {
            "(" => depth += 1,
            ")" => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| "a closing parenthesis has no opening one".to_owned())?;
            }
            ";" => return Err("it contains `;`, which ends a statement".to_owned()),
            _ => {}
        }
    }
    if depth == 0 { Ok(()) } else { Err("a parenthesis is not closed".to_owned()) }
}

/// Checks that a text reads committed rows only, and all of them.
///
/// # Errors
///
/// The hint that prevents this.
pub(crate) fn check_hints(tokens: &[Token<'_>]) -> Result<(), String> {
    let is_loose = |token: &&Token<'_>| {
        token.kind == Kind::Word
            && LOOSE_HINTS.iter().any(|hint| token.text.eq_ignore_ascii_case(hint))
    };
    tokens.iter().find(is_loose).map_or(Ok(()), |hint| {
        Err(format!(
            "it contains the hint `{}`, which can lose or duplicate rows: remove it (put a column of \
             that name in brackets)",
            hint.text
        ))
    })
}

/// Checks that a text is one query that can be used like a table.
///
/// # Errors
///
/// The problem, and what to do instead.
pub fn check_query(text: &str) -> Result<(), String> {
    let tokens = tokens(text)?;
    if let Some((last, before)) = tokens.split_last()
        && last.text == ";"
    {
        let several = before.iter().any(|token| token.text == ";");
        let advice = "it ends with `;`: remove it";
        return Err(if several { several_statements() } else { advice.to_owned() });
    }
    if tokens.iter().any(|token| token.text == ";") {
        return Err(several_statements());
    }
    check_part(&tokens)?;
    check_hints(&tokens)?;
    let is = |token: &Token<'_>, word: &str| {
        token.kind == Kind::Word && token.text.eq_ignore_ascii_case(word)
    };
    match tokens.first() {
        Some(first) if is(first, "SELECT") => {}
        Some(first) if is(first, "WITH") => {
            return Err("it starts with `WITH`: create a view and read that as \
                        `SOURCE__TABLE`, or write it as `FROM (SELECT …) AS name`"
                .to_owned());
        }
        Some(_) | None => return Err("it does not start with `SELECT`".to_owned()),
    }
    if tokens.iter().any(|token| token.text == "{") {
        return Err("it contains `{`, which starts an ODBC escape, and those cannot be \
                    checked: write the join or function in T-SQL"
            .to_owned());
    }
    if let Some(token) = tokens.iter().find(|token| token.kind == Kind::Variable) {
        return Err(format!(
            "it contains `{}`, but a query has no parameters: move that condition to \
             `SOURCE__FILTER`",
            token.text
        ));
    }
    check_outside(&outside(&tokens), is)
}

/// Checks the tokens outside of all parentheses.
fn check_outside<'a>(
    outside: &[Token<'a>],
    is: impl Fn(&Token<'a>, &str) -> bool,
) -> Result<(), String> {
    let has = |word: &str| outside.iter().any(|token| is(token, word));
    let joins = ["UNION", "ALL", "EXCEPT", "INTERSECT"];
    for (index, token) in outside.iter().enumerate().skip(1) {
        let before = outside.get(index - 1);
        let joined = before.is_some_and(|before| joins.iter().any(|word| is(before, word)));
        if is(token, "SELECT") && !joined {
            return Err(several_statements());
        }
        let ordered = is(token, "ORDER") && outside.get(index + 1).is_some_and(|by| is(by, "BY"));
        if ordered && !has("TOP") && !has("OFFSET") {
            return Err("it contains `ORDER BY` without `TOP`: remove it, the poller \
                        orders the rows by cursor and key"
                .to_owned());
        }
    }
    if has("INTO") {
        return Err("it contains `INTO`, but a source only reads".to_owned());
    }
    if has("OPTION") {
        return Err("it contains `OPTION`, which is only valid in a complete statement: remove \
                    it"
        .to_owned());
    }
    Ok(())
}

fn several_statements() -> String {
    "it is more than one statement: write one `SELECT`, or create a view and read that as \
     `SOURCE__TABLE`"
        .to_owned()
}

/// Returns the tokens outside of all parentheses.
fn outside<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut depth = 0_usize;
    let mut found = Vec::new();
    for token in tokens {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth == 0 => found.push(*token),
            _ => {}
        }
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '@' | '#' | '$')
}

fn word(rest: &str) -> usize {
    rest.find(|c| !is_name(c)).unwrap_or(rest.len())
}

/// Returns the length of a quoted token; its closing character is doubled inside.
fn quoted(rest: &str, closing: char, what: &str) -> Result<usize, String> {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == closing && chars.next_if(|(_, next)| *next == closing).is_none() {
            return Ok(at + c.len_utf8());
        }
    }
    Err(format!("{what} is not closed"))
}

/// Returns the length of a comment, including nested ones.
fn comment(rest: &str) -> Result<usize, String> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(here) = rest.get(at..).filter(|here| !here.is_empty()) {
        at += match here {
            here if here.starts_with("/*") => {
                depth += 1;
                2
            }
            here if here.starts_with("*/") => {
                depth -= 1;
                2
            }
            here => here.chars().next().map_or(1, char::len_utf8),
        };
        if depth == 0 {
            return Ok(at);
        }
    }
    Err("a comment is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quoted_text_and_comments_are_single_tokens() {
        let shown = |text| -> Vec<String> {
            tokens(text).unwrap().iter().map(|token| token.text.to_owned()).collect()
        };
        assert_eq!(
            shown("a='it''s;)' -- ;)\n/* ; /* ) */ ; */ AND[b]]);]<>\"c\"\")\"+@p"),
            ["a", "=", "'it''s;)'", "AND", "[b]]);]", "<", ">", "\"c\"\")\"", "+", "@p"]
        );
        for (text, expected) in [
            ("'a", "a string"),
            ("'a''", "a string"),
            ("[a", "a bracket"),
            ("\"a", "a quotation mark"),
            ("/* /* */", "a comment"),
        ] {
            assert_eq!(tokens(text).unwrap_err(), format!("{expected} is not closed"));
        }
    }

    #[test]
    fn a_query_is_one_select_that_can_be_read_from() {
        for text in [
            "SELECT a FROM t",
            " select a from t where b = 'x; y' -- it; is",
            "SELECT a FROM t UNION ALL SELECT a FROM u",
            "SELECT TOP (9) a FROM t ORDER BY a",
            "SELECT a FROM (SELECT TOP 1 a FROM t ORDER BY a) AS x",
            "SELECT a, ROW_NUMBER() OVER (PARTITION BY b ORDER BY c) AS n FROM t",
            "SELECT a FROM t ORDER BY a OFFSET 0 ROWS",
            "SELECT [order], \"by\" FROM t",
            "SELECT [{], '{oj' AS x FROM t -- {oj",
            "SELECT [nolock], 'READPAST' AS \"READPAST\" FROM t -- WITH (NOLOCK)",
        ] {
            assert_eq!(check_query(text), Ok(()), "{text}");
        }
        for (text, expected) in [
            ("", "does not start with `SELECT`"),
            ("EXEC dbo.p", "does not start with `SELECT`"),
            ("(SELECT a FROM t)", "does not start with `SELECT`"),
            ("WITH c AS (SELECT 1 AS a) SELECT a FROM c", "create a view"),
            ("SELECT a FROM t;", "it ends with `;`: remove it"),
            ("SELECT a FROM t; -- end", "it ends with `;`"),
            ("SELECT a FROM t; DELETE t", "more than one statement"),
            ("SELECT a FROM t; DELETE t;", "more than one statement"),
            ("SELECT a FROM t SELECT b FROM u", "more than one statement"),
            ("SELECT a FROM t ORDER BY a", "`ORDER BY` without `TOP`"),
            ("SELECT (SELECT TOP 1 a FROM u) AS b FROM t order by a", "without `TOP`"),
            ("SELECT a INTO u FROM t", "only reads"),
            ("SELECT a FROM t OPTION (RECOMPILE)", "`OPTION`"),
            ("SELECT a FROM t WHERE b = @b", "it contains `@b`"),
            ("SELECT a FROM t WITH (NOLOCK)", "the hint `NOLOCK`"),
            ("SELECT a FROM t (readpast, rowlock)", "the hint `readpast`"),
            (
                "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WITH(ReadUncommitted))",
                "lose or duplicate rows",
            ),
            ("SELECT a FROM {oj x.dbo.t LEFT OUTER JOIN u ON t.i = u.i}", "an ODBC escape"),
            ("SELECT a, {fn NOW()} AS now FROM t", "an ODBC escape"),
            ("SELECT a FROM t) AS x, (SELECT 1 AS y", "has no opening one"),
            ("SELECT a FROM (t", "is not closed"),
            ("SELECT 'a FROM t", "a string is not closed"),
        ] {
            let error = check_query(text).unwrap_err();
            assert!(error.contains(expected), "`{text}`: {error}");
        }
    }

    #[test]
    fn literals_and_comments_are_removed_and_names_are_not() {
        for (text, shown) in [
            ("t.a = N'it''s secret'  AND t.n = 5", "t.a = N'…' AND t.n = 5"),
            ("t.[it's] = 'secret' OR t.\"o'clock\" = 'x'", "t.[it's] = '…' OR t.\"o'clock\" = '…'"),
            ("t.b=0xDEADBEEF -- it's secret", "t.b=0x…"),
            ("t.a IN (@one,/* secret */@two)", "t.a IN (@one, @two)"),
            ("t.a = 'not closed", "…"),
        ] {
            assert_eq!(without_literals(text), shown);
        }
    }

    proptest! {
        #[test]
        fn accepted_text_never_closes_the_parenthesis_around_it(
            text in "[()'\"\\[\\];a\\-/* \n]{0,12}"
        ) {
            // Independent check: with all quoted text removed, parentheses match.
            let Ok(found) = tokens(&text) else { return Ok(()) };
            if check_part(&found).is_err() {
                return Ok(());
            }
            let around = format!("({text}\n)");
            let wrapped = tokens(&around);
            prop_assert!(wrapped.is_ok(), "{}", around);
            let wrapped = wrapped.unwrap();
            let mut depth = 0_i32;
            for (index, token) in wrapped.iter().enumerate() {
                depth += match token.text { "(" => 1, ")" => -1, _ => 0 };
                prop_assert!(depth > 0 || index + 1 == wrapped.len(), "{}", around);
            }
            prop_assert_eq!(depth, 0);
        }
    }
}

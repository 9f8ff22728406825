//! Tokens of T-SQL.

use crate::types::SqlError;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A bare word: a keyword or a name.
    Word(String),
    /// A name in brackets or double quotes, without them.
    Name(String),
    /// A variable with its `@` or `@@`, in lower case.
    Variable(String),
    /// A number as it was written.
    Number(String),
    /// A string of Unicode, without its `N` and quotes.
    Text(String),
    /// A string in the server's code page, without its quotes.
    Coded(String),
    /// Hexadecimal digits of a binary constant.
    Binary(String),
    /// An operator or a punctuation mark.
    Symbol(&'static str),
}

impl Token {
    /// How an error message shows it.
    pub(crate) fn shown(&self) -> &str {
        match self {
            Self::Word(text)
            | Self::Name(text)
            | Self::Variable(text)
            | Self::Number(text)
            | Self::Text(text)
            | Self::Coded(text)
            | Self::Binary(text) => text,
            Self::Symbol(text) => text,
        }
    }
}

/// Longest first, so that `<=` is not read as `<`.
const SYMBOLS: [&str; 26] = [
    "<=", ">=", "<>", "!=", "+=", "-=", "*=", "/=", "(", ")", ",", ".", ";", "=", "<", ">", "+",
    "-", "*", "/", "%", "&", "|", "^", "~", ":",
];

/// Splits a batch into tokens; comments and white space are dropped.
///
/// # Errors
///
/// Fails for an unclosed string, name or comment (105, 113) and for a character that is not part of T-SQL.
pub(crate) fn tokens(sql: &str) -> Result<Vec<Token>, SqlError> {
    let mut lexer = Lexer { rest: sql };
    let mut tokens = Vec::new();
    while lexer.skip_blank()? {
        tokens.push(lexer.token()?);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    /// Skips white space and comments; `false` at the end.
    fn skip_blank(&mut self) -> Result<bool, SqlError> {
        loop {
            self.rest = self.rest.trim_start();
            if let Some(comment) = self.rest.strip_prefix("--") {
                self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                let missing = || SqlError::new(113, 15, "Missing end comment mark '*/'.");
                self.rest = comment.split_once("*/").ok_or_else(missing)?.1;
            } else {
                return Ok(!self.rest.is_empty());
            }
        }
    }

    fn token(&mut self) -> Result<Token, SqlError> {
        let rest = self.rest;
        if let Some(text) = rest.strip_prefix(['N', 'n']).filter(|text| text.starts_with('\'')) {
            self.rest = text;
            return self.quoted('\'').map(Token::Text);
        }
        let Some(first) = rest.chars().next() else {
            return Err(SqlError::syntax(""));
        };
        match first {
            '\'' => self.quoted('\'').map(Token::Coded),
            '[' => self.quoted(']').map(Token::Name),
            '"' => self.quoted('"').map(Token::Name),
            '@' => Ok(Token::Variable(self.while_matches(is_name).to_lowercase())),
            '0'..='9' => Ok(self.number()),
            '.' if rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit()) => Ok(self.number()),
            c if is_name(c) => Ok(Token::Word(self.while_matches(is_name).to_owned())),
            c => {
                let symbol = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol));
                let symbol = symbol.ok_or_else(|| SqlError::syntax(&c.to_string()))?;
                self.rest = rest.strip_prefix(symbol).unwrap_or_default();
                Ok(Token::Symbol(symbol))
            }
        }
    }

    /// Reads to the closing mark; two of them in a row are an escaped one.
    fn quoted(&mut self, close: char) -> Result<String, SqlError> {
        let mut chars = self.rest.chars();
        chars.next();
        let mut text = String::new();
        while let Some(c) = chars.next() {
            if c != close {
                text.push(c);
                continue;
            }
            let mut after = chars.clone();
            if after.next() != Some(close) {
                self.rest = chars.as_str();
                return Ok(text);
            }
            text.push(close);
            chars = after;
        }
        let text = format!("Unclosed quotation mark after the character string '{text}'.");
        Err(SqlError::new(105, 15, text))
    }

    fn number(&mut self) -> Token {
        if let Some(digits) = self.rest.strip_prefix("0x").or_else(|| self.rest.strip_prefix("0X"))
        {
            self.rest = digits;
            return Token::Binary(self.while_matches(|c| c.is_ascii_hexdigit()).to_owned());
        }
        let mut previous = ' ';
        let text = self.while_matches(|c| {
            let exponent_sign = matches!(c, '+' | '-') && matches!(previous, 'e' | 'E');
            previous = c;
            c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E') || exponent_sign
        });
        Token::Number(text.to_owned())
    }

    fn while_matches(&mut self, mut matches: impl FnMut(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !matches(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '@' | '#' | '$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_strings_and_numbers_are_distinguished() {
        let shown = |sql| tokens(sql).unwrap();
        assert_eq!(
            shown("[a]]b] N'it''s'"),
            [Token::Name("a]b".into()), Token::Text("it's".into())]
        );
        assert_eq!(
            shown("@P1 @@DBTS 0xAB"),
            [
                Token::Variable("@p1".into()),
                Token::Variable("@@dbts".into()),
                Token::Binary("AB".into())
            ]
        );
        assert_eq!(
            shown("1.5e-3<=.5"),
            [Token::Number("1.5e-3".into()), Token::Symbol("<="), Token::Number(".5".into())]
        );
        assert_eq!(shown("a--b\n/* c */N"), [Token::Word("a".into()), Token::Word("N".into())]);
    }

    #[test]
    fn an_unclosed_token_is_an_error() {
        assert_eq!(tokens("'a").unwrap_err().number, 105);
        assert_eq!(tokens("[a").unwrap_err().number, 105);
        assert_eq!(tokens("/* a").unwrap_err().number, 113);
        assert_eq!(tokens("a ? b").unwrap_err().number, 102);
    }
}

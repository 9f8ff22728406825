//! Reads the key of a row as people write it. Pure.

use serde_json::Value as Json;

use crate::cursor::KeyValues;

/// Returns the key that `texts` give for these key columns.
///
/// A text is a bare value (`17`, for a key of one column), `column=value` pairs separated by commas as
/// `highwater quarantine list` prints them, or a JSON object as in state documents. Several texts are joined.
///
/// # Errors
///
/// What is missing or unknown, and what was expected.
pub fn parse_key(texts: &[String], columns: &[String]) -> Result<KeyValues, String> {
    let mut given = Vec::new();
    for text in texts {
        given.extend(values(text, columns)?);
    }
    let mut key = KeyValues::with_capacity(columns.len());
    for column in columns {
        let mut of_column = given.iter().filter(|(name, _)| name == column);
        match (of_column.next(), of_column.next()) {
            (Some((_, value)), None) => key.insert(column.as_str(), value.clone()),
            (None, _) => {
                return Err(format!("key column `{column}` has no value: {}", expected(columns)));
            }
            (Some(_), Some(_)) => return Err(format!("key column `{column}` has two values")),
        }
    }
    Ok(key)
}

fn values(text: &str, columns: &[String]) -> Result<Vec<(String, Json)>, String> {
    if text.trim_start().starts_with('{') {
        let object: serde_json::Map<String, Json> = serde_json::from_str(text)
            .map_err(|error| format!("`{text}` is not a key: {error}"))?;
        return object
            .into_iter()
            .map(|(name, value)| Ok((known(&name, columns)?, value)))
            .collect();
    }
    let mut starts: Vec<(usize, usize, &String)> = Vec::new();
    for column in columns {
        starts.extend(places(text, column).map(|(at, value)| (at, value, column)));
    }
    starts.sort_unstable_by_key(|(at, ..)| *at);
    if starts.first().is_none_or(|(at, ..)| *at != 0) {
        return match columns {
            [column] => Ok(vec![(column.clone(), Json::String(text.to_owned()))]),
            _ => match text.split_once('=') {
                Some((name, _)) => known(name, columns).map(|_| Vec::new()),
                None => Err(format!("`{text}` names no key column: {}", expected(columns))),
            },
        };
    }
    let ends = starts.iter().skip(1).map(|(at, ..)| at - 1).chain([text.len()]);
    let values = starts.iter().zip(ends).map(|((_, value, column), end)| {
        let value = text.get(*value..end).unwrap_or_default();
        ((*column).clone(), Json::String(value.to_owned()))
    });
    Ok(values.collect())
}

/// Returns where `column=` stands at the start or after a comma, each with where its value starts.
fn places<'t>(text: &'t str, column: &'t str) -> impl Iterator<Item = (usize, usize)> + 't {
    let starts = std::iter::once(0).chain(text.match_indices(',').map(|(at, _)| at + 1));
    starts.filter_map(move |at| {
        let end = at + column.len();
        let is_name = text.get(at..end).is_some_and(|name| name.eq_ignore_ascii_case(column));
        (is_name && text.get(end..)?.starts_with('=')).then_some((at, end + 1))
    })
}

fn known(name: &str, columns: &[String]) -> Result<String, String> {
    let found = columns.iter().find(|column| column.eq_ignore_ascii_case(name));
    found.cloned().ok_or_else(|| format!("`{name}` is not a key column: {}", expected(columns)))
}

fn expected(columns: &[String]) -> String {
    let pairs: Vec<String> = columns.iter().map(|column| format!("{column}=…")).collect();
    format!("write `--key {}`", pairs.join(","))
}

/// Returns a key in readable form, such as `id=7`.
pub fn key_text(key: &KeyValues) -> String {
    let parts = key.iter().map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name}={text}"),
        None => format!("{name}={value}"),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Returns a text as one word of a command line.
pub(super) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.,=:@%+/".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(texts: &[&str], columns: &[&str]) -> Result<Json, String> {
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        parse_key(&owned(texts), &owned(columns)).map(|key| key.to_json())
    }

    #[test]
    fn a_key_is_a_value_pairs_or_an_object() {
        let both = json!({ "shop": "a,b", "line": "7" });
        for (texts, columns, expected) in [
            (&["17"][..], &["id"][..], json!({ "id": "17" })),
            (&["ID=17"], &["id"], json!({ "id": "17" })),
            (&["a=b,c"], &["id"], json!({ "id": "a=b,c" })),
            (&[r#"{"id": 17}"#], &["id"], json!({ "id": 17 })),
            (&["shop=a,b,line=7"], &["shop", "line"], both.clone()),
            (&["line=7", "shop=a,b"], &["shop", "line"], both.clone()),
            (&[r#"{"Line": "7", "shop": "a,b"}"#], &["shop", "line"], both),
        ] {
            assert_eq!(read(texts, columns), Ok(expected), "{texts:?}");
        }
    }

    #[test]
    fn an_incomplete_or_unknown_key_says_what_is_expected() {
        for (texts, columns, expected) in [
            (
                &["7"][..],
                &["shop", "line"][..],
                "`7` names no key column: write `--key shop=…,line=…`",
            ),
            (&["shop=a"], &["shop", "line"], "key column `line` has no value"),
            (&["shop=a,shop=b,line=1"], &["shop", "line"], "key column `shop` has two values"),
            (&["item=a"], &["shop", "line"], "`item` is not a key column"),
            (&[r#"{"item": 1}"#], &["id"], "`item` is not a key column: write `--key id=…`"),
            (&["{"], &["id"], "`{` is not a key"),
        ] {
            let error = read(texts, columns).unwrap_err();
            assert!(error.contains(expected), "{texts:?}: {error}");
        }
    }

    #[test]
    fn a_key_is_one_word_of_a_command() {
        assert_eq!(shell_word("shop=a,line=7"), "shop=a,line=7");
        assert_eq!(shell_word("it's 7"), r"'it'\''s 7'");
        assert_eq!(shell_word(""), "''");
        let key = KeyValues::from_iter([("a", json!("x")), ("b", json!(7))]);
        assert_eq!(key_text(&key), "a=x,b=7");
    }
}

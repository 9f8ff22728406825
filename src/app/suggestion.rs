//! Commands that texts suggest, such as `` `highwater status` ``: each runs as printed.
//!
//! A process that was started with `--settings FILE` suggests commands for that file. Without the option they would
//! read the environment, which holds other settings or none.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// What a command in a text begins with.
pub const COMMAND: &str = "`highwater ";
/// The option that names a file of settings.
const OPTION: &str = "--settings";

/// The file of settings that this process was started with, as a shell reads it; empty without one.
static SETTINGS: OnceLock<String> = OnceLock::new();

/// Makes every command that is printed from now on name `file`, the file of settings of this process.
pub fn hold_settings(file: &Path) {
    SETTINGS.get_or_init(|| quoted(&file.display().to_string()));
}

/// Returns one word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a text whose commands name the file of settings of this process.
pub fn with_settings(text: &str) -> Cow<'_, str> {
    SETTINGS.get().map_or(Cow::Borrowed(text), |file| naming(text, file))
}

/// As [`with_settings`], for JSON, which stays JSON.
pub fn with_settings_in_json(json: &str) -> Cow<'_, str> {
    SETTINGS.get().map_or(Cow::Borrowed(json), |file| naming(json, &escaped(file)))
}

/// Returns a text as it stands between the quotes of JSON.
fn escaped(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    json.pop();
    json.split_off(1)
}

/// Returns `text` with the option for `file` in each command that does not have it.
fn naming<'a>(text: &'a str, file: &str) -> Cow<'a, str> {
    let mut parts = text.split(COMMAND);
    let Some(first) = parts.next().filter(|first| first.len() < text.len()) else {
        return Cow::Borrowed(text);
    };
    let mut named = first.to_owned();
    for rest in parts {
        named.push_str(COMMAND);
        let command = rest.split('`').next().unwrap_or_default();
        if !command.contains(OPTION) {
            named.push_str(OPTION);
            named.push(' ');
            named.push_str(file);
            named.push(' ');
        }
        named.push_str(rest);
    }
    Cow::Owned(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_split_it() {
        assert_eq!(quoted("/home/me/try/local.settings.json"), "/home/me/try/local.settings.json");
        assert_eq!(quoted("my folder"), "'my folder'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_command_names_the_settings_that_it_needs_and_stays_json() {
        let text = "run `highwater init orders`, or `highwater run --settings x.json`; `highwater` is a name";
        assert_eq!(
            naming(text, &quoted("my app/it's.json")),
            "run `highwater --settings 'my app/it'\\''s.json' init orders`, or `highwater run --settings x.json`; \
             `highwater` is a name"
        );
        assert!(matches!(naming("no command", "x"), Cow::Borrowed(_)));
        let file = escaped(&quoted("a \"b.json"));
        let json = naming(r#"{"fix":"`highwater status`"}"#, &file);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["fix"], "`highwater --settings 'a \"b.json' status`");
    }
}

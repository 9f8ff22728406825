//! Suggested commands in texts, such as `` `highwater status` ``, run exactly as printed.
//!
//! A process that was started with `--settings FILE` suggests commands for that file. Without the option, the
//! commands would read the environment, which has other settings or none.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// Start of a command in a text.
pub const COMMAND: &str = "`highwater ";
/// The option that names a file of settings.
const OPTION: &str = "--settings";

/// The settings file of this process, quoted for a shell; not set without one.
static SETTINGS: OnceLock<String> = OnceLock::new();

/// Sets the settings file of this process, for all commands that are printed from now on.
pub fn hold_settings(file: &Path) {
    SETTINGS.get_or_init(|| quoted(&file.display().to_string()));
}

/// Quotes one word for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Adds the settings file of this process to the commands in a text.
pub fn with_settings(text: &str) -> Cow<'_, str> {
    SETTINGS.get().map_or(Cow::Borrowed(text), |file| naming(text, file))
}

/// Like [`with_settings`], for JSON, which stays valid.
pub fn with_settings_in_json(json: &str) -> Cow<'_, str> {
    SETTINGS.get().map_or(Cow::Borrowed(json), |file| naming(json, &escaped(file)))
}

/// Escapes a text for a JSON string.
fn escaped(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    json.pop();
    json.split_off(1)
}

/// Adds the option for `file` to each command in `text` that does not have it.
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
    fn a_word_is_quoted_if_a_shell_would_split_it() {
        assert_eq!(quoted("/home/me/try/local.settings.json"), "/home/me/try/local.settings.json");
        assert_eq!(quoted("my folder"), "'my folder'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_command_gets_the_settings_file_and_json_stays_valid() {
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

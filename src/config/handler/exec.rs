//! Settings of the handler that starts processes.

use std::fmt;
use std::time::Duration;

use crate::config::mistake::Shown;
use crate::config::parse::Expected;
use crate::config::read::Reader;
use crate::config::settings;

/// Which process batches are fed to.
#[derive(Clone)]
pub struct ExecConfig {
    /// The program: looked for in `PATH`, unless there is a `/` in it.
    pub program: String,
    /// Its arguments, handed on as they are; they may hold secrets.
    pub arguments: Vec<String>,
    /// Limit on one process.
    pub timeout: Duration,
}

impl fmt::Debug for ExecConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExecConfig")
            .field("program", &self.program)
            .field("arguments", &format_args!("({})", self.arguments.len()))
            .field("timeout", &self.timeout)
            .finish()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<ExecConfig> {
    let command = reader.read(&settings::HANDLER_COMMAND, Some(segment), command);
    let timeout = super::read_timeout(reader, segment);
    let (program, arguments) = command?;
    Some(ExecConfig { program, arguments, timeout: timeout? })
}

/// Reads a program and its arguments: a JSON array of texts if the first sign is `[`, else words
/// between blanks. Quotes are refused there, as only a shell could say what they mean.
fn command(text: &str) -> Result<(String, Vec<String>), Expected> {
    let expected = || {
        Expected::new(
            "a program and its arguments, such as `/bin/load --fast` or `[\"/bin/load\", \"a b\"]`",
        )
        .shown(Shown::Secret)
    };
    let words: Vec<String> = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|error| {
            // The error's own text may repeat a part of the setting.
            expected().hint(format!("no JSON array of texts at column {}", error.column()))
        })?
    } else if text.contains(['"', '\'', '\\']) {
        return Err(expected().hint("there is no shell: write quoted words as a JSON array"));
    } else {
        text.split_ascii_whitespace().map(str::to_owned).collect()
    };
    if words.iter().any(|word| word.contains('\0')) {
        return Err(expected().hint("no word may hold a NUL"));
    }
    match words.split_first() {
        Some((program, arguments)) if !program.trim().is_empty() => {
            Ok((program.clone(), arguments.to_vec()))
        }
        Some(_) | None => Err(expected().hint("the program is missing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_words_or_a_json_array_and_never_a_shells() {
        for (text, words) in [
            ("load", &["load"][..]),
            ("/bin/load  --fast\t-", &["/bin/load", "--fast", "-"]),
            ("load $HOME | x", &["load", "$HOME", "|", "x"]),
            (r#"["/bin/load", "a b", ""]"#, &["/bin/load", "a b", ""]),
            (r#"["sh", "-c", "echo 'a' > b"]"#, &["sh", "-c", "echo 'a' > b"]),
        ] {
            let (program, arguments) = command(text).unwrap();
            assert_eq!([vec![program], arguments].concat(), words, "{text}");
        }
        for (text, hint) in [
            (r#"load "s3cret""#, "there is no shell: write quoted words as a JSON array"),
            ("load 's3cret'", "there is no shell: write quoted words as a JSON array"),
            (r"load s3cret\ x", "there is no shell: write quoted words as a JSON array"),
            ("[s3cret]", "no JSON array of texts at column 2"),
            (r#"["load", 7]"#, "no JSON array of texts at column 10"),
            ("[]", "the program is missing"),
            (r#"[" ", "s3cret"]"#, "the program is missing"),
            (r#"["load", "s3cret\u0000"]"#, "no word may hold a NUL"),
        ] {
            let expected = command(text).unwrap_err();
            assert_eq!(expected.hint.as_deref(), Some(hint), "{text}");
            assert!(!format!("{expected:?}").contains("s3cret"), "{expected:?}");
            assert_eq!(expected.shown, Some(Shown::Secret));
        }
    }

    #[test]
    fn arguments_are_not_shown() {
        let (program, arguments) = command("load --token=s3cret").unwrap();
        let config = ExecConfig { program, arguments, timeout: Duration::from_secs(1) };
        let shown = format!("{config:?}");
        assert_eq!(shown, r#"ExecConfig { program: "load", arguments: (1), timeout: 1s }"#);
    }
}

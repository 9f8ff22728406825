//! Settings of the handler that starts processes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::config::mistake::Shown;
use crate::config::parse::Expected;
use crate::config::read::Reader;
use crate::config::settings;

/// The command that receives batches.
#[derive(Clone)]
pub struct ExecConfig {
    /// The program; searched in `PATH` unless it contains a `/`.
    pub program: String,
    /// Its arguments, passed unchanged; they may contain secrets.
    pub arguments: Vec<String>,
    /// Limit on one process.
    pub timeout: Duration,
    /// Its environment, without the variables about the batch.
    pub environment: BTreeMap<String, String>,
}

/// Variables that every process inherits, besides `LC_*`: programs need them to find other programs, write
/// temporary files, and choose a language and a time zone.
const INHERITED: [&str; 5] = ["HOME", "LANG", "PATH", "TMPDIR", "TZ"];

impl fmt::Debug for ExecConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExecConfig")
            .field("program", &self.program)
            .field("arguments", &format_args!("({})", self.arguments.len()))
            .field("timeout", &self.timeout)
            .field("environment", &self.environment.keys().collect::<Vec<_>>())
            .finish()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<ExecConfig> {
    let command = reader.read(&settings::HANDLER_COMMAND, Some(segment), command);
    let timeout = super::read_timeout(reader, segment);
    let environment = environment(reader, segment);
    let (program, arguments) = command?;
    Some(ExecConfig { program, arguments, timeout: timeout?, environment: environment? })
}

/// Reads the variables to pass on; `None` after a mistake.
fn environment(reader: &mut Reader<'_>, segment: &str) -> Option<BTreeMap<String, String>> {
    let setting = &settings::HANDLER_ENV;
    let is_inherited = |name: &String| {
        INHERITED.contains(&name.as_str()) || (name.starts_with("LC_") && name.len() > 3)
    };
    let mut names = reader.names();
    names.retain(is_inherited);
    if reader.text(&setting.name_for(Some(segment))).is_some() {
        let set = reader.variables();
        names.extend(reader.read_if_set(setting, Some(segment), |text| variables(text, &set))?);
    }
    let set = names.into_iter().filter_map(|name| reader.value(&name).map(|value| (name, value)));
    Some(set.collect())
}

/// Parses names of variables, each of which must be set.
fn variables(text: &str, set: &[String]) -> Result<Vec<String>, Expected> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    let is_name = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let expected = || {
        Expected::new(
            "names of environment variables separated by commas, such as `REGION, PROXY_URL`",
        )
    };
    if !names.iter().all(is_name) {
        // The most likely mistake is to write `NAME=value`.
        let hint = "write names only; the values are taken from the environment of Highwater";
        return Err(expected().hint(hint).shown(Shown::Secret));
    }
    match names.iter().find(|name| !set.iter().any(|set| set == *name)) {
        Some(missing) => {
            Err(expected()
                .hint(format!("`{missing}` is not set: set it, or remove it from the list")))
        }
        None => Ok(names.into_iter().map(str::to_owned).collect()),
    }
}

/// Parses a program and its arguments: a JSON array of strings if the text starts with `[`, else words separated by
/// spaces. Quotes are rejected in words, since only a shell defines their meaning.
fn command(text: &str) -> Result<(String, Vec<String>), Expected> {
    let expected = || {
        Expected::new(
            "a program and its arguments, such as `/bin/load --fast` or `[\"/bin/load\", \"a b\"]`",
        )
        .shown(Shown::Secret)
    };
    let words: Vec<String> = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|error| {
            // The text of the error may quote the setting.
            expected()
                .hint(format!("not a JSON array of strings: error at column {}", error.column()))
        })?
    } else if text.contains(['"', '\'', '\\']) {
        return Err(expected().hint("there is no shell: write quoted words as a JSON array"));
    } else {
        text.split_ascii_whitespace().map(str::to_owned).collect()
    };
    if words.iter().any(|word| word.contains('\0')) {
        return Err(expected().hint("words must not contain NUL"));
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
    fn a_command_is_words_or_a_json_array_without_shell_syntax() {
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
            ("[s3cret]", "not a JSON array of strings: error at column 2"),
            (r#"["load", 7]"#, "not a JSON array of strings: error at column 10"),
            ("[]", "the program is missing"),
            (r#"[" ", "s3cret"]"#, "the program is missing"),
            (r#"["load", "s3cret\u0000"]"#, "words must not contain NUL"),
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
        let environment = [("KEY".to_owned(), "s3cret".to_owned())].into();
        let timeout = Duration::from_secs(1);
        let config = ExecConfig { program, arguments, timeout, environment };
        assert_eq!(
            format!("{config:?}"),
            r#"ExecConfig { program: "load", arguments: (1), timeout: 1s, environment: ["KEY"] }"#
        );
    }

    #[test]
    fn variables_must_be_names_of_set_variables() {
        let set = ["A".to_owned(), "b_2".to_owned()];
        let read = |text: &str| variables(text, &set);
        assert_eq!(read("A, b_2").unwrap(), ["A", "b_2"]);
        for text in ["A=s3cret", "A,,B", "2A", "A B", "A\0"] {
            let expected = read(text).unwrap_err();
            assert_eq!(expected.shown, Some(Shown::Secret), "{text}");
            assert!(expected.hint.unwrap().starts_with("write names only"), "{text}");
        }
        let expected = read("A,MISSING").unwrap_err();
        assert_eq!(
            expected.hint.as_deref(),
            Some("`MISSING` is not set: set it, or remove it from the list")
        );
    }

    #[test]
    fn a_process_inherits_only_a_few_variables() {
        let set = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let vars = set(&[
            ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
            ("EMPTY", ""),
            ("HIGHWATER__POLLERS__A__HANDLER__COMMAND", "load"),
            ("HIGHWATER__POLLERS__A__HANDLER__ENV", "REGION, EMPTY"),
            ("HOME", "/home/me"),
            ("IDENTITY_HEADER", "s3cret"),
            ("LC_ALL", "C.UTF-8"),
            ("PATH", "/bin"),
            ("REGION", " west "),
            ("SqlConnection", "Password=s3cret"),
        ]);
        let config = read(&mut Reader::new(&vars), "A").unwrap();
        let expected = set(&[
            ("EMPTY", ""),
            ("HOME", "/home/me"),
            ("LC_ALL", "C.UTF-8"),
            ("PATH", "/bin"),
            ("REGION", " west "),
        ]);
        assert_eq!(config.environment, expected);
    }
}

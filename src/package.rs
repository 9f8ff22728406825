//! Lays out a function app: `host.json`, one folder per function at the root, and the program.
//!
//! The Functions host looks for functions only directly below its root, so the repository's
//! `function-definitions` folder cannot be its root as it stands. Files are copied, not linked: a zip
//! and a mounted package lose links.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use thiserror::Error;

/// Name of the staged program; `host.json` must name exactly this, since Core Tools sets the
/// executable bit of that entry alone.
pub const HANDLER: &str = "handler";

/// Why nothing usable was laid out.
#[derive(Debug, Error)]
pub enum PackageError {
    /// A file or folder cannot be read or written.
    #[error("{verb} `{path}`")]
    File {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file says what the host would refuse.
    #[error("`{path}`: {reason}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// What was laid out.
#[derive(Debug)]
pub struct Staged {
    /// Where.
    pub folder: PathBuf,
    /// Names of the functions.
    pub functions: Vec<String>,
}

impl fmt::Display for Staged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, names) = (self.folder.display(), self.functions.join(", "));
        write!(formatter, "staged `{HANDLER}`, host.json and functions {names} in {folder}")
    }
}

/// Lays out the function app of `from` in `to`, with `binary` or this very program.
///
/// # Errors
///
/// [`PackageError`] if a file is missing, cannot be copied, or is one that the host would refuse;
/// everything is checked before anything is written.
pub fn stage(from: &Path, to: &Path, binary: Option<&Path>) -> Result<Staged, PackageError> {
    let host = from.join("host.json");
    check_host(&host)?;
    let functions = functions(&from.join("function-definitions"))?;
    let binary = match binary {
        Some(binary) => binary.to_owned(),
        None => std::env::current_exe().map_err(at("find", Path::new("this program")))?,
    };
    fs::create_dir_all(to).map_err(at("create", to))?;
    copy(&host, &to.join("host.json"))?;
    for (name, definition) in &functions {
        let folder = to.join(name);
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        copy(definition, &folder.join("function.json"))?;
    }
    let handler = to.join(HANDLER);
    // A running program cannot be overwritten in place.
    if handler.exists() {
        fs::remove_file(&handler).map_err(at("replace", &handler))?;
    }
    copy(&binary, &handler)?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&handler, executable).map_err(at("make executable", &handler))?;
    let functions = functions.into_iter().map(|(name, _)| name).collect();
    Ok(Staged { folder: to.to_owned(), functions })
}

fn check_host(path: &Path) -> Result<(), PackageError> {
    let json = read_json(path)?;
    let program = json.pointer("/customHandler/description/defaultExecutablePath");
    if program != Some(&Json::from(HANDLER)) {
        let reason = format!(
            "`customHandler.description.defaultExecutablePath` must be exactly `{HANDLER}`"
        );
        return Err(PackageError::Content { path: path.to_owned(), reason });
    }
    Ok(())
}

/// Returns the functions with their definitions, by name.
fn functions(folder: &Path) -> Result<Vec<(String, PathBuf)>, PackageError> {
    let mut functions = Vec::new();
    for entry in fs::read_dir(folder).map_err(at("read", folder))? {
        let entry = entry.map_err(at("read", folder))?;
        let definition = entry.path().join("function.json");
        if !definition.is_file() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        check_function(&name, &definition)?;
        functions.push((name, definition));
    }
    if functions.is_empty() {
        let reason = "no `<function>/function.json` in it".to_owned();
        return Err(PackageError::Content { path: folder.to_owned(), reason });
    }
    functions.sort();
    Ok(functions)
}

fn check_function(name: &str, path: &Path) -> Result<(), PackageError> {
    let wrong = |reason: &str| {
        Err(PackageError::Content { path: path.to_owned(), reason: reason.to_owned() })
    };
    if !is_function_name(name) {
        return wrong("the folder's name must be a letter, then letters, digits, `_` or `-`");
    }
    let json = read_json(path)?;
    let bindings = json.get("bindings").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let [binding] = bindings else {
        return wrong("exactly one binding, a timerTrigger, is expected");
    };
    let text = |field: &str| binding.get(field).and_then(Json::as_str).unwrap_or_default();
    if text("type") != "timerTrigger" || text("direction") != "in" {
        return wrong("the binding must be a `timerTrigger` of direction `in`");
    }
    if !is_binding_name(text("name")) {
        return wrong("the binding's name must be a letter, then letters and digits");
    }
    if !is_schedule(text("schedule")) {
        return wrong("the schedule must have six fields, seconds first, or be `%SETTING%`");
    }
    Ok(())
}

/// `Utility.cs` of the Functions host: `^[a-z][a-z0-9_\-]{0,127}$` in any case, and not `host`.
fn is_function_name(name: &str) -> bool {
    let rest_ok = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let first_ok = name.starts_with(|c: char| c.is_ascii_alphabetic());
    rest_ok && first_ok && name.len() <= 128 && !name.eq_ignore_ascii_case("host")
}

/// `Utility.cs` of the Functions host: `^[a-zA-Z][a-zA-Z0-9]{0,127}$`.
fn is_binding_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric())
        && name.len() <= 128
}

fn is_schedule(schedule: &str) -> bool {
    let setting = schedule.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'));
    setting.map_or_else(
        || schedule.split_whitespace().count() == 6,
        |name| !name.is_empty() && !name.contains('%'),
    )
}

fn read_json(path: &Path) -> Result<Json, PackageError> {
    let text = fs::read(path).map_err(at("read", path))?;
    serde_json::from_slice(&text).map_err(|error| PackageError::Content {
        path: path.to_owned(),
        reason: format!("not JSON: {error}"),
    })
}

fn copy(from: &Path, to: &Path) -> Result<(), PackageError> {
    fs::copy(from, to).map(|_| ()).map_err(at("copy", from))
}

fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |source| PackageError::File { verb, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str =
        r#"{"version":"2.0","customHandler":{"description":{"defaultExecutablePath":"handler"}}}"#;
    const TIMER: &str = r#"{"bindings":[{"name":"myTimer","type":"timerTrigger","direction":"in","schedule":"%ORDERS_SCHEDULE%"}]}"#;

    fn project(host: &str, name: &str, function: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("function-definitions").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("function.json"), function).unwrap();
        fs::write(root.path().join("host.json"), host).unwrap();
        fs::write(root.path().join("program"), "#!").unwrap();
        root
    }

    fn stage_it(root: &tempfile::TempDir) -> Result<Staged, PackageError> {
        let program = root.path().join("program");
        stage(root.path(), &root.path().join("dist"), Some(&program))
    }

    #[test]
    fn functions_lie_at_the_root_and_the_handler_can_run() {
        let root = project(HOST, "orders", TIMER);
        for _ in 0..2 {
            let staged = stage_it(&root).unwrap();
            assert_eq!(staged.functions, ["orders"]);
        }
        let dist = root.path().join("dist");
        assert!(dist.join("host.json").is_file() && dist.join("orders/function.json").is_file());
        let mode = fs::metadata(dist.join(HANDLER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn what_the_host_would_refuse_is_refused_before_anything_is_written() {
        for (host, name, function, expected) in [
            ("{}", "orders", TIMER, "must be exactly `handler`"),
            (HOST, "1orders", TIMER, "a letter, then letters"),
            (HOST, "host", TIMER, "a letter, then letters"),
            (HOST, "orders", "{", "not JSON"),
            (HOST, "orders", r#"{"bindings":[]}"#, "exactly one binding"),
            (HOST, "orders", &TIMER.replace("timerTrigger", "httpTrigger"), "a `timerTrigger`"),
            (HOST, "orders", &TIMER.replace("myTimer", "my_timer"), "letters and digits"),
            (HOST, "orders", &TIMER.replace("%ORDERS_SCHEDULE%", "*/5 * * * *"), "six fields"),
        ] {
            let root = project(host, name, function);
            let error = crate::error::chain(&stage_it(&root).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!root.path().join("dist").exists());
        }
    }
}

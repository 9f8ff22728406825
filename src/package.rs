//! Lays out a function app: `host.json`, one folder per function at the root, and the program.
//!
//! The Functions host looks for functions only directly below its root, so the repository's
//! `function-definitions` folder cannot be its root as it stands. Files are copied, not linked: a zip
//! and a mounted package lose links.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::project::{self, DEFINITIONS, Function, HANDLER, ProjectError, at};

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
/// [`ProjectError`] if a file is missing, cannot be copied, or is one that the host would refuse;
/// everything is checked before anything is written.
pub fn stage(from: &Path, to: &Path, binary: Option<&Path>) -> Result<Staged, ProjectError> {
    let host = project::host(from)?.path;
    let functions = project::functions(&from.join(DEFINITIONS))?;
    let binary = match binary {
        Some(binary) => binary.to_owned(),
        None => std::env::current_exe().map_err(at("find", Path::new("this program")))?,
    };
    fs::create_dir_all(to).map_err(at("create", to))?;
    copy(&host, &to.join("host.json"))?;
    for Function { name, definition, .. } in &functions {
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
    let functions = functions.into_iter().map(|function| function.name).collect();
    Ok(Staged { folder: to.to_owned(), functions })
}

fn copy(from: &Path, to: &Path) -> Result<(), ProjectError> {
    fs::copy(from, to).map(|_| ()).map_err(at("copy", from))
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

    fn stage_it(root: &tempfile::TempDir) -> Result<Staged, ProjectError> {
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
            (HOST, "orders", &TIMER.replace("%ORDERS_SCHEDULE%", "*/5 * * * *"), "must have six"),
        ] {
            let root = project(host, name, function);
            let error = crate::error::chain(&stage_it(&root).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!root.path().join("dist").exists());
        }
    }
}

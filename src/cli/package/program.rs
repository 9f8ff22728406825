//! The handler of a package: installed with this program, or built from the same sources.
//!
//! In a source tree it is always built, because a handler of an earlier build may be next to this program. Cargo does
//! nothing if it is up to date.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::output::{Exit, Failed, print_message};
use highwater::error::chain;
use highwater::project::HANDLER;

/// The cargo package of the handler. It is built alone, so that no features of other packages are enabled.
const PACKAGE: &str = "highwater-handler";

/// Origin of a handler.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// The sources that this program was built from, in this folder.
    Sources { root: PathBuf, is_release: bool },
    /// An installation, with the paths where the handler may be.
    Installed([PathBuf; 2]),
}

impl Origin {
    /// Derives the origin from the path of this program.
    fn of(program: &Path) -> Self {
        let folder = program.parent().unwrap_or(Path::new(""));
        let root = folder.ancestors().nth(2);
        let root = root.filter(|root| root.join("src/handler/Cargo.toml").is_file());
        let profile = folder.file_name().and_then(|name| name.to_str());
        match (root, profile) {
            (Some(root), Some(profile @ ("debug" | "release"))) => {
                Self::Sources { root: root.to_owned(), is_release: profile == "release" }
            }
            // Python and npm packages keep it from PATH: see `.ci/installers.py`.
            _ => Self::Installed([
                folder.join(HANDLER),
                folder.parent().unwrap_or(folder).join("libexec/highwater").join(HANDLER),
            ]),
        }
    }
}

/// Returns the path of the handler, after building it if this program is in its source tree.
///
/// # Errors
///
/// [`Failed`] if it cannot be built, or is not installed.
pub(super) fn find() -> Result<PathBuf, Failed> {
    let failed = |text: String| Failed::new(Exit::Failed, text);
    let program = std::env::current_exe()
        .map_err(|error| failed(format!("find this program: {}", chain(&error))))?;
    match Origin::of(&program) {
        Origin::Sources { root, is_release } => {
            let mut arguments = vec!["build", "-p", PACKAGE];
            if is_release {
                arguments.push("--release");
            }
            let line = format!("cargo {}", arguments.join(" "));
            print_message(&format!("note: building the handler: {line}"));
            build(&root, &arguments).map_err(|why| failed(format!("`{line}` {why}")))?;
            Ok(program.with_file_name(HANDLER))
        }
        Origin::Installed(paths) => {
            let text = format!(
                "there is no handler at `{}` or `{}`; build one with `.ci/deployable`, or use one of a release, and pass \
                 it as `--binary`",
                paths[0].display(),
                paths[1].display()
            );
            paths.into_iter().find(|path| path.is_file()).ok_or_else(|| failed(text))
        }
    }
}

fn build(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).arg("--quiet").current_dir(root).stdin(Stdio::null());
    // Standard output is for data.
    cargo.stdout(std::io::stderr());
    let ended = cargo.status().map_err(|error| format!("cannot be run: {error}"))?;
    if ended.success() { Ok(()) } else { Err(format!("failed: {ended}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_built_in_a_source_tree_and_found_with_an_installed_program() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let of = |path: &str| Origin::of(&root.join(path));
        let installed = |folder: &str| {
            let folder = root.join(folder);
            let kept = folder.parent().unwrap().join("libexec/highwater/handler");
            Origin::Installed([folder.join("handler"), kept])
        };
        assert_eq!(of("target/debug/highwater"), installed("target/debug"));
        std::fs::create_dir_all(root.join("src/handler")).unwrap();
        std::fs::write(root.join("src/handler/Cargo.toml"), "").unwrap();
        let sources = |is_release| Origin::Sources { root: root.to_owned(), is_release };
        assert_eq!(of("target/debug/highwater"), sources(false));
        assert_eq!(of("target/release/highwater"), sources(true));
        assert_eq!(of("usr/bin/highwater"), installed("usr/bin"));
    }
}

//! Servers as child processes: stopped with the tests. Node.js programs get the packages of the lock file
//! next to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value as Json;

/// A server process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    url: String,
    child: Child,
    /// A server of the tests exits when this closes, so it also stops when the tests are killed.
    _stdin: ChildStdin,
}

impl Server {
    /// Starts a server, which prints `listening on <url>` on a separate line.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = child.stdout.take().unwrap();
        Self::of(child, said, "listening on ")
    }

    /// Waits until `child`, which has a pipe to its standard input, prints its address after `words`.
    pub(crate) fn of(mut child: Child, said: impl Read + Send + 'static, words: &str) -> Self {
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let mut others = Vec::new();
        let url = lines.by_ref().find_map(|line| {
            let url = line.strip_prefix(words).map(|url| url.trim().to_owned());
            others.push(line);
            url
        });
        assert!(url.is_some(), "it does not say where it serves: {others:#?}");
        let url = url.unwrap();
        // Drained, because a full pipe would block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, child, _stdin: stdin }
    }

    /// Returns the URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Returns the server's response to a GET, as JSON.
    pub(crate) async fn get(&self, path: &str) -> Json {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let body = client.get(self.url(path)).send().await.unwrap().bytes().await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the path of a file of the repository.
pub(crate) fn file(path: &str) -> PathBuf {
    highwater_test_support::root().join(path)
}

/// Returns a command that runs a program of the repository, after installing the packages of its lock file.
pub(crate) fn node(program: &str) -> Command {
    let program = file(program);
    let folder = program.parent().unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    // Tests run in parallel, and so may test binaries; the lock is released with the process.
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-install.lock"));
    let lock = File::create(lock).unwrap();
    lock.lock().unwrap();
    let wanted = versions(&folder.join("package-lock.json"));
    assert!(!wanted.is_empty(), "the lock file names packages");
    // npm writes its hidden lock file last, so a broken installation has none.
    if versions(&folder.join("node_modules/.package-lock.json")) != wanted {
        let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
        let status =
            Command::new(npm).args(["ci", "--loglevel=error"]).current_dir(folder).status();
        assert!(status.unwrap().success(), "`npm ci` in tests/{name} failed");
    }
    let mut command = Command::new("node");
    command.arg(program);
    command
}

/// Returns the packages of a lock file with their versions; empty if there is no such file.
fn versions(lock_file: &Path) -> BTreeMap<String, String> {
    let text = fs::read(lock_file).unwrap_or_default();
    let lock: Json = serde_json::from_slice(&text).unwrap_or_default();
    let packages = lock.get("packages").and_then(Json::as_object).into_iter().flatten();
    // The entry without a name is the dependent package itself.
    let packages = packages.filter(|(name, _)| !name.is_empty());
    let version = |package: &Json| package.get("version").map(Json::to_string).unwrap_or_default();
    packages.map(|(name, package)| (name.clone(), version(package))).collect()
}

//! Programs of Node.js and Python as children: gone with the tests.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value as Json;

/// A server in another language; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    url: String,
    child: Child,
    /// The server ends when this closes, so it also goes when the tests are killed.
    _stdin: ChildStdin,
}

impl Server {
    /// Starts a server, which says `listening on <url>` in a line of its own.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url = lines
            .find_map(|line| Some(line.strip_prefix("listening on ")?.trim().to_owned()))
            .expect("the server says where it listens; its error is above");
        // Nobody reads on, so a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, child, _stdin: stdin }
    }

    /// Returns the address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Returns what the server answers to a GET, as JSON.
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns a command that runs a program of this folder, after installing what the lock file names.
pub(crate) fn node(program: &str) -> Command {
    let folder = file("tests/webhooks");
    // Tests run side by side, and so may test binaries; the lock goes with the process.
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join("webhooks-install.lock");
    let lock = File::create(lock).unwrap();
    lock.lock().unwrap();
    let wanted = versions(&folder.join("package-lock.json"));
    assert!(wanted.iter().all(Option::is_some), "the lock file names both packages");
    // npm writes its hidden lock file last, so a broken installation has none.
    if versions(&folder.join("node_modules/.package-lock.json")) != wanted {
        let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
        let status =
            Command::new(npm).args(["ci", "--loglevel=error"]).current_dir(&folder).status();
        assert!(status.unwrap().success(), "`npm ci` in tests/webhooks failed");
    }
    let mut command = Command::new("node");
    command.arg(folder.join(program));
    command
}

fn versions(lock_file: &Path) -> [Option<String>; 2] {
    let text = fs::read(lock_file).unwrap_or_default();
    let lock: Json = serde_json::from_slice(&text).unwrap_or_default();
    ["standardwebhooks", "cloudevents"].map(|name| {
        let package = &lock["packages"][format!("node_modules/{name}")];
        package["version"].as_str().map(str::to_owned)
    })
}

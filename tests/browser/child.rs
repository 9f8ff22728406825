//! The program under test, the browser, and what drives it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value as Json;

/// A process that serves the page; killed when dropped.
#[derive(Debug)]
pub(crate) struct Page {
    url: String,
    child: Child,
}

impl Page {
    /// Starts it, and waits until it says where it serves.
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = Vec::new();
        let url = lines.by_ref().find_map(|line| {
            let url = line.strip_prefix("status page: ").map(str::to_owned);
            said.push(line);
            url
        });
        let Some(url) = url else { panic!("it does not say where it serves: {said:#?}") };
        // Nobody reads on, so a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, child }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the path of a file of the repository.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the browser; `None`, and says why, where there is none and none is required.
pub(crate) fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("HIGHWATER_TEST_CHROMIUM").map(PathBuf::from);
    let usual = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found = named.into_iter().chain(usual.map(PathBuf::from)).find(|path| path.is_file());
    if found.is_none() {
        let is_required =
            ["CI", "HIGHWATER_TEST_BROWSER"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!is_required, "Chromium is not installed, and is required here");
        println!("skipped: no Chromium is installed (`apt-get install chromium`)");
    }
    found
}

/// Returns a command that runs a script of this folder, after installing what the lock file names.
pub(crate) fn node(script: &str) -> Command {
    let folder = file("tests/browser");
    // Tests run side by side; the lock goes with the process.
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser-install.lock");
    let lock = File::create(lock).unwrap();
    lock.lock().unwrap();
    let wanted = versions(&folder.join("package-lock.json"));
    assert!(wanted.iter().all(Option::is_some), "the lock file names both packages");
    // npm writes its hidden lock file last, so a broken installation has none.
    if versions(&folder.join("node_modules/.package-lock.json")) != wanted {
        let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
        let status =
            Command::new(npm).args(["ci", "--loglevel=error"]).current_dir(&folder).status();
        assert!(status.unwrap().success(), "`npm ci` in tests/browser failed");
    }
    let mut command = Command::new("node");
    command.arg(folder.join(script));
    command
}

fn versions(lock_file: &Path) -> [Option<String>; 2] {
    let text = fs::read(lock_file).unwrap_or_default();
    let lock: Json = serde_json::from_slice(&text).unwrap_or_default();
    ["axe-core", "playwright-core"].map(|name| {
        let package = lock.pointer(&format!("/packages/node_modules~1{name}/version"));
        package.and_then(Json::as_str).map(str::to_owned)
    })
}

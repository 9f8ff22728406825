//! Azurite as a child process: installed on first use, stopped with the tests. Also used by the storm.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use highwater_azure::StorageConnection;
use highwater_azure::{BlobService, IdentitySource, ServiceOptions};
use highwater_engine::clock::SystemClock;

/// A running Azurite; killed when dropped.
#[derive(Debug)]
pub(crate) struct Azurite {
    address: SocketAddr,
    pub(crate) child: Child,
    /// Azurite exits when this closes, so it also stops when the tests are killed.
    _stdin: ChildStdin,
}

impl Azurite {
    /// Starts one for blobs on `port`, or any port for 0, with more arguments, and waits until it listens.
    pub(crate) fn start_with(port: u16, arguments: &[&OsStr]) -> Self {
        Self::start_service("blob", port, arguments)
    }

    /// As [`Self::start_with`], for the service of the given name.
    pub(crate) fn start_service(service: &str, port: u16, arguments: &[&OsStr]) -> Self {
        Self::start_logged(service, port, &[&["--silent".as_ref()], arguments].concat(), drop)
    }

    /// Like [`Self::start_service`], and forwards each line of its output: one per request unless it is
    /// silent.
    pub(crate) fn start_logged(
        service: &str,
        port: u16,
        arguments: &[&OsStr],
        tell: impl FnMut(String) + Send + 'static,
    ) -> Self {
        let folder = install();
        let mut child = Command::new(node(&folder))
            .arg(folder.join("run.cjs"))
            .args([service, "--disableTelemetry"])
            .args([&format!("--{service}Host"), "127.0.0.1"])
            .args([format!("--{service}Port"), port.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Node.js starts");
        let stdin = child.stdin.take().expect("stdin is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, url) = line.split_once("successfully listens on ")?;
                let (_, address) = url.split_once("://")?;
                address.trim().parse().ok()
            })
            .expect("Azurite prints its address; its error is above");
        // Read on in any case: a full pipe would block it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(tell));
        Self { address, child, _stdin: stdin }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }
}

/// Returns a client for `connection`.
pub(crate) fn service(connection: &str, timeout: Duration) -> BlobService {
    let connection = StorageConnection::parse(connection).expect("a good connection string");
    BlobService::connect(&connection, &options(timeout)).expect("a client needs no network")
}

/// Returns the options of clients.
pub(crate) fn options(timeout: Duration) -> ServiceOptions {
    ServiceOptions {
        timeout,
        clock: std::sync::Arc::new(SystemClock),
        identity: IdentitySource::DeveloperTools,
    }
}

/// Returns the folder with Azurite in it, after installing the packages of the lock file if necessary.
fn install() -> PathBuf {
    let folder = highwater_test_support::root().join("tests/azurite");
    // Two test binaries may start at once; the lock is released with the process.
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join("azurite-install.lock");
    let lock = File::create(lock).expect("the target folder can be written");
    lock.lock().expect("the target folder supports locks");
    let wanted = version(&folder.join("package-lock.json"));
    assert!(wanted.is_some(), "tests/azurite/package-lock.json names no Azurite");
    // npm writes its hidden lock file last, so a broken installation has none.
    let installed = folder.join("node_modules/.package-lock.json");
    if version(&installed) != wanted {
        let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
        let status =
            Command::new(npm).args(["ci", "--loglevel=error"]).current_dir(&folder).status();
        let status = status.expect("npm, which comes with Node.js, is needed to install Azurite");
        assert!(status.success(), "`npm ci` in tests/azurite ends with {status}");
    }
    folder
}

fn version(lock_file: &Path) -> Option<String> {
    let text = fs::read(lock_file).ok()?;
    let lock: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(lock.get("packages")?.get("node_modules/azurite")?.get("version")?.as_str()?.to_owned())
}

/// Returns the installed Node.js; on other platforms the machine's, which must be version 22 or newer.
fn node(folder: &Path) -> PathBuf {
    let installed = folder.join("node_modules/.bin/node");
    if installed.exists() { installed } else { PathBuf::from("node") }
}

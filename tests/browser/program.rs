//! The program under test, and the browser.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::child::Server;

/// Starts the program with a page, and waits until it prints the page's address.
pub(crate) fn page(command: &mut Command) -> Server {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = child.stderr.take().unwrap();
    Server::of(child, said, "status page: ")
}

/// Returns the browser; `None`, with a printed reason, if there is none and none is required.
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

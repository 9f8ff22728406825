//! The status page in a real browser: Debian's Chromium, driven by `views.mjs` and `actions.mjs`.
//!
//! If no Chromium is found, the tests say so and pass, unless `CI` or `HIGHWATER_TEST_BROWSER=required` is
//! set; `HIGHWATER_TEST_CHROMIUM` names another program. Screenshots are written to `target/screenshots`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "a test that skips says why")]

#[expect(dead_code, reason = "the tests with webhooks need more of it")]
#[path = "../webhooks/child.rs"]
mod child;
mod folder;
mod program;

use std::path::PathBuf;

use highwater_devdb::{Database, Options, Server};
use serde_json::json;

use crate::child::{file, node};
use crate::folder::Folder;
use crate::program::{chromium, page};

/// The folder for screenshots.
fn screenshots() -> PathBuf {
    let folder = file("target/screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a script with its input, and shows its output if it fails.
fn drive(script: &str, input: &serde_json::Value) {
    let output = node(&format!("tests/browser/{script}")).arg(input.to_string()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout_text, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{script}:\n{stdout_text}\n{errors}");
    assert!(stdout_text.lines().last() == Some("done"), "{script} did not finish:\n{stdout_text}");
}

#[test]
fn the_page_renders_correctly_and_is_accessible() {
    let Some(browser) = chromium() else { return };
    let folder = Folder::with_pollers();
    let mut command = folder.command(&["status", "--serve", "127.0.0.1:0"]);
    let page = page(&mut command);
    let input = json!({
        "browser": browser,
        "url": page.url(""),
        "screenshots": screenshots(),
        "pollers": folder.names(),
        "hostile": folder::HOSTILE,
    });
    drive("views.mjs", &input);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_is_paused_resumed_and_ticked_after_a_confirmation() {
    let Some(browser) = chromium() else { return };
    let database = Database::in_memory().unwrap();
    let table = "CREATE TABLE dbo.orders \
        (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";
    database.execute(table).unwrap();
    database.execute("INSERT INTO dbo.orders (id, item) VALUES (1, N'one')").unwrap();
    let options = Options { tls: false, ..Options::default() };
    let server = Server::start(database, options).await.unwrap();
    let folder = Folder::with_one(&server.connection_string());
    let from = folder.root();
    let mut command = folder.command(&[
        "run",
        "--from",
        from.to_str().unwrap(),
        "--status",
        "127.0.0.1:0",
        "--status-actions",
    ]);
    let page = page(&mut command);
    let input = json!({
        "browser": browser,
        "url": page.url(""),
        "screenshots": screenshots(),
    });
    tokio::task::spawn_blocking(move || drive("actions.mjs", &input)).await.unwrap();
    let document = folder.document("orders");
    assert!(document["paused"].is_null(), "{document:#}");
    assert_eq!(document["checkpoint"]["metadata"]["row_count"], 1, "{document:#}");
}

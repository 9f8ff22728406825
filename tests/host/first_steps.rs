//! The steps of README and `docs/tutorials/first-steps.md`, run line by line in a shell and compared with the
//! shown output.

use std::net::{Ipv4Addr, TcpListener};

use tokio::process::Command;

use crate::bench::{LIMIT, within};
use crate::walkthrough::{Differences, Followed, Server, follow};

const PAGE: &str = include_str!("../../docs/tutorials/first-steps.md");
const README: &str = include_str!("../../README.md");
/// The script that README starts instead of the reader's code, and its port there.
const RECEIVER: &str = "docs/receivers/print.py";
const RECEIVER_PORT: &str = "7072";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_quick_start_delivers_rows_to_a_url() {
    let (_, quick_start) = README.split_once("\n## Quick start\n").unwrap();
    let (quick_start, rest) = quick_start.split_once("\n## An event\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let receiver = highwater_test_support::root().join(RECEIVER);
    let receiver = receiver.to_str().unwrap();
    let change = |commands: &str| {
        // The commands do not wait for the receiver, unlike a reader who types.
        let wait =
            format!("&\nuntil (: > /dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done");
        let commands = commands.replace(" &\n", &format!(" {wait}\n"));
        commands.replace(RECEIVER, receiver).replace(RECEIVER_PORT, &port.to_string())
    };
    let with = Differences { change: &change, ..Differences::none() };
    let Followed { compared, printed, .. } = follow(quick_start, folder.path(), with).await;
    assert_eq!(compared, 2, "every output that README shows was compared");

    let (_, example) = rest.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let example: serde_json::Value = serde_json::from_str(example).unwrap();
    let first = printed.iter().find(|line| line.starts_with("{\"id\"")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert_eq!(example, first, "the event that README shows is the first that was posted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tutorials_output_matches_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let followed = follow(PAGE, folder.path(), Differences::none()).await;
    assert_eq!(followed.compared, 8, "every output that the page shows was compared");
    let left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left.len(), 3, "output shown by the page is missing: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_stops_at_once_on_request() {
    let mut server = within(LIMIT, Server::start("highwater devdb --sql -")).await;
    within(LIMIT, server.run("CREATE TABLE dbo.a (id int NOT NULL PRIMARY KEY)")).await;
    let id = server.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    assert!(within(LIMIT, server.child.wait()).await.unwrap().success());
}

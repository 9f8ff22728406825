//! The steps of README and `docs/tutorials/first-steps.md`, run line by line in a shell and compared with the
//! shown output.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use highwater::config::{ProcessVars, Vars as _};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::bench::{LIMIT, PROGRAM, within};

const PAGE: &str = include_str!("../../docs/tutorials/first-steps.md");
const README: &str = include_str!("../../README.md");
/// The script that README starts instead of the reader's code, and its port there.
const RECEIVER: &str = "docs/receivers/print.py";
const RECEIVER_PORT: &str = "7072";
/// Marks the end of a command block's output.
const END: &str = "=== end of block";
/// The prefix of the command for the other terminal.
const SERVER: &str = "highwater devdb ";
/// Shown on the page in place of the server's output.
const CONNECTION: &str = "Server=…";

/// Returns the fenced blocks of a page: the language, and the text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once("\n```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (text, after) = after.split_once("\n```").unwrap();
        blocks.push((language, text));
        rest = after;
    }
    blocks
}

/// Whether a line matches the page, where `…` matches anything.
fn is_like(line: &str, shown: &str) -> bool {
    let Some((first, others)) = shown.split_once('…') else { return line == shown };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut others: Vec<&str> = others.split('…').collect();
    let last = others.pop().unwrap();
    for part in others {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// Fails unless the lines shown on the page are among the printed ones, in this order.
#[track_caller]
fn shown_in(shown: &str, printed: &[String]) {
    let mut rest = printed.iter();
    // Table columns are as wide as their content.
    let narrow = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in shown.lines().filter(|line| *line != "…") {
        let found = rest.any(|line| is_like(&narrow(line), &narrow(wanted)));
        assert!(found, "no `{wanted}` in {printed:#?}");
    }
}

/// The terminal with the server.
struct Server {
    child: Child,
    typed: ChildStdin,
    result: Lines<BufReader<ChildStderr>>,
    connection: String,
}

impl Server {
    async fn start(command: &str) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(command.split_whitespace().skip(1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let connection = lines.next_line().await.unwrap().unwrap();
        let mut result = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(result.next_line().await.unwrap().unwrap().contains("stand-in"));
        Self { typed: child.stdin.take().unwrap(), result, connection, child }
    }

    async fn run(&mut self, statements: &str) {
        for statement in statements.lines() {
            self.typed.write_all(format!("{statement}\n").as_bytes()).await.unwrap();
            let result = self.result.next_line().await.unwrap().unwrap();
            assert!(result.ends_with("row") || result.ends_with("rows"), "{statement}: {result}");
        }
    }
}

/// The terminal of the user.
struct Shell {
    _child: Child,
    typed: ChildStdin,
    printed: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    async fn start(folder: &Path) -> Self {
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let path = ProcessVars.get("PATH").unwrap();
        let mut child = Command::new("bash")
            .env_clear()
            .env("PATH", format!("{programs}:{path}"))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (typed, printed) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let printed = BufReader::new(printed).lines();
        let mut shell = Self { _child: child, typed, printed };
        // Like an interactive shell.
        shell.run("exec 2>&1; shopt -s expand_aliases").await;
        shell
    }

    async fn run(&mut self, commands: &str) -> Vec<String> {
        let typed = format!("{commands}\necho '{END}'\n");
        self.typed.write_all(typed.as_bytes()).await.unwrap();
        let mut printed = Vec::new();
        while let Some(line) = self.printed.next_line().await.unwrap() {
            if line == END {
                return printed;
            }
            printed.push(line);
        }
        panic!("the shell has exited: {printed:#?}");
    }
}

/// Runs the blocks of a page in order; returns the number of compared outputs, and the output.
async fn follow(
    page: &str,
    folder: &Path,
    change: impl Fn(&str) -> String,
) -> (usize, Vec<String>) {
    let mut shell = Shell::start(folder).await;
    let mut server = None;
    let (mut printed, mut compared, mut all) = (Vec::new(), 0, Vec::new());
    for (language, text) in blocks(page) {
        match language {
            "sh" if text.starts_with(SERVER) => {
                server = Some(within(LIMIT, Server::start(text)).await);
            }
            "sh" => {
                let connection = &server.as_ref().unwrap().connection;
                let commands = change(&text.replace(CONNECTION, connection));
                printed = within(LIMIT, shell.run(&commands)).await;
                all.extend_from_slice(&printed);
            }
            "sql" => within(LIMIT, server.as_mut().unwrap().run(text)).await,
            "text" => {
                shown_in(text, &printed);
                compared += 1;
            }
            other => panic!("a block of `{other}`"),
        }
    }
    within(LIMIT, shell.run("kill $(jobs -p) 2>/dev/null; wait")).await;
    (compared, all)
}

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
    let (compared, printed) = follow(quick_start, folder.path(), change).await;
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
    let (compared, _) = follow(PAGE, folder.path(), str::to_owned).await;
    assert_eq!(compared, 8, "every output that the page shows was compared");
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

#[test]
fn lines_are_compared_except_for_variable_parts() {
    assert!(is_like("took 3 ms", "took … ms") && is_like("a b c", "a …") && is_like("a", "a"));
    assert!(!is_like("took 3 s", "took … ms") && !is_like("a b", "a") && !is_like("b", "…a"));
}

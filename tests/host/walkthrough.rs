//! Follows a page of the documentation as its reader does: runs the commands in a shell and compares their output with
//! what the page shows.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use highwater::config::{ProcessVars, Vars as _};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::bench::{LIMIT, PROGRAM, within};
use crate::dev::Dev;
use crate::receiver_projects::BUILD_LIMIT;

/// Marks the end of a command block's output.
const END: &str = "=== end of block";
/// The prefix of the command for the other terminal.
const SERVER: &str = "highwater devdb ";
/// The command that runs until it is interrupted, as the last one of its block.
const DEV: &str = "highwater dev";
/// Shown on the page in place of the server's output.
const CONNECTION: &str = "Server=…";

/// A fenced block of a page.
struct Block<'a> {
    language: &'a str,
    text: &'a str,
    /// The last name in backticks before the block.
    named: &'a str,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("\n```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (text, after) = after.split_once("\n```").unwrap();
        let named = before.rsplit('`').nth(1).unwrap_or_default();
        blocks.push(Block { language, text, named });
        rest = after;
    }
    blocks
}

/// Whether a line matches the page, where `…` matches anything.
pub(crate) fn is_like(line: &str, shown: &str) -> bool {
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

/// Returns a line with single blanks: table columns are as wide as their content.
fn narrow(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Fails unless the lines shown on the page are among the printed ones, in this order.
#[track_caller]
fn shown_in(shown: &str, printed: &[String]) {
    let mut rest = printed.iter();
    for wanted in shown.lines().filter(|line| *line != "…") {
        let found = rest.any(|line| is_like(&narrow(line), &narrow(wanted)));
        assert!(found, "no `{wanted}` in {printed:#?}");
    }
}

/// The terminal with the server.
pub(crate) struct Server {
    pub(crate) child: Child,
    typed: ChildStdin,
    result: Lines<BufReader<ChildStderr>>,
    connection: String,
}

impl Server {
    pub(crate) async fn start(command: &str) -> Self {
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

    pub(crate) async fn run(&mut self, statements: &str) {
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
    async fn start(folder: &Path, path: &str) -> Self {
        let programs = Path::new(PROGRAM).parent().unwrap().display();
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

/// What differs between the reader's machine and a test.
pub(crate) struct Differences<'a> {
    /// Replaces parts of commands and of shown output.
    pub(crate) change: &'a dyn Fn(&str) -> String,
    /// Variables of `highwater dev`, such as a free port.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Folders of programs, without those of Highwater.
    pub(crate) path: String,
    /// Programs that do not run here. Blocks that start with one are skipped.
    pub(crate) missing: &'a [&'a str],
    /// The database, if the page does not start one.
    pub(crate) server: Option<Server>,
}

impl Differences<'_> {
    pub(crate) fn none() -> Self {
        Self {
            change: &str::to_owned,
            environment: &[],
            path: ProcessVars.get("PATH").unwrap(),
            missing: &[],
            server: None,
        }
    }
}

/// What a reader has seen.
#[derive(Default)]
pub(crate) struct Followed {
    /// How many outputs the page shows; all were compared.
    pub(crate) compared: usize,
    /// What the shell printed.
    pub(crate) printed: Vec<String>,
    /// How many blocks were skipped.
    pub(crate) skipped: usize,
}

/// Runs the blocks of a page in order.
pub(crate) async fn follow(page: &str, folder: &Path, with: Differences<'_>) -> Followed {
    let mut shell = Shell::start(folder, &with.path).await;
    let mut server = with.server;
    let mut dev: Option<Dev> = None;
    let (mut printed, mut all) = (Vec::new(), Followed::default());
    for Block { language, text, named } in blocks(page) {
        let text = (with.change)(text);
        match language {
            "sh" if text.starts_with(SERVER) => {
                server = Some(within(LIMIT, Server::start(&text)).await);
            }
            "sh" if with.missing.iter().any(|tool| text.starts_with(&format!("{tool} "))) => {
                all.skipped += 1;
            }
            "sh" => {
                if let Some(mut dev) = dev.take() {
                    assert_eq!(dev.interrupt().await, Some(0));
                }
                let connection = &server.as_ref().unwrap().connection;
                let commands = text.replace(CONNECTION, connection);
                let background = commands.strip_suffix(DEV);
                let commands = background.unwrap_or(&commands);
                printed = within(BUILD_LIMIT, shell.run(commands)).await;
                all.printed.extend_from_slice(&printed);
                if background.is_some() {
                    let at = within(LIMIT, shell.run("pwd; echo $PATH")).await;
                    let mut environment = with.environment.to_vec();
                    environment.push(("PATH", &at[1]));
                    dev = Some(Dev::spawn(Path::new(&at[0]), &environment));
                }
            }
            "sql" => within(LIMIT, server.as_mut().unwrap().run(&text)).await,
            "text" => {
                match &mut dev {
                    None => shown_in(&text, &printed),
                    Some(dev) => {
                        for shown in text.lines() {
                            let shown = narrow(shown);
                            dev.line_that(|line| is_like(&narrow(line), &shown)).await;
                        }
                    }
                }
                all.compared += 1;
            }
            "python" | "typescript" | "csharp" => {
                let file = folder.join(named);
                assert!(file.is_file(), "the page replaces {named}");
                fs::write(file, text).unwrap();
            }
            other => panic!("a block of `{other}`"),
        }
    }
    if let Some(mut dev) = dev {
        assert_eq!(dev.interrupt().await, Some(0));
    }
    within(LIMIT, shell.run("kill $(jobs -p) 2>/dev/null; wait")).await;
    all
}

#[test]
fn lines_are_compared_except_for_variable_parts() {
    assert!(is_like("took 3 ms", "took … ms") && is_like("a b c", "a …") && is_like("a", "a"));
    assert!(!is_like("took 3 s", "took … ms") && !is_like("a b", "a") && !is_like("b", "…a"));
}

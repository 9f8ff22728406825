//! `highwater dev`: the pollers of a project and its receiver side by side.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use highwater::config::{ProcessVars, Vars as _};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::bench::{Bench, LIMIT, PROGRAM, within};
use crate::receiver_projects::BUILD_LIMIT;

/// `highwater dev` in the folder of the poller `shop`, every second and with a port that is free.
pub(crate) struct Dev {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it has printed so far.
    printed: Vec<String>,
    port: Option<u16>,
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

impl Dev {
    pub(crate) fn start(folder: &Path, environment: &[(&str, &OsStr)]) -> Self {
        Self::start_at(free_port(), folder, environment)
    }

    fn start_at(port: u16, folder: &Path, environment: &[(&str, &OsStr)]) -> Self {
        let url = format!("http://127.0.0.1:{port}/api/shop");
        let mut all = vec![
            ("HIGHWATER__POLLERS__SHOP__HANDLER__URL", OsStr::new(&url)),
            ("SHOP_SCHEDULE", OsStr::new("* * * * * *")),
        ];
        all.extend_from_slice(environment);
        Self { port: Some(port), ..Self::spawn(folder, &all) }
    }

    /// The same for any project, with nothing but these variables.
    pub(crate) fn spawn(folder: &Path, environment: &[(&str, impl AsRef<OsStr>)]) -> Self {
        // Both streams in one.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"exec "$0" "$@" 2>&1"#, PROGRAM, "dev"]).current_dir(folder);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines, printed: Vec::new(), port: None }
    }

    /// Waits for a line with these words.
    pub(crate) async fn line(&mut self, words: &str) -> String {
        self.line_that(|line| line.contains(words)).await
    }

    /// Waits for a line.
    pub(crate) async fn line_that(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.printed.push(line.clone());
                if is_wanted(&line) {
                    return line;
                }
            }
            panic!("it exited without the line: {:#?}", self.printed);
        };
        within(BUILD_LIMIT, found).await
    }

    /// Sends what Ctrl-C sends, and returns the exit code.
    pub(crate) async fn interrupt(&mut self) -> Option<i32> {
        let pid = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        assert!(within(LIMIT, sent).await.unwrap().success());
        let code = self.end().await;
        assert!(!self.port.is_some_and(listens), "the receiver still listens");
        code
    }

    /// Waits for its exit, and returns the exit code.
    async fn end(&mut self) -> Option<i32> {
        while let Some(line) = within(LIMIT, self.lines.next_line()).await.unwrap() {
            self.printed.push(line);
        }
        within(LIMIT, self.process.wait()).await.unwrap().code()
    }

    fn position(&self, words: &str) -> usize {
        let found = self.printed.iter().position(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("no `{words}`: {:#?}", self.printed))
    }
}

/// A folder for `dbo.orders`, with a row.
async fn project(language: &str) -> (Bench, PathBuf) {
    let bench = Bench::with_rows(1..=1).await;
    let out = bench.folder.path().join("new");
    let folder = out.to_str().unwrap();
    let init = ["init", "shop", "--table", "dbo.orders", "--out", folder, "--handler", language];
    let result = bench.command(&init).await;
    assert!(matches!(result.code, 0 | 1), "{result:?}");
    (bench, out)
}

/// Makes a program of this name, and returns the `PATH` that has it.
pub(crate) fn stand_in(folder: &Path, name: &str, text: &str) -> String {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join(name);
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), ProcessVars.get("PATH").unwrap())
}

/// A stand-in for `func start`: slow to listen, and answers 503 once. It takes a moment to stop.
pub(crate) const FUNC: &str = r#"#!/usr/bin/env python3
import http.server, os, signal, sys, time

assert sys.argv[1:] == ["start"], sys.argv
print("func: starting in", os.path.basename(os.getcwd()), flush=True)
time.sleep(1.5)
replies = [503]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(replies.pop() if replies else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass

def stop(*_):
    time.sleep(0.3)
    print("func: stopped", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
print("func: listens", flush=True)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_starts_the_receiver_first_and_stops_it_last() {
    let (bench, out) = project("csharp").await;
    let path = stand_in(bench.folder.path(), "func", FUNC);
    let mut dev = Dev::start(&out, &[("PATH", OsStr::new(&path))]);
    dev.line("shop: 1 row posted, 200 after").await;
    bench.insert(2..=3);
    dev.line("shop: 2 rows posted, 200 after").await;
    assert_eq!(dev.interrupt().await, Some(0));
    let order = [
        "receiver: started `func start` in",
        "receiver | func: starting in receiver",
        "receiver | func: listens",
        "receiver: listens on port",
        "status page: http://127.0.0.1:",
        "shop: 1 row posted, 503 after",
        "shop: 1 row posted, 200 after",
        "shop: 2 rows posted, 200 after",
        "receiver | func: stopped",
    ];
    let positions: Vec<usize> = order.iter().map(|words| dev.position(words)).collect();
    assert!(positions.is_sorted(), "{:#?}", dev.printed);
    // It waited for the port.
    assert!(!dev.printed.iter().any(|line| line.contains("no reply")), "{:#?}", dev.printed);
    // Nothing else is printed for an idle tick.
    let posted = dev.printed.iter().filter(|line| line.contains("shop: ")).count();
    assert_eq!(posted, 3, "{:#?}", dev.printed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_says_how_to_install_a_missing_program() {
    let (_bench, out) = project("csharp").await;
    let mut dev = Dev::start(&out, &[("PATH", OsStr::new("/nowhere"))]);
    dev.line("install it: npm install --global azure-functions-core-tools@4").await;
    assert_eq!(dev.end().await, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_ends_with_its_receiver() {
    let (bench, out) = project("csharp").await;
    for (text, words) in [
        // Before it listens.
        ("#!/bin/sh\necho 'no project'; exit 3\n".to_owned(), "no project"),
        // After a delivery.
        (
            FUNC.replace("replies.pop() if replies else 200", "os._exit(1)"),
            "posted, no reply after",
        ),
    ] {
        let path = stand_in(bench.folder.path(), "func", &text);
        let mut dev = Dev::start(&out, &[("PATH", OsStr::new(&path))]);
        dev.line(words).await;
        assert_eq!(dev.end().await, Some(6), "{:#?}", dev.printed);
        dev.position("highwater: the receiver `func start` exited");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_can_be_interrupted_before_the_receiver_listens() {
    let (bench, out) = project("csharp").await;
    let path = stand_in(bench.folder.path(), "func", "#!/bin/sh\necho waits\nexec sleep 1000\n");
    let mut dev = Dev::start(&out, &[("PATH", OsStr::new(&path))]);
    dev.line("receiver | waits").await;
    assert_eq!(dev.interrupt().await, Some(0));
    assert!(!dev.printed.iter().any(|line| line.contains("status page")), "{:#?}", dev.printed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_needs_a_free_port_and_a_receiver() {
    let (_bench, out) = project("python").await;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut dev = Dev::start_at(port, &out, &[]);
    dev.line(&format!("port {port} is in use")).await;
    assert_eq!(dev.end().await, Some(6));

    let away = [("HIGHWATER__POLLERS__SHOP__HANDLER__KIND", OsStr::new("stdout"))];
    let mut dev = Dev::start(&out, &away);
    dev.line("no poller posts to this machine").await;
    assert_eq!(dev.end().await, Some(3));

    fs::remove_file(out.join("receiver/dev.json")).unwrap();
    let mut dev = Dev::start(&out, &[]);
    dev.line("dev.json`: No such file").await;
    assert_eq!(dev.end().await, Some(2));
}

//! `highwater dev`: runs the pollers of a project and its receiver side by side.
//!
//! The receiver starts first, by the command of `receiver/dev.json`. Once it listens on the port that the pollers post
//! to, they run as with `highwater run`. At Ctrl-C, the pollers finish their batches before the receiver is stopped.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::demo::console::each_line;
use super::from::FromOption;
use super::output::{Exit, Failed, print_message_nonblocking};
use super::run::{PageOptions, poll};
use highwater::config::{Config, HandlerConfig, Vars};
use highwater::error::chain;
use highwater::handler::exec::Companion;
use highwater::handler::http::REPLY_TARGET;
use highwater::redaction::redact;
use highwater::serve::{Signals, start_at_terminal};
use highwater::telemetry::write_stderr;

/// Folder of the receiver in a project.
pub(super) const FOLDER: &str = "receiver";
/// Says how the receiver is started.
const FILE: &str = "dev.json";
/// A receiver may be compiled before it listens.
const READY_TIME_MAX: Duration = Duration::from_secs(300);
const READY_INTERVAL: Duration = Duration::from_millis(100);
/// How long a receiver may take to stop, or to print its last lines after it has exited.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    from: FromOption,
    /// Folder of the receiver; by default, `receiver` in the project.
    #[arg(long, value_name = "DIR")]
    receiver: Option<PathBuf>,
    /// Serve the status page at this address; with port 0, the system chooses the port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    status: SocketAddr,
}

/// How a receiver is started.
#[derive(Debug, Deserialize)]
struct Launch {
    /// Program and arguments; the program runs in the receiver's folder.
    command: Vec<String>,
    /// Command or address that installs the program.
    #[serde(default)]
    install: Option<String>,
}

pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let root = options.from.folder(settings);
    let folder = options.receiver.clone().unwrap_or_else(|| root.join(FOLDER));
    let launch = Launch::read(&folder)?;
    let port = port(&Config::from_vars(vars).map_err(highwater::builder::BuildError::from)?)?;
    if connects(port).await {
        let text = format!(
            "port {port} is in use: stop the program that listens there, or use `highwater run` with a receiver that \
             runs already"
        );
        return Err(Failed::new(Exit::Unavailable, text));
    }
    let mut signals = Signals::catch();
    let telemetry = start_at_terminal(vars, &format!("warn,{REPLY_TARGET}=debug"));
    let mut receiver = Receiver::start(&launch, &folder, port)?;
    let interrupted = async {
        match &mut signals {
            Some(signals) => signals.next().await,
            None => std::future::pending().await,
        }
    };
    let ready = tokio::select! {
        biased;
        _ = interrupted => None,
        ready = receiver.listens(port) => Some(ready),
    };
    let ended = match ready {
        Some(Ok(())) => {
            let page = PageOptions { address: Some(options.status), actions: false, hosts: &[] };
            Box::pin(poll(vars, &root, page, (signals, telemetry), receiver.exited())).await
        }
        Some(Err(failed)) => Err(failed),
        None => Ok(Exit::Done),
    };
    receiver.stop().await;
    ended
}

impl Launch {
    fn read(folder: &Path) -> Result<Self, Failed> {
        let path = folder.join(FILE);
        let invalid = |reason: String| {
            let text = format!(
                "`{}`: {reason}; expected `{{\"command\": [\"program\", \"argument\"]}}`, as `init` writes it with \
                 `--handler`",
                path.display()
            );
            Failed::new(Exit::Usage, text)
        };
        let text = std::fs::read(&path).map_err(|error| invalid(error.to_string()))?;
        let launch: Self =
            serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        if launch.command.is_empty() { Err(invalid("no command".to_owned())) } else { Ok(launch) }
    }
}

/// Returns the port on this machine that the pollers post to.
fn port(config: &Config) -> Result<u16, Failed> {
    let mut ports: Vec<u16> =
        config.pollers.values().flat_map(|poller| local_ports(&poller.handler)).collect();
    ports.sort_unstable();
    ports.dedup();
    let text = match ports[..] {
        [port] => return Ok(port),
        [] => {
            "no poller posts to this machine: set `HANDLER__KIND=http` and `HANDLER__URL`, such as \
               `http://127.0.0.1:7072/api/orders`"
                .to_owned()
        }
        _ => format!(
            "the pollers post to several ports of this machine, {ports:?}: use one receiver"
        ),
    };
    Err(Failed::new(Exit::Settings, text))
}

fn local_ports(handler: &HandlerConfig) -> Vec<u16> {
    match handler {
        HandlerConfig::Http(http) => local_port(&http.url).into_iter().collect(),
        HandlerConfig::Chain(steps) => {
            steps.iter().flat_map(|step| local_ports(&step.handler)).collect()
        }
        HandlerConfig::Blob(_)
        | HandlerConfig::Durable(_)
        | HandlerConfig::Exec(_)
        | HandlerConfig::Queue(_)
        | HandlerConfig::Sql(_)
        | HandlerConfig::Stdout => Vec::new(),
    }
}

fn local_port(url: &Url) -> Option<u16> {
    let is_local = match url.host()? {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    url.port_or_known_default().filter(|_| is_local)
}

async fn connects(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok()
}

/// The running receiver.
struct Receiver {
    process: Companion,
    readers: JoinSet<()>,
    shown: String,
}

impl Receiver {
    fn start(launch: &Launch, folder: &Path, port: u16) -> Result<Self, Failed> {
        let shown = launch.command.join(" ");
        let Some((program, arguments)) = launch.command.split_first() else {
            return Err(Failed::new(Exit::Usage, "no command"));
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("PORT", port.to_string());
        let started = Companion::start(&mut command).map_err(|error| {
            let install = launch.install.as_deref().filter(|_| is_missing(&error));
            let fix = install.map(|install| format!("; install it: {install}"));
            let text = format!("start `{shown}`: {error}{}", fix.unwrap_or_default());
            Failed::new(Exit::Failed, text)
        });
        let (process, stdout, stderr) = started?;
        print_message_nonblocking(&format!(
            "receiver: started `{shown}` in `{}`",
            folder.display()
        ));
        let mut readers = JoinSet::new();
        readers.spawn(each_line(stdout, |line: String| show(&line)));
        readers.spawn(each_line(stderr, |line: String| show(&line)));
        Ok(Self { process, readers, shown })
    }

    /// Waits until the receiver listens.
    async fn listens(&mut self, port: u16) -> Result<(), Failed> {
        let listening = async {
            while !connects(port).await {
                sleep(READY_INTERVAL).await;
            }
        };
        tokio::select! {
            failed = self.exited() => return Err(failed),
            listening = timeout(READY_TIME_MAX, listening) => listening.map_err(|_elapsed| {
                let text = format!("the receiver does not listen on port {port} after {} s", READY_TIME_MAX.as_secs());
                Failed::new(Exit::Unavailable, text)
            })?,
        }
        print_message_nonblocking(&format!("receiver: listens on port {port}"));
        Ok(())
    }

    /// Completes when the receiver has exited by itself, with the reason to stop.
    async fn exited(&mut self) -> Failed {
        let exited = self.process.exited().await;
        let error = exited.err().map(|error| format!(": {}", chain(&error))).unwrap_or_default();
        Failed::new(Exit::Unavailable, format!("the receiver `{}` exited{error}", self.shown))
    }

    /// Stops the receiver, and shows its last lines.
    async fn stop(mut self) {
        if let Err(error) = self.process.stop(STOP_TIME_MAX).await {
            print_message_nonblocking(&format!("stop the receiver: {error}"));
        }
        let read = async { while self.readers.join_next().await.is_some() {} };
        // A descendant outside the process group may keep the pipes open.
        timeout(STOP_TIME_MAX, read).await.unwrap_or_default();
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

fn show(line: &str) {
    write_stderr(&redact(&format!("receiver | {line}\n")));
}

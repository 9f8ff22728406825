//! `highwater status`.

mod address;
mod screen;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use time::{OffsetDateTime, UtcOffset};
use tokio::time::sleep;

use self::address::Address;
use super::from::app_folder;
use super::output::{
    Exit, Failed, Output, OutputOption, Record, print_drawing, print_message, print_text,
};
use super::page::Page;
use highwater::builder::App;
use highwater::config::{Vars, parse_duration, stop_grace};
use highwater::doctor::sizing::Sizing;
use highwater::page::{Authority, PageServer, words};
use highwater::poller::StopSignal;
use highwater::serve::{Signals, asked_to_stop};
use highwater::status::health::Severity;
use highwater::status::{Status, StatusError, StatusQuery, StatusReader};

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct Options {
    /// Name of the poller; by default, all in the settings or the store.
    poller: Option<String>,
    /// Refresh until stopped; without a terminal, only with `--output jsonl`, which prints lines.
    #[arg(long, conflicts_with = "serve")]
    watch: bool,
    /// Refresh interval of `--watch`.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = every)]
    every: Duration,
    /// Serve the read-only status page at this address, such as `127.0.0.1:8080`, until stopped.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "poller")]
    serve: Option<SocketAddr>,
    /// Another host name that the status page answers to, besides loopback; may be repeated.
    #[arg(long, value_name = "NAME", requires = "serve")]
    status_host: Vec<String>,
    /// Print the address of the status page without its key, and the command that prints the key.
    #[arg(long, conflicts_with_all = ["poller", "watch", "serve"])]
    url: bool,
    /// Host name of the app, of a slot or a custom domain, such as `shop.azurewebsites.net` [default: that of the
    /// environment, else of `func start`].
    #[arg(long, value_name = "HOST", requires = "url")]
    site: Option<String>,
    /// Run that command and add the key to the address.
    #[arg(long, requires = "url")]
    reveal: bool,
    /// Exit with 8 if a poller needs attention, and with 9 if one delivers nothing until an operator acts.
    #[arg(long, conflicts_with_all = ["watch", "serve", "url"])]
    check: bool,
    #[command(flatten)]
    form: OutputOption,
}

fn every(text: &str) -> Result<Duration, String> {
    let wrong = "expected at least a second, such as `5s` or `1m`";
    let every = parse_duration(text).map_err(|_other| wrong.to_owned())?;
    if every < Duration::from_secs(1) { Err(wrong.to_owned()) } else { Ok(every) }
}

impl Record for Status {
    const COLUMNS: &'static [&'static str] = &[
        "poller",
        "state",
        "last success",
        "checkpoint",
        "age",
        "lag",
        "next tick",
        "owner",
        "token",
        "parked",
        "lease ttl",
        "suggested ttl",
        "cause",
    ];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let sizing = self.sizing.as_ref();
        let suggested = |sizing: &Sizing| format!("{}s", sizing.suggested_ttl_seconds);
        vec![
            self.poller.clone(),
            self.health.state.as_str().to_owned(),
            or_dash(words::last_success(&self.health, None)),
            or_dash(self.checkpoint.clone()),
            or_dash(self.checkpoint_age_seconds.map(|age| format!("{age}s"))),
            or_dash(words::lag(self)),
            or_dash(words::next_tick(self).map(|next| {
                let offset = self.next_tick_at.map_or(UtcOffset::UTC, OffsetDateTime::offset);
                words::local(next.at.to_offset(offset), self.time_zone.as_deref())
            })),
            or_dash(self.owner.clone()),
            self.token.to_string(),
            self.quarantined.to_string(),
            or_dash(sizing.map(|sizing| format!("{}s", sizing.ttl_seconds))),
            or_dash(sizing.map(suggested)),
            or_dash(self.health.cause.clone()),
        ]
    }
}

/// Prints the status of pollers, or the address of the status page. Only reads the store.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let root = app_folder(settings, vars);
    if options.url {
        let address = Address::of(vars, options.site.as_deref(), &root, settings)?;
        let address = if options.reveal { address.reveal().await? } else { address };
        print_text(&options.form.output.one(&address, || address.text()));
        return Ok(Exit::Done);
    }
    let board = App::build(vars)?.board(vars, &root);
    if let Some(address) = options.serve {
        return serve(vars, board, address, options).await;
    }
    if options.watch {
        return watch(vars, &board, options).await;
    }
    let report = board.read(options.query()).await?;
    print_text(&options.form.output.list(&report.pollers));
    for status in &report.pollers {
        for warning in &status.warnings {
            print_message(&format!("{}: {warning}", status.poller));
        }
    }
    if options.check {
        return Ok(exit_of(report.severity()));
    }
    Ok(Exit::Done)
}

/// Returns the exit code of `--check`.
fn exit_of(severity: Severity) -> Exit {
    match severity {
        Severity::Ok => Exit::Done,
        Severity::Warning => Exit::NeedsAttention,
        Severity::Error => Exit::NotDelivering,
    }
}

impl Options {
    fn query(&self) -> StatusQuery<'_> {
        self.poller.as_deref().map_or(StatusQuery::All, StatusQuery::One)
    }
}

async fn serve(
    vars: &dyn Vars,
    board: StatusReader,
    address: SocketAddr,
    options: &Options,
) -> Result<Exit, Failed> {
    let stop = StopSignal::new();
    let signals = Signals::catch();
    let authority = Authority::of(address, &options.status_host);
    let served = PageServer { board, authority, operator: None, stop: stop.clone() };
    let page = Page::open(address, served).await?;
    asked_to_stop(signals, stop, stop_grace(vars)).await;
    page.close().await;
    Ok(Exit::Done)
}

/// Refreshes until the process is asked to stop. If the store does not answer, this is reported, and the next
/// refresh retries.
async fn watch(vars: &dyn Vars, board: &StatusReader, options: &Options) -> Result<Exit, Failed> {
    let form = options.form.output;
    let draws = form == Output::Table && std::io::stdout().is_terminal();
    if !draws && form != Output::Jsonl {
        let text = "`--watch` needs a terminal; without one, `--output jsonl` prints a line per poller and \
                    refresh";
        return Err(Failed::new(Exit::Usage, text));
    }
    let grace = stop_grace(vars);
    let mut stopped = Box::pin(asked_to_stop(Signals::catch(), StopSignal::new(), grace));
    loop {
        match board.read(options.query()).await {
            Ok(report) if draws => print_drawing(&drawing(&screen::lines(&report))),
            Ok(report) => print_text(&form.list(&report.pollers)),
            Err(error @ StatusError::NoPoller(_)) => return Err(error.into()),
            Err(error) => print_message(&format!("cannot read the status: {}", error.text())),
        }
        tokio::select! {
            biased;
            () = &mut stopped => return Ok(Exit::Done),
            () = sleep(options.every) => {}
        }
    }
}

/// Draws lines over the previous ones without flicker: each line erases the rest of its row.
fn drawing(lines: &[String]) -> String {
    let lines = lines.join("\x1b[K\n");
    format!("\x1b[H{lines}\x1b[K\n\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_covers_the_one_before() {
        let lines = ["a".to_owned(), "b".to_owned()];
        assert_eq!(drawing(&lines), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
    }

    #[test]
    fn the_refresh_interval_is_at_least_a_second() {
        assert_eq!(every("1s"), Ok(Duration::from_secs(1)));
        assert!(every("0s").is_err() && every("500ms").is_err() && every("often").is_err());
    }
}

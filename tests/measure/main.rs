//! Costs, side by side: rates, storage calls, CPU, memory, latency, overlapped commits, and their limits.
//!
//! ```text
//! cargo bench --test measure                    # the tables, some ten minutes
//! cargo bench --test measure -- --full          # a million rows and more, some forty
//! cargo bench --test measure -- --only limits   # one section; --rows, --rounds and --binary as in `options.rs`
//! cargo bench --test measure -- --page          # also write the tables to docs/explanation/performance.md
//! cargo bench --test measure -- --load 600      # 200 pollers at one-second ticks, for this many seconds
//! cargo test --test measure                     # a few rows through each section, as a smoke test
//! ```
//!
//! Everything runs on one machine in one run. Peers take turns within a round, each round starts with another
//! of them, and the first round is dropped. Each peer is a separate process, and so are the embedded SQL
//! Server (over TCP and TLS), the receiver of the POSTs and Azurite: the CPU and memory reported for a peer
//! are its own alone.
//!
//! | peer | what it is |
//! |---|---|
//! | driver | a bare loop over `tiberius`: the statement that a poller sends, row for row; counts rows |
//! | driver + POST | the same, and each batch as a JSON array to the receiver, through `reqwest` |
//! | highwater | the library's `Poller` over the same driver and wire, in-process handler or `http` |
//! | python | the package `azure-functions-db`, see `python.py` |
//!
//! Targets are printed with a verdict and never fail a run, since a busy machine is not a bug of the program.
//! The load is judged, since its checks do not depend on time: lost rows, overlapping ticks.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a measurement may panic, and prints its results"
)]

#[expect(dead_code, reason = "what silent ones are started with")]
#[path = "../azurite/emulator/process.rs"]
mod azurite;
mod bare;
mod child;
mod idle;
mod job;
mod latency;
mod limits;
mod load;
mod memory;
mod options;
mod ours;
mod overlap;
mod program;
mod python;
mod receiver;
mod report;
mod server;
mod storage;
mod system;
mod tables;

use std::process::ExitCode;

use self::child::Server;
use self::job::Role;
use self::options::{Mode, Options, Section};
use self::report::Report;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, role] = &arguments[..]
        && word == child::ROLE
    {
        runtime.block_on(play(role));
        // Remaining background tasks have nothing to report.
        runtime.shutdown_background();
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(arguments) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(reason) => {
            println!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(measure(&options))
}

/// Runs one of the processes of a measurement.
async fn play(role: &str) {
    match serde_json::from_str(role).unwrap() {
        Role::Server(tables) => server::serve(&tables).await,
        Role::Receiver => receiver::serve().await,
        Role::Bare(job) => child::tell(&bare::drain(&job).await),
        Role::Ours(job) => child::tell(&Box::pin(ours::drain(&job)).await),
        Role::Idle(job) => child::tell(&idle::tick_all(&job).await),
        Role::Memory(job) => child::tell(&memory::drain(&job).await),
        Role::Latency(job) => child::tell(&latency::wait(&job).await),
        Role::Load(job) => child::tell(&load::run(&job).await),
    }
}

async fn measure(options: &Options) -> ExitCode {
    let mut report = Report::new(options);
    report.say(&format!("{}\n", system::machine()));
    if let Mode::Load(seconds) = options.mode {
        let verdict = load::measure(seconds, &mut report).await;
        report.finish();
        return verdict;
    }
    let server = Server::start(&options.tables()).await;
    for section in &options.sections {
        match section {
            Section::Program => program::measure(options, &server, &mut report).await,
            Section::Limits => limits::measure(options, &server, &mut report).await,
            Section::Python => python::measure(options, &server, &mut report).await,
            Section::Idle => idle::measure(options, &server, &mut report).await,
            Section::Latency => latency::measure(options, &server, &mut report).await,
            Section::Memory => memory::measure(options, &server, &mut report).await,
            Section::Overlap => overlap::measure(options, &server, &mut report).await,
        }
    }
    if options.mode == Mode::Smoke {
        let verdict = load::measure(2, &mut report).await;
        if verdict != ExitCode::SUCCESS {
            return verdict;
        }
    }
    report.finish();
    ExitCode::SUCCESS
}

//! The on-call drill: the situations that someone on call meets, one after the other, and what every view says.
//!
//! Each situation is made on a real process of `highwater run`, over the development server, a receiver and a state
//! folder. Within two ticks, the page, `/api/status`, `/readyz`, `/metrics`, `status` and `doctor` must show the right state, with
//! the cause in the first line. Then the reason is removed, the command that a view prints is run as it is printed, and the poller
//! must deliver again.
//!
//! `cargo test --test drill` runs a sample, `DRILL=all cargo test --test drill` everything. The table of
//! `docs/contributing/drill.md` is made of the situations here: `UPDATE_EXPECT=1 cargo test --test drill table`.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

#[expect(dead_code, reason = "the tests with a host need more of it")]
#[path = "../host/bench.rs"]
mod bench;
#[expect(dead_code, reason = "the tests with a host need more of it")]
#[path = "../host/data.rs"]
mod data;
#[expect(dead_code, reason = "the tests with a host need more of it")]
#[path = "../host/receiver.rs"]
mod receiver;
mod situations;
mod stage;

use std::fmt::Write as _;
use std::fs;

use self::situations::{SITUATIONS, Situation};
use self::stage::Stage;

/// Every so many situations are in the sample.
const SAMPLED: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_shows_each_situation_and_the_printed_command_ends_it() {
    let all = std::env::var_os("DRILL").is_some_and(|value| value == "all");
    let chosen = SITUATIONS.iter().enumerate().filter(|(index, _)| all || index % SAMPLED == 0);
    let mut wrong = Vec::new();
    for (_, situation) in chosen {
        let found = drill(situation).await;
        println!("{}: {}", situation.name, if found.is_empty() { "ok" } else { "WRONG" });
        wrong.extend(found.into_iter().map(|text| format!("{}: {text}", situation.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns what is wrong.
async fn drill(situation: &Situation) -> Vec<String> {
    let mut stage = Stage::set(situation.prepare).await;
    (situation.make)(&mut stage).await;
    let (views, wrong) = stage.shows(&situation.expected()).await;
    if !wrong.is_empty() {
        return wrong;
    }
    (situation.end)(&mut stage).await;
    if let Some(start) = situation.command {
        let Some(command) = views.printed(start) else {
            return vec![format!("no view prints `{start}`: {}", views.text())];
        };
        if let Err(text) = stage.shell(&command).await {
            return vec![format!("`{command}`: {text}")];
        }
    }
    (situation.after)(&mut stage).await;
    let (_, wrong) = stage.shows(&stage::IDLE).await;
    wrong.into_iter().map(|text| format!("afterwards: {text}")).collect()
}

#[test]
fn the_table_of_the_documentation_is_that_of_the_drill() {
    let path = highwater_test_support::root().join("docs/contributing/drill.md");
    let text = fs::read_to_string(&path).unwrap();
    let (first, last) = ("<!-- drill -->\n", "<!-- /drill -->");
    let (before, rest) = text.split_once(first).unwrap();
    let (shown, after) = rest.split_once(last).unwrap();
    let mut table = "| situation | state | part of the first line | what ends the reason | command, as printed |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for situation in &SITUATIONS {
        let Situation { name, cause, ended_by, command, .. } = situation;
        let state = situation.shown_state();
        let cause = cause.replace('`', "");
        let cause = if cause.is_empty() { "–".to_owned() } else { format!("`{cause}`") };
        let command = command.map_or_else(|| "–".to_owned(), |command| format!("`{command}`"));
        writeln!(table, "| {name} | {state} | {cause} | {ended_by} | {command} |").unwrap();
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(path, format!("{before}{first}{table}{last}{after}")).unwrap();
    }
    assert_eq!(shown, table, "run this with UPDATE_EXPECT=1");
}

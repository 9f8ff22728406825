//! What every view shows in the situations that someone on call meets: the table of
//! `docs/reference/status.md`.

use std::fs;
use std::path::Path;

use highwater::builder::App;
use highwater::page::{self, PageRequest};
use highwater_devdb::{Options as ServerOptions, Server};
use serde_json::{Value as Json, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::bench::Bench;
use crate::receiver::Answer;
use crate::status::assert_fits_schema;

/// A situation, and what is shown after two ticks in it.
struct Situation {
    name: &'static str,
    make: fn(&mut Bench),
    /// Whether a process ticks in this situation.
    ticks: bool,
    state: &'static str,
    severity: &'static str,
    /// Label on the page.
    label: &'static str,
    /// Part of the cause.
    cause: &'static str,
}

const NOTHING: Situation = Situation {
    name: "rows are delivered",
    make: |bench| bench.insert(2..=2),
    ticks: true,
    state: "idle",
    severity: "ok",
    label: "Idle",
    cause: "",
};

const FAILING: Situation =
    Situation { state: "failing", severity: "error", label: "Failing", ..NOTHING };

const SITUATIONS: [Situation; 16] = [
    NOTHING,
    Situation {
        name: "database down",
        make: |bench| {
            // Replaces the server that the settings name, which stops.
            let other = Server::start(bench.database.clone(), ServerOptions::default());
            let other = block_in_place(|| Handle::current().block_on(other));
            bench.server = other.unwrap();
        },
        cause: "127.0.0.1",
        ..FAILING
    },
    Situation {
        name: "wrong password",
        make: |bench| {
            let connection = bench.server.connection_string();
            bench.set_env("SqlConnection", &connection.replace("Password=", "Password=wrong-"));
        },
        cause: "Login failed",
        ..FAILING
    },
    Situation {
        name: "table dropped",
        make: |bench| {
            bench.database.execute("DROP TABLE dbo.orders").unwrap();
        },
        cause: "dbo.orders",
        ..FAILING
    },
    Situation { name: "handler 401", make: |bench| answers(bench, 401), cause: "401", ..FAILING },
    Situation { name: "handler 404", make: |bench| answers(bench, 404), cause: "404", ..FAILING },
    Situation {
        name: "handler 500",
        make: |bench| answers(bench, 500),
        state: "backing_off",
        severity: "warning",
        label: "Backing off",
        cause: "500",
        ..NOTHING
    },
    Situation {
        name: "receiver gone",
        make: |bench| {
            bench.insert(2..=2);
            bench.set("HANDLER__URL", "http://127.0.0.1:1/changes");
        },
        state: "backing_off",
        severity: "warning",
        label: "Backing off",
        cause: "127.0.0.1:1",
        ..NOTHING
    },
    Situation {
        name: "paused",
        make: |bench| bench.an_hour_ago(pause),
        state: "paused",
        severity: "warning",
        label: "Paused",
        cause: "paused by ann: upgrade",
        ..NOTHING
    },
    Situation {
        name: "paused while a dead process holds the lease",
        make: |bench| {
            bench.die();
            bench.an_hour_ago(pause);
        },
        state: "paused",
        severity: "warning",
        label: "Paused",
        cause: "paused by ann: upgrade",
        ..NOTHING
    },
    Situation {
        name: "a process died during a tick",
        make: |bench| bench.die(),
        ticks: false,
        cause: "instance dead stopped during a tick",
        ..FAILING
    },
    Situation {
        name: "document not JSON",
        make: |bench| fs::write(bench.state_path(), "{").unwrap(),
        cause: "is not JSON",
        ..FAILING
    },
    Situation {
        name: "document deleted",
        make: |bench| fs::remove_file(bench.state_path()).unwrap(),
        state: "vanished",
        label: "State lost",
        cause: "state document of `nightly` is gone",
        ..FAILING
    },
    Situation {
        name: "no process, rows due",
        make: |bench| {
            bench.insert(2..=2);
            bench.an_hour_ago(|document| {
                let long_ago = json!("2026-01-01T00:00:00Z");
                document["last_success_at"] = long_ago.clone();
                document["checkpoint"]["updated_at"] = long_ago.clone();
                document["observed"] = Json::Null;
                for field in ["acquired_at", "heartbeat_at", "released_at", "expires_at"] {
                    document["lease"][field] = long_ago.clone();
                }
            });
        },
        ticks: false,
        state: "silent",
        label: "Silent",
        cause: "no tick for",
        ..FAILING
    },
    Situation {
        name: "function turned off",
        make: |bench| bench.set_env("AzureWebJobs.nightly.Disabled", "true"),
        ticks: false,
        state: "disabled",
        severity: "warning",
        label: "Disabled",
        cause: "AzureWebJobs.nightly.Disabled",
    },
    Situation {
        name: "folder of the function left out",
        make: |bench| fs::remove_dir_all(Path::new(&bench.root()).join("nightly")).unwrap(),
        ticks: false,
        state: "disabled",
        severity: "warning",
        label: "Disabled",
        cause: "no function runs it",
    },
];

/// Lets the target respond to pending rows with this status.
fn answers(bench: &mut Bench, status: u16) {
    bench.insert(2..=2);
    bench.receiver.script(&[Answer::Reject(status, "no"), Answer::Reject(status, "no")]);
}

fn pause(document: &mut Json) {
    document["paused"] = json!({ "by": "ann", "reason": "upgrade", "at": "2026-01-01T00:00:00Z" });
    document["requires"] = json!(["paused"]);
}

/// Returns the page as served by a process that runs no ticks.
async fn page(bench: &Bench) -> String {
    let board = App::build(&bench.env).unwrap().board(&bench.env, Path::new(&bench.root()));
    page::answer(&board, PageRequest { page: true, ..PageRequest::default() }).await.body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_situation_is_shown_within_two_ticks() {
    let mut wrong = Vec::new();
    for situation in SITUATIONS {
        let Situation { name, make, ticks, state, severity, label, cause } = situation;
        let mut bench = Bench::with_rows(1..=1).await;
        let folder = bench.root();
        bench.set_env("FUNCTIONS_APP_ROOT_PATH", &folder);
        bench.schedule("*/5 * * * * *");
        assert_eq!(bench.command(&["tick", "nightly"]).await.code, 0);
        make(&mut bench);
        for _ in 0..if ticks { 2 } else { 0 } {
            bench.command(&["tick", "nightly"]).await;
        }
        let result = bench.command(&["status", "--output", "json"]).await;
        let found: Json = serde_json::from_str(result.done()).unwrap();
        assert_fits_schema(&json!({ "app": "shop", "version": "0", "at": null, "pollers": found }));
        let status = &found[0];
        let page = page(&bench).await;
        let word = format!("data-word=\"{label}\"");
        let shown_cause = status["cause"].as_str().unwrap_or_default();
        let code = bench.command(&["status", "--check"]).await.code;
        let expected = match severity {
            "ok" => 0,
            "warning" => 8,
            _ => 9,
        };
        let is_right = status["state"] == state
            && status["severity"] == severity
            && shown_cause.contains(cause)
            && shown_cause.is_empty() == cause.is_empty()
            && page.contains(&word)
            && code == expected;
        if !is_right {
            let badge = page.split("data-word=").nth(1).unwrap_or(&page);
            let badge: String = badge.chars().take(40).collect();
            wrong.push(format!(
                "{name}: {} {shown_cause:?}, page {badge}, exit {code}",
                status["state"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

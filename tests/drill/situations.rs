//! The situations.

use std::fs;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::time::sleep;

use crate::bench::Bench;
use crate::receiver::Answer;
use crate::stage::{Expected, IDLE, Stage, Unknown};

/// Something that is done to a stage.
type Act = for<'a> fn(&'a mut Stage) -> BoxFuture<'a, ()>;

/// A situation, what every view shows in it, and what ends it.
pub(crate) struct Situation {
    pub(crate) name: &'static str,
    /// Settings from the start.
    pub(crate) prepare: fn(&mut Bench),
    pub(crate) make: Act,
    state: &'static str,
    severity: &'static str,
    label: &'static str,
    pub(crate) cause: &'static str,
    unknown: Unknown,
    parked: u64,
    /// Removes the reason.
    pub(crate) end: Act,
    /// The same in words.
    pub(crate) ended_by: &'static str,
    /// Start of the command that a view prints, and that is run then.
    pub(crate) command: Option<&'static str>,
    /// What remains to do, such as starting the process.
    pub(crate) after: Act,
}

impl Situation {
    /// Returns the state for the table of the documentation.
    pub(crate) fn shown_state(&self) -> String {
        if self.unknown == Unknown::No { format!("`{}`", self.state) } else { "unknown".to_owned() }
    }

    pub(crate) fn expected(&self) -> Expected {
        let Self { state, severity, label, cause, unknown, parked, .. } = *self;
        Expected { state, severity, label, cause, unknown, parked }
    }
}

macro_rules! act {
    ($stage:ident, $body:block) => {
        |$stage| Box::pin(async move { $body })
    };
}

const HEALTHY: Situation = Situation {
    name: "rows are delivered",
    prepare: |_| {},
    make: act!(stage, { stage.bench.insert(2..=2) }),
    state: IDLE.state,
    severity: IDLE.severity,
    label: IDLE.label,
    cause: "",
    unknown: Unknown::No,
    parked: 0,
    end: act!(_stage, {}),
    ended_by: "–",
    command: None,
    after: act!(_stage, {}),
};

const FAILING: Situation = Situation {
    state: "failing",
    severity: "error",
    label: "Failing",
    command: Some("highwater tick nightly"),
    ..HEALTHY
};

/// The target fails, and the next attempt is later than a reader acts.
const REJECTED: Situation = Situation {
    prepare: retry_later,
    end: act!(stage, { stage.bench.receiver.forget() }),
    command: Some("highwater resume nightly"),
    ..FAILING
};

fn retry_later(bench: &mut Bench) {
    bench.set("RETRY_DELAY_MIN", "60s");
    bench.set("RETRY_DELAY_MAX", "60s");
}

const BACKING_OFF: Situation = Situation {
    state: "backing_off",
    severity: "warning",
    label: "Backing off",
    ended_by: "the target works again",
    command: Some("highwater resume nightly"),
    end: act!(stage, { stage.bench.receiver.forget() }),
    ..HEALTHY
};

const STOPPED: Situation =
    Situation { state: "stopped", severity: "error", label: "Stopped", ..HEALTHY };

/// The table has the name of the one that was read, but is another one.
const REPLACED: Situation = Situation {
    make: act!(stage, { replace_table(stage, &[]) }),
    cause: "is not the table that the checkpoint was made of",
    command: Some("highwater reset nightly to-beginning"),
    ..STOPPED
};

/// Drops the table and creates it again with other rows, and then runs these statements before the rows are written.
fn replace_table(stage: &Stage, statements: &[&str]) {
    for statement in [&["DROP TABLE dbo.orders", TABLE][..], statements].concat() {
        stage.bench.database.execute(statement).unwrap();
    }
    stage.bench.insert(1..=3);
}

/// More than any situation needs.
const MANY: usize = 60;

fn rejects(stage: &Stage, status: u16) {
    stage.bench.insert(2..=2);
    let answers: Vec<Answer> = (0..MANY).map(|_| Answer::Reject(status, "no")).collect();
    stage.bench.receiver.script(&answers);
}

/// Every poller setting that a replaced table needs.
const TABLE: &str = "CREATE TABLE dbo.orders \
    (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";

const TRACKED: &str = "ALTER TABLE dbo.orders ENABLE CHANGE_TRACKING";

pub(crate) const SITUATIONS: [Situation; 28] = [
    HEALTHY,
    Situation {
        name: "database down",
        make: act!(stage, { stage.stop_database().await }),
        cause: "127.0.0.1",
        end: act!(stage, { stage.start_database().await }),
        ended_by: "the database runs again",
        ..FAILING
    },
    Situation {
        name: "wrong password",
        make: act!(stage, {
            let connection = stage.bench.server.connection_string();
            let wrong = connection.replace("Password=", "Password=wrong-");
            stage.bench.set_env("SqlConnection", &wrong);
            stage.restart().await;
        }),
        cause: "Login failed",
        end: act!(stage, {
            let connection = stage.bench.server.connection_string();
            stage.bench.set_env("SqlConnection", &connection);
            stage.restart().await;
        }),
        ended_by: "the right password",
        ..FAILING
    },
    Situation {
        name: "table dropped",
        make: act!(stage, {
            stage.bench.database.execute("EXEC sp_rename 'dbo.orders', 'gone'").unwrap();
        }),
        cause: "dbo.orders",
        end: act!(stage, {
            stage.bench.database.execute("EXEC sp_rename 'dbo.gone', 'orders'").unwrap();
        }),
        ended_by: "the table is back",
        ..FAILING
    },
    Situation { name: "table dropped and created again", ..REPLACED },
    Situation {
        name: "the same with change tracking",
        prepare: |bench| {
            bench.database.execute(TRACKED).unwrap();
            bench.set("SOURCE__MODE", "change_tracking");
            bench.unset("SOURCE__CURSOR");
        },
        make: act!(stage, { replace_table(stage, &[TRACKED]) }),
        ..REPLACED
    },
    Situation {
        name: "column dropped",
        make: act!(stage, {
            stage.bench.database.execute("ALTER TABLE dbo.orders DROP COLUMN item").unwrap();
        }),
        ..HEALTHY
    },
    Situation {
        name: "column dropped, and `SOURCE__ON_SCHEMA_CHANGE` is `stop`",
        prepare: |bench| bench.set("SOURCE__ON_SCHEMA_CHANGE", "stop"),
        make: act!(stage, {
            stage.bench.database.execute("ALTER TABLE dbo.orders DROP COLUMN item").unwrap();
        }),
        cause: "columns of",
        end: act!(stage, {
            stage.bench.set("SOURCE__ON_SCHEMA_CHANGE", "follow");
            stage.restart().await;
        }),
        ended_by: "`SOURCE__ON_SCHEMA_CHANGE=follow`",
        ..STOPPED
    },
    Situation {
        name: "handler answers 401",
        make: act!(stage, { rejects(stage, 401) }),
        cause: "401",
        ended_by: "the target accepts the key",
        ..REJECTED
    },
    Situation {
        name: "handler answers 404",
        make: act!(stage, { rejects(stage, 404) }),
        cause: "404",
        ended_by: "the target has the path",
        ..REJECTED
    },
    Situation {
        name: "handler answers 500",
        make: act!(stage, { rejects(stage, 500) }),
        cause: "500",
        ..BACKING_OFF
    },
    Situation {
        name: "handler answers 503",
        make: act!(stage, { rejects(stage, 503) }),
        cause: "503",
        ..BACKING_OFF
    },
    Situation {
        name: "receiver gone",
        make: act!(stage, {
            stage.bench.insert(2..=2);
            stage.bench.set("HANDLER__URL", "http://127.0.0.1:1/changes");
            stage.restart().await;
        }),
        cause: "127.0.0.1:1",
        end: act!(stage, {
            let url = stage.bench.receiver.url.clone();
            stage.bench.set("HANDLER__URL", &url);
            stage.restart().await;
        }),
        ..BACKING_OFF
    },
    Situation {
        name: "receiver does not answer in time",
        prepare: |bench| bench.set("HANDLER__TIMEOUT", "1s"),
        make: act!(stage, {
            stage.bench.insert(2..=2);
            stage.bench.receiver.delivery_time(Duration::from_secs(5));
        }),
        cause: "timed out",
        end: act!(stage, { stage.bench.receiver.delivery_time(Duration::ZERO) }),
        ..BACKING_OFF
    },
    Situation {
        name: "poison row, with `ON_FAILURE=park`",
        prepare: |bench| {
            bench.set("ON_FAILURE", "park");
            bench.set("PARK_RETRIES_MAX", "0");
        },
        make: act!(stage, {
            stage.bench.receiver.script(&[Answer::Reject(422, "no")]);
            stage.bench.insert(2..=2);
        }),
        severity: "warning",
        cause: "1 key is quarantined and not delivered",
        parked: 1,
        ended_by: "the row is fixed",
        command: Some("highwater quarantine redrive nightly --all"),
        ..HEALTHY
    },
    Situation {
        name: "breaker open",
        prepare: |bench| {
            bench.set("ON_FAILURE", "park");
            bench.set("PARK_RETRIES_MAX", "0");
            bench.set("BREAKER_ROWS", "1");
            retry_later(bench);
        },
        make: act!(stage, {
            rejects(stage, 422);
            stage.bench.insert(3..=4);
        }),
        parked: 1,
        cause: "the target may be rejecting every row",
        ended_by: "the target accepts rows again",
        after: act!(stage, {
            let redrive = "highwater quarantine redrive nightly --all --wait 10s";
            stage.shell(redrive).await.unwrap();
        }),
        ..REJECTED
    },
    Situation {
        name: "target answers 410",
        make: act!(stage, { rejects(stage, 410) }),
        cause: "paused by handler of `nightly`",
        end: act!(stage, { stage.bench.receiver.forget() }),
        ended_by: "the target is back",
        command: Some("highwater resume nightly"),
        ..STOPPED
    },
    Situation {
        name: "state document is not JSON",
        make: act!(stage, {
            let path = stage.bench.state_path();
            let copy = path.with_extension("copy");
            fs::copy(&path, copy).unwrap();
            fs::write(path, "{").unwrap();
            stage.restart().await;
        }),
        cause: "is not JSON",
        end: act!(stage, {
            let path = stage.bench.state_path();
            fs::rename(path.with_extension("copy"), path).unwrap();
        }),
        ended_by: "the copy is restored",
        ..FAILING
    },
    Situation {
        name: "state document deleted",
        make: act!(stage, {
            fs::remove_file(stage.bench.state_path()).unwrap();
            stage.restart().await;
        }),
        state: "vanished",
        label: "State lost",
        cause: "state document of `nightly` is gone",
        ended_by: "–",
        command: Some("highwater reset nightly to-beginning"),
        ..FAILING
    },
    Situation {
        name: "state store gone",
        make: act!(stage, {
            let state = stage.bench.folder.path().join("state");
            fs::rename(&state, stage.bench.folder.path().join("moved")).unwrap();
        }),
        cause: "state",
        unknown: Unknown::Store,
        end: act!(stage, {
            let state = stage.bench.folder.path().join("state");
            fs::rename(stage.bench.folder.path().join("moved"), state).unwrap();
        }),
        ended_by: "the store is back",
        command: None,
        ..FAILING
    },
    Situation {
        name: "process killed during a tick",
        prepare: |bench| bench.set("STATUS_INTERVAL", "60s"),
        make: act!(stage, {
            let arrived = stage.bench.receiver.batches().len() + 1;
            stage.bench.receiver.script(&[Answer::Hold]);
            stage.bench.insert(2..=2);
            stage.bench.receiver.arrived(arrived).await;
            stage.kill().await;
        }),
        cause: "stopped during a tick",
        ended_by: "–",
        after: act!(stage, { stage.start() }),
        ..FAILING
    },
    Situation {
        name: "paused",
        make: act!(stage, {
            stage.shell("highwater pause nightly --reason upgrade").await.unwrap();
        }),
        state: "paused",
        severity: "warning",
        label: "Paused",
        cause: "upgrade",
        ended_by: "–",
        command: Some("highwater resume nightly"),
        ..HEALTHY
    },
    Situation {
        name: "paused while a dead process holds the lease",
        make: act!(stage, {
            let arrived = stage.bench.receiver.batches().len() + 1;
            stage.bench.receiver.script(&[Answer::Hold]);
            stage.bench.insert(2..=2);
            stage.bench.receiver.arrived(arrived).await;
            stage.kill().await;
            stage.shell("highwater pause nightly --reason upgrade").await.unwrap();
        }),
        state: "paused",
        severity: "warning",
        label: "Paused",
        cause: "upgrade",
        ended_by: "–",
        command: Some("highwater resume nightly"),
        after: act!(stage, { stage.start() }),
        ..HEALTHY
    },
    Situation {
        name: "no process, rows due",
        make: act!(stage, {
            stage.kill().await;
            stage.bench.insert(2..=2);
            sleep(Duration::from_secs(4)).await;
        }),
        state: "silent",
        label: "Silent",
        cause: "no tick for",
        ended_by: "–",
        after: act!(stage, { stage.start() }),
        ..FAILING
    },
    Situation {
        name: "function turned off by its setting",
        make: act!(stage, {
            stage.bench.set_env("AzureWebJobs.nightly.Disabled", "true");
            stage.kill().await;
        }),
        state: "disabled",
        severity: "warning",
        label: "Disabled",
        cause: "AzureWebJobs.nightly.Disabled",
        end: act!(stage, {
            stage.bench.env.remove("AzureWebJobs.nightly.Disabled");
            stage.start();
        }),
        ended_by: "the setting is removed",
        ..HEALTHY
    },
    Situation {
        name: "folder of the function left out",
        make: act!(stage, {
            stage.kill().await;
            let root = stage.bench.folder.path().join("root");
            fs::rename(root.join("nightly"), root.join("../left-out")).unwrap();
        }),
        state: "disabled",
        severity: "warning",
        label: "Disabled",
        cause: "no function runs it",
        end: act!(stage, {
            let root = stage.bench.folder.path().join("root");
            fs::rename(root.join("../left-out"), root.join("nightly")).unwrap();
            stage.start();
        }),
        ended_by: "the folder is deployed",
        ..HEALTHY
    },
    Situation {
        name: "setting misspelt",
        make: act!(stage, {
            stage.kill().await;
            stage.bench.set("SOURCE__MODE", "rowversionn");
        }),
        // No process starts with it, so only commands answer.
        state: "failing",
        cause: "rowversionn",
        unknown: Unknown::Settings,
        end: act!(stage, {
            stage.bench.unset("SOURCE__MODE");
            stage.start();
        }),
        ended_by: "the spelling is corrected",
        command: None,
        ..FAILING
    },
    Situation {
        name: "lease held by a dead process, as of an edited clock",
        make: act!(stage, {
            stage.kill().await;
            edit(stage, |document| {
                document["lease"]["owner_id"] = json!("shop/dead-0");
                document["lease"]["released_at"] = serde_json::Value::Null;
                document["lease"]["expires_at"] = json!("2099-01-01T00:00:00Z");
                document["lease"]["heartbeat_at"] = json!("2099-01-01T00:00:00Z");
            });
            sleep(Duration::from_secs(8)).await;
        }),
        // A time in the document does not matter: only the service's clock does.
        cause: "instance shop/dead-0 stopped during a tick",
        // The next tick that has a row takes the lease over.
        end: act!(stage, { stage.bench.insert(2..=2) }),
        ended_by: "a row",
        after: act!(stage, { stage.start() }),
        ..FAILING
    },
];

/// Changes the stored document.
fn edit(stage: &Stage, change: impl FnOnce(&mut serde_json::Value)) {
    let path = stage.bench.state_path();
    let text = fs::read_to_string(&path).unwrap();
    let (header, document) = text.split_once('\n').unwrap();
    let mut document = serde_json::from_str(document).unwrap();
    change(&mut document);
    fs::write(path, format!("{header}\n{document}")).unwrap();
}

//! Stored pollers in every possible state, and a process over them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use highwater::clock::{Clock as _, SystemClock};
use highwater::cursor::{KeyId, KeyValues};
use highwater::quarantine::VERSION;
use serde_json::{Value as Json, json};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Untrusted texts, which must stay texts.
pub(crate) const HOSTILE: &str = "</script><img src=x onerror=document.title='owned'>\" onfocus='alert(1)' \
    \u{202e}gnp.exe\u{2066} & <b>bold</b>";

pub(crate) struct Folder {
    root: tempfile::TempDir,
    env: BTreeMap<String, String>,
    now: OffsetDateTime,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("state/shop")).unwrap();
        let mut new = Self { root: folder, env: BTreeMap::new(), now: SystemClock.now() };
        let state = new.root.path().to_str().unwrap().to_owned();
        new.set("HIGHWATER__APP", "shop");
        new.set("HIGHWATER__STATE__STORE", "file");
        new.set("HIGHWATER__STATE__FOLDER", &state);
        let root = new.root().to_str().unwrap().to_owned();
        new.set("FUNCTIONS_APP_ROOT_PATH", &root);
        new
    }

    fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// Adds a poller to the settings, with a function.
    fn poller(&mut self, name: &str, connection: &str, schedule: &str) {
        let upper = name.to_ascii_uppercase();
        self.set(&format!("SqlConnection_{upper}"), connection);
        for (setting, value) in [
            ("SOURCE__CONNECTION", format!("SqlConnection_{upper}")),
            ("SOURCE__TABLE", format!("dbo.{name}")),
            ("SOURCE__CURSOR", "version".to_owned()),
            ("SOURCE__KEY", "id".to_owned()),
            ("HANDLER__KIND", "stdout".to_owned()),
            ("JOURNAL", "full".to_owned()),
        ] {
            self.set(&format!("HIGHWATER__POLLERS__{upper}__{setting}"), &value);
        }
        let function = json!({ "bindings": [
            { "name": "timer", "type": "timerTrigger", "direction": "in", "schedule": schedule },
        ] });
        let path = self.root().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("function.json"), function.to_string()).unwrap();
    }

    /// One poller over a real table, whose timer is not due soon.
    pub(crate) fn with_one(connection: &str) -> Self {
        let mut folder = Self::new();
        folder.poller("orders", connection, "0 0 3 1 1 *");
        folder
    }

    /// Pollers in every state; nothing ticks.
    pub(crate) fn with_pollers() -> Self {
        let mut folder = Self::new();
        let nowhere = "Server=tcp:127.0.0.1,1;Database=shop;User ID=u;Password=p";
        for (name, schedule) in [
            ("orders", "*/15 * * * * *"),
            ("customers", "0 */5 * * * *"),
            ("invoices", "*/30 * * * * *"),
            ("stock_levels", "0 * * * * *"),
            ("shipments", "0 */2 * * * *"),
            ("price_list", "0 0 3 * * *"),
        ] {
            folder.poller(name, nowhere, schedule);
        }
        folder.fill();
        folder
    }

    fn fill(&self) {
        let batch = |attempt: u32, error: Option<&str>| {
            json!({ "batch_id": "b7f3a0c1d2e4", "after": cursor(41_870), "upto": cursor(42_870), "rows": 1000,
                "digest": "sha256:00", "attempt": attempt, "crashes": 1, "first_error": "HTTP 500: not now",
                "last_error": error, "started_at": self.ago(500), "first_failed_at": self.ago(480),
                "next_attempt_at": self.ago(-95) })
        };
        let running = json!({ "owner_id": "shop/0123456789ab-6a184cc42b0e4c5e9d0f3f6f1f0e7a11",
            "fencing_token": 1204, "ttl_seconds": 120, "acquired_at": self.ago(40) });
        let free = |token: u64| {
            json!({ "owner_id": "shop/0123456789ab-77", "fencing_token": token, "ttl_seconds": 120,
                "released_at": self.ago(60) })
        };
        self.store(
            "orders",
            9,
            &json!({ "lease": running, "activity": self.activity(16, |at| (at * at * 977) % 90_000), "recent": self.ticks(50, |at| {
            (if at == 31 { "handler_failed" } else { "tick_complete" }, (at * at * 37) % 900)
        }) }),
        );
        self.store(
            "customers",
            200,
            &json!({ "lease": free(88), "recent": self.ticks(12, |at| {
            ("tick_complete", if at % 4 == 0 { 3 } else { 1 })
        }), "observed": { "at": self.ago(5), "lag": 0.0, "positions": 0, "idle_ticks": 14 } }),
        );
        self.store("invoices", 25, &json!({ "lease": free(310), "in_flight": batch(4, Some(HOSTILE)),
            "last_failure": { "at": self.ago(20), "since": self.ago(480), "count": 4,
                "kind": "handler_failed", "error": HOSTILE },
            "recent": self.ticks(24, |at| {
                (if at > 18 { "handler_failed" } else { "tick_complete" }, if at > 18 { 0 } else { 400 })
            }) }));
        self.store(
            "stock_levels",
            4_000,
            &json!({ "lease": free(17), "paused": { "by": "ann@ops",
            "reason": "warehouse moves until Monday: #4711", "at": self.ago(3_900) },
            "recent": self.ticks(6, |_| ("tick_complete", 20)) }),
        );
        let dead =
            json!({ "owner_id": "shop/fedcba987654-dead", "fencing_token": 9, "ttl_seconds": 120 });
        let mut left = batch(0, None);
        left.as_object_mut().unwrap().remove("next_attempt_at");
        self.store("shipments", 900, &json!({ "lease": dead, "in_flight": left }));
        self.store(
            "old_returns",
            90_000,
            &json!({ "lease": free(3), "observed": { "at": self.ago(60),
            "positions": 4_200, "rows": 1_830, "idle_ticks": 0 } }),
        );
        fs::write(self.path("price_list"), "{}\n{").unwrap();
        self.park("invoices", 17, "retrying");
        self.park("invoices", 4_711, "quarantined");
        self.journal();
    }

    /// Stores a document written this many seconds ago.
    fn store(&self, name: &str, seconds: i64, fields: &Json) {
        let mut document = json!({
            "version": 1, "poller_name": name, "source_fingerprint": "sha256:0", "generation": 1_790_000_000_000_u64,
            "checkpoint": { "cursor": cursor(41_870), "last_successful_batch_id": "b7f3a0c1d2e3",
                "updated_at": self.ago(seconds), "metadata": { "row_count": 12 } },
        });
        for (field, value) in fields.as_object().unwrap() {
            document.as_object_mut().unwrap().insert(field.clone(), value.clone());
        }
        let header = json!({ "tag": 1, "last_modified": self.ago(seconds) });
        fs::write(self.path(name), format!("{header}\n{document}")).unwrap();
    }

    /// Parks the key of a row.
    fn park(&self, poller: &str, id: i64, state: &str) {
        let key: KeyValues = [("id".to_owned(), id.into())].into_iter().collect();
        let key_id = KeyId::of(&key);
        let event_id = format!("{id:032x}");
        let event = json!({ "id": event_id, "op": "upsert", "cursor": {
            "kind": "rowversion", "value": "0x00000000000007D1", "tiebreaker": { "id": id } }, "after": { "id": id } });
        let entry = json!({ "version": VERSION, "poller_name": poller, "key_id": key_id.as_str(), "event_id": event_id,
            "batch_id": "b7f3a0c1d2e3", "reason": "refused", "error": HOSTILE, "first_error": "HTTP 422", "attempts": 3,
            "crashes": 0, "versions": 2, "state": state, "retries": 5, "next_retry_at": self.ago(-90),
            "first_failed_at": self.ago(7_300), "quarantined_at": self.ago(60), "last_version_at": self.ago(60),
            "holds_back": true, "quarantined_by": "shop/0123456789ab-6a18", "generation": 1_790_000_000_000_u64,
            "fencing_token": 310, "events": [event] });
        let header = json!({ "tag": 1, "last_modified": self.ago(60) });
        let path = self.path(&format!("{poller}.quarantine.{key_id}"));
        fs::write(path, format!("{header}\n{entry}")).unwrap();
    }

    /// Returns half hours, newest last.
    fn activity(&self, number: i64, rows: impl Fn(i64) -> i64) -> Vec<Json> {
        let start = self.now.unix_timestamp() / 1_800 * 1_800;
        let period = |at: i64| {
            let at_time = OffsetDateTime::from_unix_timestamp(start - (number - 1 - at) * 1_800);
            json!({ "at": at_time.unwrap().format(&Rfc3339).unwrap(), "ticks": 30, "failed": i64::from(at == 5),
                "rows": rows(at), "lag_ms": 200 + rows(at) * 3, "duration_ms": 40 + rows(at) / 2 })
        };
        (0..number).map(period).collect()
    }

    /// Returns ticks, one every twelve seconds.
    fn ticks(&self, number: i64, each: impl Fn(i64) -> (&'static str, i64)) -> Vec<Json> {
        let tick = |at: i64| {
            let (outcome, rows) = each(at);
            json!({ "at": self.ago((number - at) * 12), "outcome": outcome, "rows": rows,
                "batches": i64::from(rows > 0), "duration_ms": 40 + rows, "idle_before": at % 3,
                "longest_ms": { "fetch": 12, "handler": 20 + rows / 2, "commit": 8, "lag": 900 + rows } })
        };
        (0..number).map(tick).collect()
    }

    fn journal(&self) {
        let folder = self.root.path().join("journal/shop/orders");
        fs::create_dir_all(&folder).unwrap();
        let day = self.now.date();
        let entry = |seq: i64, event: &str, details: Json| {
            let mut entry = json!({ "version": 1, "seq": seq, "at": self.ago(600 - seq * 20), "event": event,
                "poller_name": "orders", "owner_id": "shop/0123456789ab-6a18", "generation": 1_790_000_000_000_u64,
                "fencing_token": 1200 + seq });
            for (field, value) in details.as_object().unwrap() {
                entry.as_object_mut().unwrap().insert(field.clone(), value.clone());
            }
            entry.to_string()
        };
        let lines = [
            entry(1, "lease_acquired", json!({ "batch_id": "b7f3a0c1d2e3", "rows": 12 })),
            entry(1, "execution_started", json!({ "batch_id": "b7f3a0c1d2e3", "rows": 12 })),
            entry(2, "handler_failed", json!({ "batch_id": "b7f3a0c1d2e3", "error": HOSTILE })),
            entry(3, "paused", json!({ "by": HOSTILE, "reason": HOSTILE })),
            entry(4, "batch_complete", json!({ "batch_id": "b7f3a0c1d2e3", "rows": 12 })),
        ];
        fs::write(folder.join(format!("{day}.0000.ndjson")), lines.join("\n") + "\n").unwrap();
    }

    fn ago(&self, seconds: i64) -> String {
        (self.now - Duration::seconds(seconds)).format(&Rfc3339).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(format!("state/shop/{name}.json"))
    }

    /// Returns the folder of the functions.
    pub(crate) fn root(&self) -> PathBuf {
        self.root.path().join("root")
    }

    /// Returns the names of the stored pollers, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let files = fs::read_dir(self.root.path().join("state/shop")).unwrap();
        let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<String> = files.map(|file| stem(&file.unwrap().path())).collect();
        names.retain(|name| !name.contains(".quarantine."));
        names.sort();
        names
    }

    /// Returns a stored document.
    pub(crate) fn document(&self, name: &str) -> Json {
        let text = fs::read_to_string(self.path(name)).unwrap();
        serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
    }

    /// Returns a command of the program with these settings.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command.args(arguments).env_clear().envs(&self.env).env("USER", "ann");
        command
    }
}

fn cursor(id: u32) -> Json {
    json!({ "kind": "rowversion", "value": format!("0x{id:016x}"), "tiebreaker": { "id": id } })
}

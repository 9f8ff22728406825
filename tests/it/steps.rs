//! A chain of real handlers, from its settings to its targets, over real protocols.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use highwater::builder::App;
use highwater::error::chain;
use highwater::tick::{TickReport, TickRequest};
use highwater_devdb::{Engine as _, Reply, Value};

use crate::sql::World;
use crate::sql_handler::{COPIES, tables};

const ORDERS: &str = "CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, \
    amount decimal(9, 2) NULL, rv rowversion NOT NULL)";

/// Records its environment, and fails while a file exists.
const SCRIPT: &str =
    r#"cat >> "$0/lines"; env | grep ^HIGHWATER_ >> "$0/variables"; test ! -e "$0/down""#;

struct Setup {
    world: World,
    folder: tempfile::TempDir,
    vars: BTreeMap<String, String>,
}

impl Setup {
    async fn new(steps: &str) -> Self {
        let copies = COPIES.replace("own int", "rv rowversion NOT NULL, own int");
        let mirror = copies.replace("dbo.copies", "dbo.mirror");
        let world = World::start(&format!("{ORDERS}; {copies}; {mirror}; {}", tables())).await;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("state/state")).unwrap();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let vars = BTreeMap::from([
            ("HIGHWATER__APP".to_owned(), "app".to_owned()),
            ("HIGHWATER__STATE__STORE".to_owned(), "file".to_owned()),
            ("HIGHWATER__STATE__FOLDER".to_owned(), text(folder.path().join("state"))),
            ("Sql".to_owned(), world.server.connection_string()),
        ]);
        let mut setup = Self { world, folder, vars };
        let command = serde_json::json!(["sh", "-c", SCRIPT, setup.folder.path()]).to_string();
        for (name, value) in [
            ("SOURCE__CONNECTION", "Sql"),
            ("SOURCE__TABLE", "dbo.orders"),
            ("SOURCE__CURSOR", "rv"),
            ("SOURCE__KEY", "id"),
            ("RETRY_DELAY_MIN", "1ms"),
            ("RETRY_DELAY_MAX", "1ms"),
            ("HANDLER__KIND", "chain"),
            ("HANDLER__STEPS", steps),
            ("HANDLER__STEP__TELL__KIND", "exec"),
            ("HANDLER__STEP__TELL__COMMAND", &command),
        ] {
            setup.set(name, value);
        }
        for step in steps.split(',').filter(|step| *step != "tell") {
            let upper = step.to_ascii_uppercase();
            let table = format!("dbo.{step}");
            for (name, value) in
                [("KIND", "sql"), ("CONNECTION", "Sql"), ("TABLE", &table), ("LEDGER", "on")]
            {
                setup.set(&format!("HANDLER__STEP__{upper}__{name}"), value);
            }
        }
        if !steps.contains("tell") {
            setup.vars.retain(|name, _| !name.contains("__TELL__"));
        }
        setup
    }

    fn set(&mut self, name: &str, value: &str) {
        self.vars.insert(format!("HIGHWATER__POLLERS__ORDERS__{name}"), value.to_owned());
    }

    fn insert(&self, ids: impl Iterator<Item = i64>) {
        let rows = ids.map(|id| vec![Value::Int(id), Value::Text("new".to_owned())]);
        self.world.database.insert_rows("dbo.orders", &["id", "item"], rows).unwrap();
    }

    /// One tick of a fresh process.
    async fn tick(&self) -> TickReport {
        let app = App::build(&self.vars).unwrap_or_else(|error| panic!("{}", chain(&error)));
        app.pollers["orders"].tick(&TickRequest::default()).await
    }

    fn ids(&self, table: &str) -> Vec<i64> {
        let mut session = self.world.database.connect("Highwater").unwrap();
        let replies = session.run(&format!("SELECT id FROM {table} ORDER BY id"), &[]);
        let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
        let id =
            |row: Vec<Value>| if let [Value::Int(id)] = row[..] { id } else { panic!("{row:?}") };
        rows.into_iter().map(id).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Values of a variable that the process received, once per call.
    fn values(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.file("variables")).unwrap();
        let prefix = format!("{name}=");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_rejected_by_one_target_continues_at_that_target() {
    let setup = Setup::new("copies,tell").await;
    setup.insert(1..=3);
    fs::write(setup.file("down"), "").unwrap();
    let error = chain(&setup.tick().await.result.unwrap_err());
    assert!(error.contains("step `tell`: "), "{error}");
    assert_eq!(setup.ids("dbo.copies"), [1, 2, 3]);
    // A second call of the first step would have restored the row.
    setup.world.database.execute("DELETE FROM dbo.copies WHERE id = 2").unwrap();
    fs::remove_file(setup.file("down")).unwrap();
    assert_eq!(setup.tick().await.rows, 3);
    assert_eq!(setup.ids("dbo.copies"), [1, 3]);
    let lines = fs::read_to_string(setup.file("lines")).unwrap();
    assert_eq!(lines.lines().count(), 6);
    let attempts = setup.values("HIGHWATER_ATTEMPT");
    assert_eq!(attempts, ["1", "2"]);
    for name in ["HIGHWATER_STARTED_AT", "HIGHWATER_BATCH_ID", "HIGHWATER_OF_BATCH"] {
        let values = setup.values(name);
        assert!(values.len() == 2 && values[0] == values[1], "{name}: {values:?}");
    }
    assert_ne!(setup.values("HIGHWATER_BATCH_ID"), setup.values("HIGHWATER_OF_BATCH"));
    assert_eq!(setup.values("HIGHWATER_STEP"), ["tell", "tell"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tables_of_one_database_can_share_fence_and_ledger() {
    let setup = Setup::new("copies,mirror").await;
    for ids in [1..=3, 4..=5] {
        setup.insert(ids);
        let report = setup.tick().await;
        assert!(report.result.is_ok(), "{report:?}");
    }
    for table in ["dbo.copies", "dbo.mirror"] {
        assert_eq!(setup.ids(table), [1, 2, 3, 4, 5], "{table}");
    }
}

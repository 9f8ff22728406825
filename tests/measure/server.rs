//! The embedded SQL Server as a separate process that records its statements.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use highwater_devdb::{Database, Engine, Options, Parameter, Reply, Server, Session, SqlError};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::child::tell;
use crate::job::Texts;
use crate::tables::{Tables, fill};

/// How the text of a fetch is recognized.
const FETCH: &str = "SELECT TOP (@P1)";

type Seen = Arc<Mutex<BTreeSet<String>>>;

/// Fills the tables, reports the connection string, and answers questions until its input ends.
pub(crate) async fn serve(tables: &Tables) {
    let database = Database::in_memory().unwrap();
    fill(&database, tables);
    let seen = Seen::default();
    let engine = Listening { database, seen: Arc::clone(&seen) };
    let server = Server::start(engine, Options::default()).await.unwrap();
    println!("{}", server.connection_string());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        match line.split_once(' ') {
            None => tell(&server.faults().statements()),
            Some((_, table)) => tell(&texts(&seen.lock().unwrap(), table)),
        }
    }
}

/// Selects the statements that read a table from its beginning, and after a row.
fn texts(seen: &BTreeSet<String>, table: &str) -> Texts {
    let from = format!("FROM {table} AS t");
    let of_table: Vec<&String> = seen.iter().filter(|text| text.contains(&from)).collect();
    let find = |is_next: bool| {
        let fits = |text: &&&String| text.contains("@P3") == is_next && !text.contains("@P4");
        let found = of_table.iter().find(fits);
        (**found.unwrap_or_else(|| panic!("no such statement among {seen:#?}"))).clone()
    };
    Texts { first: find(false), next: find(true) }
}

#[derive(Debug)]
struct Listening {
    database: Database,
    seen: Seen,
}

impl Engine for Listening {
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError> {
        let inner = self.database.connect(database)?;
        Ok(Box::new(Heard { inner, seen: Arc::clone(&self.seen) }))
    }
}

struct Heard {
    inner: Box<dyn Session>,
    seen: Seen,
}

impl Session for Heard {
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply> {
        if sql.contains(FETCH) {
            let mut seen = self.seen.lock().unwrap();
            if !seen.contains(sql) {
                seen.insert(sql.to_owned());
            }
        }
        self.inner.run(sql, parameters)
    }

    fn begin(&mut self) -> Result<(), SqlError> {
        self.inner.begin()
    }

    fn commit(&mut self) -> Result<(), SqlError> {
        self.inner.commit()
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        self.inner.rollback()
    }

    fn transaction(&self) -> Option<u64> {
        self.inner.transaction()
    }

    fn rolled_back(&self) -> bool {
        self.inner.rolled_back()
    }
}

//! Checks the documented statements of the embedded server: every line of `docs/contributing/devdb.md` runs,
//! every near miss is the error given after it, and every response is that of SQL Server.

use std::fs;

use highwater_devdb::{Database, Engine as _, Reply, Value};

use crate::any_server::AnyServer;

/// The lines of the page's blocks with this fence.
fn lines(fence: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contributing/devdb.md");
    let page = fs::read_to_string(page).unwrap();
    let (mut found, mut inside) = (Vec::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside && line == fence;
        } else if inside {
            found.push(line.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn every_statement_of_the_list_runs() {
    let server = AnyServer::start("SELECT 1").await;
    let mut session = server.session().await;
    let lines = lines("```sql");
    assert!(lines.len() > 50, "{} statements", lines.len());
    let mut failed = Vec::new();
    for line in lines {
        if let Err(error) = session.try_run(&line).await {
            failed.push(format!("{line}: {error}"));
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

/// Tables to query or to miss, in a database called `master`.
fn database() -> Database {
    let database = Database::in_memory().unwrap();
    database.execute("CREATE TABLE dbo.R (id int NOT NULL, g nvarchar(9))").unwrap();
    database.execute("INSERT INTO dbo.R VALUES (1, N'a'), (2, N'b')").unwrap();
    let kept =
        "CREATE TABLE dbo.K (k nvarchar(9) COLLATE Latin1_General_BIN2 NOT NULL PRIMARY KEY)";
    database.execute(kept).unwrap();
    database.execute("INSERT INTO dbo.K VALUES (N'a')").unwrap();
    database
}

/// The replies to each line of the page's blocks with this fence, with the text after the line.
fn replies(fence: &str) -> Vec<(String, String, Vec<Reply>)> {
    let database = database();
    let lines = lines(fence);
    assert!(lines.len() > 30, "{} lines", lines.len());
    let run = |line: String| {
        let (sql, expected) = line.rsplit_once(" -- ").unwrap();
        let replies = database.connect("master").unwrap().run(sql, &[]);
        (sql.to_owned(), expected.to_owned(), replies)
    };
    lines.into_iter().map(run).collect()
}

#[test]
fn every_near_miss_is_an_error_instead_of_an_empty_result() {
    let mut wrong = Vec::new();
    for (sql, number, replies) in replies("```sql refused") {
        let actual = replies.iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error.number),
            Reply::Rows { .. } | Reply::Done(_) => None,
        });
        if actual != number.parse().ok() {
            wrong.push(format!("{sql}\n    gives {actual:?}, not {number}: {replies:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_response_matches_sql_server() {
    let mut wrong = Vec::new();
    for (sql, expected, replies) in replies("```sql answered") {
        let actual = match replies.as_slice() {
            [Reply::Rows { rows, .. }] => rows.first().and_then(|row| row.first()).map(shown),
            _ => None,
        };
        if actual.as_ref() != Some(&expected) {
            wrong.push(format!("{sql}\n    gives {actual:?}, not {expected}: {replies:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Decimal(number, scale) => {
            let digits = i32::from(*scale);
            (f64::from(i32::try_from(*number).unwrap()) / 10_f64.powi(digits)).to_string()
        }
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => {
            bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
        }
        Value::Bool(_)
        | Value::Float(_)
        | Value::Guid(_)
        | Value::Date(_)
        | Value::Time(_)
        | Value::DateTime2(..)
        | Value::DateTimeOffset(..) => format!("{value:?}"),
    }
}

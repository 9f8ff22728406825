//! Holds the written list of what the embedded server understands: every line of `docs/devdb.md` runs,
//! and every near miss is the error that stands behind it.

use std::fs;

use highwater::devdb::{Database, Engine as _, Reply};

use crate::any_server::AnyServer;

/// The lines of the page's blocks that begin so.
fn lines(fence: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/devdb.md");
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

#[test]
fn every_near_miss_is_an_error_and_no_empty_result() {
    let database = Database::in_memory().unwrap();
    database.execute("CREATE TABLE dbo.R (id int NOT NULL, g nvarchar(9))").unwrap();
    database.execute("INSERT INTO dbo.R VALUES (1, N'a'), (2, N'b')").unwrap();
    let lines = lines("```sql refused");
    assert!(lines.len() > 50, "{} near misses", lines.len());
    let mut wrong = Vec::new();
    for line in &lines {
        let (sql, number) = line.rsplit_once(" -- ").unwrap();
        let replies = database.connect("Shop").unwrap().run(sql, &[]);
        let told = replies.iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error.number),
            Reply::Rows { .. } | Reply::Affected(_) | Reply::Done => None,
        });
        if told != number.parse().ok() {
            wrong.push(format!("{sql}\n    gives {told:?}, not {number}: {replies:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

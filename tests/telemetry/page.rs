//! `docs/reference/telemetry.md`: its table of metrics matches the code.

use std::collections::BTreeSet;
use std::fs;

use crate::child::file;

/// A row of the table.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) unit: String,
}

/// Returns the rows of the table of metrics.
pub(crate) fn rows() -> Vec<Row> {
    let page = fs::read_to_string(file("docs/reference/telemetry.md")).unwrap();
    let table = page.split("## Metrics").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let plain = |at: usize| cells[at].trim_matches('`').to_owned();
        Row { name: plain(0), kind: plain(1), unit: plain(2) }
    })
    .collect()
}

#[test]
fn the_page_lists_the_instruments_of_the_code_and_no_others() {
    let code = [
        "src/engine/metrics.rs",
        "src/engine/metrics/database.rs",
        "src/engine/metrics/functions.rs",
        "src/engine/metrics/backlog.rs",
        "src/engine/metrics/states.rs",
    ];
    let code: String = code.iter().map(|path| fs::read_to_string(file(path)).unwrap()).collect();
    let texts = code.split('"').skip(1).step_by(2);
    let is_name = |text: &&str| {
        text.starts_with("highwater.")
            || text.starts_with("db.client.")
            || (text.starts_with("faas.") && *text != "faas.trigger")
            || ["_total", "_seconds", "_timestamp"].iter().any(|end| text.ends_with(end))
    };
    let in_code: BTreeSet<String> = texts.filter(is_name).map(str::to_owned).collect();
    let on_page: BTreeSet<String> = rows().into_iter().map(|row| row.name).collect();
    assert_eq!(on_page, in_code);
}

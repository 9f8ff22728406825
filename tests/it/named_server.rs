//! The tests run on the server named in the environment: here the embedded one, as a separate process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::any_server::{VARIABLE, named_server, say};

/// Tests that run again on the other server; the whole suite would take too long.
const AGAIN: [&str; 14] = [
    "writers::late::",
    "statements::every_statement",
    "source::an_updated_row",
    "source::a_late_commit_is_not_skipped",
    "source_deletes::changes_distinguish",
    "types::each_value_has_its_documented_form",
    "doctor::",
    "limits::",
    "source_auto::a_table_without_a_usable",
    "source_integer::rows_committed_late",
    "source_range::",
    "source_start::rows_committed_after",
    "source_tracking::existing_rows",
    "source_variant::a_row_is_found_by",
];

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_tests_run_on_the_configured_server() {
    if named_server().is_some() {
        return say(&format!("skipped: {VARIABLE} is set"));
    }
    let mut server = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("devdb")
        .stdout(Stdio::piped())
        .spawn()
        .map(Process)
        .unwrap();
    let mut connection = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut connection).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(AGAIN)
        .env(VARIABLE, connection.trim())
        .output()
        .unwrap();
    let stdout_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout_text.contains("45 passed"), "{stdout_text}");
}

#[test]
fn an_unreachable_server_fails_the_tests() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(AGAIN)
        .env(VARIABLE, "Server=tcp:127.0.0.1,1;User ID=sa;Password=no;TrustServerCertificate=true")
        .output()
        .unwrap();
    let stdout_text = String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && stdout_text.contains("Connection refused"),
        "{stdout_text}"
    );
}

//! That the tests run on the server that the environment names: here the embedded one, as a process
//! of its own that knows nothing of them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::any_server::{VARIABLE, named_server, say};

/// Tests that run again, on the other server; the whole suite would take too long.
const AGAIN: [&str; 14] = [
    "writers::late::",
    "statements::every_statement",
    "source::an_updated_row",
    "source::a_late_commit_is_not_passed_by",
    "source_deletes::changes_tell",
    "types::each_value_has_its_form",
    "doctor::",
    "limits::",
    "source_auto::a_table_with_nothing",
    "source_integer::rows_that_commit_late",
    "source_range::",
    "source_start::what_was_written_before",
    "source_tracking::the_tables_rows",
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
fn the_tests_run_on_the_server_that_is_named() {
    if named_server().is_some() {
        return say(&format!("skipped: needs {VARIABLE} not to be set, and it is"));
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
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("43 passed"), "{told}");
}

#[test]
fn a_server_that_cannot_be_reached_fails_the_tests() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(AGAIN)
        .env(VARIABLE, "Server=tcp:127.0.0.1,1;User ID=sa;Password=no;TrustServerCertificate=true")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && told.contains("Connection refused"), "{told}");
}

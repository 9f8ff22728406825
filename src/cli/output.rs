//! Output of commands: data goes to standard output in the requested format, everything else to standard
//! error, and the exit code says what to do next.
//!
//! Only help is coloured, on a terminal and without `NO_COLOR`. A closed pipe is not a failure: its reader has seen enough.

use std::io;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
pub(crate) use highwater::exit::{
    Exit, Failed, end, print_message, print_message_nonblocking, write_line,
};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use highwater::printable::{printable, printable_json, printable_line};
use highwater::redaction::{redact, redact_json};
use highwater::suggestion::{COMMAND, with_settings, with_settings_in_json};

/// Widest cell of a table; longer ones are cut. The JSON formats have the full text.
const CELL_CHARS_MAX: usize = 100;

/// Format of a command's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Human-readable columns.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Jsonl,
}

/// The `--output` option of all commands with data.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct OutputOption {
    /// Output format: a table, one JSON document, or one JSON object per line.
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    pub(super) output: Output,
}

/// Prints the error of a command, if any, and returns its exit code. With a JSON format, the error is a JSON object on a
/// line, the last one of standard error.
pub(super) fn end_as(form: Output, ended: Result<Exit, Failed>) -> ExitCode {
    match ended {
        Err(Failed { exit, text }) if form != Output::Table => {
            let error = json!({ "error": text, "exit_code": exit.code() }).to_string();
            write_line(&mut io::stderr(), &clean(&with_settings_in_json(&error)));
            exit.into()
        }
        ended => end(ended),
    }
}

/// An item of a list that a command prints.
pub(super) trait Record: Serialize {
    /// Names of the columns.
    const COLUMNS: &'static [&'static str];

    /// Returns a cell for each column.
    fn cells(&self) -> Vec<String>;
}

impl Output {
    /// Formats `records`, without a final newline; empty if there are no lines.
    pub(super) fn list<R: Record>(self, records: &[R]) -> String {
        match self {
            Self::Table => table(R::COLUMNS, records.iter().map(R::cells)),
            Self::Json => pretty(&records),
            Self::Jsonl => records.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Formats one value; `text` is the human-readable form.
    pub(super) fn one<T: Serialize>(self, thing: &T, text: impl FnOnce() -> String) -> String {
        match self {
            Self::Table => text(),
            Self::Json => pretty(thing),
            Self::Jsonl => line(thing),
        }
    }

    /// Formats the results for the partitions of a poller: a list, or a single value for an unpartitioned poller
    /// (`is_whole`); empty without results. `text` is the human-readable form of each.
    pub(super) fn parts<T: Serialize>(
        self,
        things: &[T],
        is_whole: bool,
        text: impl Fn(&T) -> String,
    ) -> String {
        let lines =
            |of: &dyn Fn(&T) -> String| things.iter().map(of).collect::<Vec<_>>().join("\n");
        match (self, things) {
            (_, []) => String::new(),
            (Self::Json, [thing]) if is_whole => pretty(thing),
            (Self::Json, _) => pretty(things),
            (Self::Jsonl, _) => lines(&line),
            (Self::Table, _) => lines(&text),
        }
    }
}

fn pretty<T: Serialize + ?Sized>(thing: &T) -> String {
    serde_json::to_string_pretty(thing).expect("what commands print has only string keys")
}

fn line<T: Serialize>(thing: &T) -> String {
    serde_json::to_string(thing).expect("what commands print has only string keys")
}

/// Formats rows as aligned columns; the last column is not padded.
pub(super) fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = columns.iter().map(|name| name.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.map(fitted)).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns cells that fit on one line: some contain text of a target.
fn fitted(cells: Vec<String>) -> Vec<String> {
    let cell = |text: String| {
        let plain = printable_line(&redact(&text)).into_owned();
        // A cut command would not run.
        if plain.chars().count() <= CELL_CHARS_MAX || plain.contains(COMMAND) {
            return plain;
        }
        let cut: String = plain.chars().take(CELL_CHARS_MAX - 1).collect();
        format!("{cut}…")
    };
    cells.into_iter().map(cell).collect()
}

/// Formats a time as in state documents.
pub(super) fn time_text(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

/// Prints a command's data, without secrets; prints nothing if it is empty.
pub(super) fn print_text(text: &str) {
    print_rows(&if is_json(text) { with_settings_in_json(text) } else { with_settings(text) });
}

/// Prints data that contains rows or documents, without completing commands.
pub(super) fn print_rows(text: &str) {
    if !text.is_empty() {
        write_line(&mut io::stdout(), &clean(text));
    }
}

/// Draws on a terminal: lines that were cleaned, with the codes that place them.
pub(super) fn print_drawing(text: &str) {
    write_line(&mut io::stdout(), &redact(text));
}

/// Prints data with secrets that the user has asked for.
pub(super) fn print_revealed(text: &str) {
    if !text.is_empty() {
        let text = if is_json(text) { printable_json(text) } else { printable(text) };
        write_line(&mut io::stdout(), &text);
    }
}

/// Removes secrets, and characters that could change a terminal, from a command's data; JSON stays valid JSON.
fn clean(text: &str) -> String {
    if is_json(text) {
        printable_json(&redact_json(text)).into_owned()
    } else {
        printable(&redact(text)).into_owned()
    }
}

/// Whether a command's data is a JSON document, or one per line.
fn is_json(text: &str) -> bool {
    let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    text.starts_with(['{', '[']) && (is_json(text) || text.lines().all(is_json))
}

/// Prints stored data unchanged, so that the copy can be restored.
pub(super) fn print_bytes(bytes: &[u8]) {
    let mut stream = io::stdout();
    // An error cannot be reported: the output is closed.
    io::Write::write_all(&mut stream, bytes)
        .and_then(|()| io::Write::flush(&mut stream))
        .unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Ship {
        name: &'static str,
        guns: u32,
    }

    impl Record for Ship {
        const COLUMNS: &'static [&'static str] = &["name", "guns"];

        fn cells(&self) -> Vec<String> {
            vec![self.name.to_owned(), self.guns.to_string()]
        }
    }

    const SHIPS: [Ship; 2] =
        [Ship { name: "Été", guns: 74 }, Ship { name: "Ajax\u{1b}[2J", guns: 6 }];

    #[test]
    fn each_form_has_every_record() {
        expect_test::expect![[r#"
            NAME      GUNS
            Été       74
            Ajax [2J  6"#]]
        .assert_eq(&Output::Table.list(&SHIPS));
        expect_test::expect![[r#"
            {"name":"Été","guns":74}
            {"name":"Ajax\u001b[2J","guns":6}"#]]
        .assert_eq(&Output::Jsonl.list(&SHIPS));
        let json: serde_json::Value = serde_json::from_str(&Output::Json.list(&SHIPS)).unwrap();
        assert_eq!(json[1]["guns"], 6);
    }

    #[test]
    fn an_empty_list_has_no_lines_and_a_table_keeps_its_header() {
        let none: [Ship; 0] = [];
        assert_eq!(Output::Json.list(&none), "[]");
        assert_eq!(Output::Jsonl.list(&none), "");
        assert_eq!(Output::Table.list(&none), "NAME  GUNS");
    }

    #[test]
    fn partitions_are_a_list_and_an_unpartitioned_poller_is_not() {
        let form = |output: Output, ships: &[Ship], is_whole| {
            output.parts(ships, is_whole, |ship| ship.name.to_owned())
        };
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        assert_eq!(json(form(Output::Json, &SHIPS, false))[1]["guns"], 6);
        assert_eq!(json(form(Output::Json, &SHIPS[1..], false))[0]["guns"], 6);
        assert_eq!(json(form(Output::Json, &SHIPS[1..], true))["guns"], 6);
        assert_eq!(form(Output::Jsonl, &SHIPS, false).lines().count(), 2);
        assert!(form(Output::Table, &SHIPS, false).starts_with("Été\nAjax"));
        assert_eq!(form(Output::Json, &[], true), "", "failures are reported elsewhere");
    }

    #[test]
    fn a_cell_is_one_line_of_limited_length() {
        let long = "x".repeat(CELL_CHARS_MAX + 1);
        let cells = fitted(vec!["two\nlines".to_owned(), long]);
        assert_eq!(cells[0], "two lines");
        assert_eq!(cells[1].chars().count(), CELL_CHARS_MAX);
        assert!(cells[1].ends_with('…'));
        let fix = format!("{} `highwater status`", "x".repeat(CELL_CHARS_MAX));
        assert_eq!(fitted(vec![fix.clone()]), [fix], "a command is not cut");
    }
}

//! Where a command's words go: data to standard output in the form that was asked for, everything
//! else to standard error, and the exit code that says what to do next.
//!
//! Nothing is coloured, on a terminal or off it. A reader that has closed its end of a pipe has seen
//! what it wanted, so that is no failure.

use std::borrow::Cow;
use std::io;

use clap::{Args, ValueEnum};
pub(crate) use highwater::exit::{Exit, Failed, end, tell, tell_aside, write_line};
use serde::Serialize;
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use highwater::redaction::{redact, redact_json};
use highwater::suggestion::{COMMAND, with_settings, with_settings_in_json};

/// Widest cell of a table; a longer one is cut, since the JSON forms have it whole.
const CELL_CHARS_MAX: usize = 100;

/// The form of a command's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Columns, for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object on each line.
    Jsonl,
}

/// The option that all commands with data have.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct OutputOption {
    /// Form of the data: for people, one JSON document, or one JSON object a line.
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    pub(super) output: Output,
}

/// One of many things that a command prints.
pub(super) trait Record: Serialize {
    /// Names of the columns.
    const COLUMNS: &'static [&'static str];

    /// Returns a cell for each column.
    fn cells(&self) -> Vec<String>;
}

impl Output {
    /// Returns `records` in this form, without the last line's end; nothing where there is no line.
    pub(super) fn list<R: Record>(self, records: &[R]) -> String {
        match self {
            Self::Table => table(R::COLUMNS, records.iter().map(R::cells)),
            Self::Json => pretty(&records),
            Self::Jsonl => records.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Returns one thing in this form; `text` is what people read.
    pub(super) fn one<T: Serialize>(self, thing: &T, text: impl FnOnce() -> String) -> String {
        match self {
            Self::Table => text(),
            Self::Json => pretty(thing),
            Self::Jsonl => line(thing),
        }
    }

    /// Returns what became of the parts of a poller in this form: one thing where it `is_whole`, a list where it is
    /// divided; nothing where nothing became of any. `text` is what people read of each.
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

/// Returns lines of columns; the last one is as wide as it comes.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = columns.iter().map(|name| name.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.map(printable)).collect();
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

/// Returns cells that fit on one line and cannot command a terminal: some hold a target's own words.
fn printable(cells: Vec<String>) -> Vec<String> {
    let cell = |text: String| {
        let plain = plain(&redact(&text));
        // A command that is cut would not run.
        if plain.chars().count() <= CELL_CHARS_MAX || plain.contains(COMMAND) {
            return plain;
        }
        let cut: String = plain.chars().take(CELL_CHARS_MAX - 1).collect();
        format!("{cut}…")
    };
    cells.into_iter().map(cell).collect()
}

/// Returns a text that cannot command a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a time as state documents have it.
pub(super) fn time_text(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

/// Prints a command's data, without secrets; nothing at all where there is none.
pub(super) fn say(text: &str) {
    say_rows(&if is_json(text) { with_settings_in_json(text) } else { with_settings(text) });
}

/// Prints data with rows or documents in it, without secrets and otherwise as they are.
pub(super) fn say_rows(text: &str) {
    if !text.is_empty() {
        write_line(&mut io::stdout(), &clean(text));
    }
}

/// Returns a command's data without secrets; what is JSON stays JSON.
fn clean(text: &str) -> Cow<'_, str> {
    if is_json(text) { redact_json(text) } else { redact(text) }
}

/// Whether a command's data is a JSON document, or one on each line.
fn is_json(text: &str) -> bool {
    let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    text.starts_with(['{', '[']) && (is_json(text) || text.lines().all(is_json))
}

/// Prints data as it is stored: a copy that differs could not be restored.
pub(super) fn say_bytes(bytes: &[u8]) {
    let mut stream = io::stdout();
    // Nobody is left who could be told of an error.
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
    fn nothing_is_an_empty_list_or_no_line_and_a_table_has_its_head() {
        let none: [Ship; 0] = [];
        assert_eq!(Output::Json.list(&none), "[]");
        assert_eq!(Output::Jsonl.list(&none), "");
        assert_eq!(Output::Table.list(&none), "NAME  GUNS");
    }

    #[test]
    fn parts_are_one_document_and_a_whole_poller_is_no_list() {
        let form = |output: Output, ships: &[Ship], is_whole| {
            output.parts(ships, is_whole, |ship| ship.name.to_owned())
        };
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        assert_eq!(json(form(Output::Json, &SHIPS, false))[1]["guns"], 6);
        assert_eq!(json(form(Output::Json, &SHIPS[1..], false))[0]["guns"], 6);
        assert_eq!(json(form(Output::Json, &SHIPS[1..], true))["guns"], 6);
        assert_eq!(form(Output::Jsonl, &SHIPS, false).lines().count(), 2);
        assert!(form(Output::Table, &SHIPS, false).starts_with("Été\nAjax"));
        assert_eq!(form(Output::Json, &[], true), "", "what failed is told elsewhere");
    }

    #[test]
    fn a_cell_stays_on_its_line_and_has_an_end() {
        let long = "x".repeat(CELL_CHARS_MAX + 1);
        let cells = printable(vec!["two\nlines".to_owned(), long]);
        assert_eq!(cells[0], "two lines");
        assert_eq!(cells[1].chars().count(), CELL_CHARS_MAX);
        assert!(cells[1].ends_with('…'));
        let fix = format!("{} `highwater status`", "x".repeat(CELL_CHARS_MAX));
        assert_eq!(printable(vec![fix.clone()]), [fix], "a command is printed whole");
    }
}

//! Where a command's words go: data to standard output in the form that was asked for, everything
//! else to standard error, and the exit code that says what to do next.
//!
//! Nothing is coloured, on a terminal or off it. A reader that has closed its end of a pipe has seen
//! what it wanted, so that is no failure.

use std::borrow::Cow;
use std::io;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::app::BuildError;
use crate::error::{ErrorKind, chain};
use crate::lease::LeaseError;
use crate::poller::{LoadError, TickError};
use crate::redaction::{redact, redact_json};
use crate::state::{FormatError, Refusal, StoreError};
use crate::suggestion::{COMMAND, with_settings, with_settings_in_json};
use crate::telemetry::{flush_lines, write_stderr};

/// Widest cell of a table; a longer one is cut, since the JSON forms have it whole.
const CELL_CHARS_MAX: usize = 100;

/// What a command's exit code tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// It is done, or there was nothing to do.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// It was called wrongly, or a confirmation is missing.
    Usage = 2,
    /// The settings are wrong.
    Settings = 3,
    /// Something refuses for want of rights.
    Denied = 4,
    /// Somebody else holds the lease, or was faster.
    Conflict = 5,
    /// Something that is needed cannot be reached.
    Unavailable = 6,
    /// The handler did not take what it was given.
    NotTaken = 7,
    /// SIGHUP, such as by a closed terminal, came before it was done: 128 and the signal's number, as shells have it.
    HungUp = 129,
    /// SIGINT, such as by Ctrl-C, came before it was done.
    Interrupted = 130,
    /// SIGTERM came before it was done.
    Terminated = 143,
    /// The Functions host is to start the process again, and not to count an error. It never starts again a process that
    /// exited with 0 (seen in host 4.1037).
    Restart = 200,
}

impl Exit {
    /// Returns the number.
    #[expect(clippy::as_conversions, reason = "the numbers stand beside the names")]
    pub(super) fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command ends without having done what it was asked to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// What the caller is told by number.
    pub(super) exit: Exit,
    /// What the reader is told.
    pub(super) text: String,
}

impl Failed {
    /// Returns an end of this kind.
    pub(super) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }
}

impl From<BuildError> for Failed {
    fn from(error: BuildError) -> Self {
        Self::new(Exit::Settings, chain(&error))
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::new(exit_of_store(&error), chain(&error))
    }
}

impl From<FormatError> for Failed {
    fn from(error: FormatError) -> Self {
        Self::new(Exit::Failed, chain(&error))
    }
}

impl From<TickError> for Failed {
    fn from(error: TickError) -> Self {
        Self::new(exit_of(&error), chain(&error))
    }
}

fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Conflict { .. } => Exit::Conflict,
        StoreError::Refused { .. } => Exit::Denied,
        StoreError::Unreachable { .. } | StoreError::Unknown { .. } => Exit::Unavailable,
    }
}

fn exit_of(error: &TickError) -> Exit {
    match error {
        TickError::Load(LoadError::Store(error))
        | TickError::Acquire(LeaseError::Store(error))
        | TickError::Commit(LeaseError::Store(error)) => exit_of_store(error),
        TickError::Acquire(LeaseError::Refused(Refusal::Held { .. }))
        | TickError::LeaseLost(_)
        | TickError::Commit(_) => Exit::Conflict,
        TickError::Fetch(error) => match error.kind {
            ErrorKind::Transient => Exit::Unavailable,
            ErrorKind::Configuration => Exit::Settings,
            ErrorKind::Data | ErrorKind::Internal => Exit::Failed,
        },
        TickError::Handler(_)
        | TickError::FenceAhead { .. }
        | TickError::OutOfTime
        | TickError::Aborted => Exit::NotTaken,
        TickError::Load(LoadError::Format(_))
        | TickError::Acquire(_)
        | TickError::Fingerprint { .. }
        | TickError::Divided { .. }
        | TickError::StateVanished { .. }
        | TickError::NotStarted { .. }
        | TickError::FirstRunElsewhere { .. }
        | TickError::DividedElsewhere { .. }
        | TickError::Normalize(_) => Exit::Failed,
    }
}

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

/// Prints what is not data: warnings, questions.
pub(super) fn tell(text: &str) {
    flush_lines();
    write_line(&mut io::stderr(), &redact(&with_settings(text)));
}

/// As [`tell`], for what is said while a lease is held: a reader that stands still delays nothing.
pub(super) fn tell_aside(text: &str) {
    write_stderr(&format!("{}\n", redact(&with_settings(text))));
}

/// Prints why a command ends, and returns its exit code.
pub(super) fn end(ended: Result<Exit, Failed>) -> ExitCode {
    match ended {
        Ok(exit) => exit.into(),
        Err(Failed { exit, text }) => {
            tell(&format!("highwater: {text}"));
            exit.into()
        }
    }
}

fn write_line(stream: &mut impl io::Write, text: &str) {
    // Nobody is left who could be told of an error.
    let mut write = || writeln!(stream, "{text}").and_then(|()| stream.flush());
    write().unwrap_or_default();
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

    #[test]
    fn an_exit_code_tells_what_to_do_next() {
        let unreachable = || StoreError::Unreachable { key: "k".into(), reason: "r".into() };
        let held = Refusal::Held { owner_id: "other".into() };
        for (error, expected) in [
            (TickError::Load(LoadError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Store(unreachable())), Exit::Unavailable),
            (TickError::Acquire(LeaseError::Refused(held)), Exit::Conflict),
            (TickError::NotStarted { poller: "p".into() }, Exit::Failed),
            (TickError::OutOfTime, Exit::NotTaken),
        ] {
            assert_eq!(exit_of(&error), expected, "{error}");
        }
        let denied = StoreError::Refused { key: "k".into(), reason: "r".into() };
        assert_eq!(exit_of_store(&denied), Exit::Denied);
    }
}

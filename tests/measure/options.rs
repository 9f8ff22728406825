//! The command-line options.

use std::path::PathBuf;

use crate::tables::Tables;

/// The size of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A little of everything, as a smoke test.
    Smoke,
    /// Some ten minutes.
    Short,
    /// A million rows and more.
    Full,
    /// The load alone, for this many seconds.
    Load(u64),
}

/// A table of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Program,
    Limits,
    Python,
    Idle,
    Latency,
    Memory,
    Overlap,
}

impl Section {
    const ALL: [(&str, Self); 7] = [
        ("program", Self::Program),
        ("limits", Self::Limits),
        ("python", Self::Python),
        ("idle", Self::Idle),
        ("latency", Self::Latency),
        ("memory", Self::Memory),
        ("overlap", Self::Overlap),
    ];
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) sections: Vec<Section>,
    /// Rows of the table of flights; the table of wide rows has a quarter.
    rows: Option<u64>,
    /// Number of counted rounds.
    rounds: Option<usize>,
    /// The handler; the command-line program if none was built.
    pub(crate) binary: PathBuf,
    /// Whether the figures go into `docs/explanation/performance.md`.
    pub(crate) is_for_page: bool,
}

impl Options {
    /// Reads the arguments of cargo and of the user; `None` if other tests are asked for.
    pub(crate) fn read(arguments: Vec<String>) -> Result<Option<Self>, String> {
        let benched = arguments.iter().any(|argument| argument == "--bench");
        let mut options = Self {
            mode: if benched { Mode::Short } else { Mode::Smoke },
            sections: all(benched),
            rows: None,
            rounds: None,
            binary: deployed().unwrap_or_else(|| env!("CARGO_BIN_EXE_highwater").into()),
            is_for_page: false,
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("`{name}` needs a value"));
            match name.as_str() {
                "--full" => options.mode = Mode::Full,
                "--load" => options.mode = Mode::Load(number(&name, &value()?)?),
                "--rows" => options.rows = Some(number(&name, &value()?)?),
                "--rounds" => options.rounds = Some(number(&name, &value()?)?),
                "--binary" => options.binary = value()?.into(),
                "--page" => options.is_for_page = true,
                "--only" => options.sections = sections(&value()?)?,
                // Options of cargo and of its test harness.
                "--test-threads" => drop(value()?),
                _ if name.starts_with('-') => {}
                // A filter by name that matches this test.
                _ if "measure".contains(&name) => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(options))
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.mode == Mode::Smoke { 1 } else { 5 })
    }

    /// Selects by mode.
    pub(crate) fn size<T>(&self, smoke: T, short: T, full: T) -> T {
        match self.mode {
            Mode::Smoke => smoke,
            Mode::Short | Mode::Load(_) => short,
            Mode::Full => full,
        }
    }

    pub(crate) fn flights(&self) -> u64 {
        self.rows.unwrap_or_else(|| self.size(2_000, 100_000, 1_000_000))
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables {
            flights: self.flights(),
            wide: self.flights() / 4,
            small: 1_000,
            big: self.size(2_000, 1_000_000, 10_000_000),
        }
    }
}

/// Returns the sections that are measured by default; the smoke test does not need the Python package.
fn all(benched: bool) -> Vec<Section> {
    let sections = Section::ALL.iter().map(|(_, section)| *section);
    sections.filter(|section| benched || *section != Section::Python).collect()
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_error| format!("`{name}` is `{text}`, expected a number"))
}

fn sections(text: &str) -> Result<Vec<Section>, String> {
    let find = |name: &str| {
        let found = Section::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, section)| *section).ok_or_else(|| {
            let known: Vec<&str> = Section::ALL.iter().map(|(known, _)| *known).collect();
            format!("`--only` has `{name}`, expected some of {}", known.join(", "))
        })
    };
    text.split(',').map(find).collect()
}

/// Returns the output of `.ci/deployable`, if it exists.
fn deployed() -> Option<PathBuf> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/x86_64-unknown-linux-musl/release/handler"
    );
    Some(PathBuf::from(path)).filter(|path| path.is_file())
}

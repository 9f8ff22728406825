//! `highwater init --table`: a working folder for a table that was looked at in the database.
//!
//! What it writes is what `validate` and `run` read. Nothing is overwritten: where one of the files is
//! there, none is written. The connection string goes from the setting that has it into
//! `local.settings.json`, which git ignores, and is never printed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::Options;
use crate::findings;
use crate::output::{Exit, Failed, say, tell};
use highwater::builder::doctor::Patient;
use highwater::config::{Vars, is_poller_name};
use highwater::cursor::CursorMode;
use highwater::doctor::{Finding, Level};
use highwater::page;
use highwater::project::{DEFINITIONS, timer_definition};
use highwater::source::mssql::Offer;
use highwater::suggestion::quoted;

/// Settings of an app.
const PREFIX: &str = "HIGHWATER__";
/// How often the timer fires, in the host's form with seconds.
const SCHEDULE: &str = "*/15 * * * * *";
/// Stands for the key until the catalogue has told it.
const KEY_UNKNOWN: &str = "unknown";
const HOST: &str = include_str!("host.json");
/// The function that shows the status page.
const STATUS: &str = include_str!("../../../function-definitions/highwater_status/function.json");
/// Folder of the state documents: relative, so that the whole folder can be moved.
const STATE: &str = "state";
/// What `package --stage` puts into the folder is made anew from the rest of it.
const IGNORED: &str = "local.settings.json\nstate/\n/handler\n";

/// The settings of one new app over those of the surroundings, of which no other app's are seen.
struct Overlaid<'a> {
    own: &'a BTreeMap<String, String>,
    under: &'a dyn Vars,
}

impl Vars for Overlaid<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let own = self.own.get(name).cloned();
        own.or_else(|| self.under.get(name).filter(|_| !name.starts_with(PREFIX)))
    }

    fn names(&self) -> Vec<String> {
        let under = self.under.names().into_iter().filter(|name| !name.starts_with(PREFIX));
        self.own.keys().cloned().chain(under).collect()
    }
}

pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    (table, out): (&str, &Path),
) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    if !is_poller_name(name) {
        let text = format!(
            "`{name}` can be no poller: expected `a` to `z`, digits and single `_`, beginning with a letter"
        );
        return Err(Failed::new(Exit::Usage, text));
    }
    let out = std::path::absolute(out).map_err(|error| failed(out, &error))?;
    let files = Files::of(&out, name);
    files.refuse_existing()?;
    let connection = options.connection.as_str();
    let Some(text) = vars.get(connection).filter(|text| !text.trim().is_empty()) else {
        let text = format!(
            "`{connection}` is not set: put the connection string of the database there, or name the setting that \
             has it with `--connection`"
        );
        return Err(Failed::new(Exit::Usage, text));
    };
    let mut values = values(name, connection, text, &out);
    let mut set = |what: &str, value: String| {
        values.insert(format!("{PREFIX}POLLERS__{}__SOURCE__{what}", name.to_uppercase()), value);
    };
    set("TABLE", table.to_owned());
    set("MODE", "auto".to_owned());
    set("KEY", options.key.clone().unwrap_or_else(|| KEY_UNKNOWN.to_owned()));
    if let Some(cursor) = &options.cursor {
        set("CURSOR", cursor.clone());
    }
    let offer = patient(&values, vars, name)?.offer(options.key.is_some()).await;
    let offer = offer.map_err(highwater::poller::TickError::Fetch)?;
    settle(&mut values, name, &offer);
    let patient = patient(&values, vars, name)?;
    // An explicit start, so the store finds the place that it never creates by itself; so does the examination.
    let state = out.join(STATE).join("state");
    // The folder itself has the rights that the user's other files have; rows may lie in that of the state.
    fs::create_dir_all(&out)
        .and_then(|()| fs::DirBuilder::new().recursive(true).mode(0o700).create(&state))
        .map_err(|error| failed(&state, &error))?;
    let found = patient.examine().await;
    // The look above knew the whole path; the file is read where it lies.
    values.insert(format!("{PREFIX}STATE__FOLDER"), STATE.to_owned());
    files.write(&values)?;
    let report = Report::of((name, table), &offer, &files, &found);
    say(&options.form.output.one(&report, || report.text()));
    let over = overridden(&values, vars);
    if !over.is_empty() {
        let (names, out) = (over.join("`, `"), out.display());
        tell(&format!(
            "note: the environment sets `{names}`, which takes precedence over `{out}/local.settings.json`"
        ));
    }
    let errors: Vec<&Finding> =
        found.iter().filter(|finding| finding.level == Level::Error).collect();
    if !errors.is_empty() {
        tell(&format!("{name}: the folder is there, and something is to be mended first"));
    }
    Ok(findings::exit(&found, Clone::clone))
}

fn patient(
    values: &BTreeMap<String, String>,
    vars: &dyn Vars,
    name: &str,
) -> Result<Patient, Failed> {
    let mut patients = Patient::all(&Overlaid { own: values, under: vars })?;
    let missing = || Failed::new(Exit::Failed, "the settings that were made have no such poller");
    patients.remove(name).ok_or_else(missing)
}

/// Returns the names of settings of ours that the environment gives another value.
fn overridden(values: &BTreeMap<String, String>, vars: &dyn Vars) -> Vec<String> {
    let is_other = |(name, value): &(&String, &String)| {
        name.starts_with(PREFIX) && vars.get(name).is_some_and(|other| other != **value)
    };
    values.iter().filter(is_other).map(|(name, _)| name.clone()).collect()
}

/// Returns the settings that do not depend on the table.
fn values(name: &str, connection: &str, text: String, out: &Path) -> BTreeMap<String, String> {
    let poller = format!("{PREFIX}POLLERS__{}__", name.to_uppercase());
    let state = out.join(STATE).to_string_lossy().into_owned();
    BTreeMap::from([
        ("FUNCTIONS_WORKER_RUNTIME".to_owned(), "custom".to_owned()),
        ("AzureWebJobsStorage".to_owned(), "UseDevelopmentStorage=true".to_owned()),
        (schedule_setting(name), SCHEDULE.to_owned()),
        (connection.to_owned(), text),
        (format!("{PREFIX}STATE__STORE"), "file".to_owned()),
        (format!("{PREFIX}STATE__FOLDER"), state),
        (format!("{poller}SOURCE__CONNECTION"), connection.to_owned()),
        (format!("{poller}HANDLER__KIND"), "stdout".to_owned()),
    ])
}

fn schedule_setting(name: &str) -> String {
    format!("{}_SCHEDULE", name.to_uppercase())
}

/// Puts what was chosen into the settings, so that it stays whatever the table gets later.
fn settle(values: &mut BTreeMap<String, String>, name: &str, offer: &Offer) {
    let source = format!("{PREFIX}POLLERS__{}__SOURCE__", name.to_uppercase());
    values.insert(format!("{source}MODE"), offer.mode.to_string());
    values.insert(format!("{source}KEY"), offer.key.join(","));
    match &offer.cursor {
        Some(cursor) => values.insert(format!("{source}CURSOR"), cursor.clone()),
        None => values.remove(&format!("{source}CURSOR")),
    };
}

/// The files of a folder.
struct Files {
    out: PathBuf,
    host: PathBuf,
    function: PathBuf,
    status: PathBuf,
    settings: PathBuf,
    ignored: PathBuf,
    schedule: String,
}

impl Files {
    fn of(out: &Path, name: &str) -> Self {
        Self {
            out: out.to_owned(),
            host: out.join("host.json"),
            function: out.join(DEFINITIONS).join(name).join("function.json"),
            status: out.join(DEFINITIONS).join(page::FUNCTION).join("function.json"),
            settings: out.join("local.settings.json"),
            ignored: out.join(".gitignore"),
            schedule: schedule_setting(name),
        }
    }

    fn all(&self) -> [&PathBuf; 5] {
        [&self.host, &self.function, &self.status, &self.settings, &self.ignored]
    }

    fn refuse_existing(&self) -> Result<(), Failed> {
        match self.all().into_iter().find(|path| path.symlink_metadata().is_ok()) {
            None => Ok(()),
            Some(path) => {
                let path = path.display();
                let text =
                    format!("`{path}` is there, and nothing is overwritten: name another folder");
                Err(Failed::new(Exit::Usage, text))
            }
        }
    }

    fn write(&self, values: &BTreeMap<String, String>) -> Result<(), Failed> {
        let schedule = format!("%{}%", self.schedule);
        let function = timer_definition(&schedule);
        let settings = json!({"IsEncrypted": false, "Values": values});
        for file in [&self.function, &self.status] {
            let folder = file.parent().unwrap_or(&self.out);
            fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        }
        // What must not be committed is ignored before it is there.
        create(&self.ignored, IGNORED)?;
        create(&self.host, HOST)?;
        create(&self.function, &function)?;
        create(&self.status, STATUS)?;
        create(&self.settings, &format!("{settings:#}\n"))
    }
}

/// Writes a file that is not there, for nobody else to read.
fn create(path: &Path, text: &str) -> Result<(), Failed> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failed {
    Failed::new(Exit::Failed, format!("write `{}`: {error}", path.display()))
}

/// What was chosen and why, what was written, what is to be mended, and what to do next.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    table: &'a str,
    mode: CursorMode,
    /// The column to go by; `null` where the mode has none.
    cursor: Option<&'a str>,
    /// Why these.
    reason: &'a str,
    key: &'a [String],
    /// Why this.
    key_reason: &'a str,
    /// Whether rows that are deleted are seen.
    sees_deletes: bool,
    /// What was written.
    files: Vec<String>,
    /// What the look at the database found; some of it is to be mended first.
    findings: &'a [Finding],
    /// Commands to continue with; the last one starts the host.
    next: [String; 4],
}

impl<'a> Report<'a> {
    fn of(
        (poller, table): (&'a str, &'a str),
        offer: &'a Offer,
        files: &Files,
        findings: &'a [Finding],
    ) -> Self {
        let out = files.out.display();
        let settings = quoted(&format!("{out}/local.settings.json"));
        let out = quoted(&out.to_string());
        let with = format!("{} --settings {settings}", quoted(&program()));
        Self {
            poller,
            table,
            mode: offer.mode,
            cursor: offer.cursor.as_deref(),
            reason: &offer.reason,
            key: &offer.key,
            key_reason: &offer.key_reason,
            sees_deletes: offer.mode == CursorMode::ChangeTracking,
            files: files.all().map(|path| path.display().to_string()).to_vec(),
            findings,
            next: [
                format!("{with} validate"),
                format!("{with} run"),
                format!("{with} package --stage {out}"),
                format!("func start --script-root {out}"),
            ],
        }
    }

    /// Returns what people read.
    fn text(&self) -> String {
        let Self { poller, table, mode, reason, .. } = self;
        let by = self.cursor.map(|cursor| format!(" by `{cursor}`")).unwrap_or_default();
        let mut lines = vec![
            format!("{poller}: `{table}` in mode `{mode}`{by}: {reason}"),
            format!("  key `{}`: {}", self.key.join("`, `"), self.key_reason),
        ];
        if !self.sees_deletes {
            lines.push("  rows that are deleted are not seen in this mode".to_owned());
        }
        let does = "  it starts at the beginning, prints events to standard output, and keeps its state in `state`";
        lines.push(does.to_owned());
        lines.extend(self.files.iter().map(|path| format!("  wrote `{path}`")));
        let is_odd = |finding: &&Finding| matches!(finding.level, Level::Error | Level::Warning);
        let odd = self.findings.iter().filter(is_odd);
        let odd: Vec<(String, &Finding)> =
            odd.map(|finding| ("to be mended".to_owned(), finding)).collect();
        if !odd.is_empty() {
            lines.push(String::new());
            lines.push(findings::text(odd));
        }
        lines.push(format!("\nnext:\n  {}", self.next.join("\n  ")));
        lines.join("\n")
    }
}

/// Returns this program as it was called.
fn program() -> String {
    let program = std::env::args_os().next();
    program.map_or_else(|| "highwater".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_other_apps_are_not_seen_and_the_surroundings_are() {
        let own = BTreeMap::from([("HIGHWATER__A".to_owned(), "1".to_owned())]);
        let under = BTreeMap::from([
            ("HIGHWATER__B".to_owned(), "2".to_owned()),
            ("IDENTITY_ENDPOINT".to_owned(), "3".to_owned()),
        ]);
        let vars = Overlaid { own: &own, under: &under };
        assert_eq!(vars.get("HIGHWATER__A").as_deref(), Some("1"));
        assert_eq!(vars.get("HIGHWATER__B"), None);
        assert_eq!(vars.get("IDENTITY_ENDPOINT").as_deref(), Some("3"));
        assert_eq!(vars.names(), ["HIGHWATER__A", "IDENTITY_ENDPOINT"]);
    }

    #[test]
    fn the_host_file_is_the_one_of_the_repository() {
        let path = highwater_test_support::root().join("host.json");
        assert_eq!(HOST, fs::read_to_string(path).unwrap());
    }
}

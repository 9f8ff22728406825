//! `highwater init --table`: scaffolds a project for a table, after examining the table in the database.
//!
//! It writes the files that `validate` and `run` read. Nothing is overwritten: if one of the files exists,
//! none is written. The connection string is copied from its setting into `local.settings.json`, which git
//! ignores, and is never printed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::json;
use url::Url;
use uuid::Uuid;

use super::Options;
use super::columns::snake;
use super::deployment;
use super::receiver::{self, Language, Receiver};
use crate::findings;
use crate::output::{Exit, Failed, Output, print_message, print_text};
use highwater::builder::doctor::ExaminedPoller;
use highwater::config::{Vars, default_of, is_poller_name, shown_url};
use highwater::cursor::CursorMode;
use highwater::doctor::{Finding, Level};
use highwater::page;
use highwater::project::{DEFINITIONS, timer_definition};
use highwater::source::mssql::SourceProposal;
use highwater::suggestion::quoted;

/// Settings of an app.
const PREFIX: &str = "HIGHWATER__";
/// How often the timer fires, in the host's form with seconds.
const SCHEDULE: &str = "*/15 * * * * *";
/// Placeholder for the key until it is read from the catalogue.
const KEY_UNKNOWN: &str = "unknown";
const HOST: &str = include_str!("host.json");
/// The function that shows the status page.
const STATUS: &str = include_str!("../../../function-definitions/highwater_status/function.json");
/// Folder of the state documents: relative, so that the whole folder can be moved.
const STATE: &str = "state";
/// `/handler` is written by `package --stage`, and can be rebuilt.
const IGNORED: &str = "local.settings.json\nstate/\n/handler\n.azure/\n.package/\n";

/// The settings of one new app over those of the environment, without the environment's own app settings.
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

pub(super) async fn run(vars: &dyn Vars, options: &Options, out: &Path) -> Result<Exit, Failed> {
    let targets = targets(options)?;
    let out = std::path::absolute(out).map_err(|error| failed(out, &error))?;
    let language = options.handler;
    if options.url.is_some() && language != Some(Language::Http) {
        let text = "`--url` is for `--handler http`: a receiver of the project has its own address";
        return Err(Failed::new(Exit::Usage, text.to_owned()));
    }
    let mut files = Files::of(&out, &targets);
    files.refuse_existing()?;
    let connection = options.connection.as_str();
    let Some(database) = vars.get(connection).filter(|text| !text.trim().is_empty()) else {
        let text = format!(
            "`{connection}` is not set: set it to the database's connection string, or name another setting with \
             `--connection`"
        );
        return Err(Failed::new(Exit::Usage, text));
    };
    let (mut values, mut proposals) = (BTreeMap::new(), Vec::new());
    for (name, table) in &targets {
        values.extend(self::values(name, connection, database.clone(), &out));
        let mut set = |what: &str, value: String| {
            let poller = format!("{PREFIX}POLLERS__{}__", name.to_uppercase());
            values.insert(format!("{poller}SOURCE__{what}"), value);
        };
        set("TABLE", table.clone());
        set("MODE", "auto".to_owned());
        set("KEY", options.key.clone().unwrap_or_else(|| KEY_UNKNOWN.to_owned()));
        if let Some(cursor) = &options.cursor {
            set("CURSOR", cursor.clone());
        }
        let proposal = examined_poller(&values, vars, name)?.propose(options.key.is_some()).await;
        let proposal = proposal.map_err(highwater::poller::TickError::Fetch)?;
        settle(&mut values, name, &proposal);
        if let Some(language) = language {
            let secret = new_secret();
            let url = options.url.clone().unwrap_or_else(|| receiver::url(name));
            deliver_to(&mut values, name, &url, &secret);
            if language.has_project() {
                let rows = examined_poller(&values, vars, name)?.row_schema().await?;
                let receiver =
                    Receiver { language, poller: name, table, secret: &secret, rows: &rows };
                let own = receiver.files().into_iter();
                files.receiver = own.len();
                files.add(own.map(|(path, text)| (format!("{}/{path}", receiver::FOLDER), text)));
                files.add(deployment::files(&receiver, &proposal).into_iter());
                files.refuse_existing()?;
            }
        }
        proposals.push(proposal);
    }
    // This is an explicit start, so create the state folder, which the store never creates by itself.
    let state = out.join(STATE).join("state");
    // The project folder has default permissions. The state folder may contain rows, so only the user may read it.
    fs::create_dir_all(&out)
        .and_then(|()| fs::DirBuilder::new().recursive(true).mode(0o700).create(&state))
        .map_err(|error| failed(&state, &error))?;
    let mut found = Vec::new();
    for (name, _) in &targets {
        found.push(examined_poller(&values, vars, name)?.examine().await);
    }
    // The examination needed an absolute path; in the file, the path is relative to the project.
    values.insert(format!("{PREFIX}STATE__FOLDER"), STATE.to_owned());
    let written = shared(&values, &targets);
    files.write(&written)?;
    let reports = targets.iter().zip(&proposals).zip(&found);
    let reports: Vec<Report<'_>> = reports
        .map(|((target, proposal), found)| {
            Report::of(target, (language, &values), proposal, &files, found)
        })
        .collect();
    print_text(&match options.form.output {
        Output::Table => text(&reports),
        form @ (Output::Json | Output::Jsonl) => {
            form.parts(&reports, reports.len() == 1, |report| report.poller.to_owned())
        }
    });
    values.extend(written);
    let over = overridden(&values, vars);
    if !over.is_empty() {
        let (names, out) = (over.join("`, `"), out.display());
        print_message(&format!(
            "note: the environment sets `{names}`, which takes precedence over `{out}/local.settings.json`"
        ));
    }
    for ((name, _), found) in targets.iter().zip(&found) {
        if found.iter().any(|finding| finding.level == Level::Error) {
            print_message(&format!("{name}: the project was written; fix the errors above first"));
        }
    }
    let found: Vec<Finding> = found.into_iter().flatten().collect();
    Ok(findings::exit(&found, Clone::clone))
}

/// Returns each poller with its table.
fn targets(options: &Options) -> Result<Vec<(String, String)>, Failed> {
    let usage = |text: String| Failed::new(Exit::Usage, text);
    let (names, tables) = (&options.pollers, &options.table);
    let names = match names.len() {
        0 => tables.iter().map(|table| poller_of_table(table)).collect(),
        count if count == tables.len() => names.clone(),
        count => {
            let text = format!(
                "{} for {}: name one poller for each table, or none to name them after the tables",
                counted(count, "poller"),
                counted(tables.len(), "table")
            );
            return Err(usage(text));
        }
    };
    if let Some(name) = names.iter().find(|name| !is_poller_name(name)) {
        return Err(usage(format!(
            "invalid poller name `{name}`: use lowercase letters, digits and single underscores, starting with a letter"
        )));
    }
    if let Some(name) = names.iter().find(|name| names.iter().filter(|it| it == name).count() > 1) {
        return Err(usage(format!(
            "two pollers are named `{name}`: name one poller for each table"
        )));
    }
    let is_for_one = options.key.is_some()
        || options.cursor.is_some()
        || options.url.is_some()
        || options.handler.is_some_and(Language::has_project);
    if tables.len() > 1 && is_for_one {
        let text = "`--key`, `--cursor`, `--url` and `--handler` with a language are for one table: leave them out, or \
                    write a project for each table";
        return Err(usage(text.to_owned()));
    }
    Ok(names.into_iter().zip(tables.iter().cloned()).collect())
}

/// Returns the name of a table as that of a poller, as far as possible.
fn poller_of_table(table: &str) -> String {
    let name = table.rsplit('.').next().unwrap_or(table);
    let words = snake(name);
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

fn counted(number: usize, noun: &str) -> String {
    highwater::event::counted(u64::try_from(number).unwrap_or(u64::MAX), noun)
}

fn examined_poller(
    values: &BTreeMap<String, String>,
    vars: &dyn Vars,
    name: &str,
) -> Result<ExaminedPoller, Failed> {
    let mut pollers = ExaminedPoller::all(&Overlaid { own: values, under: vars })?;
    let missing = || Failed::new(Exit::Failed, "the new settings do not have the poller");
    pollers.remove(name).ok_or_else(missing)
}

/// Returns the names of new settings that the environment overrides with another value.
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
        (format!("{poller}ON_FAILURE"), "park".to_owned()),
    ])
}

/// Makes the poller post to an endpoint, with signed requests.
fn deliver_to(values: &mut BTreeMap<String, String>, name: &str, url: &str, secret: &str) {
    let poller = format!("{PREFIX}POLLERS__{}__HANDLER__", name.to_uppercase());
    let setting = receiver::secret_setting(name);
    values.insert(format!("{poller}KIND"), "http".to_owned());
    values.insert(format!("{poller}URL"), url.to_owned());
    values.insert(format!("{poller}SIGNING_SECRETS"), setting.clone());
    values.insert(setting, secret.to_owned());
}

/// Returns a new secret of 32 bytes, 244 bits of them random.
fn new_secret() -> String {
    let bytes = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()].concat();
    format!("whsec_{}", STANDARD.encode(bytes))
}

fn schedule_setting(name: &str) -> String {
    format!("{}_SCHEDULE", name.to_uppercase())
}

/// Stores the choice in the settings, so that later changes of the table do not affect it.
fn settle(values: &mut BTreeMap<String, String>, name: &str, proposal: &SourceProposal) {
    let source = format!("{PREFIX}POLLERS__{}__SOURCE__", name.to_uppercase());
    values.insert(format!("{source}MODE"), proposal.mode.to_string());
    values.insert(format!("{source}KEY"), proposal.key.join(","));
    match &proposal.cursor {
        Some(cursor) => values.insert(format!("{source}CURSOR"), cursor.clone()),
        None => values.remove(&format!("{source}CURSOR")),
    };
}

/// Returns the settings of several pollers, with those that are equal set once for all.
fn shared(
    values: &BTreeMap<String, String>,
    targets: &[(String, String)],
) -> BTreeMap<String, String> {
    let mut shared = values.clone();
    let [(first, _), others @ ..] = targets else { return shared };
    if others.is_empty() {
        return shared;
    }
    let prefix = |poller: &str| format!("{PREFIX}POLLERS__{}__", poller.to_uppercase());
    for (name, value) in values {
        let Some(tail) = name.strip_prefix(&prefix(first)) else { continue };
        let Some(of_all) = default_of(name) else { continue };
        let names = targets.iter().map(|(poller, _)| format!("{}{tail}", prefix(poller)));
        let names: Vec<String> = names.collect();
        if names.iter().all(|name| values.get(name) == Some(value)) {
            shared.retain(|name, _| !names.contains(name));
            shared.insert(of_all, value.clone());
        }
    }
    shared
}

/// The files of a folder.
struct Files {
    out: PathBuf,
    host: PathBuf,
    /// The function of each poller, by the poller's name.
    functions: Vec<(String, PathBuf)>,
    status: PathBuf,
    settings: PathBuf,
    ignored: PathBuf,
    /// Other files, with their texts: those of the receiver, then those of the deployment.
    others: Vec<(PathBuf, String)>,
    /// Number of the receiver's.
    receiver: usize,
}

impl Files {
    fn of(out: &Path, targets: &[(String, String)]) -> Self {
        let function = |name: &str| out.join(DEFINITIONS).join(name).join("function.json");
        Self {
            out: out.to_owned(),
            host: out.join("host.json"),
            functions: targets.iter().map(|(name, _)| (name.clone(), function(name))).collect(),
            status: function(page::FUNCTION),
            settings: out.join("local.settings.json"),
            ignored: out.join(".gitignore"),
            others: Vec::new(),
            receiver: 0,
        }
    }

    /// Adds files, with paths relative to the project.
    fn add(&mut self, files: impl Iterator<Item = (String, String)>) {
        self.others.extend(files.map(|(path, text)| (self.out.join(path), text)));
    }

    /// Returns the files of the pollers.
    fn own(&self) -> impl Iterator<Item = &PathBuf> {
        let functions = self.functions.iter().map(|(_, path)| path);
        let others = [&self.status, &self.settings, &self.ignored];
        [&self.host].into_iter().chain(functions).chain(others)
    }

    fn all(&self) -> Vec<&PathBuf> {
        self.own().chain(self.others.iter().map(|(path, _)| path)).collect()
    }

    /// Returns the files in a few lines.
    fn summary(&self, language: Option<Language>) -> Vec<String> {
        let mut lines: Vec<String> =
            self.own().map(|path| format!("`{}`", path.display())).collect();
        let poller = self.functions.first().map_or("", |(name, _)| name);
        if let Some(edit) = language.and_then(|language| language.file_to_edit(poller)) {
            let (out, folder) = (self.out.display(), self.out.join(receiver::FOLDER));
            let folder = folder.display();
            lines.push(format!("`{folder}`, {} files; edit `{folder}/{edit}`", self.receiver));
            lines.push(format!("`{out}/azure.yaml`, `{out}/infra` and a workflow, for `azd up`"));
        }
        lines
    }

    fn refuse_existing(&self) -> Result<(), Failed> {
        match self.all().into_iter().find(|path| path.symlink_metadata().is_ok()) {
            None => Ok(()),
            Some(path) => {
                let path = path.display();
                let text = format!("`{path}` exists and is not overwritten: choose another folder");
                Err(Failed::new(Exit::Usage, text))
            }
        }
    }

    fn write(&self, values: &BTreeMap<String, String>) -> Result<(), Failed> {
        let settings = json!({"IsEncrypted": false, "Values": values});
        let others = self.others.iter().map(|(path, _)| path);
        for file in self.own().chain(others) {
            let folder = file.parent().unwrap_or(&self.out);
            fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        }
        // Write `.gitignore` before the files that must not be committed.
        create(&self.ignored, IGNORED)?;
        create(&self.host, HOST)?;
        for (name, path) in &self.functions {
            create(path, &timer_definition(&format!("%{}%", schedule_setting(name))))?;
        }
        create(&self.status, STATUS)?;
        // The same order holds in the receiver's folder.
        let is_ignored = |path: &Path| path.ends_with(".gitignore");
        let (first, rest): (Vec<_>, Vec<_>) =
            self.others.iter().partition(|(path, _)| is_ignored(path));
        for (path, text) in first.into_iter().chain(rest) {
            create(path, text)?;
        }
        create(&self.settings, &format!("{settings:#}\n"))
    }
}

/// Creates a file that only the user can read, and run if it is a script; fails if it exists.
fn create(path: &Path, text: &str) -> Result<(), Failed> {
    let is_script = path.extension().is_some_and(|extension| extension == "sh");
    let mode = if is_script { 0o700 } else { 0o600 };
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failed {
    Failed::new(Exit::Failed, format!("write `{}`: {error}", path.display()))
}

/// The choice and its reasons, the written files, the findings, and the next commands.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    table: &'a str,
    mode: CursorMode,
    /// The cursor column; `null` if the mode has none.
    cursor: Option<&'a str>,
    /// Reason for mode and cursor.
    reason: &'a str,
    key: &'a [String],
    /// Reason for the key.
    key_reason: &'a str,
    /// Whether the mode sees deletes.
    sees_deletes: bool,
    /// The written files.
    files: Vec<String>,
    /// The same for a reader, who has no use for every file of a receiver.
    #[serde(skip)]
    written: Vec<String>,
    /// Findings from the database.
    findings: &'a [Finding],
    /// Commands to continue with; the last one starts the host.
    next: Vec<String>,
    /// Where the poller delivers to; `null` for standard output.
    url: Option<String>,
}

impl<'a> Report<'a> {
    fn of(
        (poller, table): &'a (String, String),
        (language, values): (Option<Language>, &'a BTreeMap<String, String>),
        proposal: &'a SourceProposal,
        files: &Files,
        findings: &'a [Finding],
    ) -> Self {
        let out = files.out.display();
        let settings = quoted(&format!("{out}/local.settings.json"));
        let receiver = quoted(&files.out.join(receiver::FOLDER).display().to_string());
        let tests = language.and_then(Language::tests);
        let out = quoted(&out.to_string());
        let url = values.get(&format!("{PREFIX}POLLERS__{}__HANDLER__URL", poller.to_uppercase()));
        let with = format!("{} --settings {settings}", quoted(&program()));
        Self {
            poller,
            table,
            mode: proposal.mode,
            cursor: proposal.cursor.as_deref(),
            reason: &proposal.reason,
            key: &proposal.key,
            key_reason: &proposal.key_reason,
            sees_deletes: proposal.mode == CursorMode::ChangeTracking,
            files: files.all().iter().map(|path| path.display().to_string()).collect(),
            written: files.summary(language),
            findings,
            next: tests
                .into_iter()
                .flat_map(|tests| [format!("cd {receiver} && {tests}"), format!("{with} dev")])
                .chain([
                    format!("{with} validate"),
                    format!("{with} run"),
                    format!("{with} package --stage {out}"),
                    format!("func start --script-root {out}"),
                ])
                .collect(),
            url: url
                .map(|url| Url::parse(url).map_or_else(|_| "…".to_owned(), |url| shown_url(&url))),
        }
    }

    /// Returns the choice for the table in words.
    fn choice(&self) -> Vec<String> {
        let Self { poller, table, mode, reason, .. } = self;
        let by = self.cursor.map(|cursor| format!(" by `{cursor}`")).unwrap_or_default();
        let mut lines = vec![
            format!("{poller}: `{table}` in mode `{mode}`{by}: {reason}"),
            format!("  key `{}`: {}", self.key.join("`, `"), self.key_reason),
        ];
        lines.push(
            "  `ON_FAILURE=park`: a row that keeps failing waits with its key and is retried, so it does not stop other rows"
                .to_owned(),
        );
        if !self.sees_deletes {
            lines.push("  this mode does not see deletes".to_owned());
        }
        let does = match &self.url {
            None => "prints events to standard output".to_owned(),
            Some(url) => format!("posts events to `{url}`"),
        };
        lines.push(format!("  it starts at the beginning, {does}, and keeps its state in `state`"));
        lines
    }
}

/// Returns human-readable text. Files and next commands are the same for all pollers of a project.
fn text(reports: &[Report<'_>]) -> String {
    let mut lines: Vec<String> = reports.iter().flat_map(Report::choice).collect();
    let Some(first) = reports.first() else { return String::new() };
    lines.extend(first.written.iter().map(|what| format!("  wrote {what}")));
    let is_odd = |finding: &&Finding| matches!(finding.level, Level::Error | Level::Warning);
    let odd = reports.iter().flat_map(|report| {
        let label = if reports.len() == 1 { "to fix" } else { report.poller };
        report.findings.iter().filter(is_odd).map(move |finding| (label.to_owned(), finding))
    });
    let odd: Vec<(String, &Finding)> = odd.collect();
    if !odd.is_empty() {
        lines.push(String::new());
        lines.push(findings::text(odd, findings::Passed::Listed));
    }
    lines.push(format!("\nnext:\n  {}", first.next.join("\n  ")));
    lines.join("\n")
}

/// Returns the path of this program as it was called.
fn program() -> String {
    let program = std::env::args_os().next();
    program.map_or_else(|| "highwater".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_visible_except_for_its_app_settings() {
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
    fn pollers_are_named_after_tables() {
        for (table, name) in [
            ("dbo.orders", "orders"),
            ("Sales.OrderLines", "order_lines"),
            ("[dbo].[Order Details]", "order_details"),
            ("dbo.__x", "x"),
        ] {
            assert_eq!(poller_of_table(table), name, "{table}");
        }
    }

    #[test]
    fn the_host_file_is_the_one_of_the_repository() {
        let path = highwater_test_support::root().join("host.json");
        assert_eq!(HOST, fs::read_to_string(path).unwrap());
    }
}

//! Commands that errors suggest, run by a shell as they are printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::bench::{Bench, LIMIT, PROGRAM, within};

/// A bench whose settings are only in a file.
struct Filed {
    bench: Bench,
    settings: PathBuf,
}

impl Filed {
    /// A poller that has delivered rows 1 and 2, with a journal according to `journal`.
    async fn delivered(journal: &str) -> Self {
        let mut bench = Bench::with_rows(1..=2).await;
        bench.set("JOURNAL", journal);
        Self::ticked(bench).await
    }

    /// A poller that has ticked once.
    async fn ticked(bench: Bench) -> Self {
        let settings = bench.folder.path().join("my settings.json");
        fs::write(&settings, json!({ "Values": bench.env }).to_string()).unwrap();
        let filed = Self { bench, settings };
        let (code, transcript) =
            filed.shell("highwater --settings 'my settings.json' tick nightly").await;
        assert_eq!(code, 0, "{transcript}");
        filed
    }

    /// A poller that has found its table truncated, after `copy.json` was exported. The table has five new
    /// rows, so it looks intact again.
    async fn truncated(journal: &str) -> Self {
        let mut bench = Bench::new().await;
        let table = "CREATE TABLE dbo.numbers (id int IDENTITY NOT NULL PRIMARY KEY, item nvarchar(9) NULL)";
        bench.database.execute(table).unwrap();
        for (name, value) in [
            ("SOURCE__TABLE", "dbo.numbers"),
            ("SOURCE__MODE", "integer+pk"),
            ("SOURCE__CURSOR", "id"),
            ("SOURCE__SETTLE", "0s"),
            ("JOURNAL", journal),
        ] {
            bench.set(name, value);
        }
        let database = bench.database.clone();
        let insert = |rows: usize| {
            for _ in 0..rows {
                database.execute("INSERT INTO dbo.numbers (item) VALUES (N'new')").unwrap();
            }
        };
        insert(2);
        let filed = Self::ticked(bench).await;
        fs::copy(filed.bench.state_path(), filed.bench.folder.path().join("copy.json")).unwrap();
        database.execute("TRUNCATE TABLE dbo.numbers").unwrap();
        insert(1);
        let (code, transcript) =
            filed.shell("highwater --settings 'my settings.json' tick nightly").await;
        assert!(
            code != 0 && transcript.contains("the last identity of `dbo.numbers` is `1`"),
            "{transcript}"
        );
        insert(4);
        filed
    }

    /// Runs the reset that a tick suggests, and checks the deliveries after it.
    async fn assert_reset_delivers_the_new_table(&self) {
        let suggested = self.suggested().await;
        let reset = suggested.iter().find(|line| line.contains(" to-beginning ")).unwrap();
        let (code, transcript) = self.shell(&format!("{reset} --yes")).await;
        assert_eq!(code, 0, "{transcript}");
        self.assert_delivers(&[1, 2, 3, 4, 5]).await;
    }

    fn state_folder(&self) -> PathBuf {
        self.bench.folder.path().join("state")
    }

    /// Runs a line in the folder of the settings; returns exit code and complete output.
    async fn shell(&self, line: &str) -> (i32, String) {
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.settings.parent().unwrap()).env_clear();
        command.env("PATH", format!("{programs}:/usr/bin:/bin")).env("USER", "ann");
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = within(LIMIT, command.output()).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    /// Runs a failing tick, and returns the commands in its error.
    async fn suggested(&self) -> Vec<String> {
        let (code, transcript) =
            self.shell("highwater --settings 'my settings.json' tick nightly").await;
        assert_ne!(code, 0, "{transcript}");
        let commands = transcript.lines().last().unwrap().split("`highwater ").skip(1);
        let commands =
            commands.map(|rest| format!("highwater {}", rest.split('`').next().unwrap()));
        commands.collect()
    }

    async fn assert_delivers(&self, ids: &[i64]) {
        let before = self.bench.receiver.accepted().len();
        let (code, transcript) =
            self.shell("highwater --settings 'my settings.json' tick nightly").await;
        assert_eq!(code, 0, "{transcript}");
        assert_eq!(self.bench.receiver.accepted()[before..], *ids, "{transcript}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_suggested_after_a_loss_run_as_printed_with_file_settings() {
    // The first word after the poller or the command, and the rows delivered then.
    for (command, journal, delivered) in
        [("reset", "off", &[1, 2, 3][..]), ("state rebuild", "commits", &[3])]
    {
        let filed = Filed::delivered(journal).await;
        let path = filed.bench.state_path();
        fs::remove_file(&path).unwrap();
        filed.bench.insert(3..=3);
        let suggested = filed.suggested().await;
        let rebuilds = suggested.iter().any(|line| line.contains(" state rebuild "));
        assert_eq!(rebuilds, journal != "off", "only what works there: {suggested:?}");
        let help = suggested.iter().find(|line| line.ends_with("state import --help")).unwrap();
        let (code, transcript) = filed.shell(help).await;
        assert!(code == 0 && transcript.contains("Usage: highwater state import"), "{transcript}");
        let line = suggested.iter().find(|line| line.contains(&format!(" {command} ")));
        let line = line.unwrap_or_else(|| panic!("no `{command}`: {suggested:?}"));
        // Without a terminal it requires one more flag, and does nothing.
        let (code, transcript) = filed.shell(line).await;
        assert!(code == 2 && transcript.contains("add `--yes`"), "{line}: {transcript}");
        let (code, transcript) = filed.shell(&format!("{line} --yes")).await;
        assert_eq!(code, 0, "{line}: {transcript}");
        filed.assert_delivers(delivered).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_outlives_a_document_that_is_lost_and_rebuilt_as_printed() {
    let filed = Filed::truncated("commits").await;
    fs::remove_file(filed.bench.state_path()).unwrap();
    let suggested = filed.suggested().await;
    let rebuild = suggested.iter().find(|line| line.contains(" state rebuild ")).unwrap();
    let (code, transcript) = filed.shell(&format!("{rebuild} --yes")).await;
    assert!(code == 0 && transcript.contains("ticks stay stopped until a reset"), "{transcript}");
    filed.assert_reset_delivers_the_new_table().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn importing_over_a_lost_document_keeps_a_loss_or_reports_it_unknown() {
    let import = "highwater --settings 'my settings.json' state import copy.json nightly --reason 'disk lost'";
    for (journal, damage) in [("commits", None), ("commits", Some("{")), ("off", None)] {
        let filed = Filed::truncated(journal).await;
        match damage {
            Some(damage) => fs::write(filed.bench.state_path(), damage).unwrap(),
            None => fs::remove_file(filed.bench.state_path()).unwrap(),
        }
        let (code, transcript) = filed.shell(import).await;
        let stays =
            "ticks stay stopped until a reset, because rows are lost: the checkpoint is at `2`";
        let unknown = "whether rows were lost after this copy was made is unknown";
        let is_known = journal != "off";
        assert!(code == 2 && transcript.contains(stays) == is_known, "{journal}: {transcript}");
        assert_eq!(transcript.contains(unknown), !is_known, "{journal}: {transcript}");
        if is_known {
            let (code, transcript) = filed.shell(&format!("{import} --yes")).await;
            assert_eq!(code, 0, "{transcript}");
            filed.assert_reset_delivers_the_new_table().await;
        } else {
            let reset = transcript.split('`').find(|part| part.contains(" to-beginning ")).unwrap();
            let (code, transcript) = filed.shell(&format!("{reset} --yes")).await;
            assert_eq!(code, 0, "{transcript}");
            filed.assert_delivers(&[1, 2, 3, 4, 5]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_marker_is_rewritten_by_a_tick_and_prevents_full_redelivery() {
    let filed = Filed::delivered("off").await;
    let marker = filed.state_folder().join("local/nightly.marker.json");
    fs::remove_file(&marker).unwrap();
    filed.bench.insert(3..=3);
    filed.assert_delivers(&[3]).await;
    assert!(marker.exists());
    fs::remove_file(filed.bench.state_path()).unwrap();
    let suggested = filed.suggested().await;
    assert!(suggested.iter().any(|line| line.contains(" reset ")), "{suggested:?}");
    assert_eq!(filed.bench.receiver.accepted(), [1, 2, 3], "nothing is redelivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_restores_a_document_recreates_a_missing_folder() {
    for (command, delivered) in [
        ("state import copy.json nightly", &[3][..]),
        ("state rebuild nightly", &[3]),
        ("reset nightly to-beginning", &[1, 2, 3]),
    ] {
        let filed = Filed::delivered("commits").await;
        let copy = filed.bench.folder.path().join("copy.json");
        fs::copy(filed.bench.state_path(), copy).unwrap();
        fs::remove_dir_all(filed.state_folder()).unwrap();
        filed.bench.insert(3..=3);
        let line =
            format!("highwater --settings 'my settings.json' {command} --reason 'disk lost'");
        let (code, transcript) = filed.shell(&line).await;
        assert!(code == 2 && transcript.contains("add `--yes`"), "{line}: {transcript}");
        assert!(!filed.state_folder().exists(), "{line}: a plan creates nothing");
        let (code, transcript) = filed.shell(&format!("{line} --yes")).await;
        assert_eq!(code, 0, "{line}: {transcript}");
        filed.assert_delivers(delivered).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_line_of_run_suggests_commands_with_the_settings_of_its_process() {
    let filed = Filed::delivered("off").await;
    filed.bench.schedule("* * * * * *");
    fs::remove_file(filed.bench.state_path()).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["--settings", "my settings.json", "run", "--from", &filed.bench.root()]);
    command.current_dir(filed.settings.parent().unwrap()).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
    let line: Json = serde_json::from_str(&line).unwrap();
    let transcript = line["message"].as_str().unwrap();
    let expected = "`highwater --settings 'my settings.json' reset nightly to-beginning --reason";
    assert!(transcript.contains(expected), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_tick_prints_where_it_starts_and_keeps_its_state() {
    let bench = Bench::with_rows(1..=1).await;
    let first = bench.command(&["tick", "nightly"]).await;
    let path = bench.state_path();
    let expected =
        format!("starts from the beginning with a new state document, `{}`", path.display());
    assert!(first.rest.contains(&expected), "{first:?}");
    bench.insert(2..=2);
    assert_eq!(bench.command(&["tick", "nightly"]).await.rest, "");
}

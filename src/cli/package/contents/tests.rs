use std::collections::BTreeMap as Map;

use super::elf::tests::GOOD;
use super::*;
use highwater::error::chain;

const HOST: &str =
    r#"{"version":"2.0","customHandler":{"description":{"defaultExecutablePath":"handler"}}}"#;
const TIMER: &str = r#"{"bindings":[{"name":"myTimer","type":"timerTrigger","direction":"in","schedule":"%ORDERS_SCHEDULE%"}]}"#;

fn project(host: &str, name: &str, function: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("function-definitions").join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("function.json"), function).unwrap();
    fs::write(root.path().join("host.json"), host).unwrap();
    fs::write(root.path().join("program"), GOOD.bytes()).unwrap();
    root
}

fn package_with(root: &Path, vars: &[(&str, &str)]) -> Result<Package, String> {
    let vars: Map<String, String> =
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let has_pollers = vars.keys().any(|name| name.starts_with("HIGHWATER__POLLERS__"));
    let config = has_pollers.then(|| Config::from_vars(&vars).unwrap());
    let program = root.join("program");
    let (binary, config) = (program.as_path(), config.as_ref());
    let made_of = PackageInputs { folder: root, binary, config, has_settings: false };
    Package::of(made_of, &vars).map_err(|error| chain(&error))
}

fn package(root: &Path) -> Result<Package, String> {
    package_with(root, &[])
}

/// Settings of two pollers.
const SETTINGS: [(&str, &str); 14] = [
    ("HIGHWATER__APP", "shop"),
    ("HIGHWATER__STATE__STORE", "file"),
    ("HIGHWATER__STATE__FOLDER", "/tmp/state"),
    ("SqlConnection", "Server=127.0.0.1;Database=shop;User ID=ada;Password=s3cret"),
    ("HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION", "SqlConnection"),
    ("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE", "dbo.orders"),
    ("HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR", "version"),
    ("HIGHWATER__POLLERS__ORDERS__SOURCE__KEY", "id"),
    ("HIGHWATER__POLLERS__ORDERS__HANDLER__KIND", "stdout"),
    ("HIGHWATER__POLLERS__NEW_LINES__SOURCE__CONNECTION", "SqlConnection"),
    ("HIGHWATER__POLLERS__NEW_LINES__SOURCE__TABLE", "dbo.lines"),
    ("HIGHWATER__POLLERS__NEW_LINES__SOURCE__CURSOR", "version"),
    ("HIGHWATER__POLLERS__NEW_LINES__SOURCE__KEY", "id"),
    ("HIGHWATER__POLLERS__NEW_LINES__HANDLER__KIND", "stdout"),
];

#[test]
fn functions_lie_at_the_root_and_the_program_may_be_run() {
    let root = project(HOST, "orders", TIMER);
    let dist = root.path().join("dist");
    for _ in 0..2 {
        let package = package(root.path()).unwrap();
        assert_eq!(
            (package.functions.as_slice(), &package.unfit),
            (&["orders".to_owned()][..], &None)
        );
        package.stage(&dist).unwrap();
    }
    for (file, mode) in [
        ("host.json", 0o644),
        ("orders/function.json", 0o644),
        ("LICENSE", 0o644),
        ("THIRD-PARTY-NOTICES", 0o644),
        (HANDLER, 0o755),
    ] {
        let metadata = fs::metadata(dist.join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
        assert_ne!(metadata.len(), 0, "{file}");
    }
}

#[test]
fn what_the_host_would_refuse_is_refused_before_anything_is_written() {
    for (host, name, function, expected) in [
        ("{}", "orders", TIMER, "`version` must be"),
        (r#"{"version":"2.0"}"#, "orders", TIMER, "must be exactly `handler`"),
        (HOST, "1orders", TIMER, "a letter, then letters"),
        (HOST, "host", TIMER, "`host` is reserved"),
        (HOST, "Handler", TIMER, "is the name of the program: rename"),
        (HOST, "orders", "{", "not JSON"),
        (HOST, "orders", r#"{"bindings":[]}"#, "exactly one binding"),
        (HOST, "orders", &TIMER.replace("timerTrigger", "queueTrigger"), "a `timerTrigger`"),
        (HOST, "orders", &TIMER.replace("myTimer", "my_timer"), "letters and digits"),
        (HOST, "orders", &TIMER.replace("%ORDERS_SCHEDULE%", "*/5 * * *"), "must have six"),
        (HOST, "shop/orders", TIMER, "directly below `function-definitions` only: move"),
    ] {
        let root = project(host, name, function);
        let error = package(root.path()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn settings_of_a_machine_never_get_into_a_package() {
    let root = project(HOST, "orders", TIMER);
    fs::write(root.path().join(LOCAL_SETTINGS), "{}").unwrap();
    let good = package(root.path()).unwrap();
    assert!(good.entries.iter().all(|entry| !entry.path.contains(LOCAL_SETTINGS)));
    fs::write(root.path().join("function-definitions/orders/Local.Settings.json"), "{}").unwrap();
    let error = package(root.path()).unwrap_err();
    assert!(error.contains("secrets of one machine") && error.contains("move it"), "{error}");
}

#[test]
fn two_functions_that_differ_in_case_are_one_to_the_host() {
    let root = project(HOST, "orders", TIMER);
    let folder = root.path().join("function-definitions/Orders");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("function.json"), TIMER).unwrap();
    let error = package(root.path()).unwrap_err();
    assert!(error.contains("`Orders` and `orders` differ in case only"), "{error}");
}

#[test]
fn a_poller_without_a_function_gets_one_that_runs_it() {
    let root = project(HOST, "orders", TIMER);
    let made = package_with(root.path(), &SETTINGS).unwrap();
    assert_eq!(made.functions, ["new_lines", "orders"]);
    let notes = made.notes.join("\n");
    assert!(notes.contains("once the app has the setting `NEW_LINES_SCHEDULE`"), "{notes}");
    let dist = root.path().join("dist");
    made.stage(&dist).unwrap();
    let functions = Project::read(&dist, &dist, &BTreeMap::new()).functions;
    let schedules: Vec<&str> =
        functions.iter().map(|function| function.schedule.as_deref().unwrap()).collect();
    assert_eq!(schedules, ["%NEW_LINES_SCHEDULE%", "%ORDERS_SCHEDULE%"]);
    // Nobody has to lay out a folder for the first function.
    fs::remove_dir_all(root.path().join("function-definitions")).unwrap();
    let made = package_with(root.path(), &SETTINGS).unwrap();
    assert_eq!(made.functions, ["new_lines", "orders"]);
    package(root.path()).unwrap_err();
}

#[test]
fn each_part_of_a_divided_poller_gets_a_function() {
    let root = project(HOST, "nightly", TIMER);
    let parts = [
        ("HIGHWATER__POLLERS__ORDERS__PARTITIONS", "3"),
        ("HIGHWATER__FUNCTIONS__NIGHTLY__POLLER", "orders__p1"),
        ("ORDERS_SCHEDULE", "*/15 * * * * *"),
    ];
    let settings = [&SETTINGS[..], &parts].concat();
    let made = package_with(root.path(), &settings).unwrap();
    assert_eq!(made.functions, ["new_lines", "nightly", "orders__p0", "orders__p2"]);
    let dist = root.path().join("dist");
    made.stage(&dist).unwrap();
    for function in Project::read(&dist, &dist, &BTreeMap::new()).functions {
        let setting = if function.name == "new_lines" { "NEW_LINES" } else { "ORDERS" };
        assert_eq!(function.schedule, Some(format!("%{setting}_SCHEDULE%")), "{}", function.name);
    }
    // What ran the whole would run nothing.
    let root = project(HOST, "orders", TIMER);
    let error = package_with(root.path(), &[&SETTINGS[..], &parts[..1]].concat()).unwrap_err();
    assert!(error.contains("a function runs one partition: remove the folder"), "{error}");
}

#[test]
fn a_function_without_a_poller_or_with_a_wrong_schedule_is_refused() {
    let root = project(HOST, "invoices", TIMER);
    let error = package_with(root.path(), &SETTINGS).unwrap_err();
    assert!(error.contains("set `HIGHWATER__FUNCTIONS__INVOICES__POLLER`, or `HIGHWATER__FUNCTIONS__INVOICES__POLLERS=all`"), "{error}");
    let root = project(HOST, "orders", TIMER);
    for setting in ["ORDERS_SCHEDULE", "NEW_LINES_SCHEDULE"] {
        let wrong = [&SETTINGS[..], &[(setting, "5m")]].concat();
        let error = package_with(root.path(), &wrong).unwrap_err();
        assert!(error.contains("invalid schedule `5m`") && error.contains("write six"), "{error}");
    }
}

#[test]
fn a_program_that_could_not_start_there_is_laid_out_here_and_packed_never() {
    let root = project(HOST, "orders", TIMER);
    let other = elf::tests::Planted { machine: 183, ..GOOD };
    fs::write(root.path().join("program"), other.bytes()).unwrap();
    let package = package(root.path()).unwrap();
    package.stage(&root.path().join("dist")).unwrap();
    let zip = root.path().join("app.zip");
    let error = chain(&package.zip(&zip).unwrap_err());
    assert!(error.contains("is built for aarch64") && error.contains("`--binary`"), "{error}");
    assert!(!zip.exists());
}

#[test]
fn a_zip_is_the_same_whenever_it_is_made_and_whatever_it_replaces() {
    let root = project(HOST, "orders", TIMER);
    let zip = root.path().join("new/app.zip");
    let length = package(root.path()).unwrap().zip(&zip).unwrap();
    let first = fs::read(&zip).unwrap();
    assert_eq!(u64::try_from(first.len()).unwrap(), length);
    fs::write(&zip, "what was there").unwrap();
    // Times of files don't count.
    let program = root.path().join("program");
    fs::File::open(&program).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    package(root.path()).unwrap().zip(&zip).unwrap();
    assert_eq!(fs::read(&zip).unwrap(), first);
    assert_eq!(children(zip.parent().unwrap()).unwrap(), [zip]);
}

#[test]
fn a_function_that_an_earlier_layout_left_is_not_run_in_silence() {
    let root = project(HOST, "orders", TIMER);
    let dist = root.path().join("dist");
    fs::create_dir_all(dist.join("old")).unwrap();
    fs::write(dist.join(LOCAL_SETTINGS), "{}").unwrap();
    package(root.path()).unwrap().stage(&dist).unwrap();
    fs::write(dist.join("old/function.json"), TIMER).unwrap();
    let error = chain(&package(root.path()).unwrap().stage(&dist).unwrap_err());
    assert!(error.contains("/old`") && error.contains("remove the folder"), "{error}");
}

//! Every command that a message suggests runs as printed: the real parser accepts it.

use super::*;
use highwater::poller::TickError;
use highwater::state::{Fence, FencingToken, Generation, decode, decode_marker};

/// What stands in a message for these values; any other value is a poller's name.
const VALUES: [(&str, &str); 14] = [
    ("aim", "to-beginning"),
    ("app", "other"),
    ("command", "state"),
    ("configured", "4"),
    ("current", "1775525026020.42"),
    ("event", "row_redriven"),
    ("key_id", "0123456789abcdef0123456789abcdef"),
    ("purpose", "replay"),
    ("skip", " --skip-rows"),
    ("source", " --new-source"),
    ("stored", "2"),
    ("table", "ops.state"),
    ("to", "4"),
    ("what", "replay"),
];

/// Describes settings, and names commands without their arguments.
const DESCRIBES: &str = "src/app/config/settings";

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the code of a file without comments and tests, with continued literals on one line.
fn code(text: &str) -> String {
    let production = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut code = String::new();
    for line in production.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let line = if code.ends_with('\\') { line.trim_start() } else { line };
        if code.ends_with('\\') {
            code.pop();
        } else {
            code.push('\n');
        }
        code.push_str(line);
    }
    code.replace("\\\"", "\"")
}

/// Returns the commands in backticks, with values for what is filled in.
fn commands(code: &str) -> Vec<String> {
    const START: &str = "`highwater ";
    // A literal that ends there is no command.
    let rests = code.split(START).skip(1).filter(|rest| !rest.starts_with('"'));
    let texts = rests.filter_map(|rest| rest.split('`').next());
    texts.map(|text| filled_in(&format!("highwater {text}"))).collect()
}

fn filled_in(text: &str) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').expect("a placeholder has an end");
        let value = VALUES.iter().find(|(known, _)| *known == name);
        filled.push_str(value.map_or("orders", |(_, value)| value));
        filled.push_str(rest);
    }
    filled
}

/// Splits as a shell would, as far as double quotes go.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in command.split('"').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Returns why a command does not run as it is.
fn mistake(command: &str) -> Option<String> {
    let words = words(command);
    if let Some(placeholder) = words.iter().find(|word| {
        word.contains('<') || (word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
    }) {
        return Some(format!("`{placeholder}` is to be filled in"));
    }
    if let Some(file) =
        words.iter().find(|word| Path::new(word).extension().is_some_and(|it| it == "json"))
    {
        return Some(format!("nothing says that there is a file `{file}`"));
    }
    if let Err(error) = Arguments::try_parse_from(&words) {
        return (error.use_stderr()).then(|| error.to_string());
    }
    let mut leaf = &Arguments::command();
    for word in &words[1..] {
        leaf = leaf.find_subcommand(word).unwrap_or(leaf);
    }
    let has = |id: &str| leaf.get_arguments().any(|argument| argument.get_id() == id);
    let asks = has("reason") && has("yes") && !words.iter().any(|word| word == "--reason");
    asks.then(|| "it asks for a `--reason`".to_owned())
}

#[test]
fn every_command_that_a_message_suggests_runs_as_printed() {
    let root = highwater_test_support::root();
    let (mut found, mut mistakes) = (0, Vec::new());
    for path in sources(&root.join("src")) {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let in_tests = name.ends_with("tests.rs")
            || name.contains("/tests/")
            || name.ends_with("suggested.rs");
        if in_tests || name.starts_with(DESCRIBES) {
            continue;
        }
        for command in commands(&code(&std::fs::read_to_string(&path).unwrap())) {
            found += 1;
            let mistake = mistake(&command).map(|why| format!("{name}: `{command}`: {why}"));
            mistakes.extend(mistake);
        }
    }
    assert_eq!(mistakes, Vec::<String>::new());
    assert!(found > 30, "{found} commands found");
}

#[test]
fn a_command_with_a_gap_is_found() {
    for (command, why) in [
        ("highwater reset <NAME> to-beginning --reason \"x\"", "filled in"),
        ("highwater state import FILE orders --reason \"x\"", "filled in"),
        ("highwater state import copy.json orders --reason \"x\"", "a file `copy.json`"),
        ("highwater reset orders to-beginning", "--reason"),
        ("highwater clone orders", "required"),
        ("highwater rewind orders", "unrecognized"),
    ] {
        let mistake = mistake(command).unwrap_or_default();
        assert!(mistake.contains(why), "`{command}`: {mistake}");
    }
    assert_eq!(mistake("highwater reset orders to-beginning --reason \"key changed\""), None);
}

/// Names of documents that an error may be about: of a poller, of a partition, of ranges.
const DOCUMENTS: [&str; 4] =
    ["orders", "orders__p1", "orders.replay.0123456789ab", "orders.backfill.0123456789ab.2"];

/// Returns the errors about a state document that suggest commands.
fn errors(document: &str) -> Vec<String> {
    let poller = || document.to_owned();
    let vanished = |has_journal| TickError::StateVanished {
        poller: poller(),
        ran_since: "2026-04-07T01:23:00Z".to_owned(),
        has_journal,
    };
    let fence = |token| Fence { generation: Generation(7), token: FencingToken(token) };
    let ticks = [
        vanished(true),
        vanished(false),
        TickError::NotStarted { poller: poller() },
        TickError::FenceAhead { poller: poller(), stale: fence(3), current: fence(9) },
    ];
    let complete = format!(
        r#"{{"version": 1, "poller_name": "{document}", "source_fingerprint": "sha256:0", "checkpoint":
        {{"cursor": null}}, "lease": {{"fencing_token": 1}}}}"#
    );
    let with = |from: &str, to: &str| complete.replace(from, to);
    let cursor = r#""cursor": {"kind": "timestamp+pk", "value": "soon", "tiebreaker": {}}"#;
    let damaged = [
        "{".to_owned(),
        "{}".to_owned(),
        with(document, "other"),
        with(r#""fencing_token": 1"#, ""),
        with(r#""cursor": null"#, r#""last_successful_batch_id": "batch_1""#),
        with(r#""cursor": null"#, cursor),
    ];
    let damaged = damaged.iter().map(|bytes| decode(document, bytes.as_bytes()).unwrap_err());
    let marker = decode_marker(document, b"{").unwrap_err();
    let formats = damaged.chain([marker]).map(|error| chain(&error));
    ticks.iter().map(|error| chain(error)).chain(formats).collect()
}

#[test]
fn a_command_names_a_poller_of_the_settings_whatever_document_the_error_is_about() {
    for document in DOCUMENTS {
        for text in errors(document) {
            let commands = commands(&text);
            let is_range = document.contains('.');
            assert!(is_range || !commands.is_empty(), "no command: {text}");
            for command in commands {
                assert_eq!(mistake(&command), None, "`{command}`: {text}");
                if command.ends_with(" --help") {
                    continue;
                }
                let names_document = words(&command).iter().any(|word| word == document);
                assert!(names_document != is_range || command.contains(" recover "), "{text}");
            }
        }
    }
}

//! What `--help` shows besides the options: commands by purpose, and examples.

use std::fmt::Write as _;

use clap::Command;
use clap::builder::Styles;
use clap::builder::styling::AnsiColor;

/// All commands, by what the reader wants to do.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start", &["demo", "init", "dev", "devdb"]),
    ("Run", &["run", "tick", "serve"]),
    ("Look", &["status", "trace", "doctor", "validate", "config", "schema"]),
    ("Intervene", &["pause", "resume", "quarantine", "recover"]),
    ("Move", &["reset", "replay", "backfill", "clone", "repartition"]),
    ("Deploy", &["package", "ddl"]),
    ("State", &["state", "journal", "lease"]),
    ("Shell", &["completions", "man", "version", "help"]),
];

/// Examples of the commands that are used most, each with its purpose.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "init",
        &[
            (
                "highwater init orders --table dbo.orders --out shop --handler python",
                "a project with a receiver in Python",
            ),
            (
                "highwater init --table dbo.orders --table dbo.customers --out shop",
                "a poller for each table",
            ),
            ("highwater init orders", "only the state of a poller in the settings"),
        ],
    ),
    ("dev", &[("highwater dev", "in the folder of a project: poller and receiver, until Ctrl-C")]),
    (
        "run",
        &[
            ("highwater run", "all pollers, until Ctrl-C"),
            ("highwater run --status 127.0.0.1:8080", "the same with a status page"),
        ],
    ),
    (
        "tick",
        &[
            ("highwater tick orders", "deliver what is due"),
            ("highwater tick orders --dry-run --show 3", "only look at it"),
        ],
    ),
    (
        "status",
        &[
            ("highwater status", "all pollers"),
            ("highwater status orders --output json", "one of them, for a script"),
            ("highwater status --check", "the exit code says whether one needs attention"),
        ],
    ),
    (
        "trace",
        &[
            ("highwater trace orders --key 31", "the row with this key"),
            ("highwater trace orders --key shop=4,line=2", "a key of two columns"),
        ],
    ),
    (
        "doctor",
        &[("highwater doctor", "everything"), ("highwater doctor --poller orders", "one poller")],
    ),
    (
        "quarantine",
        &[
            ("highwater quarantine list orders", "keys whose rows fail"),
            ("highwater quarantine redrive orders --all --dry-run", "what a redrive would deliver"),
            ("highwater quarantine redrive orders --all", "deliver them again"),
        ],
    ),
    (
        "reset",
        &[
            (
                "highwater reset orders to-beginning --reason \"new target\"",
                "deliver every row again",
            ),
            ("highwater reset orders to-now --reason \"start fresh\"", "skip what is there"),
        ],
    ),
    (
        "package",
        &[
            ("highwater package --out app.zip", "for a deployment"),
            ("highwater package --stage dist", "for `func start --script-root dist`"),
        ],
    ),
];

/// What `highwater` alone prints on a terminal.
pub(super) const START: &str = "\
Highwater delivers changed rows of SQL Server tables to your code.

  highwater demo            see it work: real rows, a failed call, a killed process
  highwater init --help     make a project for a table
  highwater dev             in that project: poller and receiver, until Ctrl-C
  highwater status          what the pollers do
  highwater --help          all commands
";

/// Adds groups, examples and colours to the command line.
pub(super) fn decorated(mut command: Command) -> Command {
    let styles = Styles::styled()
        .header(AnsiColor::Green.on_default().bold())
        .usage(AnsiColor::Green.on_default().bold())
        .literal(AnsiColor::Cyan.on_default().bold())
        .placeholder(AnsiColor::Cyan.on_default());
    for (name, examples) in EXAMPLES {
        let text = examples_text(examples);
        command = command.mut_subcommand(name, |of| of.after_help(text));
    }
    let groups = groups_text(&command);
    command.styles(styles).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n\nHelp for one of them: highwater \
         help COMMAND"
    ))
}

fn examples_text(examples: &[(&str, &str)]) -> String {
    let mut text = "Examples:".to_owned();
    for (line, purpose) in examples {
        text.push_str("\n  ");
        text.push_str(line);
        text.push_str("\n      ");
        text.push_str(purpose);
    }
    text
}

fn groups_text(command: &Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        // A `String` takes any text.
        writeln!(text, "{group}:").unwrap_or_default();
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about =
                about.map_or_else(|| "Show the help of a command".to_owned(), ToString::to_string);
            writeln!(text, "  {name:12} {about}").unwrap_or_default();
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::Arguments;

    #[test]
    fn every_command_is_in_one_group() {
        let named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let known = Arguments::command();
        let mut expected: BTreeSet<&str> = known.get_subcommands().map(Command::get_name).collect();
        expected.insert("help");
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), expected);
        assert_eq!(named.len(), expected.len(), "{named:?}");
    }

    #[test]
    fn every_example_can_be_parsed() {
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let words = line.split('"').enumerate().flat_map(|(index, part)| {
                if index % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
            });
            let parsed = decorated(Arguments::command()).try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }

    #[test]
    fn help_shows_groups_and_examples() {
        let mut command = decorated(Arguments::command());
        let all = command.render_help().to_string();
        assert!(all.contains("\nLook:\n  status       Show the status of each poller"), "{all}");
        assert!(!all.contains("Commands:"), "{all}");
        let tick = command.find_subcommand_mut("tick").unwrap().render_help().to_string();
        assert!(tick.contains("Examples:\n  highwater tick orders\n"), "{tick}");
    }
}

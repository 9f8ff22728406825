//! Dashboards, alerts and runbooks, checked against the code and each other: every name that one uses must
//! exist.
//!
//! Whether Grafana, Prometheus and Azure Monitor accept the files is not tested here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use highwater::recovery::table::{Action, ROWS};
use highwater::status::health::{PollerState, Severity};
use highwater::telemetry::series_name;
use serde_json::Value as Json;

use crate::infra::{code, json, queries};
use crate::settings::read;

/// An alert that Prometheus evaluates.
struct Rule {
    name: String,
    expression: String,
    runbook: String,
}

/// The rules of `docs/reference/prometheus/alerts.yml`, parsed line by line.
fn rules() -> Vec<Rule> {
    let text = read("docs/reference/prometheus/alerts.yml");
    let rules = text.split("      - alert: ").skip(1).map(|rule| {
        let (name, rest) = rule.split_once('\n').unwrap();
        let (_, rest) = rest.split_once("        expr: ").unwrap();
        let (expression, rest) = rest.split_once("\n        ").unwrap();
        // Continuation lines of an expression are indented further than the next field.
        let more = rest.lines().take_while(|line| expression == "|" && !line.contains(": "));
        let expression = more.fold(expression.to_owned(), |text, line| text + "\n" + line);
        let (_, runbook) = rule.split_once("          runbook_url: '").unwrap();
        let runbook = runbook.lines().next().unwrap().trim_end_matches('\'').to_owned();
        Rule { name: name.to_owned(), expression, runbook }
    });
    rules.collect()
}

/// The expressions that Grafana sends to Prometheus, panel by panel.
fn panels() -> Vec<String> {
    let panels = json("docs/reference/grafana/highwater.json")["panels"].take();
    let targets = panels.as_array().unwrap().iter().filter_map(|panel| panel["targets"].as_array());
    targets.flatten().map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Names of the instruments in Prometheus, from the page that another test checks against the code.
fn series() -> BTreeMap<String, String> {
    let page = read("docs/reference/telemetry.md");
    let table = page.split("## Metrics").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let name = series_name(cells[1], cells[3], cells[2] == "counter");
        (name, cells[1].to_owned())
    })
    .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The series in an expression.
fn named(expression: &str) -> BTreeSet<String> {
    let is_series = |word: &&str| {
        word.starts_with("highwater_")
            || word.starts_with("db_client_")
            || (word.starts_with("faas_") && *word != "faas_trigger")
    };
    let plain = |word: &str| {
        let ends = ["_bucket", "_count", "_sum"];
        let histogram = ends.iter().find_map(|end| word.strip_suffix(end));
        histogram.unwrap_or(word).to_owned()
    };
    words(expression).filter(is_series).map(plain).collect()
}

#[test]
fn dashboard_and_rules_use_existing_series_only() {
    let series = series();
    let expressions = panels().into_iter().chain(rules().into_iter().map(|it| it.expression));
    for expression in expressions {
        let named = named(&expression);
        assert!(!named.is_empty(), "{expression}");
        for name in named {
            assert!(series.contains_key(&name), "`{name}` is no metric: {expression}");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let shown: BTreeSet<String> = panels().iter().flat_map(|panel| named(panel)).collect();
    for (name, metric) in series() {
        assert!(shown.contains(&name), "no panel shows `{metric}`");
    }
}

/// Names between `(` and `)` after ` by `, and before `=` between braces.
fn labels(expression: &str) -> BTreeSet<String> {
    let lists = expression.split(" by (").skip(1).map(|rest| rest.split(')').next().unwrap());
    let listed = lists.flat_map(|list| words(list).map(str::to_owned).collect::<Vec<_>>());
    let braces = expression.split('{').skip(1).map(|rest| rest.split('}').next().unwrap());
    let matched = braces.flat_map(|inside| inside.split(','));
    let matched = matched.filter_map(|one| Some(one.split_once('=')?.0.to_owned()));
    listed.chain(matched).filter(|label| label != "le").collect()
}

#[test]
fn expressions_use_labels_and_values_from_the_code() {
    let files = [
        "src/engine/metrics.rs",
        "src/engine/metrics/database.rs",
        "src/engine/metrics/functions.rs",
        "src/engine/metrics/states.rs",
    ];
    let metrics: String = files.into_iter().map(read).collect();
    let keys: BTreeSet<String> = metrics
        .split("KeyValue::new(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap().replace('.', "_"))
        .collect();
    assert!(keys.len() > 5 && keys.contains("poller_name"), "{keys:?}");
    let expressions: Vec<String> =
        panels().into_iter().chain(rules().into_iter().map(|it| it.expression)).collect();
    for label in expressions.iter().flat_map(|expression| labels(expression)) {
        assert!(keys.contains(&label), "no metric has the label `{label}`");
    }
    let code = code(&highwater_test_support::root().join("src"));
    for expression in &expressions {
        for part in expression.split('{').skip(1) {
            let inside = part.split('}').next().unwrap();
            let values = inside.split('"').skip(1).step_by(2).filter(|it| !it.contains('$'));
            for value in values.flat_map(|it| it.split('|')) {
                assert!(
                    code.contains(&format!("\"{value}\"")),
                    "no series has `{value}`: {expression}"
                );
            }
        }
    }
}

#[test]
fn the_recovery_rule_names_the_alarming_conditions() {
    let rule = rules().into_iter().find(|rule| rule.name == "HighwaterRecovery").unwrap();
    let (_, list) = rule.expression.split_once("condition=~\"").unwrap();
    let listed: BTreeSet<&str> = list.split('"').next().unwrap().split('|').collect();
    let alarming = ROWS.iter().filter(|row| row.actions.contains(&Action::Alarm));
    assert_eq!(listed, alarming.map(|row| row.name).collect());
}

/// Name of the runbook of a rule: `HighwaterHeldBack` has `held-back`.
fn page_of(rule: &str) -> String {
    let name = rule.strip_prefix("Highwater").unwrap();
    let dashed = name.chars().enumerate().map(|(at, c)| {
        let dash = if at > 0 && c.is_ascii_uppercase() { "-" } else { "" };
        format!("{dash}{}", c.to_ascii_lowercase())
    });
    dashed.collect()
}

/// Returns the conditions that Azure evaluates.
fn azure_alerts() -> BTreeSet<String> {
    let text = read("infra/app/alerts.bicep");
    let named = text.split("project alert = \"").skip(1);
    named.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

fn runbooks() -> BTreeSet<String> {
    let folder = highwater_test_support::root().join("docs/runbooks");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let names = names.filter(|name| name != "README.md");
    names.map(|name| name.strip_suffix(".md").unwrap().to_owned()).collect()
}

/// The runbooks that the state of a poller links.
fn pages_of_states() -> BTreeSet<String> {
    let code = read("src/engine/status/health.rs");
    let linked = code.split("\"runbooks/").skip(1);
    linked.map(|rest| rest.split(".md\"").next().unwrap().to_owned()).collect()
}

#[test]
fn the_index_of_runbooks_has_the_page_of_each_state() {
    let index = read("docs/runbooks/README.md");
    let (_, table) = index.split_once("| state |").unwrap();
    let table = table.split("\n\n").next().unwrap();
    let mut listed = BTreeSet::new();
    for line in table.lines().skip(2) {
        listed.extend(line.split("](").skip(1).map(|rest| rest.split(".md)").next().unwrap()));
    }
    assert_eq!(listed, pages_of_states().iter().map(String::as_str).collect());
    for state in PollerState::ALL {
        let row = format!("\n| `{}` | ", state.as_str());
        assert_eq!(table.contains(&row), state.severity() != Severity::Ok, "{row}");
    }
}

#[test]
fn every_alert_links_a_runbook_and_every_runbook_has_an_alert_or_a_state() {
    let azure = azure_alerts();
    let rules = rules();
    assert!(azure.len() > 12 && rules.len() > 12, "{azure:?}");
    let prometheus: BTreeSet<String> = rules.iter().map(|rule| page_of(&rule.name)).collect();
    let alerts: BTreeSet<String> = azure.union(&prometheus).cloned().collect();
    assert_eq!(runbooks(), alerts.union(&pages_of_states()).cloned().collect());
    for rule in &rules {
        let docs = "{{ $externalLabels.highwater_docs }}";
        assert_eq!(rule.runbook, format!("{docs}/runbooks/{}.md", page_of(&rule.name)));
    }
    let bicep = read("infra/app/alerts.bicep");
    assert!(bicep.contains("description: '${item.about} Runbook: docs/runbooks/<alert>.md'"));
    // Each condition is part of a rule.
    let used: BTreeSet<&str> = bicep
        .split("queries: [")
        .skip(1)
        .flat_map(|rest| rest.split(']').next().unwrap().split(", "))
        .collect();
    assert_eq!(used, azure.iter().map(String::as_str).collect());
    // Both must alert on every condition that both can observe. Logs do not show how long keys have been parked.
    let excepted = ["held-back", "parked"];
    let only_here: BTreeSet<&String> = azure.symmetric_difference(&prometheus).collect();
    assert_eq!(only_here.into_iter().collect::<Vec<_>>(), excepted);
    let list = read("infra/README.md");
    let index = read("docs/runbooks/README.md");
    for alert in alerts {
        assert!(
            index.contains(&format!("[`{alert}`]({alert}.md)")),
            "`{alert}` is not in the list"
        );
        let listed = list.contains(&format!("`{alert}`"));
        assert!(
            listed || excepted.contains(&alert.as_str()),
            "`{alert}` is not in infra/README.md"
        );
    }
}

/// List price a month of a log alert rule in US dollars, by how often it is evaluated.
/// <https://azure.microsoft.com/pricing/details/monitor/>
const PRICES: [(&str, &str, f64); 2] = [("PT5M", "5 minutes", 1.5), ("PT15M", "15 minutes", 0.5)];

#[test]
fn the_price_of_each_rule_is_listed_and_the_total_is_below_five_dollars() {
    let bicep = read("infra/app/alerts.bicep");
    let readme = read("infra/README.md");
    let listed = bicep.split("var rules = [").nth(1).unwrap().split("\n]").next().unwrap();
    let mut sum = 0.0;
    for rule in listed.split("\n  {").skip(1) {
        let of = |name: &str| rule.split(&format!("{name}: ")).nth(1).unwrap().split('\n').next();
        let of = |name: &str| of(name).unwrap().trim_matches('\'');
        let (_, every, price) =
            PRICES.into_iter().find(|(frequency, ..)| *frequency == of("frequency")).unwrap();
        let row = format!("| {} | {every} | ${price:.2} |", of("severity"));
        let start = format!("| `{}` | ", of("name"));
        let is_row = |line: &str| line.starts_with(&start) && line.ends_with(&row);
        assert!(readme.lines().any(is_row), "{start}…{row}");
        sum += price;
    }
    assert!(sum <= 5.0, "{sum}");
    for text in [&bicep, &readme, &read("docs/reference/cost.md")] {
        assert!(text.contains(&format!("${sum:.2}")), "${sum:.2}");
    }
}

/// Evaluates the product in a line of the cost page, such as `86,400 × $0.40 a million`; `None` if there is
/// none.
fn product(how: &str) -> Option<f64> {
    let factors = how.rsplit(": ").next()?.replace(" at ", " × ");
    let factors: Vec<&str> = factors.split(" × ").collect();
    let value = |factor: &&str| {
        let digits = factor.trim_start_matches('$').replace(',', "");
        let number: f64 = digits.split(' ').next()?.parse().ok()?;
        let per = [("for 10,000", 1e4), ("a million", 1e6), ("KB", 1e6)];
        let per = per.iter().find(|(unit, _)| factor.ends_with(unit));
        Some(number / per.map_or(1.0, |(_, per)| *per))
    };
    (factors.len() > 1).then(|| factors.iter().map(value).product()).flatten()
}

#[test]
fn the_cost_table_of_the_default_deployment_adds_up() {
    let page = read("docs/reference/cost.md");
    let (_, table) = page.split_once("<!-- default -->").unwrap();
    let (table, rest) = table.split_once("<!-- /default -->").unwrap();
    let (mut sum, mut computed) = (0.0, 0);
    let rows: Vec<&str> = table.lines().filter(|line| line.ends_with(" |")).skip(1).collect();
    for row in &rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let price: f64 =
            cells[2].strip_prefix('$').unwrap().trim_end_matches(" |").parse().unwrap();
        sum += price;
        if let Some(exact) = product(cells[1]) {
            assert!((exact - price).abs() < 0.005, "{row}: {exact}");
            computed += 1;
        }
    }
    assert_eq!((rows.len(), computed), (7, 5));
    assert!(rest.contains(&format!("Together **${sum:.2}**")), "{sum:.2}");
}

/// Returns the shell blocks of a page.
pub(crate) fn shell_blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap())
}

/// Returns a page without its shell blocks.
pub(crate) fn without_shell_blocks(page: &str) -> String {
    page.split("```sh\n").map(|part| part.split("```\n").last().unwrap()).collect()
}

/// Checks against `--help` that our program has this command with these flags.
pub(crate) fn check_help(command: &[String], flags: &BTreeSet<String>) {
    let mut help = Command::new(env!("CARGO_BIN_EXE_highwater"));
    let output = help.args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "there is no `highwater {}`", command.join(" "));
    let help = String::from_utf8(output.stdout).unwrap();
    for flag in flags {
        assert!(help.contains(flag), "`highwater {}` has no `{flag}`", command.join(" "));
    }
}

/// The commands of a page, in shell blocks and in the text, without their arguments, each with its flags.
fn commands(page: &str) -> BTreeMap<Vec<String>, BTreeSet<String>> {
    let mut found: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
    let text = without_shell_blocks(page);
    let inline = text.split('`').skip(1).step_by(2);
    let inline = inline.filter_map(|code| code.strip_prefix("highwater "));
    let blocks = shell_blocks(page).flat_map(str::lines);
    let blocks =
        blocks.map(|line| line.strip_prefix("highwater ").unwrap_or_else(|| panic!("{line}")));
    for words in blocks.chain(inline) {
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let name = words.split(' ').take_while(is_word).map(str::to_owned).collect();
        let flags = words.split(' ').filter(|word| word.starts_with("--")).map(str::to_owned);
        found.entry(name).or_default().extend(flags);
    }
    found
}

/// Returns the text of one section of a page.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

#[test]
fn each_runbook_has_all_required_sections() {
    let mut found: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
    for name in runbooks() {
        let page = read(&format!("docs/runbooks/{name}.md"));
        assert!(page.starts_with(&format!("# `{name}`: ")), "{name}");
        let parts = page.lines().filter_map(|line| line.strip_prefix("## "));
        let parts: Vec<&str> = parts.collect();
        let expected = ["Do this first", "Causes and fixes", "How to see that it is over"];
        assert_eq!(parts, expected, "{name}");
        for (command, flags) in commands(&page) {
            found.entry(command).or_default().extend(flags);
        }
    }
    for (command, flags) in found {
        check_help(&command, &flags);
    }
}

/// The sources, with texts as they are printed: continued lines are joined, and quotes are not escaped.
fn printed() -> String {
    let mut text = String::new();
    let mut is_continued = false;
    for line in code(&highwater_test_support::root().join("src")).lines() {
        let line = if is_continued { line.trim_start() } else { line };
        is_continued = line.ends_with('\\');
        text += line.strip_suffix('\\').unwrap_or(line);
        if !is_continued {
            text.push('\n');
        }
    }
    text.replace("\\\"", "\"")
}

#[test]
fn runbooks_start_with_three_commands_and_what_they_print() {
    let printed = printed();
    let mut outcomes = 0;
    for name in runbooks() {
        let page = read(&format!("docs/runbooks/{name}.md"));
        let steps: Vec<&str> = section(&page, "Do this first").split("```sh\n").skip(1).collect();
        assert_eq!(steps.len(), 3, "{name}");
        for step in steps {
            let (command, rest) = step.split_once("\n```\n").unwrap();
            assert_eq!(command.lines().count(), 1, "{name}: {command}");
            let is_placeholder = |word: &str| word.chars().all(|c| c.is_ascii_uppercase());
            let placeholders = words(command).filter(|word| is_placeholder(word));
            assert!(placeholders.into_iter().all(|word| word == "POLLER"), "{name}: {command}");
            let head = "\n| outcome | meaning | next step |\n|---|---|---|\n";
            let table = rest.strip_prefix(head).unwrap_or_else(|| panic!("{name}: {command}"));
            let rows: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
            assert!(rows.len() > 1, "{name}: {command}");
            for row in rows {
                let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
                assert_eq!(cells.len(), 3, "{name}: {row}");
                let quoted = cells[0].split('`').skip(1).step_by(2);
                for part in quoted.flat_map(|text| text.split('…')).map(str::trim) {
                    assert!(printed.contains(part), "{name}: no command prints `{part}`");
                    outcomes += 1;
                }
            }
        }
    }
    assert!(outcomes > 150, "{outcomes}");
}

#[test]
fn runbooks_name_existing_events_metrics_settings_and_pages() {
    let code = code(&highwater_test_support::root().join("src"));
    let settings = read("docs/reference/settings.md");
    let deployment = read("infra/README.md");
    let metrics: BTreeSet<String> = series().into_values().collect();
    for name in runbooks() {
        let page = read(&format!("docs/runbooks/{name}.md"));
        let page = without_shell_blocks(&page);
        for word in page.split('`').skip(1).step_by(2) {
            let is = |sign: fn(char) -> bool| word.chars().all(|c| sign(c) || c == '_');
            if word.starts_with("highwater.") {
                assert!(metrics.contains(word), "{name}: `{word}` is no metric");
            } else if word.contains('_') && is(|c| c.is_ascii_uppercase()) {
                let known = settings.contains(&format!("__{word}`"))
                    || settings.contains(&format!("`{word}`"))
                    || deployment.contains(&format!("`{word}`"))
                    || word == "CHANGE_RETENTION";
                assert!(known, "{name}: `{word}` is no setting");
            } else if word.contains('_') && is(|c| c.is_ascii_lowercase()) {
                let known =
                    code.contains(&format!("\"{word}\"")) || code.contains(&format!("{word} ="));
                assert!(known, "{name}: unknown name `{word}`");
            }
        }
        for link in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("https://") {
                continue;
            }
            let file = PathBuf::from("docs/runbooks").join(link.split('#').next().unwrap());
            let file = highwater_test_support::root().join(file);
            assert!(file.exists(), "{name}: missing page {link}");
        }
    }
}

#[test]
fn queries_use_existing_log_fields_only() {
    let code = code(&highwater_test_support::root().join("src"));
    let text = read("infra/app/alerts.bicep") + &queries();
    let plain = text.split("line.").skip(1).map(|rest| words(rest).next().unwrap());
    let quoted = text.split("line[\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let fields: BTreeSet<&str> = plain.chain(quoted).collect();
    assert!(fields.len() > 10, "{fields:?}");
    // Fields of the layer that writes lines.
    let always = ["level", "message"];
    for field in fields.into_iter().filter(|field| !always.contains(field)) {
        let is_logged =
            code.contains(&format!("{field} = ")) || code.contains(&format!(" {field},\n"));
        assert!(is_logged, "no line has a `{field}`");
    }
}

#[test]
fn the_dashboard_file_has_the_fields_grafana_requires() {
    let dashboard = json("docs/reference/grafana/highwater.json");
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: Vec<&Json> = variables.map(|variable| &variable["name"]).collect();
    assert_eq!(variables, ["datasource", "poller", "docs"]);
    let resets = &dashboard["annotations"]["list"][0]["expr"];
    let named = named(resets.as_str().unwrap());
    assert!(named.iter().all(|name| series().contains_key(name)) && named.len() == 1, "{named:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    assert_eq!(panels[0]["title"], "What is wrong now");
    for link in panels.iter().filter_map(|panel| panel["links"].as_array()).flatten() {
        let url = link["url"].as_str().unwrap().strip_prefix("${docs}/").unwrap();
        let page = url.split('#').next().unwrap();
        let page = highwater_test_support::root().join("docs").join(page);
        assert!(page.is_file(), "{url}");
    }
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for cell in (at("x")..at("x") + at("w"))
            .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{} lies over another", panel["title"]);
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}");
            assert_ne!(panel["description"], Json::Null, "{}", panel["title"]);
        }
    }
}

//! The documentation as a whole: links resolve, every page is reachable, and the front page stays short.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value as Json, json};

/// Maximum length of the front page: readers decide there whether to continue.
const README_LINES_MAX: usize = 150;

/// Maximum number of words that a newcomer reads: the front page, the first steps, a tutorial and its deployment.
const NEWCOMER_WORDS_MAX: usize = 8000;

fn root() -> PathBuf {
    highwater_test_support::root().to_owned()
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page))
        .unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Returns every tracked page.
fn pages() -> BTreeSet<PathBuf> {
    let tracked =
        Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().unwrap();
    let tracked = String::from_utf8(tracked.stdout).unwrap();
    let pages = tracked.lines().map(PathBuf::from);
    // A removed page is tracked until the next commit.
    pages.filter(|page| root().join(page).exists()).collect()
}

/// Returns a page without its code blocks, whose brackets are not links.
fn prose(page: &str) -> String {
    let mut is_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the link targets of a page that are in the repository.
fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .map(str::to_owned)
        .collect()
}

/// Returns the file of a link, and the part after its `#`.
fn resolve(page: &Path, link: &str) -> (PathBuf, Option<String>) {
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (link, None),
    };
    if file.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut resolved = PathBuf::new();
    for part in page.parent().unwrap().join(file).components() {
        if part == Component::ParentDir {
            assert!(resolved.pop(), "{}: {link}", page.display());
        } else {
            resolved.push(part);
        }
    }
    (resolved, anchor)
}

/// Returns the anchors of a page: those of its headings, in the style of the forge and mdBook, and explicit
/// ones.
fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#')).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    let own = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.chain(own.map(str::to_owned)).collect()
}

#[test]
fn every_link_resolves_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    let mut known: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut followed = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            let (file, anchor) = resolve(&page, &link);
            followed += 1;
            if !root().join(&file).exists() {
                broken.push(format!("{}: there is no {link}", page.display()));
            } else if let Some(anchor) =
                anchor.filter(|_| file.extension().is_some_and(|e| e == "md"))
            {
                let anchors = known.entry(file.clone()).or_insert_with(|| anchors(&read(&file)));
                if !anchors.contains(&anchor) {
                    broken.push(format!("{}: {} has no #{anchor}", page.display(), file.display()));
                }
            }
        }
    }
    assert!(followed > 200, "{followed} links");
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// Returns the pages of the book after its preprocessor, whose input has the form that mdBook gives it.
fn book(repository: Option<&str>) -> Vec<(PathBuf, String)> {
    let chapters = pages().into_iter().filter(|page| page.starts_with("docs")).map(|page| {
        let path = page.strip_prefix("docs").unwrap();
        json!({ "Chapter": { "content": read(&page), "source_path": path, "sub_items": [] } })
    });
    let items: Vec<Json> = chapters.collect();
    let context =
        json!({ "config": { "output": { "html": { "git-repository-url": repository } } } });
    let mut process = Command::new("python3");
    process.arg(root().join("docs/outside.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    // In a thread, since it may write before it has read everything.
    let given = json!([context, { "items": items }]).to_string();
    let writer = thread::spawn(move || input.write_all(given.as_bytes()).unwrap());
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap();
    let book: Json = serde_json::from_slice(&output.stdout).unwrap();
    let chapters = book["items"].as_array().unwrap().iter().map(|item| &item["Chapter"]);
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    chapters
        .map(|chapter| {
            let page = Path::new("docs").join(text(&chapter["source_path"]));
            (page, text(&chapter["content"]))
        })
        .collect()
}

#[test]
fn links_that_leave_the_book_lead_to_the_repository() {
    let repository = "https://github.com/YOUR/highwater";
    let mut outside = 0;
    for (page, text) in book(Some(repository)) {
        for link in links(&text) {
            assert!(resolve(&page, &link).0.starts_with("docs"), "{}: {link}", page.display());
        }
        for rest in text.split(&format!("]({repository}/blob/main/")).skip(1) {
            let file = rest.split([')', '#']).next().unwrap();
            assert!(root().join(file).exists(), "{}: {file}", page.display());
            outside += 1;
        }
    }
    assert!(outside > 10, "{outside}");
    // Without an address, they are text.
    for (page, text) in book(None) {
        let is_inside = |link: &String| resolve(&page, link).0.starts_with("docs");
        assert!(links(&text).iter().all(is_inside), "{}", page.display());
    }
}

#[test]
fn every_page_of_the_docs_is_in_the_navigation() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: BTreeSet<PathBuf> =
        links(&read(summary)).iter().map(|link| resolve(summary, link).0).collect();
    let pages = pages().into_iter().filter(|page| page.starts_with("docs") && page != summary);
    let missing: Vec<PathBuf> = pages.filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn the_front_page_is_short_and_shows_the_two_commands() {
    let readme = read(Path::new("README.md"));
    assert!(readme.lines().count() <= README_LINES_MAX, "{} lines", readme.lines().count());
    for command in ["\ncargo run -- demo ", "\ncargo test --workspace\n"] {
        assert!(readme.contains(command), "README.md does not show `{}`", command.trim());
    }
}

/// `cargo it a_newcomer -- --nocapture` prints the numbers.
#[test]
fn a_newcomer_reads_few_words() {
    let words = |page: &str| {
        let count = read(Path::new(page)).split_whitespace().count();
        println!("{count:6}  {page}");
        count
    };
    let tutorial = |name: &&str| words(&format!("docs/tutorials/{name}.md"));
    let longest = ["csharp", "python", "typescript"].iter().map(tutorial).max().unwrap();
    let others = ["README.md", "docs/tutorials/first-steps.md", "docs/tutorials/deploy.md"];
    let all = longest + others.into_iter().map(words).sum::<usize>();
    println!("{all:6}  with the longest tutorial");
    assert!(all <= NEWCOMER_WORDS_MAX, "{all} words");
}

#[test]
fn every_command_is_in_the_reference_and_no_other() {
    let program = env!("CARGO_BIN_EXE_highwater");
    let help = Command::new(program).arg("--help").env_clear().output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.lines().filter_map(|line| line.strip_prefix("  "));
    let commands = commands.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let commands: BTreeSet<&str> =
        commands.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").collect();
    let page = read(Path::new("docs/reference/commands.md"));
    let shown: BTreeSet<&str> = page
        .split("`highwater ")
        .skip(1)
        .filter_map(|rest| rest.split(['`', ' ']).next())
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()) && *word != "help")
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    assert_eq!(commands, shown);
}

#[test]
fn every_exit_code_is_in_the_reference_and_no_other() {
    let code = read(Path::new("src/app/exit.rs"));
    let variants = code.split("pub enum Exit {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants = variants.lines().filter(|line| !line.trim_start().starts_with("//"));
    let codes: BTreeSet<&str> =
        variants.filter_map(|line| line.split_once(" = ")?.1.strip_suffix(',')).collect();
    let page = read(Path::new("docs/reference/commands.md"));
    let section = page.split("## Exit codes").nth(1).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let listed = rows.flat_map(|cell| cell.split(", "));
    let mut listed: BTreeSet<&str> =
        listed.filter(|cell| cell.starts_with(|c: char| c.is_ascii_digit())).collect();
    // No command ends with it: it is for the Functions host alone, and below the table.
    assert!(section.contains("with 200 after SIGTERM"), "{section}");
    assert!(listed.insert("200"), "{listed:?}");
    assert!(codes.len() > 10, "{codes:?}");
    assert_eq!(codes, listed);
}

/// Returns the permissions on one of Highwater's own tables, as its statements grant them.
fn granted(table: &str) -> String {
    let program = env!("CARGO_BIN_EXE_highwater");
    let output = Command::new(program).args(["ddl", table]).env_clear().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let grants = text.lines().filter_map(|line| line.strip_prefix("GRANT ")?.split(" ON ").next());
    grants.map(|right| format!("`{right}`")).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_rights_on_highwaters_own_tables_are_those_of_its_statements() {
    let page = read(Path::new("docs/explanation/security.md"));
    let [state, journal, fence, ledger] = ["state", "journal", "fence", "ledger"].map(granted);
    for row in [
        format!("| state in `sql` | {state} |"),
        format!("| journal in `sql` | {journal} |"),
        format!("| its fence; its ledger | {fence}; {ledger} |"),
    ] {
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn actions_of_workflows_are_pinned_to_commits() {
    let folder = root().join(".github/workflows");
    let mut pinned = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for line in
            text.lines().filter(|line| line.trim_start_matches([' ', '-']).starts_with("uses: "))
        {
            let action = line.split("uses: ").nth(1).unwrap();
            // A workflow of the same commit.
            if action.starts_with("./.github/workflows/") {
                continue;
            }
            let commit = action.split('@').nth(1).and_then(|rest| rest.split(' ').next());
            let is_pinned = commit.is_some_and(|commit| {
                commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit())
            });
            assert!(is_pinned && action.contains(" # v"), "{}: {action}", path.display());
            pinned += 1;
        }
    }
    assert!(pinned >= 2, "{pinned} actions");
}

#[test]
fn functions_that_a_page_calls_are_in_the_repository() {
    let mut called = 0;
    for page in pages() {
        let text = read(&page);
        for rest in text.split("/admin/functions/").skip(1) {
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let folder = root().join("function-definitions").join(&name);
            assert!(folder.is_dir(), "{}: there is no function `{name}`", page.display());
            called += 1;
        }
    }
    assert!(called > 0);
}

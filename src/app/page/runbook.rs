//! The runbooks, which are part of the program: they are needed most when nothing else can be reached.
//!
//! They are Markdown of a few forms: headings, paragraphs, lists, tables and shell blocks, with code, bold text and
//! links in a line. A test checks that each page is shown completely.

use super::View;
use super::markup::Html;

/// A page for each state and each alert.
const PAGES: [(&str, &str); 22] = pages();

/// Returns the pages by name.
const fn pages() -> [(&'static str, &'static str); 22] {
    macro_rules! page {
        ($name:literal) => {
            ($name, include_str!(concat!("../../../docs/runbooks/", $name, ".md")))
        };
    }
    [
        page!("backing-off"),
        page!("behind"),
        page!("breaker"),
        page!("contention"),
        page!("disabled"),
        page!("failures"),
        page!("fenced"),
        page!("handler"),
        page!("held-back"),
        page!("journal"),
        page!("lag"),
        page!("late"),
        page!("never-ran"),
        page!("parked"),
        page!("paused"),
        page!("quarantine"),
        page!("recovery"),
        page!("retention"),
        page!("silent"),
        page!("stale"),
        page!("stopped"),
        page!("vanished"),
    ]
}

/// Returns a page by its name.
pub(super) fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Returns the name of a page from its path below `docs`, such as `runbooks/silent.md`.
pub(super) fn name(path: &str) -> Option<&str> {
    path.strip_prefix("runbooks/")?.strip_suffix(".md")
}

/// Adds a page. `POLLER` in it becomes the name of the poller that led here.
pub(super) fn show(html: &mut Html, text: &str, poller: Option<&str>, view: &View<'_>) {
    html.within("nav", &[("aria-label", "Breadcrumb")], |html| {
        let link = view.link(poller);
        html.within("a", &[("href", &link)], |html| {
            html.raw("<span aria-hidden=\"true\">←</span> ");
            match poller {
                Some(poller) => html.foreign(poller),
                None => html.text("All pollers"),
            }
        });
    });
    let text = poller.map_or_else(|| text.to_owned(), |poller| with_name(text, poller));
    html.within("article", &[("class", "card runbook")], |html| {
        let mut lines = text.lines().peekable();
        let mut tables = 0;
        while let Some(line) = lines.next() {
            let more =
                |starts: &'static str, lines: &mut std::iter::Peekable<std::str::Lines<'_>>| {
                    lines.next_if(|next| next.starts_with(starts)).map(str::to_owned)
                };
            if line.is_empty() {
            } else if let Some(title) = line.strip_prefix("# ") {
                html.within("h1", &[], |html| inline(html, title, view));
            } else if let Some(title) = line.strip_prefix("## ") {
                html.within("h2", &[], |html| inline(html, title, view));
            } else if line.starts_with("```") {
                let code: Vec<&str> =
                    lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
                html.within("pre", &[("tabindex", "0")], |html| {
                    html.element("code", &[], &code.join("\n"));
                });
            } else if line.starts_with('|') {
                let mut rows = vec![line.to_owned()];
                while let Some(row) = more("|", &mut lines) {
                    rows.push(row);
                }
                tables += 1;
                table(html, &format!("Table {tables}"), &rows, view);
            } else if let Some(item) = line.strip_prefix("- ") {
                let mut items = vec![item.to_owned()];
                while let Some(next) = lines.next_if(|next| !next.is_empty()) {
                    match (next.strip_prefix("- "), items.last_mut()) {
                        (Some(item), _) => items.push(item.to_owned()),
                        (None, Some(last)) => last.extend([" ", next.trim_start()]),
                        (None, None) => {}
                    }
                }
                html.within("ul", &[], |html| {
                    for item in &items {
                        html.within("li", &[], |html| inline(html, item, view));
                    }
                });
            } else {
                let mut paragraph = line.to_owned();
                while let Some(next) = lines.next_if(|next| !next.is_empty()) {
                    paragraph.extend([" ", next]);
                }
                html.within("p", &[], |html| inline(html, &paragraph, view));
            }
        }
    });
}

/// Replaces `POLLER` by the name of a poller, except inside of longer words such as `HIGHWATER__POLLERS`.
fn with_name(text: &str, poller: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut named, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("POLLER") {
        named.push_str(before);
        let is_part = named.ends_with(is_word) || after.starts_with(is_word);
        named.push_str(if is_part { "POLLER" } else { poller });
        rest = after;
    }
    named + rest
}

fn table(html: &mut Html, label: &str, rows: &[String], view: &View<'_>) {
    let cells = |row: &str| -> Vec<String> {
        row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    html.within(
        "div",
        &[("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", label)],
        |html| {
            html.within("table", &[], |html| {
                for (index, row) in rows.iter().enumerate() {
                    // The second row has only dashes.
                    if index == 1 {
                        continue;
                    }
                    html.within("tr", &[], |html| {
                        for cell in cells(row) {
                            if index == 0 {
                                html.within("th", &[("scope", "col")], |html| {
                                    inline(html, &cell, view);
                                });
                            } else {
                                html.within("td", &[], |html| inline(html, &cell, view));
                            }
                        }
                    });
                }
            });
        },
    );
}

/// Adds a line with its code, bold text and links.
fn inline(html: &mut Html, text: &str, view: &View<'_>) {
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (before, marked) = rest.split_at(at);
        html.text(before);
        let parsed = code(marked).or_else(|| bold(marked)).or_else(|| link(marked));
        let Some((part, after)) = parsed else {
            let (sign, after) = marked.split_at(1);
            html.text(sign);
            rest = after;
            continue;
        };
        match part {
            Part::Code(text) => html.element("code", &[], text),
            Part::Bold(text) => html.within("strong", &[], |html| inline(html, text, view)),
            Part::Link(text, target) => {
                let page = target.split('#').next().unwrap_or_default();
                let name = page.strip_suffix(".md").filter(|name| self::page(name).is_some());
                if let Some(name) = name {
                    let link = view.runbook(name);
                    html.within("a", &[("href", &link)], |html| inline(html, text, view));
                } else {
                    // Other pages are not part of the program.
                    inline(html, text, view);
                    let place = page.trim_start_matches("../");
                    let folder = if page.starts_with("https://") { "" } else { "docs/" };
                    html.element("small", &[], &format!(" ({folder}{place})"));
                }
            }
        }
        rest = after;
    }
    html.text(rest);
}

/// A marked part of a line.
enum Part<'a> {
    Code(&'a str),
    Bold(&'a str),
    Link(&'a str, &'a str),
}

fn code(text: &str) -> Option<(Part<'_>, &str)> {
    let (inside, after) = text.strip_prefix('`')?.split_once('`')?;
    Some((Part::Code(inside), after))
}

fn bold(text: &str) -> Option<(Part<'_>, &str)> {
    let (inside, after) = text.strip_prefix("**")?.split_once("**")?;
    Some((Part::Bold(inside), after))
}

fn link(text: &str) -> Option<(Part<'_>, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    Some((Part::Link(inside, target), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mut html = Html::default();
        let view = View { poller: Some("orders"), code: None, actions: None };
        show(&mut html, text, Some("orders"), &view);
        html.finish()
    }

    #[test]
    fn every_runbook_is_a_page() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbooks");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "README.md")
            .collect();
        names.sort();
        let known: Vec<String> = PAGES.iter().map(|(name, _)| format!("{name}.md")).collect();
        assert_eq!(names, known);
    }

    #[test]
    fn no_mark_of_a_runbook_is_shown_as_it_is() {
        for (name, text) in PAGES {
            let page = shown(text);
            let mut texts = String::new();
            let mut rest = page.as_str();
            while let Some((text, tag)) = rest.split_once('<') {
                texts.push_str(text);
                rest = tag.split_once('>').map_or("", |(_, rest)| rest);
            }
            for mark in ["**", "](", "```", "&#96;", "| "] {
                assert!(!texts.contains(mark), "{name}: `{mark}` in {texts}");
            }
            assert!(page.matches("<pre").count() >= 3, "{name}");
            assert!(page.matches("<table").count() >= 3, "{name}");
            assert!(!page.replace("__POLLERS", "").contains("POLLER"), "{name}");
        }
    }

    #[test]
    fn only_the_whole_word_becomes_the_name_of_the_poller() {
        assert_eq!(
            with_name("`tick POLLER` F__POLLERS MY_POLLER (POLLER)POLLER", "POLLER2"),
            "`tick POLLER2` F__POLLERS MY_POLLER (POLLER2)POLLER2"
        );
        let page = shown(page("disabled").unwrap());
        assert!(page.contains("HIGHWATER__FUNCTIONS__&lt;FUNCTION&gt;__POLLERS"), "{page}");
    }

    #[test]
    fn the_forms_of_a_line_become_markup() {
        let page = shown(
            "# `a`: b\n\nFirst\nline, **bold `c`** [x](silent.md#y) and [z](../how-to/z.md).\n\n- one\n  more\n- two\n",
        );
        assert!(page.contains("<h1><code>a</code>: b</h1>"), "{page}");
        assert!(page.contains("<p>First line, <strong>bold <code>c</code></strong> "), "{page}");
        assert!(page.contains("<a href=\"page?poller=orders&amp;runbook=silent\">x</a>"), "{page}");
        assert!(page.contains("z<small> (docs/how-to/z.md)</small>."), "{page}");
        assert!(page.contains("<ul><li>one more</li><li>two</li></ul>"), "{page}");
    }
}

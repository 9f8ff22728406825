//! The printed report, also written as JSON.

use std::fs;

use serde_json::{Map, Value as Json, json};

use crate::options::Options;

/// The results of several rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// The median; of two middle values the lower.
    pub(crate) fn median(&self) -> f64 {
        self.at(50)
    }

    /// The value at this percentile.
    pub(crate) fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    /// Half of the range, as a percentage of the median.
    pub(crate) fn spread(&self) -> f64 {
        if self.median() > 0.0 {
            (self.at(100) - self.at(0)) / 2.0 / self.median() * 100.0
        } else {
            0.0
        }
    }

    pub(crate) fn all(&self) -> &[f64] {
        &self.0
    }
}

/// The page with the figures, between two comments that name them.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explanation/performance.md");

/// A Markdown table, with its machine-readable figures.
pub(crate) struct Report {
    text: String,
    sections: Map<String, Json>,
    targets: Vec<[String; 4]>,
    name: &'static str,
    is_for_page: bool,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let name = match options.mode {
            crate::options::Mode::Smoke => "measure-smoke",
            crate::options::Mode::Load(_) => "measure-load",
            crate::options::Mode::Short | crate::options::Mode::Full => "measure",
        };
        Self {
            text: String::new(),
            sections: Map::new(),
            targets: Vec::new(),
            name,
            is_for_page: options.is_for_page,
        }
    }

    /// Prints a line, and stores it for the file.
    pub(crate) fn say(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Prints a table: names first, then figures.
    pub(crate) fn table(&mut self, title: &str, heads: &[&str], rows: &[Vec<String>]) {
        self.say(&format!("\n### {title}\n"));
        self.say(&format!("| {} |", heads.join(" | ")));
        let rule = heads.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" });
        self.say(&format!("| {} |", rule.collect::<Vec<_>>().join(" | ")));
        for row in rows {
            self.say(&format!("| {} |", row.join(" | ")));
        }
    }

    /// Stores figures for the file.
    pub(crate) fn keep(&mut self, section: &str, figures: Json) {
        let list = self.sections.entry(section).or_insert_with(|| json!([]));
        list.as_array_mut().unwrap().push(figures);
    }

    /// Records a target and the measured value.
    pub(crate) fn target(&mut self, what: &str, wanted: &str, came: &str, is_met: bool) {
        let word = if is_met { "met" } else { "not met" };
        self.targets.push([what, wanted, came, word].map(str::to_owned));
    }

    /// Prints the targets, and writes everything to `target/`.
    pub(crate) fn finish(mut self) {
        if !self.targets.is_empty() {
            let rows: Vec<Vec<String>> = self.targets.iter().map(|row| row.to_vec()).collect();
            self.table("Targets", &["target", "wanted", "measured", ""], &rows);
        }
        let folder = highwater_test_support::root().join("target/measure");
        fs::create_dir_all(&folder).unwrap();
        let targets: Vec<Json> = self
            .targets
            .iter()
            .map(|[what, wanted, came, word]| {
                json!({ "target": what, "wanted": wanted, "measured": came, "met": word == "met" })
            })
            .collect();
        self.sections.insert("targets".to_owned(), targets.into());
        let json = serde_json::to_string_pretty(&self.sections).unwrap();
        let file = |kind: &str| folder.join(format!("{}.{kind}", self.name));
        fs::write(file("json"), json).unwrap();
        fs::write(file("md"), &self.text).unwrap();
        println!("\nwritten: {} and .md", file("json").display());
        if self.is_for_page {
            let page = filled(&fs::read_to_string(PAGE).unwrap(), self.name, &self.text);
            fs::write(PAGE, page).unwrap();
            println!("written: {PAGE}");
        }
    }
}

/// Inserts figures between the comments `<!-- name -->` and `<!-- end of name -->`.
fn filled(page: &str, name: &str, figures: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{begin}\n{}\n\n{end}{after}", figures.trim())
}

/// Formats a count with commas.
pub(crate) fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Converts a count to a float; no count here is large enough to lose digits.
pub(crate) fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count >> 20).unwrap()) * f64::from(1_u32 << 20)
        + f64::from(u32::try_from(count & 0xF_FFFF).unwrap())
}

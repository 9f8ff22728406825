//! Reads settings without stopping at the first mistake.

use super::defaults::default_of;
use super::mistake::{ConfigErrors, Mistake, Shown};
use super::parse::Expected;
use super::settings::{Fallback, Setting};
use super::vars::Vars;

/// Reads settings and collects mistakes.
pub(super) struct Reader<'a> {
    vars: &'a dyn Vars,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(vars: &'a dyn Vars) -> Self {
        Self { vars, mistakes: Vec::new() }
    }

    /// Returns every name with a non-blank value, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = self.vars.names();
        names.retain(|name| self.own(name).is_some());
        names.sort();
        names
    }

    /// Returns the trimmed value of a name, or that for all pollers; `None` if it is blank or not set.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.own(name).or_else(|| self.own(&default_of(name)?))
    }

    /// Returns the name of the setting that gives a setting its value: itself, or that for all pollers.
    fn origin(&self, name: &str) -> String {
        let shared = || default_of(name).filter(|shared| self.own(shared).is_some());
        match self.own(name) {
            Some(_) => name.to_owned(),
            None => shared().unwrap_or_else(|| name.to_owned()),
        }
    }

    fn own(&self, name: &str) -> Option<String> {
        let text = self.vars.get(name)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns every name that is set, including blank values.
    pub(super) fn variables(&self) -> Vec<String> {
        self.vars.names()
    }

    /// Returns the value of a name, untrimmed.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        self.vars.get(name)
    }

    /// Returns a setting's value or its default; `None` after a mistake, which is recorded.
    pub(super) fn read<T>(
        &mut self,
        setting: &Setting,
        segment: Option<&str>,
        parse: impl Fn(&str) -> Result<T, Expected>,
    ) -> Option<T> {
        let name = setting.name_for(segment);
        let text = match (self.text(&name), setting.fallback) {
            (Some(text), _) => text,
            (None, Fallback::Text(text)) => text.to_owned(),
            (None, Fallback::Required | Fallback::Words(_)) => {
                let expected = lower_first(setting.about);
                self.note(Mistake { setting: name, shown: Shown::Missing, expected, hint: None });
                return None;
            }
        };
        self.parsed(&name, &text, parse)
    }

    /// Returns a setting's value, if it is set and valid; a mistake is recorded.
    pub(super) fn read_if_set<T>(
        &mut self,
        setting: &Setting,
        segment: Option<&str>,
        parse: impl Fn(&str) -> Result<T, Expected>,
    ) -> Option<T> {
        let name = setting.name_for(segment);
        let text = self.text(&name)?;
        self.parsed(&name, &text, parse)
    }

    /// Records an invalid value; `expected` decides what is shown of it.
    pub(super) fn wrong(&mut self, name: &str, text: &str, expected: Expected) {
        let Expected { what, hint, shown, is_without_effect } = expected;
        if is_without_effect && self.origin(name) != name {
            return;
        }
        let shown = shown.unwrap_or_else(|| Shown::of(text));
        self.note(Mistake { setting: name.to_owned(), shown, expected: what, hint });
    }

    pub(super) fn note(&mut self, mistake: Mistake) {
        let setting = self.origin(&mistake.setting);
        self.mistakes.push(Mistake { setting, ..mistake });
    }

    /// Returns `config`, or the mistakes.
    pub(super) fn finish<T>(mut self, config: Option<T>) -> Result<T, ConfigErrors> {
        self.mistakes.sort_by(|a, b| a.setting.cmp(&b.setting));
        self.mistakes.dedup();
        match config {
            Some(config) if self.mistakes.is_empty() => Ok(config),
            Some(_) | None => Err(ConfigErrors(self.mistakes)),
        }
    }

    fn parsed<T>(
        &mut self,
        name: &str,
        text: &str,
        parse: impl Fn(&str) -> Result<T, Expected>,
    ) -> Option<T> {
        parse(text).map_err(|expected| self.wrong(name, text, expected)).ok()
    }
}

/// Turns the description of a setting into text that can follow "expected", without the handler kinds.
fn lower_first(about: &str) -> String {
    let is_kinds = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || ", ".contains(c));
    let about = match about.split_once(": ") {
        Some((kinds, rest)) if is_kinds(kinds) => rest,
        Some(_) | None => about,
    };
    let mut chars = about.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(chars).collect()
}

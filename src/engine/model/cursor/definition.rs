//! The definition of a source in plain text, stored next to its fingerprint, so that a message can name the
//! differences.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Longest text of a part, in characters: it keeps the state document small with any filter or query.
const PART_CHARS_MAX: usize = 500;

/// The parts of a source's definition, by name, in the order in which they are reported.
///
/// For people only: the fingerprint alone decides whether two sources are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceDefinition(Map<String, Json>);

impl SourceDefinition {
    /// Returns the definition with these parts, which must not contain secrets. Long parts are cut.
    pub fn of(parts: &[(&str, &str)]) -> Self {
        let part = |(name, text): &(&str, &str)| ((*name).to_owned(), shown(text).into());
        Self(parts.iter().filter(|(_, text)| !text.is_empty()).map(part).collect())
    }

    /// Whether it has no parts, as in documents written before this field existed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both are known and have the same parts, except for the part `name`.
    pub fn is_same_but_for(&self, name: &str, other: &Self) -> bool {
        let parts = |of: &Self| {
            let mut parts = of.0.clone();
            parts.remove(name);
            parts
        };
        !self.is_empty() && !other.is_empty() && parts(self) == parts(other)
    }

    /// Returns how `now` differs from this one, as in "database was `Shop`, is now `Store`".
    ///
    /// `None` if this one is not known.
    pub fn differences(&self, now: &Self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let added = now.0.keys().filter(|name| !self.0.contains_key(*name));
        let names = self.0.keys().chain(added);
        let text = |of: &Self, name: &str| match of.0.get(name) {
            Some(Json::String(text)) => format!("`{text}`"),
            Some(_) | None => "not set".to_owned(),
        };
        let differences: Vec<String> = names
            .filter(|name| self.0.get(*name) != now.0.get(*name))
            .map(|name| format!("{name} was {}, is now {}", text(self, name), text(now, name)))
            .collect();
        Some(if differences.is_empty() {
            "a literal or a parameter value of the filter or query, or text beyond its first 500 \
             characters, has changed"
                .to_owned()
        } else {
            differences.join("; ")
        })
    }
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(PART_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(database: &str, filter: &str) -> SourceDefinition {
        SourceDefinition::of(&[("server", "db"), ("database", database), ("filter", filter)])
    }

    #[test]
    fn differences_are_named_with_both_values() {
        let shop = definition("Shop", "");
        let store = definition("Store", "t.region = @region");
        assert_eq!(
            shop.differences(&store).unwrap(),
            "database was `Shop`, is now `Store`; filter was not set, is now `t.region = @region`"
        );
        assert_eq!(SourceDefinition::default().differences(&shop), None, "it is not known");
    }

    #[test]
    fn a_difference_in_a_field_that_is_not_stored_is_still_reported() {
        let same = definition("Shop", "t.token = N'…'");
        let found = same.differences(&same.clone()).unwrap();
        assert!(found.starts_with("a literal or a parameter value"), "{found}");
    }

    #[test]
    fn one_field_can_be_excluded_from_a_comparison() {
        let of = |database, partition| {
            SourceDefinition::of(&[("database", database), ("partition", partition)])
        };
        let first = of("Shop", "0 of 2");
        assert!(first.is_same_but_for("partition", &of("Shop", "3 of 4")));
        assert!(first.is_same_but_for("partition", &of("Shop", "")));
        assert!(!first.is_same_but_for("partition", &of("Store", "0 of 2")));
        let unknown = SourceDefinition::default();
        assert!(!unknown.is_same_but_for("partition", &unknown));
    }

    #[test]
    fn long_parts_are_cut() {
        let long = definition("Shop", &"x".repeat(100_000));
        assert!(serde_json::to_string(&long).unwrap().len() < 1_000);
    }

    #[test]
    fn parts_of_other_versions_are_kept() {
        let text = r#"{"server":"db","later":[1]}"#;
        let read: SourceDefinition = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(
            read.differences(&SourceDefinition::of(&[("server", "db")])).unwrap(),
            "later was not set, is now not set"
        );
    }
}

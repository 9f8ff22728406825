//! Where settings come from; the one file that reads the environment.

use std::collections::BTreeMap;
use std::env::VarError;

/// Named texts.
pub trait Vars {
    /// Returns what is set under `name`.
    fn get(&self, name: &str) -> Option<String>;

    /// Returns every name that is set, in any order.
    fn names(&self) -> Vec<String>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessVars;

impl Vars for ProcessVars {
    fn get(&self, name: &str) -> Option<String> {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        match std::env::var(name) {
            Ok(value) => Some(value),
            // Shown to its reader, who will refuse it; as not set it would be lost in silence.
            Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
            Err(VarError::NotPresent) => None,
        }
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }
}

impl Vars for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        Self::get(self, name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_tells_names_and_values_of_its_environment() {
        let names = ProcessVars.names();
        assert!(names.iter().any(|name| name == "PATH"));
        assert!(ProcessVars.get("PATH").is_some());
        assert_eq!(ProcessVars.get("HIGHWATER__NOT_SET"), None);
        assert_eq!(ProcessVars.get("no=name"), None);
    }
}

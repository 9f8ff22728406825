//! The settings that are set, as they may be shown.

use std::collections::BTreeSet;

use serde::Serialize;
use url::Url;

use super::defaults::{DEFAULTS, is_common};
use super::mistake::Shown;
use super::poller::POLLERS;
use super::secrets::{is_command, is_key, is_url};
use super::unknown::{has_invalid_segment, has_prefix};
use super::vars::Vars;
use super::{Config, shown_url};
use crate::redaction::redacted;

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetValue {
    /// Name of the setting.
    pub setting: String,
    /// The value as it may be shown.
    pub value: String,
    /// The setting of all pollers that it comes from, if the poller does not set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Returns every setting of Highwater that is set, valid or not, ordered by name. Settings that other settings name,
/// such as connection strings, are not among them. Settings of all pollers are also listed for each poller that has
/// their value.
///
/// With `reveal`, URLs are complete. All other secrets remain hidden.
pub fn set_values(vars: &dyn Vars, reveal: bool) -> Vec<SetValue> {
    let mistakes = Config::from_vars(vars).err().map(|errors| errors.0).unwrap_or_default();
    let mut names = vars.names();
    names.retain(|name| has_prefix(name));
    names.sort();
    let value = |setting: String| {
        let text = vars.get(&setting)?;
        let text = text.trim();
        // A rejected value may be a misplaced secret.
        let mistake = mistakes.iter().find(|mistake| mistake.setting == setting);
        let value = match mistake {
            Some(mistake) if !is_url(&setting) => redacted(mistake.shown.value()),
            _ if has_invalid_segment(&setting) => Shown::Unknown.value(),
            Some(_) | None => shown(&setting, text, reveal),
        };
        (!text.is_empty()).then_some(SetValue { setting, value, from: None })
    };
    let mut values: Vec<SetValue> = names.into_iter().filter_map(value).collect();
    let inherited = inherited(&values);
    values.extend(inherited);
    values.sort_by(|a, b| a.setting.cmp(&b.setting));
    values
}

/// Returns the values that pollers have from the settings of all pollers.
fn inherited(values: &[SetValue]) -> Vec<SetValue> {
    let own: BTreeSet<&str> = values.iter().map(|value| value.setting.as_str()).collect();
    let of_pollers = own.iter().filter_map(|name| name.strip_prefix(POLLERS)?.split_once("__"));
    let segments: BTreeSet<&str> = of_pollers.map(|(segment, _)| segment).collect();
    let shared = values.iter().filter_map(|value| {
        let tail = value.setting.strip_prefix(DEFAULTS)?;
        is_common(tail).then_some((tail, value))
    });
    let of_each = shared.flat_map(|(tail, value)| {
        segments.iter().map(move |segment| SetValue {
            setting: format!("{POLLERS}{segment}__{tail}"),
            value: value.value.clone(),
            from: Some(value.setting.clone()),
        })
    });
    of_each.filter(|value| !own.contains(value.setting.as_str())).collect()
}

fn shown(setting: &str, text: &str, reveal: bool) -> String {
    if is_key(setting) {
        return Shown::Secret.value();
    }
    if is_command(setting) {
        // Its arguments may be passwords, in any form.
        let program = text.split_ascii_whitespace().next().unwrap_or_default();
        return redacted(if program == text {
            program.to_owned()
        } else {
            format!("{program} …")
        });
    }
    if is_url(setting) {
        return match Url::parse(text) {
            Ok(_) if reveal => text.to_owned(),
            // The host of a URL with a fragment may be part of a password.
            Ok(url) if url.fragment().is_none() => shown_url(&url),
            Ok(_) | Err(_) => Shown::of_address(text).value(),
        };
    }
    redacted(Shown::of(text).value())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn values(set: &[(&str, &str)], reveal: bool) -> String {
        let vars: BTreeMap<String, String> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let lines = set_values(&vars, reveal)
            .into_iter()
            .map(|SetValue { setting, value, .. }| format!("{setting}={value}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    const SET: &[(&str, &str)] = &[
        ("HIGHWATER__APP", "shop"),
        ("HIGHWATER__LOG", " "),
        ("HIGHWATER__NOTIFY__URL", "https://hooks.contoso.com/services/c4nary"),
        ("HIGHWATER__POLLERS__A__HANDLER__STEP__B__URL", "https://me:c4nary@contoso.com/c4nary"),
        ("HIGHWATER__POLLERS__A__HANDLER__SYSTEM_KEY", "c4nary"),
        ("HIGHWATER__POLLERS__A__HANDLER__URL", "https://contoso.com/c4nary?code=c4nary"),
        ("HIGHWATER__POLLERS__A__SOURCE__TABLE", "https://contoso.com/c4nary"),
        ("HIGHWATER__POLLERS__A__WHATEVER", "c4nary"),
        ("HIGHWATER__POLLERS__B__HANDLER__COMMAND", "./load -P c4nary"),
        ("HIGHWATER__POLLERS__B__HANDLER__URL", "https://c4nary#x@contoso.com"),
        ("HIGHWATER__POLLERS__orders__HANDLER__PASSWORD", "c4nary"),
        ("SqlConnection", "Server=c4nary"),
    ];

    #[test]
    fn no_value_shows_a_secret() {
        let shown = values(SET, false);
        assert!(!shown.contains("c4nary"), "{shown}");
        expect_test::expect![[r#"
            HIGHWATER__APP=shop
            HIGHWATER__NOTIFY__URL=https://hooks.contoso.com/…#45c1ab
            HIGHWATER__POLLERS__A__HANDLER__STEP__B__URL=https://contoso.com/…#8be369
            HIGHWATER__POLLERS__A__HANDLER__SYSTEM_KEY=(not shown)
            HIGHWATER__POLLERS__A__HANDLER__URL=https://contoso.com/…#8be369
            HIGHWATER__POLLERS__A__SOURCE__TABLE=https://…
            HIGHWATER__POLLERS__A__WHATEVER=(unknown setting: not shown)
            HIGHWATER__POLLERS__B__HANDLER__COMMAND=./load …
            HIGHWATER__POLLERS__B__HANDLER__URL=https://…
            HIGHWATER__POLLERS__orders__HANDLER__PASSWORD=(unknown setting: not shown)"#]]
        .assert_eq(&shown);
    }

    #[test]
    fn only_urls_are_revealed() {
        let shown = values(SET, true);
        for url in SET.iter().filter(|(name, _)| name.ends_with("__URL")).map(|(_, url)| url) {
            assert!(shown.contains(url), "{url}: {shown}");
        }
        for name in ["__SYSTEM_KEY=", "__TABLE=", "__WHATEVER="] {
            let line = shown.lines().find(|line| line.contains(name)).unwrap();
            assert!(!line.contains("c4nary"), "{line}");
        }
    }
}

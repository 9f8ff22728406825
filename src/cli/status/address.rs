//! `highwater status --url`: the address of the status page, and how to get its key.

use std::path::Path;
use std::process::Stdio;

use serde::Serialize;
use tokio::process::Command;
use url::form_urlencoded;

use crate::output::{Exit, Failed};
use highwater::config::Vars;
use highwater::error::chain;
use highwater::page;
use highwater::project;
use highwater::redaction::excerpt;
use highwater::suggestion::quoted;

/// Name and port of the running app: the platform sets it, and `func` does.
const HOST: &str = "WEBSITE_HOSTNAME";
const APP: &str = "WEBSITE_SITE_NAME";
const GROUP: &str = "WEBSITE_RESOURCE_GROUP";
const SLOT: &str = "WEBSITE_SLOT_NAME";

/// Versions of the two interfaces of Azure that the printed command calls.
const GRAPH_API: &str = "2022-10-01";
const SITES_API: &str = "2023-12-01";

/// Longest excerpt of a failed command's output.
const EXCERPT_CHARS_MAX: usize = 500;

/// Address of the page, and how to get its key.
#[derive(Debug, Serialize)]
pub(super) struct Address {
    url: String,
    /// Prints the key; `None` under `func`, which needs none.
    key_command: Option<String>,
}

impl Address {
    /// Returns the page's address without its key. `site` is the host name of the app; by default, that of the
    /// environment, or else of the app that `func start` runs here.
    ///
    /// # Errors
    ///
    /// [`Exit::Usage`] if the host name is invalid, [`Exit::Settings`] if the page has no address.
    pub(super) fn of(
        vars: &dyn Vars,
        site: Option<&str>,
        root: &Path,
        settings: Option<&Path>,
    ) -> Result<Self, Failed> {
        let set = |name| vars.get(name).filter(|value| !value.is_empty());
        let host = site.map(str::to_owned).or_else(|| set(HOST));
        let host = host.unwrap_or_else(|| format!("localhost:{}", project::local_port(settings)));
        let is_part = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
        if host.is_empty() || !host.chars().all(is_part) {
            let text = format!(
                "invalid host name `{host}`: expected one such as `shop.azurewebsites.net`"
            );
            return Err(Failed::new(Exit::Usage, text));
        }
        let path = project::page_path(vars, root);
        let path = path.map_err(|error| Failed::new(Exit::Settings, chain(&error)))?;
        let is_local =
            ["localhost", "127.0.0.1"].contains(&host.split(':').next().unwrap_or_default());
        let scheme = if is_local { "http" } else { "https" };
        // The environment describes its own app, not another `site`.
        let known = |name| set(name).filter(|_| site.is_none());
        let key_command = (!is_local).then(|| key_command(&host, known));
        Ok(Self { url: format!("{scheme}://{host}/{path}"), key_command })
    }

    /// Runs the command that prints the key, and returns the address with it.
    ///
    /// # Errors
    ///
    /// [`Exit::Unavailable`] if it fails, or prints no key.
    pub(super) async fn reveal(mut self) -> Result<Self, Failed> {
        let Some(command) = &self.key_command else { return Ok(self) };
        let failed = |why: &str| {
            let text =
                format!("cannot get the key of the status page: {why}; run `{command}` yourself");
            Failed::new(Exit::Unavailable, text)
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).stdin(Stdio::null()).kill_on_drop(true);
        let output = shell.output().await.map_err(|error| failed(&error.to_string()))?;
        if !output.status.success() {
            return Err(failed(&excerpt(&output.stderr, EXCERPT_CHARS_MAX)));
        }
        let key = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(failed("it printed no key"));
        }
        let code =
            form_urlencoded::Serializer::new(String::new()).append_pair("code", &key).finish();
        self.url = format!("{}?{code}", self.url);
        Ok(self)
    }

    /// Returns human-readable text.
    pub(super) fn text(&self) -> String {
        match &self.key_command {
            Some(command) => format!("{}\nkey: {command}", self.url),
            None => format!("{}\nkey: none is needed under `func start`", self.url),
        }
    }
}

/// Returns the command that prints the key of the page.
fn key_command(host: &str, known: impl Fn(&'static str) -> Option<String>) -> String {
    let function = page::FUNCTION;
    let (Some(group), Some(app)) = (known(GROUP), known(APP)) else {
        // A host name may belong to an app or to a slot, as its default or as a custom domain. Only Azure Resource
        // Graph finds all of these by one query.
        let name = host.split(':').next().unwrap_or_default();
        let query = format!(
            r#"resources | where type in~ (\"microsoft.web/sites\", \"microsoft.web/sites/slots\") | mv-expand name = properties.hostNames | where tostring(name) =~ \"{name}\" | project id"#
        );
        let find = format!(
            r#"az rest --method post --url '/providers/Microsoft.ResourceGraph/resources?api-version={GRAPH_API}' --body '{{"query": "{query}"}}' --query 'data[0].id' -o tsv"#
        );
        return format!(
            r#"az rest --method post --url "$({find})/functions/{function}/listkeys?api-version={SITES_API}" --query default -o tsv"#
        );
    };
    let slot = known(SLOT).filter(|slot| !slot.eq_ignore_ascii_case("production"));
    let slot = slot.map(|slot| format!(" --slot {}", quoted(&slot))).unwrap_or_default();
    let (group, app) = (quoted(&group), quoted(&app));
    format!(
        "az functionapp function keys list -g {group} -n {app}{slot} --function-name {function} --query default -o tsv"
    )
}

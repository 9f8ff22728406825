//! What deploys a poller with its receiver to Azure: templates, `azure.yaml`, and a workflow for GitHub.
//!
//! The templates are those of this repository. Only defaults of their parameters differ: the table, and the receiver's
//! runtime, so that azd asks for nothing that `init` knows.

use super::receiver::{Language, Receiver};
use highwater::source::mssql::SourceProposal;

/// Files of the templates, unchanged.
const INFRA: &[(&str, &str)] = &[
    ("infra/main.bicep", include_str!("../../../infra/main.bicep")),
    ("infra/app/alerts.bicep", include_str!("../../../infra/app/alerts.bicep")),
    ("infra/app/base.bicep", include_str!("../../../infra/app/base.bicep")),
    ("infra/app/functions.bicep", include_str!("../../../infra/app/functions.bicep")),
    ("infra/app/network.bicep", include_str!("../../../infra/app/network.bicep")),
    ("infra/app/receiver.bicep", include_str!("../../../infra/app/receiver.bicep")),
    ("infra/app/sql-demo.bicep", include_str!("../../../infra/app/sql-demo.bicep")),
    ("infra/app/state.bicep", include_str!("../../../infra/app/state.bicep")),
    ("infra/app/workbook.json", include_str!("../../../infra/app/workbook.json")),
    ("infra/check.sh", include_str!("../../../infra/check.sh")),
    ("infra/sql/demo.sql", include_str!("../../../infra/sql/demo.sql")),
    ("infra/sql/grant.sh", include_str!("../../../infra/sql/grant.sh")),
    ("infra/sql/grant.sql", include_str!("../../../infra/sql/grant.sql")),
    // The deployed app, as a release has it: one function runs all pollers.
    ("infra/poller/host.json", include_str!("../../../host.json")),
    (
        "infra/poller/function-definitions/poll/function.json",
        include_str!("../../../function-definitions/poll/function.json"),
    ),
    (
        "infra/poller/function-definitions/highwater_status/function.json",
        include_str!("../../../function-definitions/highwater_status/function.json"),
    ),
];
const PARAMETERS: &str = include_str!("../../../infra/main.parameters.json");
const PACKAGE: &str = include_str!("../../../infra/package.sh");
const AZURE: &str = include_str!("deployment/azure.yaml.txt");
const WORKFLOW: &str = include_str!("deployment/deploy.yml.txt");
const RECEIVER_PACKAGE: &str = include_str!("deployment/receiver-package.sh");

/// In the parameters: further settings of the app.
const SETTINGS: &str = r#""settings": { "value": {} }"#;

/// In `package.sh`: how this repository builds the zip, and how a project does.
const BUILDS: &str = r#"exec "$(dirname "$0")/../.ci/deployable" "$zip""#;
const PACKAGES: &str = r#"mkdir -p "$(dirname "$zip")"
  exec highwater package --from "$(dirname "$0")/poller" --out "$zip""#;

const SETUP_PYTHON: &str =
    "      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: '3.12'
";
const SETUP_NODE: &str =
    "      - uses: actions/setup-node@49933ea5288caeca8642d1e84afbd3f7d6820020 # v4.4.0
        with:
          node-version: 24
";
const SETUP_DOTNET: &str =
    "      - uses: actions/setup-dotnet@67a3573c9a986a3f9c594539f4ab511d57bb3ce9 # v4.3.1
        with:
          dotnet-version: 10.0.x
";

/// How a language is deployed.
struct Target {
    /// Its name for azd.
    azd: &'static str,
    /// Its runtime in Azure, and the runtime's version.
    runtime: (&'static str, &'static str),
    /// The setting `DATABASE` in Azure.
    database: &'static str,
    /// Step of the workflow that installs the language.
    setup: &'static str,
    /// Steps of the workflow that install what builds it.
    toolchain: &'static str,
}

impl Target {
    fn of(language: Language) -> Option<Self> {
        let (azd, runtime, database, setup, toolchain) = match language {
            Language::Python => ("py", ("python", "3.12"), "/tmp/receiver.db", SETUP_PYTHON, ""),
            Language::Typescript => ("ts", ("node", "24"), "/tmp/receiver.db", SETUP_NODE, ""),
            Language::Csharp => ("csharp", ("dotnet-isolated", "10.0"), "", SETUP_DOTNET, ""),
            Language::Rust => (
                "custom",
                ("custom", "1.0"),
                "/tmp/receiver.db",
                // The runners of GitHub have it.
                "",
                "      - name: Install what builds the receiver\n        run: |\n          \
                 rustup target add x86_64-unknown-linux-musl\n          \
                 pip install --user cargo-zigbuild==0.20.1 ziglang==0.13.0\n",
            ),
            Language::Http => return None,
        };
        Some(Self { azd, runtime, database, setup, toolchain })
    }
}

/// Returns the files that deploy a poller and its receiver, with paths relative to the project.
pub(super) fn files(receiver: &Receiver<'_>, proposal: &SourceProposal) -> Vec<(String, String)> {
    let Some(target) = Target::of(receiver.language) else { return Vec::new() };
    let is_built = receiver.language == Language::Rust;
    let build = if is_built {
        "    dist: .package/receiver.zip\n    hooks:\n      prepackage:\n        shell: sh\n        \
         run: ./package.sh\n"
    } else {
        ""
    };
    let or_default =
        |value: &str| if value.is_empty() { String::new() } else { format!(" || '{value}'") };
    let tracks_changes = proposal.cursor.is_none();
    let tracked = or_default(if tracks_changes { receiver.table } else { "" });
    let database = or_default(target.database);
    let fill = |text: &str| {
        [
            ("name", receiver.poller.replace('_', "-").as_str()),
            ("poller", receiver.poller),
            ("language", target.azd),
            ("build", build),
            ("database", database.as_str()),
            ("tracked", tracked.as_str()),
            ("setup", target.setup),
            ("tests", receiver.language.tests().unwrap_or_default()),
            ("toolchain", target.toolchain),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("@@{name}@@"), value))
    };
    let mut files: Vec<(String, String)> =
        INFRA.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    files.extend([
        ("infra/main.parameters.json".to_owned(), parameters(receiver, proposal, &target)),
        ("infra/package.sh".to_owned(), PACKAGE.replace(BUILDS, PACKAGES)),
        ("azure.yaml".to_owned(), fill(AZURE)),
        (".github/workflows/deploy.yml".to_owned(), fill(WORKFLOW)),
    ]);
    if is_built {
        files.push(("receiver/package.sh".to_owned(), fill(RECEIVER_PACKAGE)));
    }
    files
}

/// Returns the parameters with what `init` knows as defaults.
fn parameters(receiver: &Receiver<'_>, proposal: &SourceProposal, target: &Target) -> String {
    // Change tracking has no cursor column. The parameter must not be empty, and a blank setting counts as not set.
    let cursor = proposal.cursor.as_deref().unwrap_or(" ");
    let (runtime, version) = target.runtime;
    let parks = format!("HIGHWATER__POLLERS__{}__ON_FAILURE", receiver.poller.to_uppercase());
    let settings = format!(r#""settings": {{ "value": {{ "{parks}": "park" }} }}"#);
    let database = match target.database {
        "" => "${RECEIVER_DATABASE}".to_owned(),
        file => format!("${{RECEIVER_DATABASE={file}}}"),
    };
    [
        ("${POLLER_NAME=orders}", format!("${{POLLER_NAME={}}}", receiver.poller)),
        // It has no effect: the receiver's address is known once it exists.
        ("${HANDLER_URL}", "receiver".to_owned()),
        ("${SOURCE_TABLE}", format!("${{SOURCE_TABLE={}}}", receiver.table)),
        ("${SOURCE_CURSOR}", format!("${{SOURCE_CURSOR={cursor}}}")),
        ("${SOURCE_KEY}", format!("${{SOURCE_KEY={}}}", proposal.key.join(","))),
        ("${SOURCE_MODE=rowversion}", format!("${{SOURCE_MODE={}}}", proposal.mode)),
        ("${RECEIVER_RUNTIME=}", format!("${{RECEIVER_RUNTIME={runtime}}}")),
        ("${RECEIVER_VERSION=}", format!("${{RECEIVER_VERSION={version}}}")),
        ("${RECEIVER_DATABASE=}", database),
        (SETTINGS, settings),
    ]
    .into_iter()
    .fold(PARAMETERS.to_owned(), |text, (from, to)| text.replace(from, &to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater::cursor::CursorMode;
    use highwater::source::mssql::RowSchema;

    #[test]
    fn every_replaced_text_is_in_the_templates() {
        assert!(PACKAGE.contains(BUILDS) && PARAMETERS.contains(SETTINGS));
        for name in
            ["POLLER_NAME=orders", "HANDLER_URL", "SOURCE_TABLE", "SOURCE_CURSOR", "SOURCE_KEY"]
                .into_iter()
                .chain(["SOURCE_MODE=rowversion", "RECEIVER_RUNTIME=", "RECEIVER_VERSION="])
                .chain(["RECEIVER_DATABASE="])
        {
            assert!(PARAMETERS.contains(&format!("${{{name}}}")), "{name}");
        }
    }

    #[test]
    fn every_template_is_written() {
        let root = highwater_test_support::root().join("infra");
        let mut written: Vec<&str> = INFRA.iter().map(|(path, _)| *path).collect();
        written.extend(["infra/main.parameters.json", "infra/package.sh"]);
        for folder in ["", "app", "sql"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap().map(Result::unwrap) {
                let path = entry.path();
                let name = path.strip_prefix(root.parent().unwrap()).unwrap().to_str().unwrap();
                let is_ours = ["infra/README.md", "infra/verify.sh"].contains(&name);
                assert!(path.is_dir() || is_ours || written.contains(&name), "{name}");
            }
        }
    }

    #[test]
    fn actions_are_those_of_this_repository() {
        let path = highwater_test_support::root().join(".github/workflows/deploy.yml");
        let ours = std::fs::read_to_string(path).unwrap();
        let uses = WORKFLOW.lines().filter(|line| line.contains("uses: "));
        let uses: Vec<&str> = uses.map(|line| line.trim_start_matches([' ', '-'])).collect();
        assert!(uses.len() == 3 && uses.iter().all(|line| ours.contains(line)), "{uses:?}");
        for setup in [SETUP_PYTHON, SETUP_NODE, SETUP_DOTNET] {
            let (_, pin) = setup.lines().next().unwrap().split_once('@').unwrap();
            let (commit, version) = pin.split_once(" # v").unwrap();
            assert!(commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{pin}");
            assert!(!version.is_empty(), "{pin}");
        }
    }

    /// Returns a file of the deployment of a receiver.
    fn written(language: Language, table: &str, cursor: Option<&str>, path: &str) -> String {
        let rows = RowSchema {
            mode: CursorMode::RowVersion,
            key: serde_json::json!({}),
            row: serde_json::json!({}),
            operations: Vec::new(),
        };
        let receiver = Receiver { language, poller: "shop_orders", table, secret: "", rows: &rows };
        let proposal = SourceProposal {
            mode: CursorMode::RowVersion,
            cursor: cursor.map(str::to_owned),
            reason: String::new(),
            key: vec!["id".to_owned()],
            key_reason: String::new(),
        };
        files(&receiver, &proposal).into_iter().find(|(name, _)| name == path).unwrap().1
    }

    #[test]
    fn a_deployed_poller_parks_like_the_local_one() {
        let text = written(Language::Python, "dbo.t", Some("v"), "infra/main.parameters.json");
        let parameters: serde_json::Value = serde_json::from_str(&text).unwrap();
        let settings = &parameters["parameters"]["settings"]["value"];
        assert_eq!(settings["HIGHWATER__POLLERS__SHOP_ORDERS__ON_FAILURE"], "park");
    }

    #[test]
    fn the_workflow_installs_the_language_before_its_tests() {
        for (language, action) in [
            (Language::Python, "actions/setup-python@"),
            (Language::Typescript, "actions/setup-node@"),
            (Language::Csharp, "actions/setup-dotnet@"),
        ] {
            let text = written(language, "dbo.t", Some("v"), ".github/workflows/deploy.yml");
            let at = text.find(action).unwrap();
            assert!(at < text.find("Test the receiver").unwrap(), "{text}");
            assert!(!text.contains("@@"), "{text}");
        }
    }

    #[test]
    fn secrets_are_in_the_one_step_that_needs_them() {
        for language in [Language::Python, Language::Csharp, Language::Rust] {
            let text = written(language, "dbo.t", None, ".github/workflows/deploy.yml");
            let (before, after) = text.split_once("      - name: Provision\n").unwrap();
            let (provision, deploy) = after.split_once("      - name: Deploy\n").unwrap();
            assert!(!before.contains("${{ secrets.") && !deploy.contains("${{ secrets."), "{text}");
            assert!(provision.contains("WEBHOOK_SECRET: ${{ secrets.WEBHOOK_SECRET }}"), "{text}");
            assert!(
                provision.contains("RECEIVER_DATABASE: ${{ secrets.RECEIVER_DATABASE"),
                "{text}"
            );
        }
    }

    #[test]
    fn with_change_tracking_the_table_gets_its_grant() {
        let workflow =
            |cursor| written(Language::Rust, "dbo.t", cursor, ".github/workflows/deploy.yml");
        let tracked = "TRACKED_TABLES: ${{ vars.TRACKED_TABLES || 'dbo.t' }}";
        assert!(workflow(None).contains(tracked), "{}", workflow(None));
        assert!(workflow(Some("v")).contains("TRACKED_TABLES: ${{ vars.TRACKED_TABLES }}"));
    }

    #[test]
    fn names_of_tables_that_sqlcmd_splits_are_refused_before_anything_is_created() {
        let root = highwater_test_support::root().join("infra");
        let folder = tempfile::tempdir().unwrap();
        for file in ["check.sh", "main.bicep"] {
            std::fs::copy(root.join(file), folder.path().join(file)).unwrap();
        }
        let default =
            written(Language::Rust, "dbo.order lines", None, "infra/main.parameters.json");
        let check = |parameters: &str, name: &str, value: &str| {
            std::fs::write(folder.path().join("main.parameters.json"), parameters).unwrap();
            let mut command = std::process::Command::new("sh");
            command.arg(folder.path().join("check.sh")).env_clear();
            command.env("PATH", "/usr/bin:/bin").env("WEBHOOK_SECRET", "whsec_AA==");
            command.envs([("GRANT_SQL", "false"), ("SOURCE_SQL_SERVER", "s")]);
            let output = command.env("SOURCE_SQL_DATABASE", "d").env(name, value).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        for (name, value, code) in [
            ("SOURCE_TABLE", "dbo.orders", 0),
            ("SOURCE_TABLES", "dbo.orders;dbo.lines", 0),
            ("SOURCE_TABLE", "dbo.order lines", 2),
            ("TRACKED_TABLES", "dbo.a,dbo.b", 2),
            ("RECEIVER_DATABASE", "Password=\"hidden\"", 2),
        ] {
            let (found, text) = check(PARAMETERS, name, value);
            assert_eq!(found, Some(code), "{name}={value}: {text}");
            assert_eq!(text.contains(name), code == 2, "{text}");
            assert!(!text.contains("hidden"), "{text}");
        }
        let (code, text) = check(&default, "POLLER_NAME", "orders");
        assert_eq!((code, text.contains("dbo.order lines")), (Some(2), true), "{text}");
        assert_eq!(check(&default, "SOURCE_TABLE", "dbo.orders").0, Some(0));
    }
}

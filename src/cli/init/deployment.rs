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

/// In `package.sh`: how this repository builds the zip, and how a project does.
const BUILDS: &str = r#"exec "$(dirname "$0")/../.ci/deployable" "$zip""#;
const PACKAGES: &str = r#"mkdir -p "$(dirname "$zip")"
  exec highwater package --from "$(dirname "$0")/poller" --out "$zip""#;

/// How a language is deployed.
struct Target {
    /// Its name for azd.
    azd: &'static str,
    /// Its runtime in Azure, and the runtime's version.
    runtime: (&'static str, &'static str),
    /// The setting `DATABASE` in Azure.
    database: &'static str,
    /// Steps of the workflow that install what builds it.
    toolchain: &'static str,
}

impl Target {
    fn of(language: Language) -> Option<Self> {
        let (azd, runtime, database, toolchain) = match language {
            Language::Python => ("py", ("python", "3.12"), "/tmp/receiver.db", ""),
            Language::Typescript => ("ts", ("node", "24"), "/tmp/receiver.db", ""),
            Language::Csharp => ("csharp", ("dotnet-isolated", "10.0"), "", ""),
            Language::Rust => (
                "custom",
                ("custom", "1.0"),
                "/tmp/receiver.db",
                "      - name: Install what builds the receiver\n        run: |\n          \
                 rustup target add x86_64-unknown-linux-musl\n          \
                 pip install --user cargo-zigbuild==0.20.1 ziglang==0.13.0\n",
            ),
            Language::Http => return None,
        };
        Some(Self { azd, runtime, database, toolchain })
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
    let fill = |text: &str| {
        [
            ("name", receiver.poller.replace('_', "-").as_str()),
            ("poller", receiver.poller),
            ("language", target.azd),
            ("build", build),
            ("database", target.database),
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
    ]
    .into_iter()
    .fold(PARAMETERS.to_owned(), |text, (from, to)| text.replace(from, &to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replaced_text_is_in_the_templates() {
        assert!(PACKAGE.contains(BUILDS));
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
    }
}

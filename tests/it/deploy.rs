//! The commands of the deployment page and of `infra/verify.sh`: their tools have them with these flags, and
//! the names they use are in the templates.
//!
//! Neither azd nor az runs here. [`USAGES`] lists the usages that are needed. It was compared with the tools'
//! own help, of az 2.91 for all but the two extensions below `az monitor`, and of azd as recorded in its
//! repository.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command as Process, Output};

use crate::dashboards::{check_help, shell_blocks, without_shell_blocks};
use crate::infra::json;
use crate::settings::read;

/// Commands of the tools: parts in brackets are optional, `…` means one or more.
/// <https://learn.microsoft.com/azure/developer/azure-developer-cli/reference>
/// <https://learn.microsoft.com/cli/azure/reference-index>
/// <https://cli.github.com/manual/>
const USAGES: &str = "
azd auth login [--client-id ID] [--tenant-id ID] [--federated-credential-provider NAME]
azd deploy SERVICE [--from-package PATH] [--no-prompt]
azd down [--environment NAME] [--force] [--purge]
azd env get-value NAME
azd env get-values
azd env new NAME [--subscription ID] [--location REGION] [--no-prompt]
azd env select NAME
azd env set NAME VALUE
azd hooks run HOOK [--no-prompt]
azd provision [--preview] [--no-prompt]
azd up [--no-prompt]
az account show --query PATH --output FORMAT
az ad app create --display-name NAME --query PATH --output FORMAT
az ad app federated-credential create --id ID --parameters JSON
az ad sp create --id ID
az bicep build --file FILE --stdout
az bicep lint --file FILE
az deployment sub create --location REGION --template-file FILE --parameters VALUE…
az extension add --upgrade --only-show-errors --name NAME
az functionapp deployment source config-zip --resource-group GROUP --name NAME --src PATH
az functionapp function list --resource-group GROUP --name NAME --query PATH [--output FORMAT]
az functionapp restart --resource-group GROUP --name NAME
az functionapp stop --resource-group GROUP --name NAME
az identity show --resource-group GROUP --name NAME --query PATH --output FORMAT
az lock delete --name NAME --resource-group GROUP --resource-type TYPE --resource NAME
az login
az monitor app-insights query --app APP --resource-group GROUP --offset SPAN --analytics-query TEXT --query PATH --output FORMAT
az monitor scheduled-query show --resource-group GROUP --name NAME --query PATH --output FORMAT
az provider register --namespace NAME
az role assignment create --assignee ID --role NAME --scope SCOPE
az resource list --resource-group GROUP --resource-type TYPE --query PATH --output FORMAT
cd FOLDER
func azure functionapp publish APP [--custom] [--no-build]
gh release download TAG --repo REPO --pattern PATTERN
gh repo create NAME [--private] --source FOLDER --remote NAME
gh secret set NAME --env NAME --body VALUE
gh variable set NAME --env NAME --body VALUE
git add --all
git clone --branch TAG URL
git commit --message TEXT
git init --initial-branch NAME
git push --set-upstream REMOTE BRANCH
infra/sql/grant.sh
mkdir FOLDER
unzip FILE
";

/// A command of a script, with its own variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    variables: Vec<(String, String)>,
    pub(crate) words: Vec<String>,
}

impl Command {
    fn new(words: &[String]) -> Self {
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let pair = |word: &String| {
            let (name, value) = word.split_once('=')?;
            is_name(name).then(|| (name.to_owned(), value.to_owned()))
        };
        let variables: Vec<(String, String)> = words.iter().map_while(pair).collect();
        let words = words[variables.len()..].to_vec();
        Self { variables, words }
    }
}

/// Returns the script of a command substitution, up to its closing parenthesis.
fn substituted(rest: &mut impl Iterator<Item = char>) -> String {
    let (mut depth, mut is_text, mut inner) = (1, false, String::new());
    for c in rest {
        is_text ^= c == '\'';
        depth += match c {
            '(' if !is_text => 1,
            ')' if !is_text => -1,
            _ => 0,
        };
        if depth == 0 {
            break;
        }
        inner.push(c);
    }
    inner
}

/// Returns the commands of a script, split as by `sh`, including those in `$(…)`.
pub(crate) fn commands(script: &str) -> Vec<Command> {
    let (mut found, mut words) = (Vec::new(), Vec::new());
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = script.chars().peekable();
    while let Some(c) = rest.next() {
        let is_double = quote == Some('"');
        if quote == Some(c) {
            quote = None;
        } else if quote == Some('\'') {
            word.get_or_insert_default().push(c);
        } else if c == '$' && rest.next_if_eq(&'(').is_some() {
            let inner = substituted(&mut rest);
            word.get_or_insert_default().push_str("$(…)");
            found.extend(commands(&inner));
        } else if is_double {
            word.get_or_insert_default().push(c);
        } else if c == '\\' && rest.next_if_eq(&'\n').is_some() {
            words.extend(word.take());
        } else if c == '#' && word.is_none() {
            while rest.next_if(|c| *c != '\n').is_some() {}
        } else if c == '"' || c == '\'' {
            word.get_or_insert_default();
            quote = Some(c);
        } else if c == '\n' || (c == '&' && rest.next_if_eq(&'&').is_some()) {
            words.extend(word.take());
            found.push(Command::new(&std::mem::take(&mut words)));
        } else if c == ' ' {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(c);
        }
    }
    assert_eq!(quote, None, "a quotation mark is not closed: {script}");
    words.extend(word);
    found.push(Command::new(&words));
    found.retain(|command| !command.words.is_empty());
    found
}

/// Whether a word of a usage is part of the command's name.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
}

/// The arguments that one of [`USAGES`] accepts.
#[derive(Debug)]
struct Usage {
    name: Vec<&'static str>,
    /// How many words follow the name.
    operands: usize,
    /// Each flag, its argument, and whether it is required.
    flags: Vec<(&'static str, Option<&'static str>, bool)>,
}

impl Usage {
    fn parse(line: &'static str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let name: Vec<&str> = words.iter().copied().take_while(|word| is_name(word)).collect();
        let (mut operands, mut flags) = (0, Vec::new());
        let mut rest = words[name.len()..].iter().peekable();
        while let Some(word) = rest.next() {
            let is_flag = |word: &str| word.contains("--");
            if !is_flag(word) {
                operands += 1;
                continue;
            }
            let value =
                if word.ends_with(']') { None } else { rest.next_if(|next| !is_flag(next)) };
            let flag = word.trim_matches(['[', ']']);
            flags.push((
                flag,
                value.map(|value| value.trim_end_matches(']')),
                !word.starts_with('['),
            ));
        }
        Self { name, operands, flags }
    }

    fn all() -> Vec<Self> {
        USAGES.lines().filter(|line| !line.is_empty()).map(Self::parse).collect()
    }
}

/// A command that its tool accepts.
#[derive(Debug)]
struct Call {
    name: String,
    operands: Vec<String>,
    flags: Vec<(&'static str, Vec<String>)>,
}

impl Call {
    /// Parses a command as its tool does.
    fn parse(words: &[String]) -> Result<Self, String> {
        let shown = words.join(" ");
        let is_of = |usage: &Usage| {
            words.len() >= usage.name.len() && usage.name.iter().zip(words).all(|(a, b)| a == b)
        };
        let usages = Usage::all();
        let usage = usages.into_iter().filter(is_of).max_by_key(|usage| usage.name.len());
        let usage = usage.ok_or_else(|| format!("no such command: {shown}"))?;
        let mut rest = words[usage.name.len()..].iter().peekable();
        let is_value = |word: &&String| !word.starts_with("--");
        let (mut operands, mut flags) = (Vec::new(), Vec::new());
        while let Some(word) = rest.next() {
            if is_value(&word) {
                operands.push(word.clone());
                continue;
            }
            let flag = usage.flags.iter().find(|(flag, ..)| flag == word);
            let (flag, value, _) = flag.ok_or_else(|| format!("no flag `{word}`: {shown}"))?;
            let values_max = match value {
                None => 0,
                Some(value) if value.ends_with('…') => usize::MAX,
                Some(_) => 1,
            };
            let mut values = Vec::new();
            while values.len() < values_max
                && let Some(word) = rest.next_if(is_value)
            {
                values.push(word.clone());
            }
            if values.is_empty() && values_max > 0 {
                return Err(format!("`{flag}` without a value: {shown}"));
            }
            flags.push((*flag, values));
        }
        if operands.len() != usage.operands {
            return Err(format!("{} words, not {}: {shown}", usage.operands, operands.len()));
        }
        for (flag, _, required) in &usage.flags {
            if *required && !flags.iter().any(|(given, _)| given == flag) {
                return Err(format!("without `{flag}`: {shown}"));
            }
        }
        Ok(Self { name: usage.name.join(" "), operands, flags })
    }

    fn flag(&self, name: &str) -> &[String] {
        self.flags.iter().find(|(flag, _)| *flag == name).map_or(&[], |(_, values)| values)
    }
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// Names that `main.bicep` declares by a keyword.
fn declared(keyword: &str) -> BTreeSet<String> {
    let main = read("infra/main.bicep");
    let lines = main.lines().filter_map(|line| line.strip_prefix(keyword)?.strip_prefix(' '));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Parameters of `main.bicep` that have no default.
fn required() -> BTreeSet<String> {
    let main = read("infra/main.bicep");
    let lines = main.lines().filter_map(|line| line.strip_prefix("param "));
    let lines = lines.filter(|line| !line.contains(" = "));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Checks the names in a command against the templates.
fn check_names(call: &Call) {
    let root = highwater_test_support::root();
    let azure = read("azure.yaml");
    match call.name.as_str() {
        "azd env set" => {
            let name = call.operands[0].as_str();
            let listed = read("infra/README.md").contains(&format!("`{name}`"));
            let files = ["main.parameters.json", "check.sh", "package.sh", "sql/grant.sh"];
            let is_read =
                files.iter().any(|file| words(&read(&format!("infra/{file}"))).contains(name));
            assert!(listed && is_read, "the variable `{name}` is unused");
        }
        "azd env get-value" => {
            let name = &call.operands[0];
            let is_kept = read("infra/check.sh").contains(&format!("azd env set {name} "));
            assert!(is_kept || declared("output").contains(name), "no output is called `{name}`");
        }
        "azd deploy" => {
            let service = format!("services:\n  {}:\n", call.operands[0]);
            assert!(azure.contains(&service), "azure.yaml has no {service}");
        }
        "azd hooks run" => {
            let hook = format!("\n  {}:\n", call.operands[0]);
            assert!(azure.contains(&hook), "azure.yaml has no {hook}");
        }
        "az deployment sub create" => {
            let parameters = declared("param");
            let given = call.flag("--parameters").iter();
            let given: BTreeSet<String> =
                given.map(|pair| pair.split_once('=').unwrap().0.to_owned()).collect();
            assert!(given.is_subset(&parameters), "{given:?}");
            assert!(required().is_subset(&given), "{given:?}");
        }
        "az lock delete" => {
            let state = read("infra/app/state.bicep");
            let name = format!("name: '{}'", call.flag("--name")[0]);
            assert!(state.contains(&name), "no lock has the {name}");
            assert!(state.contains(&format!("'{}@", call.flag("--resource-type")[0])));
        }
        _ => {}
    }
    for flag in ["--file", "--template-file"] {
        for file in call.flag(flag) {
            assert!(root.join(file).is_file(), "missing file {file}");
        }
    }
    let zips = ["--from-package", "--src", "--pattern"];
    for zip in zips.iter().flat_map(|flag| call.flag(flag)) {
        assert!(zip.ends_with("-app.zip"), "a release has no {zip}");
    }
    for region in call.flag("--location") {
        let main = read("infra/main.bicep");
        assert!(main.contains(&format!("\n  '{region}'\n")), "{region}");
    }
}

/// Commands of a page, in shell blocks and inline.
fn shown(page: &str) -> Vec<Command> {
    let prose = without_shell_blocks(page);
    let tools = ["azd ", "az ", "gh ", "git ", "highwater ", "infra/"];
    let inline = prose.split('`').skip(1).step_by(2).map(str::to_owned);
    let is_command = |text: &String| tools.iter().any(|tool| text.starts_with(tool));
    let inline = inline.filter(|text| is_command(text) && !text.contains(".bicep"));
    let scripts = shell_blocks(page).map(str::to_owned).chain(inline);
    scripts.flat_map(|script| commands(&script)).collect()
}

/// Checks one of our own commands against its help.
fn check_ours(words: &[String]) {
    let is_word = |word: &&String| word.chars().all(|c| c.is_ascii_lowercase());
    let name: Vec<String> = words[1..].iter().take_while(is_word).cloned().collect();
    let flags = words.iter().filter(|word| word.starts_with("--")).cloned().collect();
    check_help(&name, &flags);
}

#[test]
fn commands_of_the_deployment_page_match_the_tools_and_templates() {
    let page = read("docs/how-to/deploy.md");
    let found = shown(&page);
    let mut names = BTreeSet::new();
    for command in &found {
        if command.words[0] == "highwater" {
            check_ours(&command.words);
            continue;
        }
        let call = Call::parse(&command.words).unwrap_or_else(|error| panic!("{error}"));
        check_names(&call);
        if call.name == "infra/sql/grant.sh" {
            let script = read(&call.name);
            for (name, _) in &command.variables {
                assert!(words(&script).contains(name.as_str()), "the script reads no {name}");
            }
            for needed in ["SQL_SERVER_FQDN", "SQL_DATABASE", "IDENTITY_NAME", "IDENTITY_CLIENT_ID"]
            {
                let is_set = command.variables.iter().any(|(name, _)| name == needed);
                assert!(is_set && declared("output").contains(needed), "{needed}");
            }
        }
        names.insert(call.name);
    }
    assert!(found.len() > 25 && names.len() > 12, "{names:?}");
    // Resources that the page deploys are named after the environment that it creates.
    assert!(read("infra/main.bicep").contains("name: 'rg-${environmentName}'"));
    let environments =
        found.iter().filter(|command| command.words.starts_with(&text("azd env new")));
    let groups: BTreeSet<String> =
        environments.map(|command| format!("rg-{}", command.words[3])).collect();
    for command in &found {
        let at = command.words.iter().position(|word| word == "--resource-group");
        let group = at.map(|at| &command.words[at + 1]);
        assert!(group.is_none_or(|group| groups.contains(group)), "{command:?}");
    }
    // Its zips have the version that it checks out.
    let version = env!("CARGO_PKG_VERSION");
    for shown in [format!("gh release download v{version} "), format!("--branch v{version} ")] {
        assert!(page.contains(&shown), "{shown}");
    }
    assert!(
        page.contains(&format!("azd env set HIGHWATER_PACKAGE ../highwater-{version}-app.zip\n"))
    );
}

#[test]
fn commands_of_other_pages_match_their_tools() {
    for page in [
        "README.md",
        "docs/how-to/receiver-project.md",
        "docs/reference/deployment.md",
        "docs/tutorials/deploy.md",
        "infra/README.md",
    ] {
        let found = shown(&read(page)).into_iter();
        let is_tool = |command: &Command| {
            command
                .words
                .first()
                .is_some_and(|tool| ["az", "azd", "gh", "git"].contains(&tool.as_str()))
        };
        let found: Vec<Command> = found.filter(is_tool).collect();
        assert!(!found.is_empty(), "{page}");
        for command in found {
            let call =
                Call::parse(&command.words).unwrap_or_else(|error| panic!("{page}: {error}"));
            // The general form of setting variables.
            if call.operands != ["NAME", "VALUE"] {
                check_names(&call);
            }
        }
    }
}

/// The variables and secrets that the tutorial sets are those that the workflow of a project reads.
#[test]
fn the_tutorial_sets_what_the_workflow_of_a_project_reads() {
    let workflow = read("src/cli/init/deployment/deploy.yml.txt");
    let mut set = BTreeSet::new();
    for command in shown(&read("docs/tutorials/deploy.md")) {
        for kind in ["variable", "secret"] {
            if command.words.starts_with(&text(&format!("gh {kind} set"))) {
                let name = command.words[3].clone();
                let context = if kind == "secret" { "secrets" } else { "vars" };
                assert!(workflow.contains(&format!("${{{{ {context}.{name}")), "{kind} {name}");
                set.insert(name);
            }
        }
    }
    for required in workflow.split("vars.").skip(1) {
        let name =
            required.split(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit());
        let name = name.clone().next().unwrap();
        let is_optional = ["TRACKED_TABLES", "ALERT_EMAIL", "GRANT_SQL"].contains(&name);
        assert!(is_optional || set.contains(name), "the tutorial does not set {name}");
    }
}

#[test]
fn commands_of_the_workflows_match_their_tools() {
    for (workflow, count) in [("deploy", 4), ("infra", 5)] {
        let file = read(&format!(".github/workflows/{workflow}.yml"));
        let lines = file.lines().map(|line| line.trim_start().trim_start_matches("run: "));
        let lines = lines.filter(|line| line.starts_with("az ") || line.starts_with("azd "));
        let lines: Vec<&str> = lines.map(|line| line.split(" > ").next().unwrap()).collect();
        assert_eq!(lines.len(), count, "{lines:?}");
        for command in commands(&lines.join("\n")) {
            let call = Call::parse(&command.words).unwrap_or_else(|error| panic!("{error}"));
            // The region is a variable of the environment there.
            if call.name != "azd env new" {
                check_names(&call);
            }
        }
    }
}

fn text(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn scripts_are_split_as_a_shell_does() {
    let script = "A=1 B=x=y tool 'a b' \"c $(inner --flag 'd') e\" \\\n  f # g\nnext && last #\n";
    let found = commands(script);
    let of = |at: usize| found[at].words.clone();
    assert_eq!(of(0), text("inner --flag d"));
    assert_eq!(of(1), ["tool", "a b", "c $(…) e", "f"]);
    assert_eq!(found[1].variables, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
    assert_eq!((of(2), of(3), found.len()), (text("next"), text("last"), 4));
}

#[test]
fn errors_in_commands_are_found() {
    for wrong in [
        "azd environment set A b",
        "azd env set A",
        "azd env set A b c",
        "azd up --no-promt",
        "azd deploy poller --from-package",
        "az functionapp stop --name BLUE",
        "az functionapp restart --resource-group GROUP --name NAME
az functionapp stop --resource-group rg --name BLUE extra",
        "kubectl apply",
    ] {
        assert!(Call::parse(&text(wrong)).is_err(), "{wrong}");
    }
    let good = "az deployment sub create --location l --template-file f --parameters a=1 b=2";
    assert_eq!(Call::parse(&text(good)).unwrap().flag("--parameters"), ["a=1", "b=2"]);
}

/// Fakes of the tools that `verify.sh` calls. Each records its arguments, and fails if they contain the text
/// in the file `fail`.
const AZD: &str = r#"
case "$*" in
  'env get-value AZURE_RESOURCE_GROUP') echo rg-verify ;;
  'env get-value AZURE_FUNCTION_APP_NAME') echo func-verify ;;
  'env get-value '*) echo "$3".example ;;
  'env select '*) [ -e "$bench/environment" ] || { echo "no such environment" >&2; exit 1; } ;;
  'env new '*) : >"$bench/environment" ;;
esac
"#;
const AZ: &str = r#"
case "$*" in
  'account show '*) echo 1111-2222 ;;
  'resource list '*components*) echo appi-verify ;;
  'resource list '*scheduledQueryRules*) echo shop-stale; echo shop-failing ;;
  'functionapp function list '*) echo 2 ;;
  'monitor scheduled-query show '*) echo 'traces | where 1 == 1' ;;
  'monitor app-insights query '*severityLevel*) cat "$bench/errors" ;;
  'monitor app-insights query '*committed*) cat "$bench/committed" ;;
  'monitor app-insights query '*) echo 1 ;;
esac
"#;
const SQLCMD: &str = r#"
echo 2 >"$bench/committed"
"#;

/// A run of `verify.sh`, from a folder other than the repository's.
struct Verify {
    bench: tempfile::TempDir,
}

impl Verify {
    fn new() -> Self {
        let bench = tempfile::tempdir().unwrap();
        let at = |name: &str| bench.path().join(name);
        for folder in ["tools", "from"] {
            fs::create_dir(at(folder)).unwrap();
        }
        fs::write(at("from/highwater-0.1.0-app.zip"), "PK").unwrap();
        for (file, text) in [("fail", "\n"), ("errors", "0\n"), ("committed", "1\n")] {
            fs::write(at(file), text).unwrap();
        }
        for (tool, text) in
            [("azd", AZD), ("az", AZ), ("sqlcmd", SQLCMD), ("curl", ""), ("sleep", "")]
        {
            let text = format!(
                "#!/bin/sh\nbench={}\nprintf '{tool}' >>\"$bench/calls\"\n\
                 for word in \"$@\"; do printf '\\037%s' \"$word\" >>\"$bench/calls\"; done\n\
                 echo >>\"$bench/calls\"\nfail=$(cat \"$bench/fail\")\n\
                 case \"{tool} $* \" in *\"${{fail:-no such text}}\"*) echo 'refused' >&2; exit 1 ;; esac\n{text}",
                bench.path().display()
            );
            fs::write(at("tools").join(tool), text).unwrap();
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(at("tools").join(tool), mode).unwrap();
        }
        Self { bench }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bench.path().join(name)
    }

    /// Makes every call that contains a text fail.
    fn refuse(&self, text: &str) -> &Self {
        fs::write(self.path("fail"), text).unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let script = highwater_test_support::root().join("infra/verify.sh");
        let mut command = Process::new("/bin/sh");
        command.arg(script).args(arguments).current_dir(self.path("from")).env_clear();
        let path = format!("{}:/usr/bin:/bin", self.path("tools").display());
        command.env("PATH", path).output().unwrap()
    }

    /// Runs it as described at its top, and returns its exit code and the failed checks.
    fn checks(&self) -> (Option<i32>, Vec<String>, String) {
        let output = self.run(&["https://hooks.contoso.com/orders", "highwater-0.1.0-app.zip"]);
        let transcript = String::from_utf8(output.stdout).unwrap();
        let failed = transcript.lines().filter_map(|line| line.strip_prefix("FAILED  "));
        (output.status.code(), failed.map(str::to_owned).collect(), transcript)
    }

    /// The recorded calls.
    fn calls(&self) -> Vec<Vec<String>> {
        let calls = fs::read_to_string(self.path("calls")).unwrap();
        calls.lines().map(|line| line.split('\u{1f}').map(str::to_owned).collect()).collect()
    }
}

/// The text that says how to remove the resources of a run.
const REMOVE: &str = "Remove it: azd down --environment highwater-verify --force --purge\n";

#[test]
fn a_working_deployment_passes_every_check_of_the_script() {
    let verify = Verify::new();
    let (code, failed, transcript) = verify.checks();
    assert_eq!((code, failed.as_slice()), (Some(0), [].as_slice()), "{transcript}");
    assert_eq!(transcript.matches("ok      ").count(), 14, "{transcript}");
    assert!(transcript.ends_with(REMOVE), "{transcript}");
    let mut set = BTreeSet::new();
    for call in verify.calls() {
        if call[0].starts_with("az") {
            let call = Call::parse(&call).unwrap_or_else(|error| panic!("{error}"));
            check_names(&call);
            if call.name == "azd env set" {
                set.insert(call.operands.join("="));
            }
        }
    }
    let zip = fs::canonicalize(verify.path("from/highwater-0.1.0-app.zip")).unwrap();
    let zip = format!("HIGHWATER_PACKAGE={}", zip.display());
    assert!(set.contains(&zip), "azd reads it from the folder of the project: {set:?}");
    let new = text("azd env new highwater-verify --subscription 1111-2222");
    assert!(verify.calls().iter().any(|call| call.starts_with(&new)), "{:?}", verify.calls());
    assert_eq!(
        json("infra/main.parameters.json")["parameters"]["functionNames"]["value"][0],
        "poll"
    );
}

#[test]
fn each_check_of_the_script_can_fail_without_stopping_the_others() {
    for (refused, check) in [
        ("az bicep build", "bicep build"),
        ("az bicep lint", "bicep lint"),
        ("azd provision --preview", "azd provision --preview"),
        ("azd up", "azd up, including the grants"),
        ("az functionapp function list", "the host lists both functions"),
        ("azd hooks run", "grants can run again"),
        ("--analytics-query traces | where 1 == 1", "Kusto reads the query of shop-stale"),
        ("azd provision --no-prompt", "the update strategy is accepted"),
        ("azd deploy", "a second deployment"),
        ("nothing new", "ticks continue afterwards"),
    ] {
        let verify = Verify::new();
        let (code, failed, transcript) = verify.refuse(refused).checks();
        assert_eq!(code, Some(1), "{refused}: {transcript}");
        assert_eq!(failed[0], check, "{transcript}");
        assert!(
            transcript.contains("\n        refused\n") || !check.starts_with("az"),
            "{transcript}"
        );
        assert!(transcript.ends_with(REMOVE), "{transcript}");
        assert!(
            transcript.contains("ok      no error is logged\n"),
            "the rest continues: {transcript}"
        );
    }
}

#[test]
fn missing_rows_and_logged_errors_are_found() {
    let verify = Verify::new();
    fs::write(verify.path("committed"), "0\n").unwrap();
    let (code, failed, transcript) = verify.checks();
    assert_eq!(code, Some(1), "{transcript}");
    assert_eq!(failed, ["the rows of the demo table are committed"], "{transcript}");
    let verify = Verify::new();
    fs::write(verify.path("errors"), "3\n").unwrap();
    assert_eq!(verify.checks().1, ["no error is logged"]);
    // An unreadable log does not count as one without errors.
    let verify = Verify::new();
    assert_eq!(verify.refuse("severityLevel").checks().1, ["no error is logged"]);
    // The row that the script inserts is never delivered.
    let verify = Verify::new();
    fs::write(verify.path("committed"), "9\n").unwrap();
    assert_eq!(verify.checks().1, ["its commit is logged"]);
}

#[test]
fn a_script_that_cannot_continue_says_why_and_what_to_remove() {
    let verify = Verify::new();
    let output = verify
        .refuse("azd env get-value")
        .run(&["https://h.contoso.com", "highwater-0.1.0-app.zip"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().ends_with(REMOVE));
    let verify = Verify::new();
    let output = verify.run(&["https://h.contoso.com", "other.zip"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("other.zip does not exist"));
    assert!(!verify.path("calls").exists(), "nothing was created");
    assert_eq!(verify.run(&["https://h.contoso.com"]).status.code(), Some(2));
    fs::remove_file(verify.path("tools/az")).unwrap();
    let output = verify.run(&["https://h.contoso.com", "highwater-0.1.0-app.zip"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("az is missing"));
}

#[test]
fn a_second_run_of_the_script_continues_with_the_environment_of_the_first() {
    let verify = Verify::new();
    verify.checks();
    verify.checks();
    let new = text("azd env new");
    assert_eq!(verify.calls().iter().filter(|call| call.starts_with(&new)).count(), 1);
}

//! `highwater init --handler`: the project of a receiver, from templates.
//!
//! # Design
//!
//! - Templates are files of this repository, embedded in the program. A placeholder is a name between `@@`.
//! - One file is to be edited. It gets typed changes, and knows nothing of signatures, statuses and duplicates.
//! - The types are made from the table as it is now; so are the deliveries of the project's own tests.

use clap::ValueEnum;
use serde_json::{Value as Json, json};

pub(super) use crate::dev::FOLDER;

use super::columns::{Column, class, fields, sample};
use highwater::source::mssql::RowSchema;

/// Port of the receiver; the Functions host of the poller has 7071.
pub(super) const PORT: u16 = 7072;

/// What the poller delivers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    /// A receiver in Python, also as an Azure Function.
    Python,
    /// A receiver in TypeScript, also as an Azure Function.
    Typescript,
    /// A receiver in C#, as an Azure Function.
    Csharp,
    /// A receiver in Rust, also as a custom handler of Azure Functions.
    Rust,
    /// Your own endpoint: settings only.
    Http,
}

/// A file of a project: its path, and its text before placeholders are replaced.
type Template = (&'static str, &'static str);

macro_rules! templates {
    ($folder:literal: $($path:literal)*; $($renamed:literal = $from:literal)*) => {
        &[
            $(($path, include_str!(concat!("receiver/", $folder, "/", $path))),)*
            $(($renamed, include_str!(concat!("receiver/", $folder, "/", $from))),)*
        ]
    };
}

const PYTHON: &[Template] = templates!("python":
    "handler.py" "row.py" "function_app.py" "serve.py" "test_receiver.py" "core/columns.py" "core/once.py" "core/app.py"
    "requirements.txt" "host.json" "README.md" "core/__init__.py";
    ".gitignore" = "gitignore"
    ".funcignore" = "funcignore"
    "core/receiver.py" = "../../../../../docs/receivers/python/receiver.py"
);

const TYPESCRIPT: &[Template] = templates!("typescript":
    "src/handler.ts" "src/row.ts" "src/function.ts" "src/serve.ts" "src/core/columns.ts" "src/core/once.ts"
    "src/core/receive.ts" "test/receiver.test.ts" "tsconfig.json" "host.json" "README.md";
    ".gitignore" = "gitignore"
    ".funcignore" = "funcignore"
    "package.json" = "package.json.txt"
    "package-lock.json" = "package-lock.json.txt"
);

const CSHARP: &[Template] = templates!("csharp":
    "Program.cs" "Core/Column.cs" "Core/BatchReceiver.cs" "Core/SqlOnce.cs" "schema.sql" "Tests/ReceiverTests.cs"
    "host.json" "README.md";
    ".gitignore" = "gitignore"
    "Receiver.csproj" = "Receiver.csproj.txt"
    "Tests/Tests.csproj" = "Tests/Tests.csproj.txt"
    "@@Poller@@.cs" = "Row.cs"
    "@@Poller@@Function.cs" = "Function.cs"
    "@@Poller@@Handler.cs" = "Handler.cs"
);

const RUST: &[Template] = templates!("rust":
    "src/lib.rs" "src/main.rs" "src/handler.rs" "src/row.rs" "src/support/mod.rs" "src/support/columns.rs"
    "src/support/once.rs" "src/support/receive.rs" "tests/deliveries.rs" "host.json" "README.md";
    ".gitignore" = "gitignore"
    "Cargo.toml" = "Cargo.toml.txt"
    "@@poller@@/function.json" = "function.json"
);

impl Language {
    fn templates(self) -> &'static [Template] {
        match self {
            Self::Python => PYTHON,
            Self::Typescript => TYPESCRIPT,
            Self::Csharp => CSHARP,
            Self::Rust => RUST,
            Self::Http => &[],
        }
    }

    /// Returns the command that serves the receiver, in its folder.
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "serve.py"],
            Self::Typescript => &["npm", "run", "dev"],
            Self::Csharp => &["func", "start"],
            Self::Rust => &["cargo", "run", "--quiet"],
            Self::Http => &[],
        }
    }

    /// Returns what installs the program of that command.
    fn install(self) -> &'static str {
        match self {
            Self::Python => "https://www.python.org/downloads/",
            Self::Typescript => "https://nodejs.org/",
            Self::Csharp => "npm install --global azure-functions-core-tools@4 --unsafe-perm true",
            Self::Rust => "https://rustup.rs/",
            Self::Http => "",
        }
    }

    /// Returns the command that runs the receiver's tests, in its folder.
    pub(super) fn tests(self) -> Option<&'static str> {
        match self {
            Self::Python => Some("python3 -m unittest"),
            Self::Typescript => Some("npm ci && npm test"),
            Self::Csharp => Some("dotnet test Tests"),
            Self::Rust => Some("cargo test"),
            Self::Http => None,
        }
    }

    /// Returns the one file of a poller's receiver that is to be edited.
    pub(super) fn file_to_edit(self, poller: &str) -> Option<String> {
        match self {
            Self::Python => Some("handler.py".to_owned()),
            Self::Typescript => Some("src/handler.ts".to_owned()),
            Self::Csharp => Some(format!("{}Handler.cs", class(poller))),
            Self::Rust => Some("src/handler.rs".to_owned()),
            Self::Http => None,
        }
    }

    /// Returns the worker of the Functions host that runs the receiver.
    fn runtime(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Typescript => "node",
            Self::Csharp => "dotnet-isolated",
            Self::Rust | Self::Http => "custom",
        }
    }

    /// Whether the project has a receiver.
    pub(super) fn has_project(self) -> bool {
        !self.templates().is_empty()
    }
}

/// The values of placeholders.
#[derive(Debug)]
pub(super) struct Receiver<'a> {
    pub(super) language: Language,
    pub(super) poller: &'a str,
    pub(super) table: &'a str,
    /// The secret that signs deliveries.
    pub(super) secret: &'a str,
    pub(super) rows: &'a RowSchema,
}

impl Receiver<'_> {
    /// Returns the files of the project, with paths relative to its folder.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let templates = self.language.templates();
        if templates.is_empty() {
            return Vec::new();
        }
        let (key, row) = (Column::all(&self.rows.key), Column::all(&self.rows.row));
        let (port, class) = (PORT.to_string(), class(self.poller));
        let (key_fields, key_values) = fields(self.language, &class, &key);
        let (row_fields, row_values) = fields(self.language, &class, &row);
        let placeholders = [
            ("poller", self.poller),
            ("Poller", &class),
            ("table", self.table),
            ("port", &port),
            ("key_fields", &key_fields),
            ("key_values", &key_values),
            ("row_fields", &row_fields),
            ("row_values", &row_values),
        ];
        let fill = |text: &str| {
            placeholders.iter().fold(text.to_owned(), |text, (name, value)| {
                text.replace(&format!("@@{name}@@"), value)
            })
        };
        let mut files: Vec<(String, String)> =
            templates.iter().map(|(path, text)| (fill(path), fill(text))).collect();
        files.push(("deliveries/batch.json".to_owned(), lines(&self.delivery(&key, &row))));
        files.push(("local.settings.json".to_owned(), lines(&self.settings())));
        let (command, install) = (self.language.command(), self.language.install());
        let dev = json!({ "command": command, "install": install });
        files.push(("dev.json".to_owned(), lines(&dev)));
        files
    }

    /// Returns settings of the receiver on this machine.
    fn settings(&self) -> Json {
        json!({
            "IsEncrypted": false,
            "Values": {
                "FUNCTIONS_WORKER_RUNTIME": self.language.runtime(),
                "AzureWebJobsStorage": "UseDevelopmentStorage=true",
                "WEBHOOK_SECRETS": self.secret,
                // C# uses the database of its work, which only the user knows.
                "DATABASE": if self.language == Language::Csharp { "" } else { "receiver.db" },
            },
            "Host": { "LocalHttpPort": PORT },
        })
    }

    /// Returns a batch as the poller would send it.
    fn delivery(&self, key: &[Column], row: &[Column]) -> Json {
        let Self { poller, table, rows, .. } = self;
        let source = json!({ "poller": poller, "object": table, "mode": rows.mode });
        let event = |number: u32| {
            let pk = sample(key, number);
            let value = format!("0x{number:016X}");
            json!({
                "id": format!("{number:032x}"),
                "op": rows.operations.first(),
                "pk": pk,
                "cursor": { "kind": rows.mode, "value": value, "tiebreaker": pk },
                "before": null,
                "after": sample(row, number),
                "source": source,
            })
        };
        json!({
            "batch_id": format!("batch_{:032x}", 1),
            "poller": poller,
            "generation": 7,
            "fencing_token": 42,
            "attempt": 1,
            "started_at": "2026-11-21T09:30:02Z",
            "replay_id": null,
            "source": source,
            "rows": 3,
            "events": [event(1), event(2), event(3)],
        })
    }
}

fn lines(json: &Json) -> String {
    format!("{json:#}\n")
}

/// Returns the address that the poller posts to.
pub(super) fn url(poller: &str) -> String {
    format!("http://127.0.0.1:{PORT}/api/{poller}")
}

/// Returns the name of the setting with the secret that signs deliveries.
pub(super) fn secret_setting(poller: &str) -> String {
    format!("{}_WEBHOOK_SECRET", poller.to_uppercase())
}

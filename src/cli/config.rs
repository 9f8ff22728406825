//! `highwater config show`: the settings that are set.

use clap::{Args, Subcommand};

use super::output::{Exit, Output, OutputOption, Record, print_revealed, print_text};
use highwater::config::{SetValue, Vars, set_values};
use highwater::printable::printable_line;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// Show the settings that are set, without secrets.
    Show(ShowOptions),
}

#[derive(Debug, Args)]
pub(super) struct ShowOptions {
    /// Show the whole URLs of receivers, which are secrets. Other secrets remain hidden.
    #[arg(long)]
    reveal: bool,
    #[command(flatten)]
    form: OutputOption,
}

impl Record for SetValue {
    const COLUMNS: &'static [&'static str] = &["setting", "value"];

    fn cells(&self) -> Vec<String> {
        vec![self.setting.clone(), self.value.clone()]
    }
}

pub(super) fn run(vars: &dyn Vars, options: &Options) -> Exit {
    let Options::Show(ShowOptions { reveal, form }) = options;
    let values = set_values(vars, *reveal);
    let text = match form.output {
        // Not a table: a URL must not be cut.
        Output::Table => {
            let line = |SetValue { setting, value, from }: &SetValue| {
                let origin = from.as_ref().map(|from| format!(" (from {from})"));
                format!("{setting}={}{}", printable_line(value), origin.unwrap_or_default())
            };
            values.iter().map(line).collect::<Vec<_>>().join("\n")
        }
        form @ (Output::Json | Output::Jsonl) => form.list(&values),
    };
    if *reveal {
        print_revealed(&text);
    } else {
        print_text(&text);
    }
    Exit::Done
}

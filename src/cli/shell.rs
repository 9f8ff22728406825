//! `highwater completions` and `highwater man`: what a shell and `man` want to know.

use clap::{Args, Command};
use clap_complete::Shell;

use super::output::{Exit, Failed, say_bytes};

#[derive(Debug, Args)]
pub(super) struct CompletionsOptions {
    /// Shell to complete words for.
    shell: Shell,
}

/// Prints a script that completes words in a shell.
pub(super) fn completions(options: &CompletionsOptions, mut command: Command) {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "highwater", &mut script);
    say_bytes(&script);
}

/// Prints the manual: a page, and a section for each command.
pub(super) fn man(mut command: Command) -> Result<Exit, Failed> {
    let failed = |error| Failed::new(Exit::Failed, format!("cannot write the manual: {error}"));
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(failed)?;
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        let man = clap_mangen::Man::new(child.clone());
        let name = child.get_name();
        page.extend(format!(".SH \"HIGHWATER {}\"\n", name.to_uppercase()).bytes());
        man.render_description_section(&mut page).map_err(failed)?;
        man.render_synopsis_section(&mut page).map_err(failed)?;
        man.render_options_section(&mut page).map_err(failed)?;
    }
    say_bytes(&page);
    Ok(Exit::Done)
}

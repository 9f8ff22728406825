//! `highwater completions` and `highwater man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::output::{Exit, Failed, print_bytes};

#[derive(Debug, Args)]
pub(super) struct CompletionsOptions {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManOptions {
    /// Write a page for each command into this folder, such as `highwater-tick.1`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints a shell completion script.
pub(super) fn completions(options: &CompletionsOptions, mut command: Command) {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "highwater", &mut script);
    print_bytes(&script);
}

/// Prints the manual: one page with a section for each command. With `--out`, writes a page for each.
pub(super) fn man(options: &ManOptions, mut command: Command) -> Result<Exit, Failed> {
    let failed = |error| Failed::new(Exit::Failed, format!("cannot write the manual: {error}"));
    if let Some(folder) = &options.out {
        let written = std::fs::create_dir_all(folder);
        let written = written.and_then(|()| clap_mangen::generate_to(command, folder));
        return written.map(|()| Exit::Done).map_err(failed);
    }
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(failed)?;
    sections(&command, "HIGHWATER", &mut page).map_err(failed)?;
    print_bytes(&page);
    Ok(Exit::Done)
}

/// Writes a section for each subcommand of `command`, recursively.
fn sections(command: &Command, name: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let is_visible = |child: &&Command| !child.is_hide_set() && child.get_name() != "help";
    for child in command.get_subcommands().filter(is_visible) {
        let name = format!("{name} {}", child.get_name().to_uppercase());
        let man = clap_mangen::Man::new(child.clone());
        page.extend(format!(".SH \"{name}\"\n").bytes());
        man.render_description_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_options_section(page)?;
        sections(child, &name, page)?;
    }
    Ok(())
}

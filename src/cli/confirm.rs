//! Confirmation of irreversible commands.

use std::io::{self, BufRead as _, IsTerminal as _};

use clap::Args;

use super::output::{Exit, Failed, print_message};
use super::pause::{WhoOption, some_text};
use highwater::config::Vars;

/// Who runs an irreversible command, why, and whether it is confirmed.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// The reason, which is recorded in the recent ticks and in the journal, if one is kept.
    #[arg(long, visible_alias = "why", value_name = "TEXT", value_parser = some_text)]
    reason: Option<String>,
    #[command(flatten)]
    who: WhoOption,
    /// Carry out the plan without confirmation at a terminal.
    #[arg(long)]
    pub(super) yes: bool,
}

impl Confirmation {
    /// Returns the reason.
    ///
    /// # Errors
    ///
    /// [`Exit::Usage`] without a reason.
    pub(super) fn reason(&self) -> Result<&str, Failed> {
        self.reason.as_deref().ok_or_else(|| {
            let text = "nothing was done: add `--reason TEXT`; it is recorded in the recent ticks, and in the journal if one \
                        is kept";
            Failed::new(Exit::Usage, text)
        })
    }

    /// Returns who runs the command.
    pub(super) fn by(&self, vars: &dyn Vars) -> String {
        self.who.name(vars)
    }
}

/// Whether a command may continue: prints `plan`, and needs `--yes`, or `name` typed at a terminal.
///
/// # Errors
///
/// [`Exit::Usage`] without `--yes` and without a terminal: commands never wait then.
pub(super) fn confirm(plan: &str, name: &str, yes: bool) -> Result<bool, Failed> {
    print_message(plan);
    let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let sure = answer(yes, terminal, || {
        print_message(&format!("Type `{name}` to continue, anything else to cancel:"));
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        read.is_ok() && line.trim() == name
    })?;
    if !sure {
        print_message("nothing was done");
    }
    Ok(sure)
}

fn answer(yes: bool, terminal: bool, ask: impl FnOnce() -> bool) -> Result<bool, Failed> {
    match (yes, terminal) {
        (true, _) => Ok(true),
        (false, true) => Ok(ask()),
        (false, false) => {
            let text = "nothing was done: there is no terminal to confirm at; add `--yes`";
            Err(Failed::new(Exit::Usage, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_prompt_without_a_terminal_or_with_yes() {
        let asked = || -> bool { panic!("it waits for somebody") };
        assert_eq!(answer(true, false, asked), Ok(true));
        assert_eq!(answer(true, true, asked), Ok(true));
        assert_eq!(answer(false, false, asked).unwrap_err().exit, Exit::Usage);
        for typed in [true, false] {
            assert_eq!(answer(false, true, || typed), Ok(typed));
        }
    }
}

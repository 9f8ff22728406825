//! The last question before something that cannot be taken back.

use std::io::{self, BufRead as _, IsTerminal as _};

use clap::Args;

use super::output::{Exit, Failed, tell};
use super::pause::{WhoOption, some_text};
use highwater::config::Vars;

/// Who asks for something that cannot be taken back, why, and whether they are sure.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// Why; it is kept among the recent ticks, and in the journal where one is kept.
    #[arg(long, visible_alias = "why", value_name = "TEXT", value_parser = some_text)]
    reason: Option<String>,
    #[command(flatten)]
    who: WhoOption,
    /// Do what the plan says; without it, ask at a terminal, or do nothing.
    #[arg(long)]
    pub(super) yes: bool,
}

impl Asked {
    /// Returns why.
    ///
    /// # Errors
    ///
    /// [`Exit::Usage`] where nobody has said.
    pub(super) fn reason(&self) -> Result<&str, Failed> {
        self.reason.as_deref().ok_or_else(|| {
            let text = "nothing was done: say why with `--reason TEXT`; it is kept among the recent ticks, and in the \
                        journal where one is kept";
            Failed::new(Exit::Usage, text)
        })
    }

    /// Returns who.
    pub(super) fn by(&self, vars: &dyn Vars) -> String {
        self.who.name(vars)
    }
}

/// Whether a command may go on: it tells `plan` and wants `--yes`, or `name` typed at a terminal.
///
/// # Errors
///
/// [`Exit::Usage`] without `--yes` where no terminal is there to type at: nothing ever waits then.
pub(super) fn confirm(plan: &str, name: &str, yes: bool) -> Result<bool, Failed> {
    tell(plan);
    let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let sure = answer(yes, terminal, || {
        tell(&format!("Type `{name}` to go on, anything else to leave it:"));
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        read.is_ok() && line.trim() == name
    })?;
    if !sure {
        tell("nothing was done");
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
    fn nothing_is_asked_where_nobody_can_answer_or_the_answer_is_known() {
        let asked = || -> bool { panic!("it waits for somebody") };
        assert_eq!(answer(true, false, asked), Ok(true));
        assert_eq!(answer(true, true, asked), Ok(true));
        assert_eq!(answer(false, false, asked).unwrap_err().exit, Exit::Usage);
        for typed in [true, false] {
            assert_eq!(answer(false, true, || typed), Ok(typed));
        }
    }
}

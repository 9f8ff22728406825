//! The last question before something that cannot be taken back.

use std::io::{self, BufRead as _, IsTerminal as _};

use super::output::{Exit, Failed, tell};

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

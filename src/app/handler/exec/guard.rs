//! Kills the groups of this program once it has ended, however it ended.
//!
//! A program that is killed with SIGKILL can do nothing any more. So it starts itself once more, as a small process
//! that is told of each group through a pipe. The system closes the pipe with the program, and the groups that are
//! left then are killed.
//!
//! It runs before the first group does, and is told of a group before that gets its batch: only a kill within the
//! moment between leaves a group, and a command that reads its batch first has done nothing by then.

use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::Pid;
use tracing::warn;

use super::group::kill;

/// The program that guards groups when it is started with [`COMMAND`]: this one, where it says so.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Where the guard is told of groups; `None` before the first one.
static GUARD: Mutex<Option<Told>> = Mutex::new(None);

/// Argument with which the program is a guard.
pub const COMMAND: &str = "guard-processes";

#[derive(Debug)]
enum Told {
    /// It runs.
    Through(Child),
    /// It could not be started, or has ended.
    Nobody,
}

/// Lets `program` guard the groups that this one starts.
pub fn guard_with(program: PathBuf) {
    // The first one stays.
    drop(PROGRAM.set(program));
}

/// Starts the guard where it does not run yet, so that a group that starts next is told of at once.
pub(super) fn ready() {
    with_guard(|_| Ok(()));
}

/// Notes a group that has just started.
pub(super) fn started(leader: Pid) {
    tell('+', leader);
}

/// Notes a group that was killed, before the system may give its name away again.
pub(super) fn ended(leader: Pid) {
    tell('-', leader);
}

fn tell(sign: char, leader: Pid) {
    with_guard(|pipe| writeln!(pipe, "{sign}{}", leader.as_raw_nonzero()));
}

fn with_guard(tell: impl FnOnce(&mut ChildStdin) -> io::Result<()>) {
    let Some(program) = PROGRAM.get() else { return };
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = guard.get_or_insert_with(|| match start(program) {
        Ok(guard) => Told::Through(guard),
        Err(error) => lost(&error),
    });
    if let Told::Through(Child { stdin: Some(pipe), .. }) = told
        && let Err(error) = tell(pipe)
    {
        *told = lost(&error);
    }
}

fn lost(error: &io::Error) -> Told {
    let error = error.to_string();
    warn!(
        event = "guard_lost",
        error,
        "No process guards those of the handler `exec`: a SIGKILL of this one leaves them running"
    );
    Told::Nobody
}

fn start(program: &Path) -> io::Result<Child> {
    let mut command = Command::new(program);
    // A Ctrl-C is for the programs that it guards, not for it.
    command.arg(COMMAND).env_clear().process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

/// Reads of groups until the program that tells of them has ended, and kills those that are left.
pub fn run(told: impl io::Read) {
    let mut running: Vec<Pid> = Vec::new();
    for line in BufReader::new(told).lines().map_while(Result::ok) {
        let leader = line.get(1..).and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        let Some(leader) = leader else { continue };
        running.retain(|known| *known != leader);
        if line.starts_with('+') {
            running.push(leader);
        }
    }
    running.into_iter().for_each(kill);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_groups_that_are_left_are_killed_and_no_others() {
        let sleeper = || Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let (mut left, mut ended) = (sleeper(), sleeper());
        let told = format!("+{0}\n+{1}\nodd\n-{1}\n", left.id(), ended.id());
        run(told.as_bytes());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert_eq!(ended.try_wait().unwrap(), None);
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}

//! Kills the process groups of this program after it has ended, for whatever reason.
//!
//! A program that is killed with SIGKILL cannot clean up. So it starts a second copy of itself as a small
//! guard process, and reports each group to it through a pipe. When the program ends, the system closes
//! the pipe, and the guard kills the remaining groups.
//!
//! The guard starts before the first group, and each group is reported before it receives its batch. Only a
//! kill between start and report leaves a group behind, and by then a command that reads its batch first
//! has done nothing.

use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::Pid;
use tracing::warn;

use super::group::kill;

/// The program that acts as the guard when it is started with [`COMMAND`].
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The guard process; `None` before the first group.
static GUARD: Mutex<Option<GuardState>> = Mutex::new(None);

/// Argument that starts the program as a guard.
pub const COMMAND: &str = "guard-processes";

#[derive(Debug)]
enum GuardState {
    Running(Child),
    /// It could not be started, or has ended.
    Lost,
}

/// Sets the program that guards the groups that this one starts.
pub fn guard_with(program: PathBuf) {
    // Only the first call has an effect.
    drop(PROGRAM.set(program));
}

/// Starts the guard if it does not run yet, so that the next group is reported without delay.
pub(super) fn ready() {
    with_guard(|_| Ok(()));
}

/// Reports a group that has just started.
pub(super) fn started(leader: Pid) {
    report('+', leader);
}

/// Reports a group that was killed, before its id may be reused.
pub(super) fn ended(leader: Pid) {
    report('-', leader);
}

fn report(sign: char, leader: Pid) {
    with_guard(|pipe| writeln!(pipe, "{sign}{}", leader.as_raw_nonzero()));
}

fn with_guard(write: impl FnOnce(&mut ChildStdin) -> io::Result<()>) {
    let Some(program) = PROGRAM.get() else { return };
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    let state = guard.get_or_insert_with(|| match start(program) {
        Ok(guard) => GuardState::Running(guard),
        Err(error) => lost(&error),
    });
    if let GuardState::Running(Child { stdin: Some(pipe), .. }) = state
        && let Err(error) = write(pipe)
    {
        *state = lost(&error);
    }
}

fn lost(error: &io::Error) -> GuardState {
    let error = error.to_string();
    warn!(
        event = "guard_lost",
        error,
        "No guard process for the handler `exec`: if this process is killed with SIGKILL, its commands keep running"
    );
    GuardState::Lost
}

fn start(program: &Path) -> io::Result<Child> {
    let mut command = Command::new(program);
    // In its own group, so that Ctrl-C does not stop the guard.
    command.arg(COMMAND).env_clear().process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

/// Reads reports of groups until the reporting program has ended, and kills the remaining groups.
pub fn run(reports: impl io::Read) {
    let mut running: Vec<Pid> = Vec::new();
    for line in BufReader::new(reports).lines().map_while(Result::ok) {
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
    fn only_the_remaining_groups_are_killed() {
        let sleeper = || Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let (mut left, mut ended) = (sleeper(), sleeper());
        let reports = format!("+{0}\n+{1}\nodd\n-{1}\n", left.id(), ended.id());
        run(reports.as_bytes());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert_eq!(ended.try_wait().unwrap(), None);
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}

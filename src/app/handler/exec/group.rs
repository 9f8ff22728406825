//! A process and its descendants, as long as they stay in its process group.
//!
//! # Design
//!
//! A group is identified by the id of its first process. The system reuses that id once the process has
//! been reaped and the group is empty. So the exit is first observed without reaping the process, then
//! the group is killed while its id is still valid, and only then the process is reaped.

use std::io;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::guard;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep};

/// Interval between two checks of killed groups.
const SETTLE_INTERVAL: Duration = Duration::from_millis(5);

/// The running groups, each until its id may be reused; `None` once no further group may start.
#[derive(Debug)]
pub(super) struct Groups {
    running: Mutex<Option<Vec<Pid>>>,
    /// Groups of dropped calls, which were killed, until all of their processes have ended.
    killed: Mutex<Vec<Pid>>,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Self { running: Mutex::new(Some(Vec::new())), killed: Mutex::new(Vec::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Pid>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn killed(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the groups of dropped calls have ended, for at most `limit`.
    pub(super) async fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            self.killed().retain(|leader| is_left(*leader));
            if self.killed().is_empty() {
                return;
            }
            sleep(SETTLE_INTERVAL).await;
        }
    }

    /// Kills every process of every group, and prevents further ones from starting.
    pub(super) fn kill_all(&self) {
        self.lock().take().into_iter().flatten().for_each(kill);
    }

    fn forget(&self, leader: Pid) {
        guard::ended(leader);
        self.lock().iter_mut().for_each(|running| running.retain(|pid| *pid != leader));
    }
}

/// Whether a group has processes. Its id may have been reused: at worst, this waits for another group.
fn is_left(leader: Pid) -> bool {
    test_kill_process_group(leader).is_ok()
}

pub(super) fn kill(leader: Pid) {
    // Fails only if no process is left, or if the process now belongs to another user.
    kill_process_group(leader, Signal::KILL).unwrap_or_default();
}

/// A process that leads its own group; the group is killed on drop.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    leader: Pid,
    /// SIGCHLD: some child ended, maybe this one.
    child_ended: unix::Signal,
    /// Whether the process has been reaped, so that the group's id may be reused.
    is_reaped: bool,
    groups: &'static Groups,
}

/// Our ends of a process's pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Group {
    /// Starts a process whose three standard streams are pipes.
    pub(super) fn spawn(
        command: &mut Command,
        groups: &'static Groups,
    ) -> io::Result<(Self, Pipes)> {
        // Register the signal handler *before* starting the process, so that its exit is not missed.
        let child_ended = unix::signal(SignalKind::child())?;
        guard::ready();
        // Hold the lock until the process is recorded: `kill_all` would miss it otherwise.
        let mut running = groups.lock();
        let Some(running) = running.as_mut() else {
            return Err(io::Error::other("the program is shutting down"));
        };
        let mut child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(leader), (Some(stdin), Some(stdout), Some(stderr))) = (id, pipes) else {
            return Err(io::Error::other("the new process lacks an id or a pipe"));
        };
        running.push(leader);
        guard::started(leader);
        let group = Self { child, leader, child_ended, is_reaped: false, groups };
        Ok((group, Pipes { stdin, stdout, stderr }))
    }

    /// Waits until the process has exited; others of its group may still run.
    pub(super) async fn leader_ended(&mut self) -> io::Result<()> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Each iteration waits until some child ends.
        while waitid(WaitId::Pid(self.leader), look)?.is_none() {
            if self.child_ended.recv().await.is_none() {
                return Err(io::Error::other("signals are no longer delivered"));
            }
        }
        Ok(())
    }

    /// Asks every process of the group to stop.
    pub(super) fn terminate(&self) {
        if !self.is_reaped {
            // Fails only if no process is left.
            kill_process_group(self.leader, Signal::TERM).unwrap_or_default();
        }
    }

    /// Kills every process of the group.
    pub(super) fn kill(&self) {
        if !self.is_reaped {
            kill(self.leader);
        }
    }

    /// Reaps the process and returns its exit code.
    pub(super) async fn exit_status(mut self) -> io::Result<ExitStatus> {
        // The group has been killed. From here on, its id may be reused.
        self.groups.forget(self.leader);
        let status = self.child.wait().await?;
        self.is_reaped = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Dropping the child lets tokio reap it.
        self.kill();
        self.groups.forget(self.leader);
        if !self.is_reaped {
            let mut killed = self.groups.killed();
            killed.retain(|leader| is_left(*leader));
            killed.push(self.leader);
        }
    }
}

//! A process with all its descendants, as far as they stay in its group.
//!
//! # Why so
//!
//! A group is named by the id of its first process, and the system gives that id away again once the
//! process has been waited for and the group is empty. So the end is looked at without taking the
//! exit code, the group is killed while its name is still its own, and only then is the code taken.

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

/// Pause between two looks at killed groups.
const SETTLE_INTERVAL: Duration = Duration::from_millis(5);

/// The groups that run, each until its name is given up; `None` once no further one may start.
#[derive(Debug)]
pub(super) struct Groups {
    running: Mutex<Option<Vec<Pid>>>,
    /// Those that were killed with their call, until all of their processes have ended.
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

    /// Ends every process of every group, and lets no further one start.
    pub(super) fn kill_all(&self) {
        self.lock().take().into_iter().flatten().for_each(kill);
    }

    fn forget(&self, leader: Pid) {
        guard::ended(leader);
        self.lock().iter_mut().for_each(|running| running.retain(|pid| *pid != leader));
    }
}

/// Whether a group has processes. Its name may be given away again: at worst another's group is waited for.
fn is_left(leader: Pid) -> bool {
    test_kill_process_group(leader).is_ok()
}

pub(super) fn kill(leader: Pid) {
    // Fails only where nobody is left, or where one has become somebody else's.
    kill_process_group(leader, Signal::KILL).unwrap_or_default();
}

/// A process that leads a group of its own; the group is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    leader: Pid,
    /// Signals of children that ended, of which one may be ours.
    child_ended: unix::Signal,
    /// Whether the exit code has been taken, and with it the right to the group's name.
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
        // Listened to before there is a process, so that no end is missed.
        let child_ended = unix::signal(SignalKind::child())?;
        guard::ready();
        // Held until the process is noted: one that starts meanwhile would outlive this program.
        let mut running = groups.lock();
        let Some(running) = running.as_mut() else {
            return Err(io::Error::other("the program is ending"));
        };
        let mut child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(leader), (Some(stdin), Some(stdout), Some(stderr))) = (id, pipes) else {
            return Err(io::Error::other("a new process has an id and three pipes"));
        };
        running.push(leader);
        guard::started(leader);
        let group = Self { child, leader, child_ended, is_reaped: false, groups };
        Ok((group, Pipes { stdin, stdout, stderr }))
    }

    /// Waits until the process has ended; others of its group may go on.
    pub(super) async fn leader_ended(&mut self) -> io::Result<()> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Each round waits for the end of some child.
        while waitid(WaitId::Pid(self.leader), look)?.is_none() {
            if self.child_ended.recv().await.is_none() {
                return Err(io::Error::other("signals are no longer handed on"));
            }
        }
        Ok(())
    }

    /// Ends every process of the group.
    pub(super) fn kill(&self) {
        if !self.is_reaped {
            kill(self.leader);
        }
    }

    /// Takes the exit code of the process.
    pub(super) async fn exit_status(mut self) -> io::Result<ExitStatus> {
        // Killed as a whole before; from here on the name may be another's.
        self.groups.forget(self.leader);
        let status = self.child.wait().await?;
        self.is_reaped = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The child's own drop leaves it to tokio to wait for what is killed here.
        self.kill();
        self.groups.forget(self.leader);
        if !self.is_reaped {
            let mut killed = self.groups.killed();
            killed.retain(|leader| is_left(*leader));
            killed.push(self.leader);
        }
    }
}

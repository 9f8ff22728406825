//! A process that runs alongside the pollers of this one, such as the receiver of `highwater dev`.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::GROUPS;
use super::group::{Group, Pipes};

/// A process with its descendants. They are killed on drop, and with this program, however it ends.
#[derive(Debug)]
pub struct Companion {
    group: Group,
    /// Open as long as the process should run: some tools exit at the end of their input.
    _stdin: ChildStdin,
}

impl Companion {
    /// Starts a process; its output must be read.
    ///
    /// It is in a process group of its own: a Ctrl-C at the terminal reaches only this program, which stops its
    /// pollers first.
    ///
    /// # Errors
    ///
    /// Those of the system, such as a missing program.
    pub fn start(command: &mut Command) -> io::Result<(Self, ChildStdout, ChildStderr)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (group, Pipes { stdin, stdout, stderr }) = Group::spawn(command, &GROUPS)?;
        Ok((Self { group, _stdin: stdin }, stdout, stderr))
    }

    /// Waits until the process has exited by itself.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub async fn exited(&mut self) -> io::Result<()> {
        self.group.leader_ended().await
    }

    /// Asks the process to stop, kills it after `grace`, and returns its exit status.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub async fn stop(mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.group.terminate();
        // If it does not stop in time, it is killed.
        timeout(grace, self.group.leader_ended()).await.unwrap_or(Ok(()))?;
        self.group.kill();
        self.group.exit_status().await
    }
}

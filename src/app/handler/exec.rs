//! Handler: starts one process for each batch. The process reads the events; its exit code is the reply.
//!
//! # Input of the process
//!
//! The events arrive on standard input, one JSON object per line, then the end of input. There is no
//! shell: the program is started with its arguments as they are, in the current folder. It does not
//! inherit the environment, which holds the secrets of databases, storage and identities. It gets only
//! [`ExecConfig::environment`] and these variables about the batch:
//!
//! | variable | |
//! |---|---|
//! | `HIGHWATER_BATCH_ID` | content identity: the same id always means the same lines |
//! | `HIGHWATER_POLLER` | name of the poller |
//! | `HIGHWATER_GENERATION`, `HIGHWATER_FENCING_TOKEN` | order of leases, compared as a pair; refuse a lower pair than the highest seen |
//! | `HIGHWATER_ATTEMPT` | 1 for the first known delivery of this range |
//! | `HIGHWATER_STARTED_AT` | when the batch was first recorded; the same for every attempt, so use it as "now" |
//! | `HIGHWATER_STEP`, `HIGHWATER_OF_BATCH` | in a handler chain: name of the step, and the id of the batch that all steps receive |
//! | `HIGHWATER_ROWS` | number of lines; if the input ends earlier, the sender crashed |
//! | `HIGHWATER_REPLAY_ID` | set during a replay of a range |
//! | `TRACEPARENT` | trace context, if there is a trace |
//!
//! # Reply
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | accepted: all events, or those before the first one that standard output reports as failed |
//! | 65 (`EX_DATAERR`) | permanently rejected |
//! | 75 (`EX_TEMPFAIL`) | throttled: retry later |
//! | 77 (`EX_NOPERM`), 78 (`EX_CONFIG`), 126, 127 | misconfigured command or settings |
//! | any other code, a signal, the timeout | retryable |
//!
//! The names are from `sysexits.h`. Shells and `env` exit with 126 or 127 if a program cannot be run or
//! found. Lines of standard output that report neither failures nor accepted events are ignored, so a program may
//! print anything; [`reply`] describes the format. The end of standard error is kept for the error text.
//!
//! # Progress
//!
//! A program that prints a line for each accepted event does not get those events again, however it ends: the next
//! renewal of the lease moves the checkpoint past them. Anything that it prints, and input that it reads, also counts
//! as progress.
//!
//! A process need not read all of its input: the exit code alone decides.
//!
//! # No orphans
//!
//! The process leads a process group. The whole group is killed (SIGKILL) when the process has exited,
//! when it exceeds its time limit, and when the delivery is dropped: on a lost lease, a timeout or a
//! shutdown. Only a descendant that has left the group survives. If Highwater itself is killed with
//! SIGKILL, `exec/guard.rs` kills the groups. The input may end early before that; [`HIGHWATER_ROWS`]
//! lets the process detect it.
//!
//! [`HIGHWATER_ROWS`]: self#input-of-the-process

use std::io;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

pub use self::companion::Companion;
use self::group::{Group, Groups};
use self::reply::{Replies, Tail};
use super::{Delivery, Handler, HandlerError, Progress, SETTLE_TIME_MAX};
use crate::config::ExecConfig;
use crate::event::ChangeEvent;

mod companion;
mod group;
pub mod guard;
mod reply;
#[cfg(test)]
mod tests;

/// Interprets the output of a process that exited with code 0, in pieces of `piece` bytes; for tests and fuzzing.
///
/// # Errors
///
/// As [`Handler::handle`].
#[cfg(any(test, feature = "test-util"))]
pub fn judge_output(
    output: &[u8],
    piece: usize,
    events: &[ChangeEvent],
) -> Result<(), HandlerError> {
    use std::os::unix::process::ExitStatusExt as _;
    let progress = Progress::default();
    let mut replies = Replies::new(events, &progress);
    output.chunks(piece.max(1)).for_each(|piece| replies.push(piece));
    replies.finish();
    let success = std::process::ExitStatus::from_raw(0);
    reply::judge("program", success, &replies, &Tail::default())
}

/// Lines are buffered up to this size before they are written.
const CHUNK_BYTES: usize = 64 << 10;
/// Output is read in pieces of this size.
const READ_BYTES: usize = 16 << 10;
/// How long to read the remaining output of a process that has exited. All of it is in the pipe already,
/// but a descendant outside the group may keep the pipe open.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// All process groups of this program.
static GROUPS: Groups = Groups::new();

/// Kills all handler processes with their groups, and prevents further ones from starting. For a program
/// that exits without stopping its tasks.
pub fn kill_all() {
    GROUPS.kill_all();
}

/// Passes each batch to a new process.
#[derive(Debug)]
pub struct Exec {
    config: ExecConfig,
    drain_time: Duration,
    groups: &'static Groups,
}

impl Exec {
    /// Returns a handler that starts the command of `config` for each batch.
    pub fn new(config: &ExecConfig) -> Self {
        Self { config: config.clone(), drain_time: DRAIN_TIME, groups: &GROUPS }
    }

    fn command(&self, delivery: &Delivery<'_>) -> Command {
        let mut command = Command::new(&self.config.program);
        command
            .args(&self.config.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_clear()
            .envs(&self.config.environment)
            .env("HIGHWATER_BATCH_ID", delivery.batch_id.as_str())
            .env("HIGHWATER_POLLER", delivery.poller)
            .env("HIGHWATER_GENERATION", delivery.generation.to_string())
            .env("HIGHWATER_FENCING_TOKEN", delivery.fencing_token.to_string())
            .env("HIGHWATER_ATTEMPT", delivery.attempt.to_string())
            .env("HIGHWATER_ROWS", delivery.events.len().to_string());
        let step = delivery.step;
        let started_at = delivery.started_at.format(&Rfc3339).ok();
        let optional = [
            ("HIGHWATER_STARTED_AT", started_at.as_deref()),
            ("HIGHWATER_STEP", step.map(|step| step.name)),
            ("HIGHWATER_OF_BATCH", step.map(|step| step.of_batch.as_str())),
            ("HIGHWATER_REPLAY_ID", delivery.replay_id),
            ("TRACEPARENT", delivery.traceparent),
            ("TRACESTATE", delivery.tracestate),
        ];
        command.envs(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    fn not_started(&self, error: &io::Error) -> HandlerError {
        let reason = format!("start `{}`: {error}", self.config.program);
        // The errors for which a shell would exit with 126 or 127.
        let is_lasting = matches!(
            error.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::InvalidInput
        );
        if is_lasting {
            HandlerError::Misconfigured(reason)
        } else {
            HandlerError::Retryable(reason)
        }
    }
}

#[async_trait]
impl Handler for Exec {
    fn time_limit(&self) -> Option<Duration> {
        Some(self.config.timeout)
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let program = &self.config.program;
        let started = Group::spawn(&mut self.command(&delivery), self.groups);
        let (mut group, pipes) = started.map_err(|error| self.not_started(&error))?;
        let progress = delivery.progress;
        let (mut replies, mut tail) = (Replies::new(delivery.events, progress), Tail::default());
        let ended = {
            let mut talk = pin!(async {
                tokio::join!(
                    feed(pipes.stdin, delivery.events, progress),
                    read(pipes.stdout, progress, |bytes| replies.push(bytes)),
                    read(pipes.stderr, progress, |bytes| tail.push(bytes)),
                )
            });
            let mut is_silent = false;
            let ended = timeout(self.config.timeout, async {
                tokio::select! {
                    biased;
                    ended = group.leader_ended() => return ended,
                    _ = &mut talk => is_silent = true,
                }
                group.leader_ended().await
            });
            let ended = ended.await;
            group.kill();
            if !is_silent {
                // Times out only if a process outside the group holds a pipe.
                drop(timeout(self.drain_time, talk).await);
            }
            ended
        };
        let failed =
            |error: io::Error| HandlerError::Retryable(format!("wait for `{program}`: {error}"));
        match ended {
            Ok(ended) => ended.map_err(failed)?,
            Err(_elapsed) => {
                let within = self.config.timeout;
                let what = format!("`{program}` did not exit within {within:?} and was killed");
                return Err(HandlerError::Retryable(tail.after(&what)));
            }
        }
        replies.finish();
        let status = group.exit_status().await.map_err(failed)?;
        reply::judge(program, status, &replies, &tail)
    }

    /// SIGKILL ends processes immediately, unless the system is stuck.
    async fn settle(&self) {
        self.groups.settle(SETTLE_TIME_MAX).await;
    }
}

/// Writes the events as lines, until the process stops reading.
async fn feed(mut to: impl AsyncWrite + Unpin, events: &[ChangeEvent], progress: &Progress) {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    for event in events {
        chunk.extend_from_slice(event.json.as_bytes());
        chunk.push(b'\n');
        if chunk.len() >= CHUNK_BYTES {
            // A process that stops reading reports the reason with its exit code.
            if to.write_all(&chunk).await.is_err() {
                return;
            }
            progress.report(1);
            chunk.clear();
        }
    }
    to.write_all(&chunk).await.unwrap_or_default();
}

/// Reads to the end of output.
async fn read(mut from: impl AsyncRead + Unpin, progress: &Progress, mut push: impl FnMut(&[u8])) {
    let mut piece = vec![0; READ_BYTES];
    // A pipe that cannot be read counts as closed.
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        progress.report(1);
        push(piece.get(..length).unwrap_or_default());
    }
}

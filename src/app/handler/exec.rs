//! Handler: each batch is fed to a process of its own, and the process's exit code is the reply.
//!
//! # What the process gets
//!
//! The events on standard input, one JSON object a line, then the end of input. There is no shell:
//! the program is started with its arguments as they are, in the current folder. Of the environment
//! it gets only what [`ExecConfig::environment`] holds, since settings hold the secrets of databases,
//! storage and identities; and it finds about the batch:
//!
//! | variable | |
//! |---|---|
//! | `HIGHWATER_BATCH_ID` | content identity: the same id always means the same lines |
//! | `HIGHWATER_POLLER` | name of the poller |
//! | `HIGHWATER_GENERATION`, `HIGHWATER_FENCING_TOKEN` | order of leases, compared as a pair; refuse a lower pair than the highest seen |
//! | `HIGHWATER_ATTEMPT` | 1 for the first time this range is delivered, as far as is known |
//! | `HIGHWATER_STARTED_AT` | when the batch was first announced; the same at each attempt, for a program that asks for "now" |
//! | `HIGHWATER_STEP`, `HIGHWATER_OF_BATCH` | in a handler chain: name of the step, and the id of the batch that all steps get |
//! | `HIGHWATER_ROWS` | number of lines; fewer before the end of input mean that the sender died |
//! | `HIGHWATER_REPLAY_ID` | set while a range is delivered again on purpose |
//! | `TRACEPARENT` | where a trace goes on |
//!
//! # The reply
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | taken: all, or up to the first event that a line of standard output says failed |
//! | 65 (`EX_DATAERR`) | these bytes will never be taken |
//! | 75 (`EX_TEMPFAIL`) | patience |
//! | 77 (`EX_NOPERM`), 78 (`EX_CONFIG`), 126, 127 | the command or its settings are wrong |
//! | the rest, a signal, the time-out | worth another attempt |
//!
//! The names are those of `sysexits.h`; 126 and 127 are what shells and `env` say of a program that
//! cannot be run or found. Lines of standard output that speak of no failures are passed over, so a
//! program may chat; how one that does is read stands in [`reply`]. Standard error is kept only as
//! far as its end, for the error's text.
//!
//! Input that is not read is no failure: the exit code alone decides.
//!
//! # No orphan
//!
//! The process leads a process group, which is killed as a whole (SIGKILL) when the process has
//! ended, when its time is up, and when the delivery is dropped: the lease is lost, time ran out, or
//! the program shuts down. Only a descendant that has left the group on purpose survives. When Highwater itself is
//! killed with SIGKILL, `exec/guard.rs` kills the groups. Input may end early before, which [`HIGHWATER_ROWS`] tells.
//!
//! [`HIGHWATER_ROWS`]: self#what-the-process-gets

use std::io;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use self::group::{Group, Groups};
use self::reply::{Replies, Tail};
use super::{Delivery, Handler, HandlerError, SETTLE_TIME_MAX};
use crate::config::ExecConfig;
use crate::event::ChangeEvent;

mod group;
pub mod guard;
mod reply;
#[cfg(test)]
mod tests;

/// Lines are gathered up to this size before they are written.
const CHUNK_BYTES: usize = 64 << 10;
/// Output is read in pieces of this size.
const READ_BYTES: usize = 16 << 10;
/// How long the output of a process that has ended is read on: all it wrote is there, but one that
/// has left its group may keep the pipe open.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// All groups of this program.
static GROUPS: Groups = Groups::new();

/// Kills every process that a batch is fed to, with its group, and lets no further one start: for a
/// program that ends without an end of its tasks.
pub fn kill_all() {
    GROUPS.kill_all();
}

/// Feeds batches to processes.
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
        // What a shell would answer with 126 and 127.
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
        let (mut replies, mut tail) = (Replies::new(delivery.events), Tail::default());
        let ended = {
            let mut talk = pin!(async {
                tokio::join!(
                    feed(pipes.stdin, delivery.events),
                    read(pipes.stdout, |bytes| replies.take(bytes)),
                    read(pipes.stderr, |bytes| tail.take(bytes)),
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
                // Cut short only where somebody outside the group holds a pipe.
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
                let what = format!("`{program}` did not end within {within:?}, and was killed");
                return Err(HandlerError::Retryable(tail.after(&what)));
            }
        }
        replies.finish();
        let status = group.exit_status().await.map_err(failed)?;
        reply::judge(program, status, &replies, &tail)
    }

    /// SIGKILL ends processes at once, unless the system is stuck.
    async fn settle(&self) {
        self.groups.settle(SETTLE_TIME_MAX).await;
    }
}

/// Writes the events as lines, as far as they are read.
async fn feed(mut to: impl AsyncWrite + Unpin, events: &[ChangeEvent]) {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    for event in events {
        chunk.extend_from_slice(event.json.as_bytes());
        chunk.push(b'\n');
        if chunk.len() >= CHUNK_BYTES {
            // Who reads no further says why by its exit code.
            if to.write_all(&chunk).await.is_err() {
                return;
            }
            chunk.clear();
        }
    }
    to.write_all(&chunk).await.unwrap_or_default();
}

/// Reads to the end of output.
async fn read(mut from: impl AsyncRead + Unpin, mut take: impl FnMut(&[u8])) {
    let mut piece = vec![0; READ_BYTES];
    // A pipe that can't be read has no more to say, as one that is closed.
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        take(piece.get(..length).unwrap_or_default());
    }
}

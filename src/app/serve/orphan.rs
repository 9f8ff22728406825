//! Finds out that the host is gone that started this process.
//!
//! A host that is killed, or that stops while a tick takes longer than 10 s, leaves its handler running. Nobody calls
//! such a process again, but it holds its port, and may hold a lease. There is no signal for it, so two facts are
//! looked at: another parent, and an output that nobody reads. The second one holds with a wrapper script between,
//! and for a host that was gone before the first look.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::parent_id;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::sleep;

/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How it was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The parent has ended, and the system has given this process another one.
    Parent,
    /// Nobody reads what this process writes.
    Reader,
}

impl Gone {
    /// Returns what was seen, for a log line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "its process has ended",
            Self::Reader => "nobody reads this process's output",
        }
    }
}

/// Completes once the host is gone; looks at once, and then each second.
pub(super) async fn host_gone() -> Gone {
    let parent = parent_id();
    loop {
        if is_unread(io::stdout().as_fd()) || is_unread(io::stderr().as_fd()) {
            return Gone::Reader;
        }
        if parent_id() != parent {
            return Gone::Parent;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Whether a pipe has lost its last reader; never true of a file.
fn is_unread(out: BorrowedFd<'_>) -> bool {
    // Errors are reported whether they are asked for or not.
    let mut polled = [PollFd::from_borrowed_fd(out, PollFlags::empty())];
    let looked = poll(&mut polled, Some(&Timespec::default()));
    looked.is_ok() && polled.iter().any(|out| out.revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_a_pipe_without_a_reader_is_unread() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_unread(writer.as_fd()));
        drop(reader);
        assert!(is_unread(writer.as_fd()));
        let null = File::options().write(true).open("/dev/null").unwrap();
        assert!(!is_unread(null.as_fd()));
        assert!(!is_unread(tempfile::tempfile().unwrap().as_fd()));
    }
}

//! Faults injected while the server runs, and request counters.

mod login;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use self::login::Logins;
use super::types::SqlError;

pub use self::login::{LoginFault, SeenLogin};

/// What happens to a request instead of, or in addition to, its ordinary response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request does not run and is answered with this error.
    Error(SqlError),
    /// The request runs after this delay.
    Stall(Duration),
    /// The connection is closed and the request does not run.
    DropBeforeRun,
    /// The request runs, then the connection is closed without a response.
    DropBeforeAnswer,
    /// The request runs and the connection is closed after this many bytes of the response.
    DropAfterBytes(usize),
    /// The request runs and the connection is closed after this many rows of the response.
    DropAfterRows(usize),
    /// The request runs, this many rows of the response are sent, and then nothing for this long.
    StallAfterRows(usize, Duration),
    /// The request runs and is answered in packets of this many bytes, regardless of the negotiated size.
    PacketBytes(usize),
    /// The request runs, and the header of the first response packet has this length.
    PacketClaims(u16),
}

#[derive(Debug)]
struct Armed {
    fragment: String,
    times: u64,
    fault: Fault,
}

#[derive(Debug, Default)]
struct State {
    armed: Vec<Armed>,
    statements: u64,
    logins: Logins,
}

/// Shared handle to the faults and counters of one server; clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

impl Faults {
    /// Arms a fault for the next `times` requests of any kind.
    pub fn arm(&self, times: u64, fault: Fault) {
        self.arm_matching("", times, fault);
    }

    /// Arms a fault for the next `times` requests whose text contains `fragment`.
    ///
    /// Of several armed faults that match, the one armed first is used up first.
    pub fn arm_matching(&self, fragment: &str, times: u64, fault: Fault) {
        if times > 0 {
            self.state().armed.push(Armed { fragment: fragment.into(), times, fault });
        }
    }

    /// Disarms every fault; the counters are unchanged.
    pub fn clear(&self) {
        let mut state = self.state();
        state.armed.clear();
        state.logins.disarm();
    }

    /// Number of requests with statements so far, including those hit by a fault.
    pub fn statements(&self) -> u64 {
        self.state().statements
    }

    /// Number of faults that have not been triggered yet.
    pub fn armed(&self) -> usize {
        self.state().armed.len()
    }

    /// Counts a request and consumes the first fault armed for it.
    pub(crate) fn on_statement(&self, text: &str) -> Option<Fault> {
        let mut state = self.state();
        state.statements += 1;
        let index = state.armed.iter().position(|armed| text.contains(&armed.fragment))?;
        let armed = state.armed.get_mut(index)?;
        armed.times -= 1;
        if armed.times > 0 {
            return Some(armed.fault.clone());
        }
        Some(state.armed.remove(index).fault)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matching_requests_consume_a_fault() {
        let faults = Faults::default();
        faults.arm_matching("SELECT", 2, Fault::DropBeforeAnswer);
        faults.arm(1, Fault::DropBeforeRun);
        assert_eq!(faults.on_statement("SELECT 1"), Some(Fault::DropBeforeAnswer));
        assert_eq!(faults.on_statement("SET X"), Some(Fault::DropBeforeRun));
        assert_eq!(faults.on_statement("SET X"), None);
        assert_eq!(faults.armed(), 1);
        assert_eq!(faults.on_statement("SELECT 2"), Some(Fault::DropBeforeAnswer));
        assert_eq!(faults.on_statement("SELECT 3"), None);
        assert_eq!(faults.armed(), 0);
        assert_eq!(faults.statements(), 5);
    }
}

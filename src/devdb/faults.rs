//! Faults injected while the server runs, and counters of what reached it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::types::SqlError;

/// What happens to a request instead of, or on top of, its ordinary answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request does not run and is answered with this error.
    Error(SqlError),
    /// The request runs after this delay.
    Stall(Duration),
    /// The connection is closed and the request does not run.
    DropBeforeRun,
    /// The request runs, then the connection is closed without an answer.
    DropBeforeAnswer,
    /// The request runs and the connection is closed after so many bytes of the answer.
    DropAfterBytes(usize),
    /// The request runs and the connection is closed after so many rows of the answer.
    DropAfterRows(usize),
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
    rejected_logins: u64,
    redirect: Option<(String, u16)>,
    statements: u64,
    logins: u64,
}

/// Shared handle to the faults and counters of one server; clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

impl Faults {
    /// Arms a fault for the next `times` requests, whatever they are.
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

    /// Rejects the next `times` logins with error 18456.
    pub fn reject_logins(&self, times: u64) {
        self.state().rejected_logins = times;
    }

    /// Sends the next login to another server, once.
    pub fn redirect_once(&self, host: &str, port: u16) {
        self.state().redirect = Some((host.into(), port));
    }

    /// Disarms every fault; the counters stay.
    pub fn clear(&self) {
        let mut state = self.state();
        state.armed.clear();
        state.rejected_logins = 0;
        state.redirect = None;
    }

    /// Requests that carried statements so far, those hit by a fault included.
    pub fn statements(&self) -> u64 {
        self.state().statements
    }

    /// Logins that were let in so far, redirected ones not included.
    pub fn logins(&self) -> u64 {
        self.state().logins
    }

    /// Counts a request and uses up the first fault armed for it.
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

    pub(crate) fn on_login(&self) -> LoginFault {
        let mut state = self.state();
        if state.rejected_logins > 0 {
            state.rejected_logins -= 1;
            return LoginFault::Reject;
        }
        if let Some((host, port)) = state.redirect.take() {
            return LoginFault::Redirect(host, port);
        }
        state.logins += 1;
        LoginFault::None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to a login whose password was right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoginFault {
    None,
    Reject,
    Redirect(String, u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_used_up_by_matching_requests_only() {
        let faults = Faults::default();
        faults.arm_matching("SELECT", 2, Fault::DropBeforeAnswer);
        faults.arm(1, Fault::DropBeforeRun);
        assert_eq!(faults.on_statement("SELECT 1"), Some(Fault::DropBeforeAnswer));
        assert_eq!(faults.on_statement("SET X"), Some(Fault::DropBeforeRun));
        assert_eq!(faults.on_statement("SET X"), None);
        assert_eq!(faults.on_statement("SELECT 2"), Some(Fault::DropBeforeAnswer));
        assert_eq!(faults.on_statement("SELECT 3"), None);
        assert_eq!(faults.statements(), 5);
    }

    #[test]
    fn rejected_and_redirected_logins_are_not_counted() {
        let faults = Faults::default();
        faults.reject_logins(1);
        faults.redirect_once("elsewhere", 1);
        assert_eq!(faults.on_login(), LoginFault::Reject);
        assert_eq!(faults.on_login(), LoginFault::Redirect("elsewhere".into(), 1));
        assert_eq!(faults.on_login(), LoginFault::None);
        assert_eq!(faults.logins(), 1);
    }
}

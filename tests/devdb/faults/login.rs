//! Faults of logins, and the tokens that are let in.

use std::{collections::VecDeque, time::Duration};

use super::{Faults, SqlError};

/// What happens to a login whose password or token was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginFault {
    /// It is refused with this error.
    Error(SqlError),
    /// It is sent to another server.
    Redirect(String, u16),
    /// It is let in after this delay.
    Stall(Duration),
    /// The connection is closed without an answer.
    Drop,
}

/// What a client said of itself when it logged in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenLogin {
    /// Database it wants; empty for the default one.
    pub database: String,
    /// Name of the application.
    pub application: String,
    /// Whether it only wants to read.
    pub read_only: bool,
    /// Packet size it asks for.
    pub packet_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Logins {
    armed: VecDeque<LoginFault>,
    token: Option<String>,
    admitted: u64,
    tried: u64,
    last: SeenLogin,
}

impl Logins {
    pub(super) fn disarm(&mut self) {
        self.armed.clear();
        self.token = None;
    }
}

impl Faults {
    /// Arms a fault for the next `times` logins; faults armed earlier are used up earlier.
    pub fn arm_login(&self, times: usize, fault: LoginFault) {
        self.state().logins.armed.extend(std::iter::repeat_n(fault, times));
    }

    /// Rejects the next `times` logins with error 18456.
    pub fn reject_logins(&self, times: usize) {
        let error = SqlError::new(18456, 14, "Login failed.");
        self.arm_login(times, LoginFault::Error(error));
    }

    /// Sends the next login to another server, once.
    pub fn redirect_once(&self, host: &str, port: u16) {
        self.arm_login(1, LoginFault::Redirect(host.into(), port));
    }

    /// Lets in this access token only; until then every one is good.
    pub fn only_token(&self, token: &str) {
        self.state().logins.token = Some(token.into());
    }

    /// Logins that were let in so far, redirected ones not included.
    pub fn logins(&self) -> u64 {
        self.state().logins.admitted
    }

    /// Logins that were tried so far, whatever came of them.
    pub fn logins_tried(&self) -> u64 {
        self.state().logins.tried
    }

    /// What the client of the last login said of itself.
    pub fn last_login(&self) -> SeenLogin {
        self.state().logins.last.clone()
    }

    pub(crate) fn see_login(&self, login: SeenLogin) {
        self.state().logins.last = login;
    }

    /// Whether a token is good.
    pub(crate) fn admits(&self, token: &str) -> bool {
        self.state().logins.token.as_deref().is_none_or(|good| good == token)
    }

    /// Counts a login and uses up the fault armed for it; one with a wrong password uses up none.
    pub(crate) fn on_login(&self, is_right: bool) -> Option<LoginFault> {
        let logins = &mut self.state().logins;
        logins.tried += 1;
        let fault = if is_right { logins.armed.pop_front() } else { None };
        if is_right && matches!(fault, None | Some(LoginFault::Stall(_))) {
            logins.admitted += 1;
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logins_that_are_let_in_are_counted() {
        let faults = Faults::default();
        faults.reject_logins(1);
        faults.redirect_once("elsewhere", 1);
        assert_eq!(faults.on_login(false), None);
        assert!(matches!(faults.on_login(true), Some(LoginFault::Error(_))));
        assert_eq!(faults.on_login(true), Some(LoginFault::Redirect("elsewhere".into(), 1)));
        assert_eq!(faults.on_login(true), None);
        assert_eq!((faults.logins(), faults.logins_tried()), (1, 4));
    }
}

//! Faults of logins, and the accepted tokens.

use std::{collections::VecDeque, time::Duration};

use super::{Faults, SqlError};

/// What happens to a login with the right password or token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginFault {
    /// It is rejected with this error.
    Error(SqlError),
    /// It is redirected to another server.
    Redirect(String, u16),
    /// It is accepted after this delay.
    Stall(Duration),
    /// The connection is closed without a response.
    Drop,
}

/// What a client sent in its login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenLogin {
    /// Requested database; empty for the default one.
    pub database: String,
    /// Name of the application.
    pub application: String,
    /// Whether it has read-only intent.
    pub read_only: bool,
    /// Requested packet size.
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
    /// Arms a fault for the next `times` logins; faults armed earlier are consumed earlier.
    pub fn arm_login(&self, times: usize, fault: LoginFault) {
        self.state().logins.armed.extend(std::iter::repeat_n(fault, times));
    }

    /// Rejects the next `times` logins with error 18456.
    pub fn reject_logins(&self, times: usize) {
        let error = SqlError::new(18456, 14, "Login failed.");
        self.arm_login(times, LoginFault::Error(error));
    }

    /// Redirects the next login to another server, once.
    pub fn redirect_once(&self, host: &str, port: u16) {
        self.arm_login(1, LoginFault::Redirect(host.into(), port));
    }

    /// Accepts only this access token; by default every token is accepted.
    pub fn only_token(&self, token: &str) {
        self.state().logins.token = Some(token.into());
    }

    /// Number of accepted logins so far, without redirected ones.
    pub fn logins(&self) -> u64 {
        self.state().logins.admitted
    }

    /// Number of attempted logins so far, with any outcome.
    pub fn logins_tried(&self) -> u64 {
        self.state().logins.tried
    }

    /// What the client of the last login sent.
    pub fn last_login(&self) -> SeenLogin {
        self.state().logins.last.clone()
    }

    pub(crate) fn see_login(&self, login: SeenLogin) {
        self.state().logins.last = login;
    }

    /// Whether a token is accepted.
    pub(crate) fn admits(&self, token: &str) -> bool {
        self.state().logins.token.as_deref().is_none_or(|good| good == token)
    }

    /// Counts a login and consumes the fault armed for it; one with a wrong password consumes none.
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
    fn only_accepted_logins_are_counted() {
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

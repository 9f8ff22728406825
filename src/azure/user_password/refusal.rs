//! What a refusal of Microsoft Entra means, and what to do about it.
//!
//! Error codes may change, so they only select the message.

use std::time::Duration;

use azure_core::error::{Error, ErrorKind};
use azure_core::http::StatusCode;
use highwater_engine::redaction::{hold_token, redacted};
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::User;

const INSTEAD: &str =
    "use `Active Directory Managed Identity` or `Active Directory Service Principal`";
/// Most characters of the service's own message to report.
const WORDS_MAX: usize = 200;

/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth-ropc#error-response>
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    error: String,
    error_description: String,
    error_codes: Vec<u32>,
}

/// What the operator can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    SecondFactor,
    Password,
    UserUnknown,
    UserBlocked,
    PasswordExpired,
    Guest,
    TenantUnknown,
    ClientBlocked,
}

impl Meaning {
    /// Classifies an error code.
    /// <https://learn.microsoft.com/entra/identity-platform/reference-error-codes>
    fn of(code: u32) -> Option<Self> {
        Some(match code {
            50_072 | 50_074 | 50_076 | 50_078 | 50_079 | 50_158 | 53_000..=53_004 => {
                Self::SecondFactor
            }
            50_126 | 50_056 => Self::Password,
            50_034 | 51_004 => Self::UserUnknown,
            50_053 | 50_057 | 50_105 => Self::UserBlocked,
            50_055 | 50_144 => Self::PasswordExpired,
            50_020 | 90_072 => Self::Guest,
            90_002 | 900_023 | 50_059 => Self::TenantUnknown,
            65_001 | 65_002 | 700_016 | 7_000_112 | 7_000_218 => Self::ClientBlocked,
            _ => return None,
        })
    }

    fn words(self) -> &'static str {
        match self {
            Self::SecondFactor => {
                "the tenant requires more than a password from this user, which an app cannot provide"
            }
            Self::Password => {
                "the user or the password is wrong, or the password is managed outside of Microsoft \
                 Entra: check `User ID` and `Password`, or"
            }
            Self::UserUnknown => {
                "the tenant does not know the user: check `User ID`, and `AZURE_TENANT_ID` if it \
                 is set, or"
            }
            Self::UserBlocked => {
                "the user is locked, disabled or not allowed to log in: ask an administrator of the tenant, or"
            }
            Self::PasswordExpired => "the password has expired: change it, or",
            Self::Guest => "a guest's password cannot be used: use a user of the tenant, or",
            Self::TenantUnknown => "the tenant does not exist: check `AZURE_TENANT_ID`, or",
            Self::ClientBlocked => {
                "the tenant does not allow Microsoft.Data.SqlClient to log in its users: ask an \
                 administrator of the tenant, or"
            }
        }
    }
}

/// Returns the error of an answer without a token.
pub(super) fn error(status: StatusCode, body: &[u8], user: &User) -> Error {
    let refused: Refused = serde_json::from_slice(body).unwrap_or_default();
    let code = refused.error_codes.first().copied();
    let code_or_error = code.map_or_else(|| refused.error.clone(), |code| format!("AADSTS{code}"));
    hold_token(user.password.expose_secret());
    let code_or_error = redacted(code_or_error);
    let reason = match code.and_then(Meaning::of) {
        Some(Meaning::SecondFactor) => {
            format!("{}: {INSTEAD}", Meaning::SecondFactor.words())
        }
        Some(meaning) => format!("{} {INSTEAD}", meaning.words()),
        None => {
            let words = redacted(refused.error_description);
            let words = words.split(" Trace ID:").next().unwrap_or_default();
            let words = words.lines().next().unwrap_or_default();
            let words =
                words.strip_prefix(&code_or_error).unwrap_or(words).trim_start_matches([':', ' ']);
            words.chars().take(WORDS_MAX).collect()
        }
    };
    let number = u16::from(status);
    let text = format!("Microsoft Entra answered HTTP {number} {code_or_error}: {reason}");
    let kind = ErrorKind::HttpResponse { status, error_code: code_text(code), raw_response: None };
    Error::with_message(kind, text.trim_end_matches([':', ' ', '.']).to_owned())
}

/// Returns the error of a request that was not sent, because the service has asked for a pause.
pub(super) fn pause_requested(rest: Duration) -> Error {
    let text = format!("Microsoft Entra asked for a pause; {} s are left", rest.as_secs());
    let status = StatusCode::TooManyRequests;
    let kind = ErrorKind::HttpResponse { status, error_code: None, raw_response: None };
    Error::with_message(kind, text)
}

fn code_text(code: Option<u32>) -> Option<String> {
    code.map(|code| code.to_string())
}

//! What Microsoft Entra means by giving no token, and what to do about it.
//!
//! Its numbers may change, so they choose words and nothing else.

use std::time::Duration;

use azure_core::error::{Error, ErrorKind};
use azure_core::http::StatusCode;
use highwater_engine::redaction::{hold_token, redacted};
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::User;

const INSTEAD: &str =
    "use `Active Directory Managed Identity` or `Active Directory Service Principal`";
/// Longest part of the service's own words that is told, in characters.
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
    UserBarred,
    PasswordSpent,
    Guest,
    TenantUnknown,
    ClientBarred,
}

impl Meaning {
    /// Judges the service's number.
    /// <https://learn.microsoft.com/entra/identity-platform/reference-error-codes>
    fn of(code: u32) -> Option<Self> {
        Some(match code {
            50_072 | 50_074 | 50_076 | 50_078 | 50_079 | 50_158 | 53_000..=53_004 => {
                Self::SecondFactor
            }
            50_126 | 50_056 => Self::Password,
            50_034 | 51_004 => Self::UserUnknown,
            50_053 | 50_057 | 50_105 => Self::UserBarred,
            50_055 | 50_144 => Self::PasswordSpent,
            50_020 | 90_072 => Self::Guest,
            90_002 | 900_023 | 50_059 => Self::TenantUnknown,
            65_001 | 65_002 | 700_016 | 7_000_112 | 7_000_218 => Self::ClientBarred,
            _ => return None,
        })
    }

    fn words(self) -> &'static str {
        match self {
            Self::SecondFactor => {
                "the tenant wants more than a password of this user, and nobody is there to give it"
            }
            Self::Password => {
                "the user or the password is wrong, or the password is kept outside of Microsoft \
                 Entra: check `User ID` and `Password`, or"
            }
            Self::UserUnknown => {
                "the tenant does not know the user: check `User ID`, and `AZURE_TENANT_ID` where it \
                 is set, or"
            }
            Self::UserBarred => {
                "the user is locked, disabled or not admitted: ask an administrator of the tenant, or"
            }
            Self::PasswordSpent => "the password has expired: change it by hand, or",
            Self::Guest => "a guest's password cannot be used: name a user of the tenant, or",
            Self::TenantUnknown => "there is no such tenant: check `AZURE_TENANT_ID`, or",
            Self::ClientBarred => {
                "the tenant does not let Microsoft.Data.SqlClient log its users in: ask an \
                 administrator of the tenant, or"
            }
        }
    }
}

/// Returns the error of an answer that holds no token.
pub(super) fn error(status: StatusCode, body: &[u8], user: &User) -> Error {
    let refused: Refused = serde_json::from_slice(body).unwrap_or_default();
    let code = refused.error_codes.first().copied();
    let told = code.map_or_else(|| refused.error.clone(), |code| format!("AADSTS{code}"));
    hold_token(user.password.expose_secret());
    let told = redacted(told);
    let reason = match code.and_then(Meaning::of) {
        Some(Meaning::SecondFactor) => {
            format!("{}: {INSTEAD}", Meaning::SecondFactor.words())
        }
        Some(meaning) => format!("{} {INSTEAD}", meaning.words()),
        None => {
            let words = redacted(refused.error_description);
            let words = words.split(" Trace ID:").next().unwrap_or_default();
            let words = words.lines().next().unwrap_or_default();
            let words = words.strip_prefix(&told).unwrap_or(words).trim_start_matches([':', ' ']);
            words.chars().take(WORDS_MAX).collect()
        }
    };
    let number = u16::from(status);
    let text = format!("Microsoft Entra answered HTTP {number} {told}: {reason}");
    let kind = ErrorKind::HttpResponse { status, error_code: code_text(code), raw_response: None };
    Error::with_message(kind, text.trim_end_matches([':', ' ', '.']).to_owned())
}

/// Returns the error of not asking, since the service has asked for a pause.
pub(super) fn left_alone(rest: Duration) -> Error {
    let text = format!("Microsoft Entra asked for a pause, of which {} s are left", rest.as_secs());
    let status = StatusCode::TooManyRequests;
    let kind = ErrorKind::HttpResponse { status, error_code: None, raw_response: None };
    Error::with_message(kind, text)
}

fn code_text(code: Option<u32>) -> Option<String> {
    code.map(|code| code.to_string())
}

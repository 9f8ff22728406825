//! How the host judges one reply. Pure; the recorded cases check it against the real host.

use serde_json::Value as Json;

use super::wire::Reply;

/// The host's verdict on an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It succeeded, with these entries in `Logs`.
    Success(Vec<Option<String>>),
    /// It failed; the host's log record starts with this text.
    Failure(String),
    /// The host would wait until its timeout: nothing ever completes the invocation.
    Hang(&'static str),
    /// The host's client silently follows a redirect.
    Follows(String),
    /// There was no reply within the function's time-out; the process was killed.
    TimedOut,
}

impl Verdict {
    /// Whether the invocation succeeded.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success(_))
    }
}

/// Judges a reply; `None` means a connection that closed without one.
pub fn judge(reply: Option<&Reply>) -> Verdict {
    let Some(reply) = reply else { return Verdict::Failure("HttpRequestException".to_owned()) };
    if matches!(reply.status, 300..=303 | 307 | 308)
        && let Some(location) = reply.header("location")
    {
        return Verdict::Follows(location.to_owned());
    }
    if reply.status == 101 {
        return Verdict::Hang("the connection was switched to another protocol");
    }
    if !(200..=299).contains(&reply.status) {
        return unsuccessful(reply);
    }
    if reply.body.is_empty() {
        return Verdict::Hang("the reply is empty");
    }
    let media_type = reply.header("content-type").unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = matches!(media_type.as_str(), "application/json" | "text/json");
    if !is_json {
        return invalid();
    }
    // Text that follows the first value is ignored.
    match serde_json::Deserializer::from_slice(json_text(&reply.body)).into_iter::<Json>().next() {
        None => Verdict::Hang("the reply is blank"),
        Some(Ok(Json::Null)) => Verdict::Hang("the reply is `null`"),
        Some(Ok(json)) => logs(&json).map_or_else(invalid, Verdict::Success),
        Some(Err(_)) => invalid(),
    }
}

/// Returns the verdict on a status that is neither a success nor a redirect.
pub(super) fn unsuccessful(reply: &Reply) -> Verdict {
    let reason = if reply.reason.is_empty() { "" } else { &format!(" ({})", reply.reason) };
    Verdict::Failure(format!(
        "Response status code does not indicate success: {}{reason}.",
        reply.status
    ))
}

/// Returns a body without a byte order mark and without comments before the first value.
fn json_text(body: &[u8]) -> &[u8] {
    let mut rest = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    loop {
        rest = rest.trim_ascii_start();
        let Some(comment) = rest.strip_prefix(b"/*") else { return rest };
        let Some(end) = comment.windows(2).position(|pair| pair == b"*/") else { return rest };
        rest = comment.get(end + 2..).unwrap_or_default();
    }
}

fn invalid() -> Verdict {
    Verdict::Failure("Invalid HttpResponseMessage:".to_owned())
}

/// Returns `Logs` of a reply of the right shape; names are case-insensitive.
fn logs(json: &Json) -> Option<Vec<Option<String>>> {
    let fields = json.as_object()?;
    let field = |name: &str| {
        let found = fields.iter().rfind(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    };
    if !field("outputs").is_none_or(Json::is_object) {
        return None;
    }
    let Some(logs) = field("logs") else { return Some(Vec::new()) };
    let entries = logs.as_array()?;
    let nested = entries.iter().any(|entry| entry.is_array() || entry.is_object());
    (!nested).then(|| entries.iter().map(log).collect())
}

fn log(entry: &Json) -> Option<String> {
    match entry {
        Json::Null => None,
        Json::Bool(true) => Some("True".to_owned()),
        Json::Bool(false) => Some("False".to_owned()),
        Json::String(text) => Some(text.clone()),
        Json::Number(_) | Json::Array(_) | Json::Object(_) => Some(entry.to_string()),
    }
}

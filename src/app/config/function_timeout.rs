//! The host's own limit on a function call. It applies in addition to the configured one.

use std::time::Duration;

/// The host's limit on one function call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionTimeout {
    /// The limit; `None` where there is none.
    pub limit: Option<Duration>,
    /// Where it is set, such as a setting or a field of a file.
    pub set_by: String,
    /// The configured text; `None` for the plan's default.
    pub text: Option<String>,
}

impl FunctionTimeout {
    /// Returns an instruction to raise it to `limit`.
    pub fn raised_to(&self, limit: Duration) -> String {
        let of_plan = self.text.is_none();
        let place =
            if of_plan { "host.json: functionTimeout".to_owned() } else { self.set_by.clone() };
        format!("set `{place}` to `{}`", time_text(limit))
    }
}

/// Formats a time for the host; fractions of a second are rounded up.
fn time_text(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let days = if days == 0 { String::new() } else { format!("{days}.") };
    format!("{days}{:02}:{:02}:{:02}", hours % 24, minutes % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_for_the_host() {
        for (ms, text) in [
            (300_000, "00:05:00"),
            (20_001, "00:00:21"),
            (86_399_500, "1.00:00:00"),
            (90_061_000, "1.01:01:01"),
        ] {
            let time = Duration::from_millis(ms);
            assert_eq!(time_text(time), text);
        }
    }
}

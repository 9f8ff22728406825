//! Elements shared by the overview and the view of one poller.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::markup::Html;
use super::words;
use crate::status::{Lease, Status, Tick};

/// Ticks in the strip of the overview.
pub(super) const STRIP_TICKS: usize = 24;

/// Adds the badge with the state of a poller.
pub(super) fn badge(html: &mut Html, status: &Status) {
    let (word, tone) = words::state(&status.health);
    let class = format!("badge {}", words::class(tone));
    html.element("span", &[("class", &class)], word);
}

/// Adds a time, with its full form as a tooltip.
pub(super) fn time(html: &mut Html, at: OffsetDateTime, text: &str) {
    let full = at.format(&Rfc3339).unwrap_or_default();
    html.element("time", &[("datetime", &full), ("title", &full)], text);
}

/// Adds a number of seconds that the page's script counts down.
pub(super) fn countdown(html: &mut Html, seconds: u64) {
    let left = seconds.to_string();
    html.element("span", &[("class", "count"), ("data-left", &left)], &words::span(seconds));
}

/// Adds the time until something is due, which the page's script counts down.
pub(super) fn due(html: &mut Html, seconds: u64) {
    let left = seconds.to_string();
    let shape = [("class", "count"), ("data-left", left.as_str()), ("data-due", "")];
    html.element("span", &shape, &words::due_in(seconds));
}

/// Adds a bar that shows the remaining time of a lease.
pub(super) fn lease_bar(html: &mut Html, lease: &Lease) {
    let percent = (lease.left_seconds * 100).checked_div(lease.ttl_seconds).unwrap_or(0).min(100);
    let width = percent.to_string();
    let ttl = lease.ttl_seconds.to_string();
    let shape = [
        ("class", "bar"),
        ("viewBox", "0 0 100 4"),
        ("preserveAspectRatio", "none"),
        ("aria-hidden", "true"),
        ("data-ttl", ttl.as_str()),
    ];
    html.within("svg", &shape, |html| {
        html.raw("<rect class=\"track\" width=\"100\" height=\"4\" rx=\"2\"></rect>");
        let fill = [("class", "fill"), ("width", width.as_str()), ("height", "4"), ("rx", "2")];
        html.element("rect", &fill, "");
    });
}

/// Adds a bar for each of the last `limit` ticks: its height shows the rows delivered, its colour the
/// outcome.
pub(super) fn strip(html: &mut Html, ticks: &[Tick], limit: usize) {
    let ticks = ticks.get(ticks.len().saturating_sub(limit)..).unwrap_or_default();
    let label = words::strip(ticks);
    let view = format!("0 0 {} 28", limit * 6);
    let shape = [
        ("class", "strip"),
        ("viewBox", view.as_str()),
        ("role", "img"),
        ("aria-label", label.as_str()),
    ];
    html.within("svg", &shape, |html| {
        for slot in 0..limit - ticks.len() {
            rect(html, "none", slot, 2);
        }
        for (slot, tick) in (limit - ticks.len()..).zip(ticks) {
            rect(html, words::class(tick.tone), slot, height(tick.rows));
        }
    });
}

fn rect(html: &mut Html, class: &str, slot: usize, height: usize) {
    let (x, y, height) = ((slot * 6).to_string(), (28 - height).to_string(), height.to_string());
    let place = [
        ("class", class),
        ("x", x.as_str()),
        ("y", y.as_str()),
        ("width", "4"),
        ("height", height.as_str()),
        ("rx", "1"),
    ];
    html.element("rect", &place, "");
}

/// Logarithmic, so that one row and a million are both visible.
fn height(rows: u64) -> usize {
    let doubles = u64::BITS - rows.leading_zeros();
    usize::try_from(doubles).unwrap_or(0).min(20) + 8
}

/// Adds a table with a caption; a narrow page shows each row as a card.
///
/// Roles are explicit, because a table that is laid out as cards is otherwise not a table to a screen
/// reader.
pub(super) fn table(
    html: &mut Html,
    caption: &str,
    columns: &[&str],
    rows: impl FnOnce(&mut Html),
) {
    html.within("table", &[("role", "table")], |html| {
        html.element("caption", &[], caption);
        html.within("thead", &[("role", "rowgroup")], |html| {
            html.within("tr", &[("role", "row")], |html| {
                for column in columns {
                    html.element("th", &[("scope", "col"), ("role", "columnheader")], column);
                }
            });
        });
        html.within("tbody", &[("role", "rowgroup")], rows);
    });
}

/// Adds a cell with the name of its column.
pub(super) fn cell(html: &mut Html, column: &'static str, inside: impl FnOnce(&mut Html)) {
    html.within("td", &[("role", "cell"), ("data-label", column)], inside);
}

/// Adds the placeholder for a missing value.
pub(super) fn nothing(html: &mut Html) {
    html.raw("<span class=\"dim\">–</span>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_of_one_row_and_one_of_a_million_differ_visibly() {
        let heights = [0, 1, 2, 1_000, 1_000_000, u64::MAX].map(height);
        assert!(heights.is_sorted() && heights[0] == 8 && heights[5] == 28, "{heights:?}");
        assert!(heights[4] - heights[3] >= 8, "{heights:?}");
    }

    #[test]
    fn a_lease_bar_never_leaves_its_track() {
        for (left, ttl, expected) in [(60, 120, "50"), (500, 120, "100"), (1, 0, "0")] {
            let mut html = Html::default();
            let lease = Lease { ttl_seconds: ttl, left_seconds: left, acquired_at: None };
            lease_bar(&mut html, &lease);
            let text = html.finish();
            assert!(text.contains(&format!("class=\"fill\" width=\"{expected}\"")), "{text}");
        }
    }
}

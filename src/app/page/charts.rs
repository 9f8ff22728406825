//! Small charts of what a poller did in the last hours.

use time::OffsetDateTime;

use super::markup::Html;
use super::words;
use crate::status::{ACTIVITY_PERIOD, ACTIVITY_PERIODS, Activity, Status};

/// Height of a chart, and width of one period.
const HEIGHT: u64 = 40;
const WIDTH: usize = 10;

/// Adds the charts.
pub(super) fn show(html: &mut Html, status: &Status, now: Option<OffsetDateTime>) {
    let Some(now) = now else { return };
    let slots = slots(status, now);
    html.within("section", &[("class", "card"), ("aria-labelledby", "activity")], |html| {
        html.raw("<h2 id=\"activity\">Last 8 hours</h2>");
        if slots.iter().all(Option::is_none) {
            html.raw("<p class=\"empty\">Nothing is recorded of these hours. Idle ticks are not shown.</p>");
            return;
        }
        html.within("div", &[("class", "charts")], |html| {
            let total: u64 = slots.iter().flatten().map(|it| it.rows).sum();
            let rows = format!("Rows: {}", words::count(total));
            chart(html, &rows, &slots, |it| it.rows, words::count);
            chart(html, "Lag at delivery", &slots, |it| it.lag_ms, words::milliseconds);
            let duration = words::milliseconds;
            chart(html, "Duration of a tick", &slots, |it| it.duration_ms, duration);
        });
        html.raw("<p class=\"dim\">A bar is half an hour: all rows in it, or its longest lag and tick. Red: a tick failed.</p>");
    });
}

/// Returns the last periods, oldest first; `None` for one in which no tick wrote.
fn slots(status: &Status, now: OffsetDateTime) -> Vec<Option<&Activity>> {
    let newest = Activity::start_of(now);
    let starts = (0..ACTIVITY_PERIODS).rev().filter_map(|back| {
        let back = ACTIVITY_PERIOD.checked_mul(u32::try_from(back).ok()?)?;
        Some(newest - back)
    });
    starts.map(|start| status.activity.iter().find(|it| it.at == start)).collect()
}

fn chart(
    html: &mut Html,
    title: &str,
    slots: &[Option<&Activity>],
    value: impl Fn(&Activity) -> u64,
    text: impl Fn(u64) -> String,
) {
    let most = slots.iter().flatten().map(|it| value(it)).max().unwrap_or(0);
    let shown = text(most);
    let failed: u64 = slots.iter().flatten().map(|it| it.failed).sum();
    let failed = match failed {
        0 => String::new(),
        failed => format!("; {} failed", words::counted(failed, "tick")),
    };
    html.within("figure", &[], |html| {
        html.within("figcaption", &[], |html| {
            html.text(title);
            html.element("small", &[], &format!("most {shown}{failed}"));
        });
        let label = format!("{title}, by half an hour; most {shown}{failed}");
        let view = format!("0 0 {} {HEIGHT}", slots.len() * WIDTH);
        let shape = [
            ("class", "chart"),
            ("viewBox", view.as_str()),
            ("preserveAspectRatio", "none"),
            ("role", "img"),
            ("aria-label", label.as_str()),
        ];
        html.within("svg", &shape, |html| {
            for (index, slot) in slots.iter().enumerate() {
                bar(html, index, *slot, slot.map_or(0, &value), most);
            }
        });
    });
}

fn bar(html: &mut Html, index: usize, slot: Option<&Activity>, value: u64, most: u64) {
    // A bar of a period with ticks is visible even if its value is 0.
    let least = u64::from(slot.is_some());
    let height = value.saturating_mul(HEIGHT).checked_div(most).unwrap_or(0).max(least);
    let class = match slot {
        None => "none",
        Some(it) if it.failed > 0 => "bad",
        Some(_) => "good",
    };
    let (x, y) = ((index * WIDTH).to_string(), (HEIGHT - height.min(HEIGHT)).to_string());
    let (width, height) = ((WIDTH - 2).to_string(), height.to_string());
    let place = [
        ("class", class),
        ("x", x.as_str()),
        ("y", y.as_str()),
        ("width", width.as_str()),
        ("height", height.as_str()),
    ];
    html.element("rect", &place, "");
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn activity(at: OffsetDateTime, rows: u64, failed: u64) -> Activity {
        Activity { at, ticks: 1, failed, rows, lag_ms: 10, duration_ms: 20 }
    }

    #[test]
    fn bars_are_placed_by_time_and_scaled_to_the_largest() {
        let now = datetime!(2026-01-01 12:10 UTC);
        let status = Status {
            activity: vec![
                activity(datetime!(2026-01-01 1:00 UTC), 9_000, 0),
                activity(datetime!(2026-01-01 11:30 UTC), 50, 1),
                activity(datetime!(2026-01-01 12:00 UTC), 100, 0),
            ],
            ..Status::default()
        };
        let mut html = Html::default();
        show(&mut html, &status, Some(now));
        let text = html.finish();
        assert!(text.contains("Rows: 150"), "older than 8 hours: {text}");
        assert!(
            text.contains("<rect class=\"good\" x=\"150\" y=\"0\" width=\"8\" height=\"40\">"),
            "{text}"
        );
        assert!(
            text.contains("<rect class=\"bad\" x=\"140\" y=\"20\" width=\"8\" height=\"20\">"),
            "{text}"
        );
        let old = Status {
            activity: vec![activity(datetime!(2026-01-01 1:00 UTC), 9_000, 0)],
            ..Status::default()
        };
        let mut html = Html::default();
        show(&mut html, &old, Some(now));
        let empty = html.finish();
        assert!(empty.contains("class=\"empty\"") && !empty.contains("<svg"), "{empty}");
        assert_eq!(text.matches("<svg").count(), 3);
        assert!(
            text.contains(
                "aria-label=\"Lag at delivery, by half an hour; most 10 ms; 1 tick failed\""
            ),
            "{text}"
        );
    }
}

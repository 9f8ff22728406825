//! Why a row was or was not delivered: a form, and the answer.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::View;
use super::markup::Html;
use crate::event::counted;
use crate::explain::{Delivery, Explanation};
use crate::range::position_text;
use crate::status::Status;

/// The answer to the form.
pub(super) struct Traced {
    pub(super) key: String,
    /// Why the row was or was not delivered, or why that is unknown.
    pub(super) explanation: Result<Explanation, String>,
}

/// Returns an explanation in lines: the reason, what to do next, then the details.
pub fn lines(explanation: &Explanation) -> Vec<String> {
    let [verdict, next] = explanation.summary();
    let mut lines = vec![verdict, next];
    for reason in &explanation.also {
        lines.push(format!("also: {}; {}", reason.cause, reason.next));
    }
    let row = &explanation.row;
    let place = row.position.as_ref().map(position_text);
    let place = place.unwrap_or_else(|| "position unknown".to_owned());
    lines.push(match (row.exists, row.is_deleted) {
        (true, false) => format!("row: {place}"),
        (_, true) => format!("row: {place}, deleted"),
        (false, false) => "row: none".to_owned(),
    });
    let checkpoint = explanation.checkpoint.as_ref().map(position_text);
    let checkpoint = checkpoint.unwrap_or_else(|| "the beginning".to_owned());
    let moved = explanation.checkpoint_at.map(|at| format!(", since {}", time_text(at)));
    lines.push(format!("checkpoint: {checkpoint}{}", moved.unwrap_or_default()));
    lines.extend(row.bound.as_ref().map(|bound| format!("rows are readable below `{bound}`")));
    for predicate in &row.predicates {
        let holds = if predicate.holds { "holds" } else { "does not hold" };
        lines.push(format!("filter: `{}` {holds}", predicate.text));
    }
    for session in &row.sessions {
        let name = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        lines.push(format!(
            "open transaction: session {}, login {}, host {}, program {}, first wrote {} s ago",
            session.id,
            name(&session.login),
            name(&session.host),
            name(&session.program),
            session.seconds
        ));
    }
    lines.extend(explanation.deliveries.iter().map(delivery));
    lines.extend(explanation.journal_from.map(|from| format!("journal: searched from {from} on")));
    lines
}

fn delivery(delivery: &Delivery) -> String {
    let Delivery { at, event, batch_id, token, rows, reply, version, .. } = delivery;
    let batch = batch_id.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
    let rows = rows.map(|rows| format!(", {}", counted(rows, "row"))).unwrap_or_default();
    let which = match (delivery.is_current, delivery.is_certain) {
        (true, true) => String::new(),
        (true, false) => " (probably)".to_owned(),
        (false, _) => format!(" (earlier version `{version}`)"),
    };
    format!("{} {event}{batch}, token {token}{rows}: {reply}{which}", time_text(*at))
}

fn time_text(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

/// Adds the form, and the answer if something was asked.
pub(super) fn show(html: &mut Html, status: &Status, traced: Option<&Traced>, view: &View<'_>) {
    if !status.configured {
        return;
    }
    html.within("section", &[("class", "card"), ("aria-labelledby", "trace")], |html| {
        html.raw("<h2 id=\"trace\">Why was a row delivered, or not?</h2>");
        html.within("form", &[("method", "get"), ("action", "page"), ("class", "line")], |html| {
            html.void(
                "input",
                &[("type", "hidden"), ("name", "poller"), ("value", &status.poller)],
            );
            if let Some(code) = view.code {
                html.secret_input("code", code);
            }
            html.raw("<label for=\"trace-key\">Key of the row, such as <code>17</code></label>");
            let key = traced.map_or("", |traced| traced.key.as_str());
            let input = [
                ("id", "trace-key"),
                ("name", "key"),
                ("required", ""),
                ("maxlength", "1000"),
                ("autocomplete", "off"),
                ("value", key),
            ];
            html.void("input", &input);
            html.raw("<button type=\"submit\">Explain</button>");
        });
        match traced.map(|traced| &traced.explanation) {
            None => {}
            Some(Ok(explanation)) => html.within("div", &[("role", "status")], |html| {
                for (index, line) in lines(explanation).iter().enumerate() {
                    let class = if index < 2 { "said" } else { "dim" };
                    html.within("p", &[("class", class)], |html| html.foreign(line));
                }
            }),
            Some(Err(text)) => {
                html.within("p", &[("class", "said bad"), ("role", "status")], |html| {
                    html.foreign(text);
                });
            }
        }
    });
}

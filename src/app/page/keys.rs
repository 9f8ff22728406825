//! The parked and quarantined keys of a poller.

use super::markup::Html;
use super::parts::{cell, nothing, table, time};
use super::{View, detail, words};
use crate::quarantine::EntryState;
use crate::status::{KEYS_MAX, ParkedEntry, Status};

const COLUMNS: [&str; 5] = ["Key", "State", "Since (UTC)", "Next retry (UTC)", "Last error"];

/// Adds the list, if any key is parked.
pub(super) fn show(html: &mut Html, status: &Status, view: &View<'_>) {
    if status.quarantined == 0 {
        return;
    }
    html.within("section", &[("class", "card"), ("aria-labelledby", "keys")], |html| {
        html.raw("<h2 id=\"keys\">Parked and quarantined keys</h2>");
        let poller = &status.poller;
        let command =
            |html: &mut Html, text: &str| html.element("code", &[("class", "command")], text);
        let Some(keys) = &status.keys else {
            html.raw("<p>This process does not have the settings of the poller. List them with ");
            command(html, &format!("highwater quarantine list {poller}"));
            html.raw("</p>");
            return;
        };
        detail::scroll(html, "Table of parked keys", |html| {
            table(html, "Keys whose rows wait, by id", &COLUMNS, |html| {
                for key in keys {
                    row(html, key);
                }
            });
        });
        let shown = u64::try_from(keys.len()).unwrap_or(u64::MAX);
        if status.quarantined > shown && keys.len() == KEYS_MAX {
            html.element(
                "p",
                &[("class", "dim")],
                &format!("and {} more", status.quarantined - shown),
            );
        }
        html.within("p", &[], |html| {
            html.text("Fix the rows or the target, then deliver them again: ");
            command(html, &format!("highwater quarantine redrive {poller} --all"));
        });
        if let Some(actions) = &view.actions {
            detail::action(html, poller, actions, &detail::REDRIVE);
        }
    });
}

fn row(html: &mut Html, key: &ParkedEntry) {
    html.within("tr", &[("role", "row")], |html| {
        cell(html, "Key", |html| {
            html.foreign(&key.key);
            html.within("small", &[], |html| {
                html.element("code", &[("class", "id"), ("title", &key.key_id)], &key.key_id);
            });
        });
        cell(html, "State", |html| {
            let (class, word) = match key.state {
                Some(EntryState::Retrying) => ("word warning", "retrying"),
                Some(EntryState::Quarantined) => ("word bad", "quarantined"),
                None => ("word bad", "unreadable"),
            };
            html.element("span", &[("class", class)], word);
            let retries = words::counted(key.retries.into(), "retry");
            let versions = words::counted(key.versions, "version");
            html.element("small", &[], &format!("{retries}, {versions}"));
        });
        for (column, at) in [("Since (UTC)", key.since), ("Next retry (UTC)", key.next_retry_at)] {
            cell(html, column, |html| match at {
                Some(at) => time(html, at, &words::clock(at)),
                None => nothing(html),
            });
        }
        cell(html, "Last error", |html| match &key.error {
            Some(error) => html.foreign(error),
            None => nothing(html),
        });
    });
}

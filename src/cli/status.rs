//! `highwater status`.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use futures_util::StreamExt as _;

use super::is_of;
use super::output::{Exit, Failed, OutputOption, Record, say, tell};
use crate::app::App;
use crate::config::Vars;
use crate::doctor::sizing::Sizing;
use crate::doctor::status::{Beside, Status};
use crate::recovery::scan::{Found, Listing, documents};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller; all that the settings or the store know if not given.
    poller: Option<String>,
    #[command(flatten)]
    form: OutputOption,
}

impl Record for Status {
    const COLUMNS: &'static [&'static str] = &[
        "poller",
        "state",
        "checkpoint",
        "age",
        "lag",
        "owner",
        "token",
        "aside",
        "ttl",
        "suggested",
        "error",
    ];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let sizing = self.sizing.as_ref();
        let suggested = |sizing: &Sizing| {
            let Sizing { suggested_ttl_seconds: ttl, suggested_interval_seconds: interval, .. } =
                sizing;
            format!("ttl {ttl}s, every {interval}s")
        };
        vec![
            self.poller.clone(),
            self.state.to_owned(),
            or_dash(self.checkpoint.clone()),
            or_dash(self.checkpoint_age_seconds.map(|age| format!("{age}s"))),
            or_dash(self.lag_ms.map(|lag| format!("{lag}ms"))),
            or_dash(self.owner.clone()),
            self.token.to_string(),
            self.quarantined.to_string(),
            or_dash(sizing.map(|sizing| format!("{}s", sizing.ttl_seconds))),
            or_dash(sizing.map(suggested)),
            or_dash(self.last_error.clone()),
        ]
    }
}

/// Prints how pollers stand. Only the store is asked, and nothing is written.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let app = App::build(vars)?;
    let listing = Listing::read(&*app.state).await?;
    let stored = listing.documents.iter().cloned();
    let known: BTreeSet<String> = stored.chain(app.pollers.keys().cloned()).collect();
    let asked: BTreeSet<String> = match &options.poller {
        None => known,
        Some(name) if known.iter().any(|known| is_of(known, name)) => {
            known.into_iter().filter(|known| is_of(known, name)).collect()
        }
        Some(name) => {
            let text =
                format!("there is no poller `{name}`, neither in the settings nor in the store");
            return Err(Failed::new(Exit::Usage, text));
        }
    };
    let mut statuses = Vec::new();
    let mut found = Box::pin(documents(Arc::clone(&app.state), asked.into_iter().collect()));
    while let Some(read) = found.next().await {
        let (name, found) = read?;
        let ttl = app.pollers.get(&name).map(|poller| poller.lease_ttl());
        let quarantined = listing.quarantined.get(&name).copied().unwrap_or(0);
        statuses.push(match found {
            Found::Document(base) => {
                let (age, now) = (base.age(app.state.grain()), base.now());
                let beside = Beside { age, now, quarantined, ttl, poller: &name };
                Status::of(&base.document, beside)
            }
            Found::Unreadable(error) => Status {
                quarantined,
                ..Status::without_document(&name, ttl.is_some(), Some(error))
            },
            Found::Nothing => {
                Status { quarantined, ..Status::without_document(&name, ttl.is_some(), None) }
            }
        });
    }
    say(&options.form.output.list(&statuses));
    for status in &statuses {
        for warning in &status.warnings {
            tell(&format!("{}: {warning}", status.poller));
        }
    }
    Ok(Exit::Done)
}

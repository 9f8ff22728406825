//! `highwater lease`: takes a poller's lease from its holder.

use std::str::FromStr as _;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::confirm::{Confirmation, confirm};
use super::output::{Exit, Failed, OutputOption, print_text};
use super::{restore, stored_poller};
use highwater::admin::{PresentState, RestoreError};
use highwater::config::Vars;
use highwater::error::chain;
use highwater::poller::{Operator, Poller};
use highwater::state::Fence;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// Take the lease from its holder, so that the next tick of any process can run.
    Break(BreakOptions),
}

#[derive(Debug, Args)]
pub(super) struct BreakOptions {
    /// Name of the poller.
    poller: String,
    /// Also take a live lease: its holder stops, and its in-flight batch is redelivered.
    #[arg(long)]
    live: bool,
    /// Raise generation or token above this grant, also of a free lease: for a state document that was restored
    /// from an older copy, and whose target rejects its writes (`fence_ahead`).
    #[arg(long, value_name = "GENERATION.TOKEN", value_parser = Fence::from_str)]
    above: Option<Fence>,
    #[command(flatten)]
    asked: Confirmation,
    #[command(flatten)]
    form: OutputOption,
}

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Whether a lease was taken.
    changed: bool,
    /// The previous holder.
    owner: Option<&'a str>,
    fencing_token: u64,
    /// Key of the saved previous document.
    saved: Option<String>,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let Options::Break(options) = options;
    let name = options.poller.as_str();
    let reason = options.asked.reason()?;
    let poller = stored_poller(vars, name).await?;
    let present = poller.admin().present().await?;
    let document = match &present.document {
        Ok(Some(document)) => document.clone(),
        Ok(None) => {
            poller.refuse_loss().await?;
            let text = format!("{name}: there is no state document, so there is no lease");
            return Err(Failed::new(Exit::Failed, text));
        }
        Err(error) => return Err(Failed::new(Exit::Failed, chain(error))),
    };
    if let Some(fence) = options.above {
        return raise(vars, options, &poller, &present, fence).await;
    }
    let lease = &document.lease;
    let owner = lease.owner_id.as_deref().filter(|_| lease.released_at.is_none());
    let Some(owner) = owner else {
        let (changed, fencing_token) = (false, lease.fencing_token.0);
        let report = Report { poller: name, changed, owner: None, fencing_token, saved: None };
        print_text(&options.form.output.one(&report, || format!("{name}: nobody holds the lease")));
        return Ok(Exit::Done);
    };
    if present.held_by.is_some() && !options.live {
        let text = format!(
            "{name}: `{owner}` holds the lease and is alive (it wrote within its TTL); nothing was done: `highwater pause \
             {name} --reason \"stop the holder\"` stops it after its in-flight batch, and `--live` takes the lease at once"
        );
        return Err(Failed::new(Exit::Conflict, text));
    }
    if !confirm(&plan(name, owner, present.held_by.is_some()), name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.asked.by(vars);
    let operator = Operator { by: &by, reason };
    let broken = Box::pin(poller.admin().break_lease(&present, options.live, operator)).await;
    let broken = broken.map_err(restore::failed)?;
    // The document that was read had a holder, and only that version is overwritten.
    let broken = broken.ok_or_else(|| restore::failed(RestoreError::Moved))?;
    let report = Report {
        poller: name,
        changed: true,
        owner: Some(owner),
        fencing_token: broken.document.lease.fencing_token.0,
        saved: broken.saved.map(|key| key.to_string()),
    };
    print_text(&options.form.output.one(&report, || {
        let token = report.fencing_token;
        format!("{name}: lease taken from `{owner}`; the token is now {token}, and the next tick can run")
    }));
    Ok(Exit::Done)
}

/// Raises the grants of a document restored from an older copy above those that its target has accepted.
async fn raise(
    vars: &dyn Vars,
    options: &BreakOptions,
    poller: &Poller,
    present: &PresentState,
    fence: Fence,
) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let reason = options.asked.reason()?;
    let Some(document) = present.usable() else {
        let text =
            format!("{name}: the state document has no grants yet, so there is nothing to raise");
        return Err(Failed::new(Exit::Failed, text));
    };
    let newest = document.newest_grant();
    if let Some(current) = document.fence_ahead().map(|refused| refused.current)
        && fence < current
    {
        let text = format!(
            "{name}: its target has accepted {current}, so it would reject grants just above {fence}; nothing was \
             changed: run `highwater lease break {name} --above {current} --reason \"state document is an older copy\"`"
        );
        return Err(Failed::new(Exit::Conflict, text));
    }
    if fence <= newest {
        let (changed, fencing_token) = (false, newest.token.0);
        let report = Report { poller: name, changed, owner: None, fencing_token, saved: None };
        print_text(&options.form.output.one(&report, || {
            format!("{name}: its newest grant is already {newest}, so the next one is above {fence}; nothing was changed")
        }));
        return Ok(Exit::Done);
    }
    if let Some(owner) = present.held_by.as_deref().filter(|_| !options.live) {
        let text = format!(
            "{name}: `{owner}` holds the lease; nothing was changed: run `highwater pause {name} --reason \"raise \
             its grants\"` and retry once the lease is free, or add `--live`"
        );
        return Err(Failed::new(Exit::Conflict, text));
    }
    if !confirm(&raise_plan(name, newest, fence), name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.asked.by(vars);
    let operator = Operator { by: &by, reason };
    let raised = Box::pin(poller.admin().raise_above(fence, present, options.live, operator)).await;
    let raised = raised.map_err(restore::failed)?;
    let raised = raised.ok_or_else(|| restore::failed(RestoreError::Moved))?;
    let raised_to = raised.document.newest_grant();
    let report = Report {
        poller: name,
        changed: true,
        owner: None,
        fencing_token: raised_to.token.0,
        saved: raised.saved.map(|key| key.to_string()),
    };
    print_text(&options.form.output.one(&report, || {
        format!("{name}: its newest grant is now {raised_to}; the target accepts the next tick")
    }));
    Ok(Exit::Done)
}

fn raise_plan(name: &str, newest: Fence, fence: Fence) -> String {
    format!(
        "{name}: grants are raised from {newest} to above {fence}\n  the checkpoint of this document stays; rows after \
         it are redelivered\n  the target then rejects every other app that delivers to it under {fence}: confirm \
         only if this document was restored from an older copy and no other app delivers `{name}`\n  the current \
         document is saved"
    )
}

fn plan(name: &str, owner: &str, is_alive: bool) -> String {
    let holder = if is_alive {
        "it is alive: it finds its lease lost at its next write, and its in-flight batch is redelivered"
    } else {
        "it has not written for longer than its TTL, so the next tick that finds rows takes the lease anyway"
    };
    format!(
        "{name}: the lease is taken from `{owner}`\n  {holder}\n  the token is raised: a fenced target rejects \
         `{owner}` once the next batch has reached it; the checkpoint stays, and the current document is saved"
    )
}

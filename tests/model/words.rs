//! A step in words.

use crate::documents::{Batch, Doc, Grant, What};
use crate::steps::{Action, Fate, Model};
use crate::world::{Kind, Owner, Request, Role, World};

/// Returns what `action` does, from `world` to `next`.
pub(crate) fn describe(model: &Model, world: &World, action: Action, next: &World) -> String {
    match action {
        Action::Ask { slot, upto, fate } => {
            let asks = format!("{} reads the document and rows up to {upto}", name(slot));
            format!("{asks}, asks for the lease{}", outcome(model, fate, world, next))
        }
        Action::Start { slot, what, fate } => {
            format!("{} sends {}{}", name(slot), write(what), outcome(model, fate, world, next))
        }
        Action::Land { request, told } => land(model, &request, told, next),
        Action::Timeout { slot } => {
            format!("{} gets no answer; its request is still in the air", name(slot))
        }
        Action::Read { slot, fate } => {
            let reads = format!("{} reads the document to judge its write", name(slot));
            format!("{reads}{}", outcome(model, fate, world, next))
        }
        Action::GiveUp { slot } => format!("{} gives up waiting", name(slot)),
        Action::Handle { slot } => format!("{} delivers {}", name(slot), batch(world, slot)),
        Action::HandleNext { slot } => {
            let Owner::Holding(holding) = world.owner(slot) else { return String::new() };
            let next = holding.next().map_or_else(String::new, |next| rows(next, holding.grant));
            format!("{} delivers {next}, beside its commit", name(slot))
        }
        Action::CommitUnconfirmed { slot, .. } => {
            format!("{} sends the next commit though that one has no answer", name(slot))
        }
        Action::HandlePrefix { slot, fate } => {
            let delivers =
                format!("{} delivers the first row only, sends commit and failure", name(slot));
            format!("{delivers}{}", outcome(model, fate, world, next))
        }
        Action::AcceptPrefix { slot, fate } => {
            let delivers = format!("{} accepts the first row, sends a renewal with it", name(slot));
            format!("{delivers}{}", outcome(model, fate, world, next))
        }
        Action::Duplicate { slot } => {
            format!("{}'s delivery of {} is on its way, and late", name(slot), batch(world, slot))
        }
        Action::Arrive => "the late delivery arrives".to_owned(),
        Action::Crash { slot } => format!("{} dies", name(slot)),
        Action::Intervene { kind } => format!("the operator sends {}", sent(kind)),
        Action::LoseDocument => "the document is lost".to_owned(),
        Action::Create { late: false } => "somebody creates a blank document".to_owned(),
        Action::Create { late: true } => {
            "somebody sends for a blank document, and the request stays in the air".to_owned()
        }
    }
}

fn outcome(model: &Model, fate: Fate, world: &World, next: &World) -> String {
    let landed = next.writes > world.writes;
    match (fate, next.stored) {
        (Fate::InTheAir, _) => ": no answer, the request stays in the air".to_owned(),
        (Fate::Answered, Some(doc)) if landed => format!(": {}", version(model, next.writes, doc)),
        (Fate::AnswerLost, Some(doc)) if landed => {
            format!(": {}, but the answer is lost", version(model, next.writes, doc))
        }
        (Fate::Answered | Fate::AnswerLost | Fate::Open, _) => String::new(),
    }
}

fn land(model: &Model, request: &Request, told: bool, next: &World) -> String {
    if request.kind == Kind::Create {
        return "a late request for a blank document lands".to_owned();
    }
    let sender = match request.role {
        Role::Awaited(slot) => format!("{}'s ", name(slot)),
        Role::Earlier(slot) => format!("{}'s late ", name(slot)),
        Role::Orphan => "a late ".to_owned(),
    };
    let lost = matches!(request.role, Role::Awaited(_)) && !told;
    let lost = if lost { ", but the answer is lost" } else { "" };
    let version = version(model, next.writes, request.doc);
    format!("{sender}{} lands: {version}{lost}", sent(request.kind))
}

fn version(model: &Model, number: u8, doc: Doc) -> String {
    let facts = model.documents.facts(doc);
    let Grant { generation, token } = facts.grant;
    let generation =
        if generation > 1 { format!("generation {generation}, ") } else { String::new() };
    format!("version {number} has {generation}token {token}, checkpoint {}", facts.checkpoint)
}

fn sent(kind: Kind) -> &'static str {
    match kind {
        Kind::Create => "request for a blank document",
        Kind::Grant => "request for the lease",
        Kind::Held { what, .. } => write(what),
        Kind::Pause => "pause",
        Kind::Resume => "resume",
        Kind::Reset => "reset",
    }
}

fn write(what: What) -> &'static str {
    match what {
        What::Renew => "renewal",
        What::RenewPrefix { .. } => "renewal with a prefix",
        What::Commit { next: None, .. } => "commit with release",
        What::Commit { next: Some(_), .. } => "commit with the next batch",
        What::CommitPrefix { .. } => "commit of a prefix",
        What::Fail => "failure",
        What::Release => "release",
    }
}

fn batch(world: &World, slot: u8) -> String {
    let Owner::Holding(holding) = world.owner(slot) else { return "nothing".to_owned() };
    rows(holding.batch, holding.grant)
}

fn rows(Batch { after, upto, .. }: Batch, grant: Grant) -> String {
    let rows = if after + 1 == upto {
        format!("row {upto}")
    } else {
        format!("rows {} to {upto}", after + 1)
    };
    format!("{rows} under token {}", grant.token)
}

fn name(slot: u8) -> char {
    char::from(b'A' + slot)
}

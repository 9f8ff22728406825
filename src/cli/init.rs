//! `highwater init`: the explicit first start of a poller.

use super::output::{Exit, Failed, say};
use super::parts;
use crate::config::Vars;
use crate::poller::{Init, Poller};

/// Name of the poller.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    // One that has a state must not keep the others from theirs.
    let mut end = Ok(Exit::Done);
    for poller in parts(vars, &options.poller)? {
        end = init_one(&poller).await.and(end);
    }
    end
}

async fn init_one(poller: &Poller) -> Result<Exit, Failed> {
    let name = poller.name();
    match poller.init().await? {
        Init::Started { after: Some(cursor) } => {
            say(&format!("{name}: starts behind {} `{}`", cursor.mode, cursor.value));
            Ok(Exit::Done)
        }
        Init::Started { after: None } => {
            say(&format!("{name}: starts at the beginning"));
            Ok(Exit::Done)
        }
        Init::StartedBefore => {
            let text = format!("poller `{name}` has a state; it stays as it is");
            Err(Failed::new(Exit::Failed, text))
        }
    }
}

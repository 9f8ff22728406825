//! The file to edit: what happens with each change of `@@table@@`.

use rusqlite::Connection;

use crate::row::Change;
use crate::support::Failure;

/// Applies one change. `db` is in the transaction that also records the change's id: do not commit it.
///
/// Return [`Failure::event`] if this change itself cannot be applied, such as a value that your target rejects. Pass
/// every other error on with `?`: the whole batch is then redelivered later.
pub fn handle(change: &Change, _db: &Connection) -> Result<(), Failure> {
    match &change.row {
        Some(row) => println!("{:?}: {row:?}", change.key),
        None => println!("{:?}: deleted", change.key),
    }
    Ok(())
}

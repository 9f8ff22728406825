//! Why an app cannot be built.

use thiserror::Error;

use crate::azure::ConnectError;
use crate::config::ConfigErrors;
use crate::handler::http::ClientError;
use crate::handler::sql::TableError;
use crate::handler::{HandlerError, durable};
use crate::source::FetchError;
use crate::state::sql::TableNameError;

/// Why the parts could not be put together.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The state store cannot be set up.
    #[error("set up the state store")]
    State(#[source] ConnectError),
    /// The identity that a SQL connection string asks for cannot be set up.
    #[error("set up the identity of a SQL connection")]
    Identity(#[source] ConnectError),
    /// The state table has a name that cannot be.
    #[error("read setting `HIGHWATER__STATE__TABLE`")]
    StateTable(#[source] TableNameError),
    /// The table of journals has a name that cannot be.
    #[error("read setting `HIGHWATER__STATE__JOURNAL_TABLE`")]
    JournalTable(#[source] TableNameError),
    /// A source cannot be set up.
    #[error("set up the source of poller `{poller}`")]
    Source {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: FetchError,
    },
    /// A handler cannot be set up.
    #[error("set up the handler of poller `{poller}`")]
    Handler {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// The identity that a handler proves itself with cannot be set up.
    #[error("set up the identity of the handler of poller `{poller}`")]
    HandlerIdentity {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// The HTTP client of a handler that starts orchestrations cannot be set up.
    #[error("set up the handler of poller `{poller}`")]
    Durable {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: durable::ClientError,
    },
    /// A handler that writes to a table has a name that no table can have.
    #[error("set up the handler of poller `{poller}`")]
    Sql {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: TableError,
    },
    /// A handler that writes to standard output has none.
    #[error("set up the handler of poller `{poller}`")]
    Output {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: HandlerError,
    },
    /// The HTTP client of the handlers cannot be set up.
    #[error("set up the HTTP client of the handlers")]
    Http(#[source] ClientError),
}

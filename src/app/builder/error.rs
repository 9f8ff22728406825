//! Why an app cannot be built.

use thiserror::Error;

use crate::azure::ConnectError;
use crate::config::ConfigErrors;
use crate::handler::http::ClientError;
use crate::handler::sql::TableError;
use crate::handler::{HandlerError, durable};
use crate::source::FetchError;
use crate::state::sql::TableNameError;

/// Why the app could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The state store cannot be set up.
    #[error("set up the state store")]
    State(#[source] ConnectError),
    /// The identity of a SQL connection string cannot be set up.
    #[error("set up the identity of a SQL connection")]
    Identity(#[source] ConnectError),
    /// The name of the state table is invalid.
    #[error("read setting `HIGHWATER__STATE__TABLE`")]
    StateTable(#[source] TableNameError),
    /// The name of the journal table is invalid.
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
    /// The identity of a handler cannot be set up.
    #[error("set up the identity of the handler of poller `{poller}`")]
    HandlerIdentity {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// The HTTP client of a `durable` handler cannot be set up.
    #[error("set up the handler of poller `{poller}`")]
    Durable {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: durable::ClientError,
    },
    /// The table name of a `sql` handler is invalid.
    #[error("set up the handler of poller `{poller}`")]
    Sql {
        /// The poller.
        poller: String,
        /// Why.
        #[source]
        source: TableError,
    },
    /// The standard output of a `stdout` handler is not usable.
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

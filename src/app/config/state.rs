//! Settings of the application and of the store of its state documents.

use std::path::PathBuf;

use super::SqlConnection;
use super::mistake::{Mistake, Shown};
use super::parse;
use super::read::Reader;
use super::settings;
use super::source::{connection_string, read_sql_connection};
use super::storage::read_access;
use super::{StorageConnection, StorageService};

/// Set by App Service: the name of the application.
/// <https://learn.microsoft.com/azure/app-service/reference-app-settings>
const WEBSITE_SITE_NAME: &str = "WEBSITE_SITE_NAME";

/// Where state documents are stored.
#[derive(Clone, Debug)]
pub enum StateConfig {
    /// A container in Azure Blob Storage.
    Blob {
        /// Name of the connection.
        connection_setting: String,
        /// How to access the storage.
        access: StorageConnection,
        /// Name of the container.
        container: String,
    },
    /// A local folder.
    File {
        /// The folder.
        folder: PathBuf,
    },
    /// A SQL Server table.
    Sql {
        /// Name of the setting with the connection string.
        connection_setting: String,
        /// The parsed connection string.
        connection: SqlConnection,
        /// The table, as written.
        table: String,
        /// The journal table, as written.
        journal_table: String,
    },
}

#[derive(Clone, Copy)]
enum Store {
    Blob,
    File,
    Sql,
}

pub(super) fn read_app(reader: &mut Reader<'_>) -> Option<String> {
    if reader.text(settings::APP.name).is_some() {
        return reader.read(&settings::APP, None, parse::app_name);
    }
    let name = reader.text(WEBSITE_SITE_NAME).unwrap_or_else(|| "local".to_owned());
    let other = format!("set `{}` instead", settings::APP.name);
    let read = parse::app_name(&name).map_err(|expected| expected.hint(other));
    read.map_err(|expected| reader.wrong(WEBSITE_SITE_NAME, &name, expected)).ok()
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<StateConfig> {
    let stores = [("blob", Store::Blob), ("sql", Store::Sql), ("file", Store::File)];
    match reader.read(&settings::STATE_STORE, None, parse::one_of(&stores))? {
        Store::Blob => {
            let access =
                read_access(reader, StorageService::Blob, &settings::STATE_CONNECTION, None);
            let container = reader.read(&settings::STATE_CONTAINER, None, parse::container_name);
            let (connection_setting, access) = access?;
            Some(StateConfig::Blob { connection_setting, access, container: container? })
        }
        Store::File => {
            let folder = reader.read(&settings::STATE_FOLDER, None, parse::any)?;
            Some(StateConfig::File { folder: folder.into() })
        }
        Store::Sql => {
            let connection = read_sql(reader);
            let table = reader.read(&settings::STATE_TABLE, None, parse::any);
            let journal_table = reader.read(&settings::STATE_JOURNAL_TABLE, None, parse::any);
            let (connection_setting, connection) = connection?;
            let (table, journal_table) = (table?, journal_table?);
            Some(StateConfig::Sql { connection_setting, connection, table, journal_table })
        }
    }
}

/// Reads a database connection. It must be set, since the default is the host's storage account.
fn read_sql(reader: &mut Reader<'_>) -> Option<(String, SqlConnection)> {
    let setting = settings::STATE_CONNECTION.name;
    let Some(name) = reader.text(setting) else {
        reader.note(Mistake {
            setting: setting.to_owned(),
            shown: Shown::Missing,
            expected: "the name of a setting with an ADO.NET connection string".to_owned(),
            hint: Some(format!(
                "`{}` is `sql`, which has no default for this",
                settings::STATE_STORE.name
            )),
        });
        return None;
    };
    reader.read(&settings::STATE_CONNECTION, None, parse::setting_name)?;
    let connection = read_sql_connection(reader, &name, setting)?;
    if connection.application_intent_read_only {
        let problem = "`ApplicationIntent` must not be `ReadOnly`, since state is written";
        reader.wrong(&name, "", connection_string(problem));
        return None;
    }
    Some((name, connection))
}

//! Settings that name a storage connection.

use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings::Setting;
use super::storage_connection::StorageConnection;

/// Reads the connection that `setting` names, and returns it with its name.
pub(super) fn read_access(
    reader: &mut Reader<'_>,
    setting: &Setting,
    segment: Option<&str>,
) -> Option<(String, StorageConnection)> {
    let name = reader.read(setting, segment, parse::setting_name)?;
    let access = match reader.text(&name) {
        Some(text) => StorageConnection::parse(&text),
        None => read_identity(reader, &name, &setting.name_for(segment))?,
    };
    match access {
        Ok(access) => Some((name, access)),
        Err(problems) => {
            for problem in problems {
                let what = format!("a storage connection that can be used: {problem}");
                reader.wrong(&name, "", Expected::new(what).shown(Shown::Secret));
            }
            None
        }
    }
}

/// Reads an identity-based connection by the names that the Functions host knows.
/// <https://learn.microsoft.com/azure/azure-functions/functions-reference#configure-an-identity-based-connection>
fn read_identity(
    reader: &mut Reader<'_>,
    name: &str,
    named_by: &str,
) -> Option<Result<StorageConnection, Vec<String>>> {
    let part = |part: &str| reader.text(&format!("{name}__{part}"));
    let (account_name, blob_service_uri) = (part("accountName"), part("blobServiceUri"));
    let (client_id, credential) = (part("clientId"), part("credential"));
    if account_name.is_none() && blob_service_uri.is_none() {
        reader.note(Mistake {
            setting: name.to_owned(),
            shown: Shown::Missing,
            expected: format!(
                "a storage connection string, or `{name}__accountName` or `{name}__blobServiceUri`"
            ),
            hint: Some(format!("`{named_by}` can name another connection")),
        });
        return None;
    }
    if let Some(credential) = credential
        && !credential.eq_ignore_ascii_case("managedidentity")
    {
        let setting = format!("{name}__credential");
        reader.wrong(
            &setting,
            &credential,
            Expected::new("`managedidentity`, or nothing").shown(Shown::Secret),
        );
    }
    Some(StorageConnection::from_identity(
        account_name.as_deref(),
        blob_service_uri.as_deref(),
        client_id.as_deref(),
    ))
}

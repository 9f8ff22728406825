//! Settings that name a storage connection.

use secrecy::SecretString;

use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings::Setting;
use super::{IdentityParts, StorageConnection, StorageService};

/// Reads the connection that `setting` refers to, and returns it with its name.
pub(super) fn read_access(
    reader: &mut Reader<'_>,
    service: StorageService,
    setting: &Setting,
    segment: Option<&str>,
) -> Option<(String, StorageConnection)> {
    let name = reader.read(setting, segment, parse::setting_name)?;
    let access = match reader.text(&name) {
        Some(text) => StorageConnection::parse_for(service, &text),
        None => read_identity(reader, service, &name, &setting.name_for(segment))?,
    };
    match access {
        Ok(access) => Some((name, access)),
        Err(problems) => {
            for problem in problems {
                let what = format!("a valid storage connection: {problem}");
                reader.wrong(&name, "", Expected::new(what).shown(Shown::Secret));
            }
            None
        }
    }
}

/// Reads an identity-based connection, with the names that the Functions host uses.
/// <https://learn.microsoft.com/azure/azure-functions/functions-reference#configure-an-identity-based-connection>
fn read_identity(
    reader: &mut Reader<'_>,
    service: StorageService,
    name: &str,
    named_by: &str,
) -> Option<Result<StorageConnection, Vec<String>>> {
    let part = |part: &str| reader.text(&format!("{name}__{part}"));
    let uri_key = service.uri_key();
    let (account_name, service_uri) = (part("accountName"), part(uri_key));
    let (client_id, credential) = (part("clientId"), part("credential"));
    let (tenant_id, client_secret) = (part("tenantId"), part("clientSecret"));
    let client_secret = client_secret.map(SecretString::from);
    if account_name.is_none() && service_uri.is_none() {
        reader.note(Mistake {
            setting: name.to_owned(),
            shown: Shown::Missing,
            expected: format!(
                "a storage connection string, or `{name}__accountName` or `{name}__{uri_key}`"
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
    Some(StorageConnection::from_identity_for(
        service,
        account_name.as_deref(),
        service_uri.as_deref(),
        IdentityParts {
            client_id: client_id.as_deref(),
            tenant_id: tenant_id.as_deref(),
            client_secret: client_secret.as_ref(),
        },
    ))
}

use expect_test::{Expect, expect};
use secrecy::ExposeSecret as _;

use super::*;

const LOGIN: &str = "Password=secret-1;User ID=u";

fn parse(text: &str) -> SqlConnection {
    SqlConnection::parse(text).unwrap_or_else(|mistakes| panic!("{text}: {mistakes:?}"))
}

fn mistakes(text: &str) -> String {
    let text = SqlConnection::parse(text).unwrap_err().join("\n");
    let values = text.replace("the secret of the application", "");
    assert!(!values.contains("secret"), "a secret in `{text}`");
    text
}

#[test]
fn the_connection_string_of_the_azure_portal_is_parsed() {
    let connection = parse(
        "Server=tcp:db.database.windows.net,1433;Initial Catalog=shop;Persist Security Info=False;\
         User ID=reader;Password='se;cret';MultipleActiveResultSets=False;Encrypt=True;\
         TrustServerCertificate=False;Connection Timeout=20;",
    );
    let check = |connection: &SqlConnection, expected: Expect| {
        expected.assert_eq(&format!("{connection:#?}\n"));
    };
    check(
        &connection,
        expect![[r#"
            SqlConnection {
                host: "db.database.windows.net",
                instance: None,
                port: 1433,
                database: Some(
                    "shop",
                ),
                auth: Password {
                    user: "reader",
                    password: SecretBox<str>([REDACTED]),
                },
                encrypt: Mandatory,
                trust_server_certificate: false,
                host_name_in_certificate: None,
                server_certificate: None,
                connect_timeout: 20s,
                command_timeout: 30s,
                application_name: "highwater",
                application_intent_read_only: false,
                multi_subnet_failover: false,
                packet_size: None,
            }
        "#]],
    );
    let SqlAuth::Password { password, .. } = connection.auth else { panic!("{connection:?}") };
    assert_eq!(password.expose_secret(), "se;cret");
}

#[test]
fn servers_are_parsed_in_every_form() {
    for (text, host, instance, port) in [
        ("Server=db", "db", None, 1433),
        ("Data Source=tcp:Db.example.org,1500", "Db.example.org", None, 1500),
        ("Addr=db", "db", None, 1433),
        ("Address=db , 5", "db", None, 5),
        ("Network Address=db\\SQL2,1434", "db", Some("SQL2"), 1434),
        ("Server=.", "localhost", None, 1433),
        ("Server=(local)", "localhost", None, 1433),
        ("Server=TCP:10.0.0.4", "10.0.0.4", None, 1433),
        ("Server=[::1],1433", "::1", None, 1433),
        ("Server=one;SERVER=two", "two", None, 1433),
    ] {
        let connection = parse(&format!("{text};{LOGIN}"));
        assert_eq!(connection.host, host, "{text}");
        assert_eq!(connection.instance.as_deref(), instance, "{text}");
        assert_eq!(connection.port, port, "{text}");
    }
}

#[test]
fn encrypt_accepts_the_spellings_of_all_tools() {
    for (text, encrypt) in [
        ("", Encrypt::Mandatory),
        ("Encrypt=", Encrypt::Mandatory),
        ("Encrypt=true", Encrypt::Mandatory),
        ("Encrypt=Yes", Encrypt::Mandatory),
        ("encrypt=Mandatory", Encrypt::Mandatory),
        ("Encrypt=False", Encrypt::Optional),
        ("Encrypt=no", Encrypt::Optional),
        ("Encrypt=Optional", Encrypt::Optional),
        ("Encrypt=Strict", Encrypt::Strict),
        ("Encrypt=DANGER_PLAINTEXT", Encrypt::Plain),
    ] {
        assert_eq!(parse(&format!("Server=db;{LOGIN};{text}")).encrypt, encrypt, "{text}");
    }
}

#[test]
fn the_other_keys_have_their_synonyms() {
    let connection = parse(
        "Server=db;UID=u;PWD=secret-1;Database=d;Trust Server Certificate=yes;Timeout=3;\
         Command Timeout=4;App=me;Application Intent=ReadOnly;Packet Size=8192;Pooling=true;\
         Max Pool Size=5;ConnectRetryCount=3;Integrated Security=false;Network Library=dbmssocn;\
         HostNameInCertificate=other;Workstation ID=w;MultiSubnetFailover=True",
    );
    assert!(connection.trust_server_certificate && connection.application_intent_read_only);
    assert!(connection.multi_subnet_failover);
    assert_eq!(connection.connect_timeout, Duration::from_secs(3));
    assert_eq!(connection.command_timeout, Duration::from_secs(4));
    assert_eq!(connection.application_name, "me");
    assert_eq!(connection.packet_size, Some(8192));
    assert_eq!(connection.host_name_in_certificate.as_deref(), Some("other"));
    let ca = parse(&format!("Server=db;{LOGIN};ServerCertificate=/etc/ca.pem"));
    assert_eq!(ca.server_certificate.as_deref(), Some("/etc/ca.pem"));
}

#[test]
fn identities_carry_their_client_id() {
    for (text, expected) in [
        ("Active Directory Managed Identity", "ManagedIdentity { client_id: None }"),
        ("ActiveDirectoryMSI;User ID=77", "ManagedIdentity { client_id: Some(\"77\") }"),
        ("Active Directory Workload Identity", "WorkloadIdentity { client_id: None }"),
        ("active directory default", "Default { client_id: None }"),
    ] {
        let connection = parse(&format!("Server=db;Authentication={text}"));
        assert_eq!(format!("{:?}", connection.auth), expected, "{text}");
    }
    let connection = parse(&format!("Server=db;{LOGIN};Authentication=SqlPassword"));
    assert!(matches!(connection.auth, SqlAuth::Password { .. }));
}

#[test]
fn a_service_principal_has_its_own_tenant_or_that_of_the_process() {
    let text =
        "Server=db;Authentication=Active Directory Service Principal;Password=secret-1;User ID=";
    for (user, of_process, expected) in [
        ("app@acme", None, ("acme", "app")),
        ("app@acme", Some("other"), ("acme", "app")),
        ("app", Some("other"), ("other", "app")),
    ] {
        let text = format!("{text}{user}");
        let auth = SqlConnection::parse_for_tenant(&text, of_process).unwrap().auth;
        assert!(!format!("{auth:?}").contains("secret-1"));
        let SqlAuth::ServicePrincipal { tenant, client_id, secret } = auth else {
            panic!("{auth:?}")
        };
        assert_eq!((tenant.as_str(), client_id.as_str()), expected);
        assert_eq!(secret.expose_secret(), "secret-1");
    }
    for (text, expected) in [
        (format!("{text}app"), "the tenant of the application is missing: set `AZURE_TENANT_ID`"),
        (format!("{text};pwd=;"), "`User ID`, the client id of the application, is missing"),
        (format!("{text}app;pwd="), "`Password`, the secret of the application, is missing"),
    ] {
        let text = mistakes(&text);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_user_of_entra_has_the_tenant_of_the_process_or_of_the_name() {
    let text = "Server=db;Authentication=Active Directory Password;User ID=ada@acme.example;PWD=";
    for (of_process, expected) in [(None, "organizations"), (Some("acme"), "acme")] {
        let text = format!("{text}secret-1");
        let auth = SqlConnection::parse_for_tenant(&text, of_process).unwrap().auth;
        assert!(!format!("{auth:?}").contains("secret-1"));
        let SqlAuth::EntraUser { user, password, tenant } = auth else { panic!("{auth:?}") };
        assert_eq!((user.as_str(), tenant.as_str()), ("ada@acme.example", expected));
        assert_eq!(password.expose_secret(), "secret-1");
    }
    let text = mistakes("Server=db;Authentication=ActiveDirectoryPassword");
    assert!(text.contains("`User ID`, the user's name like `ada@acme.example`, is"), "{text}");
    assert!(text.contains("`Password` is missing"), "{text}");
}

#[test]
fn the_rest_of_an_unquoted_password_is_never_shown() {
    let text = mistakes("Server=db;Uid=u;Password=top;se=cret;secrecy=x;Colour=secret");
    assert!(
        !text.contains("se`") && !text.contains("secrecy") && !text.contains("Colour"),
        "{text}"
    );
}

#[test]
fn each_mistake_is_reported_with_a_fix() {
    for (text, expected) in [
        ("Server=db:1433", "`Server` is `db:1433`, must be with a comma"),
        ("Server=np:\\\\.\\pipe\\sql", "only TCP is supported"),
        ("Server=(localdb)\\x", "only TCP is supported"),
        ("Server=db\\SQL2", "with the port of the instance"),
        ("Server=db,0", "with a port from 1 to 65535"),
        ("Server=https://db", "must be with a comma"),
        ("Server=db;Encrypt=1", "`Encrypt` is `1`, must be `Mandatory`"),
        ("Server=db;TrustServerCertificate=2", "must be `true` or `false`"),
        ("Server=db;Connect Timeout=0", "`Connect Timeout` is `0`, must be seconds from 1 to 3600"),
        ("Server=db;Packet Size=100", "from 512 to 32767"),
        ("Server=db;ApplicationIntent=Read", "`ReadOnly` or `ReadWrite`"),
        ("Server=db;Failover Partner=b", "`Failover Partner`: database mirroring"),
        ("Server=db;Port=1", "`Server=tcp:host,port`"),
        ("Server=db;Integrated Security=SSPI", "Windows authentication is not supported"),
        ("Server=db;Trusted_Connection=yes", "Windows authentication is not supported"),
        ("Server=db;Authentication=Active Directory Interactive", "no user to log in"),
        ("Server=db;Authentication=ActiveDirectoryDeviceCodeFlow", "no user to log in"),
        ("Server=db;Authentication=Active Directory Integrated", "not run in a Windows domain"),
        ("Server=db;Authentication=Kerberos", "`Service Principal`, `Password` or `Default`"),
        ("Server=db;MultiSubnetFailover=maybe", "must be `true` or `false`"),
        ("Server=db;Driver='{ODBC Driver 18 for SQL Server}'", "use the one for ADO.NET"),
        ("Server=db;Authentication=Active Directory Default", "`Password` has no effect"),
        ("Server=db;Column Encryption Setting=Enabled", "Always Encrypted is not supported"),
        ("Server=db;Network=dbnmpntw", "only TCP is supported"),
        ("Server=db;Driver={ODBC Driver 18 for SQL Server}", "`Driver`: this is a connection"),
        ("Sever=db;Server=db", "unknown key `Sever` (did you mean `Server`?)"),
        ("Server=db;TrustServerCert=true", "(did you mean `TrustServerCertificate`?)"),
        ("Server=db;Poolling=true", "unknown key `Poolling` (did you mean `Pooling`?)"),
        ("Server=db;Colour=red", "unknown key `Colour`"),
        ("Server=db;Encrypt=Strict;TrustServerCertificate=true", "always checks the certificate"),
        ("Server=db;ServerCertificate=x;TrustServerCertificate=true", "set only one of them"),
        ("Server=db;Password={your_password}", "part 4 still contains the placeholder"),
    ] {
        let text = mistakes(&format!("{LOGIN};{text}"));
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
    }
}

#[test]
fn a_url_gets_a_single_error() {
    for text in [
        "jdbc:sqlserver://db:1433;databaseName=shop;user=u;password=secret-1",
        "mssql://u:secret-1@db/shop",
        " sqlserver://u:secret-1@db;encrypt=true",
        "mssql+pyodbc://u:secret-1@db/shop?driver=x",
    ] {
        let text = mistakes(text);
        assert!(text.lines().count() == 1 && text.contains("`Server=tcp:host,1433;"), "{text}");
    }
    parse("Server=db;User ID=u;Password=secret-1://");
}

#[test]
fn an_odbc_connection_string_is_reported_first() {
    let text =
        mistakes("Driver={ODBC Driver 18 for SQL Server};Server=tcp:db,1433;Uid=u;Pwd={secret-1}");
    assert!(text.starts_with("`Driver`: this is a connection string of ODBC"), "{text}");
    assert!(!text.contains("part 1"), "{text}");
}

#[test]
fn a_suggestion_after_an_unquoted_password_shows_no_part_of_it() {
    for (key, meant) in [("DB", "Database"), ("TrustServerCert", "TrustServerCertificate")] {
        let text = mistakes(&format!("Server=db;Uid=u;Password=top;{key}=secret-2"));
        let expected = format!(
            "unknown key after the password (did you mean `{meant}`?); quote a password that \
             contains `;`"
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn all_mistakes_are_reported_at_once_without_secrets() {
    let check = |text: &str, expected: Expect| expected.assert_eq(&mistakes(text));
    check(
        "",
        expect![[r#"
        `Server` is missing
        `User ID` is missing
        `Password` is missing"#]],
    );
    check(
        "Encrypt=maybe;Uid=u;Timeout=soon;Databse=d",
        expect![[r#"
        unknown key `Databse` (did you mean `Database`?)
        `Server` is missing
        `Encrypt` is `maybe`, must be `Mandatory`, `Optional`, `Strict`, `true` or `false`
        `Password` is missing
        `Timeout` is `soon`, must be seconds from 1 to 3600"#]],
    );
    check(
        "Server=db;User=u;Password=top;secret=x;secret",
        expect![[r#"
        part 5 has no `=`; quote a value that contains `;`
        unknown key after the password; quote a password that contains `;`"#]],
    );
}

//! The keys of a connection string: every name in ADO.NET, and its effect here.

use std::fmt::Write as _;

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Server,
    Database,
    User,
    Password,
    Authentication,
    Encrypt,
    TrustServerCertificate,
    HostNameInCertificate,
    ServerCertificate,
    ConnectTimeout,
    CommandTimeout,
    ApplicationName,
    ApplicationIntent,
    MultiSubnetFailover,
    PacketSize,
    IntegratedSecurity,
    NetworkLibrary,
    ColumnEncryption,
    /// No effect on a poller's single connection, and harmless.
    Ignored,
    /// Would change what is read, or from where.
    Refused,
}

/// A key: its names, the usual one first, and its effect here.
pub(super) struct Entry {
    pub(super) key: Key,
    names: &'static [&'static str],
    /// In words for the operator; for a refused key, what to do instead.
    pub(super) effect: &'static str,
}

const fn entry(key: Key, names: &'static [&'static str], effect: &'static str) -> Entry {
    Entry { key, names, effect }
}

const NO_POOL: &str = "a poller has one connection and no pool";
const FAILOVER: &str = "database mirroring is not supported: name the availability group listener \
                        or the failover group in `Server`";
const FILE: &str = "attaching a database file is not supported: name a database of a server";
const ENCLAVE: &str =
    "Always Encrypted is not supported: leave encrypted columns out, and remove this";
const OTHER_API: &str = "this is a connection string of ODBC or OLE DB: use the one for ADO.NET";

/// Every key. <https://learn.microsoft.com/dotnet/api/microsoft.data.sqlclient.sqlconnection.connectionstring>
const KEYS: &[Entry] = &[
    entry(
        Key::Server,
        &["Server", "Data Source", "Addr", "Address", "Network Address"],
        "`[tcp:]host[\\instance][,port]`; the port defaults to 1433; a named instance \
         needs a port",
    ),
    entry(
        Key::Database,
        &["Database", "Initial Catalog"],
        "the database; defaults to the login's default database",
    ),
    entry(
        Key::User,
        &["User ID", "UID", "User"],
        "the login; with `Authentication`, the client id of the identity, or the user",
    ),
    entry(
        Key::Password,
        &["Password", "PWD"],
        "the password of the login or the user, or the application's secret",
    ),
    entry(Key::Authentication, &["Authentication"], "see [below](#authentication)"),
    entry(
        Key::Encrypt,
        &["Encrypt"],
        "`Mandatory`, `true`, `yes` (the default): everything; `Optional`, `false`, `no`: the login \
         only, unless the server insists; `Strict`: TDS 8.0; `DANGER_PLAINTEXT`: nothing, not even \
         the password",
    ),
    entry(
        Key::TrustServerCertificate,
        &["TrustServerCertificate"],
        "`true` accepts any certificate, so anyone on the network path can read the traffic",
    ),
    entry(
        Key::HostNameInCertificate,
        &["HostNameInCertificate"],
        "the name to expect in the certificate, instead of the host's",
    ),
    entry(
        Key::ServerCertificate,
        &["ServerCertificate"],
        "file with the certificate of the authority that signed the server's; in ADO.NET the \
         server's own",
    ),
    entry(
        Key::ConnectTimeout,
        &["Connect Timeout", "Connection Timeout", "Timeout"],
        "seconds for one attempt to connect, from name lookup to login and redirects; default 15",
    ),
    entry(
        Key::CommandTimeout,
        &["Command Timeout"],
        "seconds for one statement with its rows; default 30. Lock waits are limited to half, and to \
         5 seconds",
    ),
    entry(
        Key::ApplicationName,
        &["Application Name", "App"],
        "value of `APP_NAME()` on the server; default `highwater`",
    ),
    entry(
        Key::ApplicationIntent,
        &["ApplicationIntent"],
        "`ReadOnly` asks an availability group for a readable secondary; not for mode `rowversion`, \
         which polls the primary, nor for the state store",
    ),
    entry(
        Key::MultiSubnetFailover,
        &["MultiSubnetFailover"],
        "`true` tries all addresses of the server at once; `false` starts one every 250 ms",
    ),
    entry(Key::PacketSize, &["Packet Size"], "TDS packet size to ask for, 512 to 32767 bytes"),
    entry(
        Key::IntegratedSecurity,
        &["Integrated Security", "Trusted_Connection"],
        "only `false`: Windows authentication is not supported",
    ),
    entry(
        Key::NetworkLibrary,
        &["Network Library", "Network", "Net"],
        "only `dbmssocn`, which is TCP",
    ),
    entry(
        Key::ColumnEncryption,
        &["Column Encryption Setting"],
        "only `Disabled`: Always Encrypted is not supported",
    ),
    entry(Key::Refused, &["Failover Partner", "Failover Partner SPN"], FAILOVER),
    entry(
        Key::Refused,
        &["AttachDBFilename", "Extended Properties", "Initial File Name", "User Instance"],
        FILE,
    ),
    entry(
        Key::Refused,
        &["Current Language", "Language"],
        "set the language of the login on the server instead",
    ),
    entry(
        Key::Refused,
        &["Context Connection"],
        "there is no surrounding SQL Server to connect to: name one in `Server`",
    ),
    entry(Key::Refused, &["Enclave Attestation Url", "Attestation Protocol"], ENCLAVE),
    entry(Key::Refused, &["Port"], "the port belongs to the server: `Server=tcp:host,port`"),
    entry(Key::Refused, &["Driver", "Provider", "DSN"], OTHER_API),
    entry(
        Key::Ignored,
        &[
            "Pooling",
            "Max Pool Size",
            "Min Pool Size",
            "Load Balance Timeout",
            "Connection Lifetime",
            "Pool Blocking Period",
            "Connection Reset",
        ],
        NO_POOL,
    ),
    entry(
        Key::Ignored,
        &["Connect Retry Count", "Connect Retry Interval"],
        "Highwater has its own retry rules: see [errors](#errors)",
    ),
    entry(
        Key::Ignored,
        &["Multiple Active Result Sets", "MARS", "Asynchronous Processing", "Async"],
        "one statement runs at a time",
    ),
    entry(Key::Ignored, &["Enlist", "Transaction Binding"], "there is no surrounding transaction"),
    entry(
        Key::Ignored,
        &["IP Address Preference", "Transparent Network IP Resolution"],
        "all addresses are tried, as `MultiSubnetFailover` says",
    ),
    entry(
        Key::Ignored,
        &[
            "Persist Security Info",
            "PersistSecurity",
            "Replication",
            "Server SPN",
            "Type System Version",
            "Workstation ID",
            "WSID",
        ],
        "has no effect on a poller",
    ),
];

/// Finds a key by any of its names, ignoring case and spaces.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    let wanted = plain(name);
    KEYS.iter().find(|entry| entry.names.iter().any(|name| plain(name) == wanted))
}

/// Names from other libraries and tools, without spaces, and their names here.
const FOREIGN: &[(&str, &str)] = &[
    ("username", "User ID"),
    ("login", "User ID"),
    ("host", "Server"),
    ("hostname", "Server"),
    ("db", "Database"),
    ("dbname", "Database"),
    ("databasename", "Database"),
    ("catalog", "Database"),
    ("portnumber", "Port"),
    ("logintimeout", "Connect Timeout"),
    ("querytimeout", "Command Timeout"),
    ("encryption", "Encrypt"),
    ("ssl", "Encrypt"),
];
/// Shortest text that is matched as the start of a name.
const BEGINNING_CHARS_MIN: usize = 4;

/// Returns the name that was probably meant, even of an ignored or refused key: for a foreign name, for a
/// typo, or for the start of exactly one key's names.
pub(super) fn suggestion(name: &str) -> Option<&'static str> {
    let wanted = plain(name);
    let foreign = FOREIGN.iter().find(|(foreign, _)| *foreign == wanted);
    foreign.map(|(_, name)| *name).or_else(|| by_typo(&wanted)).or_else(|| by_prefix(&wanted))
}

fn by_typo(wanted: &str) -> Option<&'static str> {
    KEYS.iter()
        .flat_map(|entry| entry.names)
        .map(|name| (distance(wanted, &plain(name)), *name))
        .filter(|(distance, name)| *distance <= 1 + plain(name).len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

fn by_prefix(wanted: &str) -> Option<&'static str> {
    if wanted.len() < BEGINNING_CHARS_MIN {
        return None;
    }
    let begins = |name: &&str| plain(name).starts_with(wanted);
    let named = |entry: &'static Entry| entry.names.iter().copied().find(begins);
    let mut found = KEYS.iter().filter_map(named);
    // If two keys fit, neither is more likely.
    found.next().filter(|_| found.next().is_none())
}

/// Returns every key as a Markdown table, for `docs/reference/connections.md`.
pub(super) fn table() -> String {
    let mut table = "| key | other names | what it does here |\n|---|---|---|\n".to_owned();
    for Entry { key, names, effect } in KEYS {
        let mut names = names.iter().map(|name| format!("`{name}`"));
        let first = names.next().unwrap_or_default();
        let others = names.collect::<Vec<_>>().join(", ");
        let verdict = if *key == Key::Ignored {
            "**ignored**: "
        } else if *key == Key::Refused {
            "**refused**: "
        } else {
            ""
        };
        // Writing to a string cannot fail.
        writeln!(table, "| {first} | {others} | {verdict}{effect} |").unwrap_or_default();
    }
    table
}

/// Returns `text` in lower case without spaces.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut above_left = i;
        let mut before = i + 1;
        let mut next = vec![before];
        for (right, above) in b.iter().zip(row.iter().skip(1)) {
            let replaced = above_left + usize::from(left != *right);
            before = replaced.min(above + 1).min(before + 1);
            next.push(before);
            above_left = *above;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn distances_count_single_edits() {
        for (a, b, edits) in
            [("", "", 0), ("abc", "", 3), ("sever", "server", 1), ("abcd", "badc", 3)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn no_name_has_two_meanings() {
        let mut seen = BTreeSet::new();
        for name in KEYS.iter().flat_map(|entry| entry.names) {
            assert!(seen.insert(plain(name)), "{name}");
        }
    }

    #[test]
    fn a_typo_gets_a_suggestion_and_nonsense_gets_none() {
        for (name, meant) in [
            ("Sever", Some("Server")),
            ("Pasword", Some("Password")),
            ("TrustServerCertficate", Some("TrustServerCertificate")),
            ("Multi Subnet Failver", Some("MultiSubnetFailover")),
            ("Aplication Intent", Some("ApplicationIntent")),
            ("Databse", Some("Database")),
            ("Username", Some("User ID")),
            ("User Name", Some("User ID")),
            ("Host", Some("Server")),
            ("databaseName", Some("Database")),
            ("DB", Some("Database")),
            ("TrustServerCert", Some("TrustServerCertificate")),
            ("Encryption", Some("Encrypt")),
            ("Auth", Some("Authentication")),
            ("Falover Partner", Some("Failover Partner")),
            ("Poolling", Some("Pooling")),
            ("MultipleActiveResultSet", Some("Multiple Active Result Sets")),
            ("Connection", None),
            ("Colour", None),
            ("x", None),
        ] {
            assert_eq!(suggestion(name), meant, "{name}");
        }
        for (_, name) in FOREIGN {
            assert!(find(name).is_some(), "{name}");
        }
    }

    /// The keywords and synonyms of Microsoft.Data.SqlClient, and those that it dropped from
    /// System.Data.SqlClient, grouped by their treatment here.
    /// <https://learn.microsoft.com/dotnet/api/microsoft.data.sqlclient.sqlconnection.connectionstring>
    const DOCUMENTED: &[(Key, &[&str])] = &[
        (Key::Server, &["Data Source", "Server", "Address", "Addr", "Network Address"]),
        (Key::Database, &["Initial Catalog", "Database"]),
        (Key::User, &["User ID", "UID", "User"]),
        (Key::Password, &["Password", "PWD"]),
        (Key::Authentication, &["Authentication"]),
        (Key::Encrypt, &["Encrypt"]),
        (Key::TrustServerCertificate, &["Trust Server Certificate", "TrustServerCertificate"]),
        (Key::HostNameInCertificate, &["Host Name In Certificate", "HostNameInCertificate"]),
        (Key::ServerCertificate, &["Server Certificate", "ServerCertificate"]),
        (Key::ConnectTimeout, &["Connect Timeout", "Connection Timeout", "Timeout"]),
        (Key::CommandTimeout, &["Command Timeout"]),
        (Key::ApplicationName, &["Application Name", "App"]),
        (Key::ApplicationIntent, &["Application Intent", "ApplicationIntent"]),
        (Key::MultiSubnetFailover, &["Multi Subnet Failover", "MultiSubnetFailover"]),
        (Key::PacketSize, &["Packet Size"]),
        (Key::IntegratedSecurity, &["Integrated Security", "Trusted_Connection"]),
        (Key::NetworkLibrary, &["Network Library", "Network", "Net"]),
        (Key::ColumnEncryption, &["Column Encryption Setting"]),
        (
            Key::Refused,
            &[
                "Failover Partner",
                "Failover Partner SPN",
                "FailoverPartnerSPN",
                "AttachDBFilename",
                "Extended Properties",
                "Initial File Name",
                "User Instance",
                "Current Language",
                "Language",
                "Context Connection",
                "Enclave Attestation Url",
                "Attestation Protocol",
            ],
        ),
        (
            Key::Ignored,
            &[
                "Pooling",
                "Max Pool Size",
                "Min Pool Size",
                "Load Balance Timeout",
                "Connection Lifetime",
                "Pool Blocking Period",
                "PoolBlockingPeriod",
                "Connection Reset",
                "Connect Retry Count",
                "ConnectRetryCount",
                "Connect Retry Interval",
                "ConnectRetryInterval",
                "Multiple Active Result Sets",
                "MultipleActiveResultSets",
                "Asynchronous Processing",
                "Async",
                "Enlist",
                "Transaction Binding",
                "IP Address Preference",
                "IPAddressPreference",
                "Transparent Network IP Resolution",
                "TransparentNetworkIPResolution",
                "Persist Security Info",
                "PersistSecurityInfo",
                "Replication",
                "Server SPN",
                "ServerSPN",
                "Type System Version",
                "Workstation ID",
                "WSID",
            ],
        ),
    ];

    /// Names that are not ADO.NET keywords, accepted here for what their users mean by them.
    const OURS: [&str; 6] = ["Port", "Driver", "Provider", "DSN", "MARS", "PersistSecurity"];

    #[test]
    fn every_keyword_of_ado_net_is_known_and_no_other() {
        let documented = DOCUMENTED
            .iter()
            .flat_map(|(key, names)| names.iter().map(move |name| (plain(name), *key)));
        let documented: BTreeMap<String, Key> = documented.collect();
        for (name, key) in &documented {
            assert_eq!(find(name).map(|entry| entry.key), Some(*key), "{name}");
        }
        for name in KEYS.iter().flat_map(|entry| entry.names) {
            let is_ours = OURS.contains(name);
            assert_ne!(documented.contains_key(&plain(name)), is_ours, "{name}");
        }
    }
}

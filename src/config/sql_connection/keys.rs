//! The keys of a connection string: every name that ADO.NET knows, and what each means here.

/// What a key means.
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
    PacketSize,
    IntegratedSecurity,
    NetworkLibrary,
    ColumnEncryption,
    /// Means nothing to a poller's one connection, and harms nothing.
    Ignored,
    /// Would change what is read, or from where.
    Refused(&'static str),
}

const FAILOVER: &str = "database mirroring is not supported: name the availability group listener \
                        or the failover group in `Server`";
const FILE: &str = "attaching a database file is not supported: name a database of a server";
const LANGUAGE: &str = "set the language of the login on the server instead";
const CONTEXT: &str = "there is no surrounding SQL Server to connect to";
const PORT: &str = "the port belongs to the server: `Server=tcp:host,port`";

/// Names without spaces, in lower case.
const KEYS: &[(&str, Key)] = &[
    ("server", Key::Server),
    ("datasource", Key::Server),
    ("addr", Key::Server),
    ("address", Key::Server),
    ("networkaddress", Key::Server),
    ("port", Key::Refused(PORT)),
    ("database", Key::Database),
    ("initialcatalog", Key::Database),
    ("userid", Key::User),
    ("uid", Key::User),
    ("user", Key::User),
    ("password", Key::Password),
    ("pwd", Key::Password),
    ("authentication", Key::Authentication),
    ("encrypt", Key::Encrypt),
    ("trustservercertificate", Key::TrustServerCertificate),
    ("hostnameincertificate", Key::HostNameInCertificate),
    ("servercertificate", Key::ServerCertificate),
    ("connecttimeout", Key::ConnectTimeout),
    ("connectiontimeout", Key::ConnectTimeout),
    ("timeout", Key::ConnectTimeout),
    ("commandtimeout", Key::CommandTimeout),
    ("applicationname", Key::ApplicationName),
    ("app", Key::ApplicationName),
    ("applicationintent", Key::ApplicationIntent),
    ("packetsize", Key::PacketSize),
    ("integratedsecurity", Key::IntegratedSecurity),
    ("trusted_connection", Key::IntegratedSecurity),
    ("networklibrary", Key::NetworkLibrary),
    ("network", Key::NetworkLibrary),
    ("net", Key::NetworkLibrary),
    ("columnencryptionsetting", Key::ColumnEncryption),
    ("failoverpartner", Key::Refused(FAILOVER)),
    ("attachdbfilename", Key::Refused(FILE)),
    ("extendedproperties", Key::Refused(FILE)),
    ("initialfilename", Key::Refused(FILE)),
    ("userinstance", Key::Refused(FILE)),
    ("language", Key::Refused(LANGUAGE)),
    ("currentlanguage", Key::Refused(LANGUAGE)),
    ("contextconnection", Key::Refused(CONTEXT)),
    ("asynchronousprocessing", Key::Ignored),
    ("async", Key::Ignored),
    ("connectionlifetime", Key::Ignored),
    ("connectionreset", Key::Ignored),
    ("connectretrycount", Key::Ignored),
    ("connectretryinterval", Key::Ignored),
    ("enlist", Key::Ignored),
    ("ipaddresspreference", Key::Ignored),
    ("loadbalancetimeout", Key::Ignored),
    ("maxpoolsize", Key::Ignored),
    ("minpoolsize", Key::Ignored),
    ("mars", Key::Ignored),
    ("multipleactiveresultsets", Key::Ignored),
    ("multisubnetfailover", Key::Ignored),
    ("persistsecurityinfo", Key::Ignored),
    ("persistsecurity", Key::Ignored),
    ("poolblockingperiod", Key::Ignored),
    ("pooling", Key::Ignored),
    ("replication", Key::Ignored),
    ("serverspn", Key::Ignored),
    ("transactionbinding", Key::Ignored),
    ("transparentnetworkipresolution", Key::Ignored),
    ("typesystemversion", Key::Ignored),
    ("workstationid", Key::Ignored),
    ("wsid", Key::Ignored),
];

/// How the keys worth suggesting are usually written.
const SUGGESTED: &[&str] = &[
    "Server",
    "Data Source",
    "Address",
    "Database",
    "Initial Catalog",
    "User ID",
    "Password",
    "Authentication",
    "Encrypt",
    "TrustServerCertificate",
    "HostNameInCertificate",
    "ServerCertificate",
    "Connect Timeout",
    "Command Timeout",
    "Application Name",
    "ApplicationIntent",
    "Packet Size",
];

/// Returns what a key means, whatever its case and spaces.
pub(super) fn find(key: &str) -> Option<Key> {
    let wanted = plain(key);
    KEYS.iter().find(|(name, _)| *name == wanted).map(|(_, key)| *key)
}

/// Returns the key that was probably meant.
pub(super) fn suggestion(key: &str) -> Option<&'static str> {
    let wanted = plain(key);
    SUGGESTED
        .iter()
        .map(|name| (distance(&wanted, &plain(name)), *name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Returns `text` in lower case without spaces.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

/// Levenshtein's distance.
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
    fn every_suggested_key_is_known() {
        for name in SUGGESTED {
            assert!(find(name).is_some(), "{name}");
        }
    }
}

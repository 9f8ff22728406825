//! Checks of the whole database: connection, edition, clock, row versioning, open transactions.

use std::time::Duration;

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::{Finding, clock};
use highwater_engine::error::{ErrorKind, chain};
use highwater_engine::value::Value;
use time::OffsetDateTime;
use time::macros::datetime;

use super::super::decode;
use super::{EMBEDDED, Examination, Table};
use crate::connection_string::{Encrypt, SqlAuth, SqlConnection};

const WHO: &str = "SELECT @@VERSION AS version, @@SERVERNAME AS server, DB_NAME() AS name";
const EDITION: &str = "SELECT CAST(SERVERPROPERTY(N'Edition') AS nvarchar(128)) AS edition, \
     CAST(SERVERPROPERTY(N'ProductVersion') AS nvarchar(128)) AS number, \
     CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(128)) AS updateability";
const NOW: &str = "SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS now";
const VERSIONING: &str =
    "SELECT d.is_read_committed_snapshot_on FROM sys.databases AS d WHERE d.name = DB_NAME()";
const SNAPSHOT: &str = "SELECT CAST(d.snapshot_isolation_state AS int) AS state \
     FROM sys.databases AS d WHERE d.name = DB_NAME()";
/// Age in seconds of the oldest transaction that has written to this database. Only transactions that have
/// written have a start time, which is in the server's local time.
/// <https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-database-transactions-transact-sql>
const OLDEST: &str = "SELECT DATEDIFF(SECOND, MIN(d.database_transaction_begin_time), GETDATE()) AS age \
     FROM sys.dm_tran_database_transactions AS d \
     WHERE d.database_id = DB_ID() AND d.database_transaction_type = 1 \
     AND d.database_transaction_begin_time IS NOT NULL";
/// Permission for that query: three kinds of server, three permissions.
const OLDEST_RIGHT: &str = "to enable this check, a DBA runs `GRANT VIEW DATABASE STATE TO [user]` (Azure SQL \
     Database), `GRANT VIEW SERVER STATE TO [login]` (up to SQL Server 2019) or `GRANT VIEW SERVER \
     PERFORMANCE STATE TO [login]` (from 2022 on)";
/// Above this age, a transaction that holds rows back is reported.
const HELD_BACK_MAX_SECONDS: i64 = 60;
/// Year 1, the epoch of parsed texts.
const EPOCH: OffsetDateTime = datetime!(0001-01-01 0:00 UTC);

impl Examination<'_> {
    /// Whether the server answers at all.
    pub(super) async fn connect(&mut self) -> bool {
        let settings = &self.source.settings.connection;
        let check = "connection";
        match self.ask(WHO, &[]).await.as_deref() {
            Ok([row]) => {
                let text = |at: usize| match row.get(at) {
                    Some(Value::Text(text)) => {
                        text.lines().next().unwrap_or_default().trim().to_owned()
                    }
                    _ => "unnamed".to_owned(),
                };
                let version = text(0);
                self.embedded = version.starts_with(EMBEDDED);
                let found = format!("database `{}` on `{}`: {version}", text(2), text(1));
                self.add(Finding::ok(check, found));
                self.add(encryption(settings));
                true
            }
            Ok(_) => {
                let fix = "check that `Server` names a SQL Server";
                self.add(Finding::unreachable(check, "the server did not identify itself", fix));
                false
            }
            Err(error) => {
                let fix = match error.kind {
                    _ if error.is_about_token() => token_fix(&settings.auth),
                    ErrorKind::Transient => {
                        "check `Server` and port, that the server runs, and that its firewall lets this \
                         machine in"
                    }
                    ErrorKind::Configuration | ErrorKind::Data | ErrorKind::Internal => {
                        "fix what the error names, in the connection string or on the server"
                    }
                };
                self.add(Finding::unreachable(check, chain(error), fix));
                false
            }
        }
    }

    /// Reports the edition, and whether this is a read-only replica.
    pub(super) async fn edition(&mut self) {
        let Some(row) =
            self.ask_row("edition", (EDITION, &[]), "no permission should be needed for it").await
        else {
            return;
        };
        self.add(edition(&row));
    }

    pub(super) async fn clocks(&mut self) {
        let asked_at = self.clock.now();
        let Some(row) =
            self.ask_row("clock", (NOW, &[]), "no permission should be needed for it").await
        else {
            return;
        };
        let answered_at = self.clock.now();
        let server_time = match row.as_slice() {
            [Value::Text(text)] => decode::millis(text),
            _ => None,
        };
        let Some(server_time) =
            server_time.map(|millis| EPOCH + time::Duration::milliseconds(millis))
        else {
            return;
        };
        let reading = clock::ClockReading {
            reported: server_time,
            asked_at,
            answered_at,
            grain: Duration::from_millis(1),
        };
        let stamped = !matches!(
            self.source.settings.mode,
            Some(CursorMode::RowVersion | CursorMode::ChangeTracking | CursorMode::IntegerPk)
        );
        let settle = self.source.settings.settle;
        self.add(clock::judge("clock", "the database", reading, stamped.then_some(settle)));
    }

    pub(super) async fn row_versioning(&mut self) {
        let check = "row versioning";
        if let Some(row) =
            self.ask_row(check, (VERSIONING, &[]), "no permission should be needed for it").await
        {
            self.add(match row.as_slice() {
                [Value::Bool(true)] => Finding::ok(
                    check,
                    "READ_COMMITTED_SNAPSHOT is on: reads do not wait for writers, nor block them",
                ),
                [Value::Bool(false)] => Finding::warning(
                    check,
                    "READ_COMMITTED_SNAPSHOT is off: every read waits for writers of its rows, up to 5 s",
                    "`ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON`, when there is no other connection",
                ),
                _ => unexpected_answer(check),
            });
        }
        let check = "snapshot isolation";
        if let Some(row) =
            self.ask_row(check, (SNAPSHOT, &[]), "no permission should be needed for it").await
        {
            let allowed = row.as_slice() == [Value::Int(1)];
            let is = if allowed { "allowed" } else { "not allowed" };
            self.add(Finding::ok(check, format!("{is}; no mode needs it")));
        }
    }

    /// Compares the age of the longest open transaction with what the mode tolerates.
    pub(super) async fn transactions(&mut self, table: &Table) {
        let check = "open transactions";
        if let Some(row) = self.ask_row(check, (OLDEST, &[]), OLDEST_RIGHT).await {
            let settle = self.source.settings.settle;
            self.add(match row.as_slice() {
                [Value::Int(age)] => oldest(check, table.choice.mode, *age, settle),
                [Value::Null] => Finding::ok(check, "none has written"),
                _ => unexpected_answer(check),
            });
        }
    }
}

pub(super) fn unexpected_answer(check: &'static str) -> Finding {
    Finding::unknown(
        check,
        "the server's answer has an unexpected form",
        "run `highwater doctor` again",
    )
}

/// Returns the fix for a failed token request, which never reached the server.
fn token_fix(auth: &SqlAuth) -> &'static str {
    match auth {
        SqlAuth::ManagedIdentity { .. } => {
            "give the app an identity, and if it is a user-assigned one, its client id as `User ID`; \
             outside Azure there is none: use `Authentication=Active Directory Default` there"
        }
        SqlAuth::WorkloadIdentity { .. } => {
            "check `AZURE_TENANT_ID`, `AZURE_CLIENT_ID`, the file that `AZURE_FEDERATED_TOKEN_FILE` names, \
             and that this machine reaches Microsoft Entra"
        }
        SqlAuth::ServicePrincipal { .. } => {
            "check the tenant, the client id and the secret that the error is about, and that this \
             machine reaches Microsoft Entra (`login.microsoftonline.com`)"
        }
        SqlAuth::EntraUser { .. } => {
            "fix what the error names; if there was no answer, make sure that this machine reaches Microsoft Entra \
             (`login.microsoftonline.com`, or the host in `AZURE_AUTHORITY_HOST`)"
        }
        SqlAuth::Default { .. } => {
            "in Azure give the app an identity; on this machine install the Azure CLI and run `az login`"
        }
        SqlAuth::Password { .. } => "fix what the error names in the connection string",
    }
}

/// Reports the encryption that the settings ask for; a server can only be stricter.
fn encryption(settings: &SqlConnection) -> Finding {
    let check = "encryption";
    let finding = |found: &str, fix: &str| {
        if settings.is_local() {
            Finding::ok(check, format!("{found}; it does not leave this machine"))
        } else {
            Finding::warning(check, found, fix)
        }
    };
    match (settings.encrypt, settings.trust_server_certificate) {
        (Encrypt::Plain, _) => finding(
            "nothing is encrypted, not even the password",
            "remove `Encrypt=DANGER_PLAINTEXT` from the connection string",
        ),
        (Encrypt::Optional, _) => finding(
            "only the login is encrypted, unless the server requires more",
            "set `Encrypt=Mandatory` in the connection string",
        ),
        (Encrypt::Mandatory | Encrypt::Strict, true) => finding(
            "everything is encrypted, but any certificate is accepted",
            "remove `TrustServerCertificate=true`, or name the authority's file as `ServerCertificate`",
        ),
        (Encrypt::Mandatory, false) => {
            Finding::ok(check, "everything is encrypted, and the certificate is checked")
        }
        (Encrypt::Strict, false) => {
            Finding::ok(check, "TDS 8.0: everything is encrypted, and the certificate is checked")
        }
    }
}

fn edition(row: &[Value]) -> Finding {
    let check = "edition";
    let [edition, number, updateability] = row else { return unexpected_answer(check) };
    let text = |value: &Value| {
        if let Value::Text(text) = value { text.as_str() } else { "unnamed" }.to_owned()
    };
    let found = format!("{} {}", text(edition), text(number));
    if *updateability == Value::Text("READ_ONLY".to_owned()) {
        return Finding::warning(
            check,
            format!(
                "{found}; the database is read-only here: a secondary replica, or set to read-only"
            ),
            "poll the primary replica: remove `ApplicationIntent=ReadOnly`; on a secondary the upper bound \
             of mode `rowversion` is not documented",
        );
    }
    Finding::ok(check, found)
}

fn oldest(check: &'static str, mode: CursorMode, age: i64, settle: Duration) -> Finding {
    let found = format!("the oldest one that has written here has been open for {age} s");
    let settle_seconds = i64::try_from(settle.as_secs()).unwrap_or(i64::MAX);
    match mode {
        CursorMode::TimestampPk | CursorMode::IntegerPk if age >= settle_seconds => {
            Finding::warning(
                check,
                format!(
                    "{found}, which is not below the settle window of {settle:?}: its rows may be missed"
                ),
                "raise `SOURCE__SETTLE` above the longest transaction that writes the table, or use a \
             `rowversion` column as cursor, which needs no window",
            )
        }
        CursorMode::RowVersion if age >= HELD_BACK_MAX_SECONDS => Finding::warning(
            check,
            format!("{found}: rows written since may be held back until it ends"),
            "find it (`DBCC OPENTRAN`) and end it; none of its rows is lost",
        ),
        CursorMode::RowVersion
        | CursorMode::ChangeTracking
        | CursorMode::TimestampPk
        | CursorMode::IntegerPk => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn the_age_of_a_transaction_is_compared_with_what_the_mode_tolerates() {
        use CursorMode::{ChangeTracking, IntegerPk, RowVersion, TimestampPk};
        for (mode, age, level) in [
            (TimestampPk, 4, Level::Ok),
            (TimestampPk, 5, Level::Warning),
            (IntegerPk, 5, Level::Warning),
            (RowVersion, 59, Level::Ok),
            (RowVersion, 60, Level::Warning),
            (ChangeTracking, 600, Level::Ok),
        ] {
            let finding = oldest("x", mode, age, Duration::from_secs(5));
            assert_eq!(finding.level, level, "{mode} {age}");
        }
    }

    #[test]
    fn weak_encryption_is_a_warning_except_on_this_machine() {
        let level = |host: &str, more: &str| {
            let text = format!("Server={host};User ID=u;Password=p;{more}");
            encryption(&SqlConnection::parse(&text).unwrap()).level
        };
        assert_eq!(level("db.example", "Encrypt=Mandatory"), Level::Ok);
        assert_eq!(level("db.example", "Encrypt=Strict"), Level::Ok);
        assert_eq!(level("db.example", "Encrypt=Optional"), Level::Warning);
        assert_eq!(level("db.example", "Encrypt=DANGER_PLAINTEXT"), Level::Warning);
        assert_eq!(level("db.example", "TrustServerCertificate=true"), Level::Warning);
        assert_eq!(level("127.0.0.1", "TrustServerCertificate=true"), Level::Ok);
    }

    #[test]
    fn a_read_only_replica_is_a_warning() {
        let text = |text: &str| Value::Text(text.to_owned());
        let row = |how: &str| [text("Developer Edition"), text("16.0.4155.4"), text(how)];
        assert_eq!(edition(&row("READ_WRITE")).level, Level::Ok);
        assert_eq!(edition(&row("READ_ONLY")).level, Level::Warning);
        assert_eq!(edition(&[]).level, Level::Unknown);
    }
}

//! Checks the login's permissions: sufficient, and not more than that.

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::Finding;
use highwater_engine::value::Value;

use super::server::unexpected_answer;
use super::{Examination, Table};
use crate::connection::Param;

const SELECT: &str = "SELECT HAS_PERMS_BY_NAME(@P1, N'OBJECT', N'SELECT') AS may";
const VIEW_CHANGES: &str =
    "SELECT HAS_PERMS_BY_NAME(@P1, N'OBJECT', N'VIEW CHANGE TRACKING') AS may";
/// Roles that allow more than reading, the most powerful first.
const ROLES: [&str; 5] =
    ["sysadmin", "db_owner", "db_securityadmin", "db_ddladmin", "db_datawriter"];
const MEMBER: &str = "SELECT IS_SRVROLEMEMBER(N'sysadmin') AS a, IS_ROLEMEMBER(N'db_owner') AS b, \
     IS_ROLEMEMBER(N'db_securityadmin') AS c, IS_ROLEMEMBER(N'db_ddladmin') AS d, \
     IS_ROLEMEMBER(N'db_datawriter') AS e";

impl Examination<'_> {
    pub(super) async fn rights(&mut self, table: &Table) {
        let user = self.source.user();
        let tracked = table.choice.mode == CursorMode::ChangeTracking;
        let object = self.object();
        let named = self.source.origin.table().map(|table| Param::Text(table.quoted()));
        // For a query, the check that runs it shows as much.
        let rights_asked = if named.is_none() { 0 } else { 1 + usize::from(tracked) };
        let rights = [("SELECT", SELECT), ("VIEW CHANGE TRACKING", VIEW_CHANGES)];
        for (right, sql) in rights.into_iter().take(rights_asked) {
            let grant = format!("`GRANT {right} ON {object} TO {user}`");
            if let Some(row) = self.ask_row("rights", (sql, named.as_slice()), &grant).await {
                self.add(granted(right, &row, grant));
            }
        }
        let no_permission = "no permission should be needed for it";
        if let Some(row) = self.ask_row("least rights", (MEMBER, &[]), no_permission).await {
            self.add(member(&row, &object, &user));
        }
    }
}

fn granted(right: &str, row: &[Value], grant: String) -> Finding {
    match row {
        [Value::Int(1)] => Finding::ok("rights", format!("{right} on the table is granted")),
        [Value::Int(0) | Value::Null] => {
            Finding::error("rights", format!("{right} on the table is not granted"), grant)
        }
        _ => unexpected_answer("rights"),
    }
}

fn member(row: &[Value], table: &str, user: &str) -> Finding {
    let check = "least rights";
    if row.len() != ROLES.len() {
        return unexpected_answer(check);
    }
    let roles = ROLES.iter().zip(row).filter(|(_, is)| **is == Value::Int(1));
    let roles: Vec<&str> = roles.map(|(role, _)| *role).collect();
    if roles.is_empty() {
        return Finding::ok(check, "the login has no role that allows more than reading");
    }
    Finding::warning(
        check,
        format!(
            "the login has the role `{}`, but a poller only reads one table",
            roles.join("`, `")
        ),
        format!("use a dedicated login with only `GRANT SELECT ON {table} TO {user}`"),
    )
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn a_missing_permission_is_reported_with_the_statement_that_grants_it() {
        let grant = || "`GRANT SELECT ON [dbo].[t] TO [u]`".to_owned();
        assert_eq!(granted("SELECT", &[Value::Int(1)], grant()).level, Level::Ok);
        for no in [Value::Int(0), Value::Null] {
            let finding = granted("SELECT", &[no], grant());
            assert_eq!((finding.level, finding.fix), (Level::Error, Some(grant())));
        }
        assert_eq!(granted("SELECT", &[], grant()).level, Level::Unknown);
    }

    #[test]
    fn a_login_that_may_do_more_than_read_is_a_warning_with_its_roles() {
        let row = |bits: [i64; 5]| bits.map(Value::Int);
        assert_eq!(member(&row([0; 5]), "[dbo].[t]", "[u]").level, Level::Ok);
        let finding = member(&row([0, 1, 0, 0, 1]), "[dbo].[t]", "[u]");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.found.contains("`db_owner`, `db_datawriter`"), "{finding:?}");
        assert!(finding.fix.unwrap().contains("GRANT SELECT ON [dbo].[t] TO [u]"));
        // A role that does not exist in this database is NULL.
        let row = [Value::Null, Value::Int(0), Value::Int(0), Value::Int(0), Value::Int(0)];
        assert_eq!(member(&row, "[dbo].[t]", "[u]").level, Level::Ok);
        assert_eq!(member(&row[1..], "[dbo].[t]", "[u]").level, Level::Unknown);
    }
}

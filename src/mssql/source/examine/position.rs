//! Checks of the position: its conversion to text and back, the lag of the mode's bound, the poller's own
//! statement, and the server's plan for it.

use highwater_engine::cursor::{CursorMode, RowVersion, SourceState, normalize_timestamp};
use highwater_engine::doctor::Finding;
use highwater_engine::error::{ErrorKind, Loss, chain, end_loss};
use highwater_engine::source::{FetchWindow, Source as _};
use highwater_engine::value::Value;

use super::super::sql_error;
use super::server::unexpected_answer;
use super::shape::{self, Shape};
use super::{Examination, Table, advice};
use crate::connection::{Param, SqlError};
use crate::ident::quote;

/// Fix for a statement of the poller that the server rejects.
const REJECTED: &str =
    "fix the problem that the server names: every tick of the poller fails with this error";
/// Rows to read to check that the statement runs.
const ROWS_READ: usize = 1;
const HELD: &str =
    "SELECT CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) AS hi, CAST(@@DBTS AS BIGINT) AS last";
const VERSIONS: &str = "SELECT CHANGE_TRACKING_CURRENT_VERSION() AS cur, \
     CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(@P1)) AS least";
const RETENTION: &str = "SELECT CAST(d.retention_period AS int) AS period, d.retention_period_units_desc, \
     CAST(d.is_auto_cleanup_on AS int) AS cleans FROM sys.change_tracking_databases AS d \
     WHERE d.database_id = DB_ID()";
/// Retention below this does not outlast a weekend.
const RETENTION_MIN_MINUTES: i64 = 3 * 24 * 60;

impl Examination<'_> {
    /// Checks that the newest cursor survives its conversion to text and back.
    pub(super) async fn round_trip(&mut self, table: &Table) {
        let check = "cursor text";
        let Some(cursor) = &table.plan.cursor else { return };
        let column = format!("t.{}", quote(&cursor.name));
        let (text, back) = match table.choice.mode {
            CursorMode::TimestampPk => {
                let style = if cursor.type_name == "datetimeoffset" { 127 } else { 126 };
                (format!("CONVERT(NVARCHAR(33), {column}, {style})"), cursor.declared())
            }
            CursorMode::RowVersion | CursorMode::IntegerPk | CursorMode::ChangeTracking => {
                (format!("CAST({column} AS BIGINT)"), cursor.declared())
            }
        };
        let sql = format!(
            "SELECT TOP (1) {text} AS v, CASE WHEN {column} = CAST({text} AS {back}) THEN 1 ELSE 0 END \
             AS same FROM {} AS t WHERE {column} IS NOT NULL ORDER BY {column} DESC",
            table.plan.quoted
        );
        let select = self.grant("SELECT");
        let Some(row) = self.ask_row(check, (&sql, &[]), &select).await else { return };
        let (value, same) = match row.as_slice() {
            [] => {
                self.add(Finding::ok(check, "there is no row to check it with yet"));
                return;
            }
            [value, Value::Int(same)] => (value.clone(), *same == 1),
            _ => {
                self.add(unexpected_answer(check));
                return;
            }
        };
        // The checkpoint has the normalized form, which the server has to read as the same value.
        let (shown, alike) = match &value {
            Value::Text(raw) => {
                let normal = normalize_timestamp(raw).unwrap_or_default();
                let sent = cursor.cursor_text(&normal);
                let sql = format!(
                    "SELECT CASE WHEN CAST(@P1 AS {back}) = CAST(@P2 AS {back}) THEN 1 ELSE 0 END AS same"
                );
                let params = [Param::Text(raw.clone()), Param::Text(sent.clone())];
                let Some(row) = self.ask_row(check, (&sql, &params), &select).await else { return };
                (sent, row.as_slice() == [Value::Int(1)])
            }
            Value::Int(number) if table.choice.mode == CursorMode::RowVersion => {
                (row_version(*number).to_string(), true)
            }
            Value::Int(number) => (number.to_string(), true),
            Value::Null
            | Value::Bool(_)
            | Value::Real(_)
            | Value::Float(_)
            | Value::HalfPair(_)
            | Value::Bytes(_) => (String::new(), false),
        };
        self.add(round_trip(check, &cursor.name, &shown, same && alike));
    }

    /// Checks that are specific to each mode.
    pub(super) async fn mode_facts(&mut self, table: &Table) {
        match table.choice.mode {
            CursorMode::RowVersion => self.hold_back().await,
            CursorMode::ChangeTracking => self.tracking(table).await,
            CursorMode::TimestampPk | CursorMode::IntegerPk => {
                let settle = self.source.settings.settle;
                self.add(settling(settle));
            }
        }
    }

    async fn hold_back(&mut self) {
        let check = "hold-back";
        if let Some(row) =
            self.ask_row(check, (HELD, &[]), "no permission should be needed for it").await
        {
            self.add(match row.as_slice() {
                [Value::Int(hi), Value::Int(last)] => hold_back(*hi, *last),
                _ => unexpected_answer(check),
            });
        }
    }

    async fn tracking(&mut self, table: &Table) {
        let check = "change tracking";
        let name = [Param::Text(table.plan.quoted.clone())];
        let right = self.grant("VIEW CHANGE TRACKING");
        if let Some(row) = self.ask_row(check, (VERSIONS, &name), &right).await {
            self.add(tracking(&row, &table.plan.quoted, &right));
        }
        if let Some(row) = self
            .ask_row("retention", (RETENTION, &[]), "no permission should be needed for it")
            .await
        {
            self.add(retention(&row));
        }
    }

    /// Whether there is a checkpoint of another source.
    fn is_of_other_source(&self) -> bool {
        let fingerprint = &self.source.shape().fingerprint;
        let is_other = self.standing.fingerprint.is_some_and(|stored| stored != fingerprint);
        is_other && self.standing.after.is_some()
    }

    /// Runs the poller's own statement at its position, for one row that is not delivered.
    pub(super) async fn read(&mut self, _: &Table) {
        let check = "read";
        let nothing = SourceState::new();
        // The check `fingerprint` reports a checkpoint of another source; here it is ignored.
        let is_other = self.is_of_other_source();
        let window = FetchWindow {
            after: self.standing.after.filter(|_| !is_other),
            upto: None,
            rows_max: ROWS_READ,
            state: if is_other { &nothing } else { self.standing.state },
        };
        let asked_at = self.clock.now();
        let read = self.source.fetch(window).await;
        let took = (self.clock.now() - asked_at).whole_milliseconds().max(0);
        self.add(match read {
            Ok(_) if is_other => Finding::ok(
                check,
                format!(
                    "the poller's statement ran in {took} ms from the beginning; the checkpoint belongs to another source"
                ),
            ),
            Ok(rows) if rows.rows.is_empty() => Finding::ok(
                check,
                format!("the poller's statement ran in {took} ms; no row is due"),
            ),
            Ok(_) => {
                Finding::ok(check, format!("the poller's statement ran in {took} ms; rows are due"))
            }
            Err(error) if sql_error(&error).is_some_and(SqlError::is_rejected) => {
                Finding::error(check, chain(&error), REJECTED)
            }
            Err(error) if error.is_position_lost() => {
                let is_tracked = self.source.shape().mode == CursorMode::ChangeTracking;
                let is_final = error.forbids_keeping();
                let loss = Loss { is_tracked, is_final, is_new_source: false };
                let fix = end_loss(&self.source.settings.poller, loss);
                Finding::error(check, chain(&error), fix)
            }
            Err(error) if error.kind == ErrorKind::Transient => {
                Finding::warning(check, chain(&error), advice(&error))
            }
            Err(error) => Finding::error(check, chain(&error), advice(&error)),
        });
    }

    /// Reports the server's estimated plan of that statement.
    pub(super) async fn plan_shape(&mut self, table: &Table) {
        let check = "plan";
        // The server plans `CHANGETABLE` over internal tables, which cannot be indexed.
        let Some(cursor) = &table.plan.cursor else { return };
        let placeholder = shape::placeholder(table.choice.mode, cursor);
        let after = self.standing.after.filter(|_| !self.is_of_other_source());
        let window = FetchWindow {
            after: Some(after.unwrap_or(&placeholder)),
            upto: None,
            rows_max: ROWS_READ,
            state: self.standing.state,
        };
        let Ok((sql, params)) = table.plan.statement(window) else { return };
        let batch = shape::batch(&sql, &params);
        let planned = {
            let state = self.source.state.lock().await;
            let read = |row| Ok(super::values(&row).into_iter().next());
            state.connection.estimated_plan(&batch, read).await
        };
        match planned {
            Ok(parts) => {
                let text: String = parts
                    .into_iter()
                    .flatten()
                    .filter_map(
                        |value| if let Value::Text(text) = value { Some(text) } else { None },
                    )
                    .collect();
                self.add(planned_finding(shape::shape(&text)));
            }
            Err(error) => {
                let right = "to enable this check, a DBA runs `GRANT SHOWPLAN TO [user]`";
                self.add(self.unanswered(check, &error, right));
            }
        }
    }
}

fn round_trip(check: &'static str, column: &str, shown: &str, same: bool) -> Finding {
    if same {
        let found =
            format!("the newest `{column}`, `{shown}`, is unchanged by its conversion to text");
        return Finding::ok(check, found);
    }
    Finding::error(
        check,
        format!("the newest `{column}`, `{shown}`, is changed by its conversion to text"),
        "report it as a bug with the column's type; until then, use another cursor column",
    )
}

fn row_version(number: i64) -> RowVersion {
    RowVersion(u64::from_be_bytes(number.to_be_bytes()))
}

fn settling(settle: std::time::Duration) -> Finding {
    let check = "settle window";
    if settle.is_zero() {
        return Finding::warning(
            check,
            "0: a row committed after a later one was read is never delivered",
            "set `SOURCE__SETTLE` above the longest transaction that writes the table",
        );
    }
    let found = format!("rows are delivered {settle:?} late, and commits may be as late");
    Finding::ok(check, found)
}

fn hold_back(hi: i64, last: i64) -> Finding {
    let check = "hold-back";
    let (hi, last) = (row_version(hi), row_version(last));
    match last.0.saturating_add(1).saturating_sub(hi.0) {
        0 => Finding::ok(
            check,
            format!("no open transaction holds rows back; last rowversion `{last}`"),
        ),
        held => Finding::warning(
            check,
            format!("an open transaction holds back up to {held} rowversions, from `{hi}` on"),
            "nothing if it ends soon; otherwise find it (`DBCC OPENTRAN`) and end it: a transaction that wrote a \
             rowversion in this database holds back every poller",
        ),
    }
}

fn tracking(row: &[Value], table: &str, grant: &str) -> Finding {
    let check = "change tracking";
    match row {
        [Value::Int(current), Value::Int(least)] => Finding::ok(
            check,
            format!("at version {current}; changes are kept from version {least} on"),
        ),
        [Value::Null, _] => Finding::error(
            check,
            "it is not enabled in this database",
            format!(
                "`ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP \
                 = ON)`, then `ALTER TABLE {table} ENABLE CHANGE_TRACKING`"
            ),
        ),
        [Value::Int(_), Value::Null] => Finding::error(
            check,
            "it is not enabled on the table, or the login may not see it",
            format!("`ALTER TABLE {table} ENABLE CHANGE_TRACKING` and `{grant}`"),
        ),
        _ => unexpected_answer(check),
    }
}

fn retention(row: &[Value]) -> Finding {
    let check = "retention";
    let [Value::Int(period), Value::Text(unit), Value::Int(cleans)] = row else {
        return unexpected_answer(check);
    };
    let minutes = match unit.as_str() {
        "MINUTES" => 1,
        "HOURS" => 60,
        _ => 24 * 60,
    };
    let found = format!("{period} {}", unit.to_lowercase());
    if *cleans == 0 {
        return Finding::ok(check, format!("{found}, but automatic cleanup is off"));
    }
    if period * minutes < RETENTION_MIN_MINUTES {
        return Finding::warning(
            check,
            format!("{found}: a poller that does not run for longer has to start over"),
            "`ALTER DATABASE CURRENT SET CHANGE_TRACKING (CHANGE_RETENTION = 7 DAYS)`",
        );
    }
    Finding::ok(check, found)
}

fn planned_finding(shape: Option<Shape>) -> Finding {
    let check = "plan";
    let fix = "create the index that the check `index` prints, and run `UPDATE STATISTICS`; on a table of a few \
               pages a full scan is the cheapest plan";
    match shape {
        Some(Shape::Seek(how)) => Finding::ok(check, format!("{how}, estimated")),
        Some(Shape::SeekAndSort(how)) => Finding::warning(
            check,
            format!("{how} with a sort of its whole result, estimated"),
            fix,
        ),
        Some(Shape::Scan(how)) => Finding::warning(check, format!("{how}, estimated"), fix),
        None => Finding::unknown(
            check,
            "the estimated plan has no known operator that reads the table",
            "check the plan of the poller's statement in Query Store",
        ),
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn rows_are_held_back_from_the_lowest_active_version_on() {
        assert_eq!(hold_back(2_001, 2_000).level, Level::Ok);
        let held = hold_back(2_000, 2_000);
        assert_eq!(held.level, Level::Warning);
        assert!(held.found.contains("up to 1 rowversions, from `0x00000000000007D0`"), "{held:?}");
    }

    #[test]
    fn tracking_that_is_off_is_an_error_with_the_statement_that_turns_it_on() {
        let table = "[dbo].[t]";
        assert_eq!(
            tracking(
                &[Value::Int(3), Value::Int(0)],
                table,
                "GRANT VIEW CHANGE TRACKING ON t TO u"
            )
            .level,
            Level::Ok
        );
        let database =
            tracking(&[Value::Null, Value::Null], table, "GRANT VIEW CHANGE TRACKING ON t TO u");
        assert!(database.level == Level::Error && database.fix.unwrap().contains("ALTER DATABASE"));
        let of_table =
            tracking(&[Value::Int(3), Value::Null], table, "GRANT VIEW CHANGE TRACKING ON t TO u");
        assert!(of_table.fix.unwrap().contains("ALTER TABLE [dbo].[t] ENABLE CHANGE_TRACKING"));
    }

    #[test]
    fn a_retention_that_does_not_outlast_a_weekend_is_a_warning() {
        let row = |period, unit: &str, cleans| {
            retention(&[Value::Int(period), Value::Text(unit.to_owned()), Value::Int(cleans)]).level
        };
        assert_eq!(row(2, "DAYS", 1), Level::Warning);
        assert_eq!(row(3, "DAYS", 1), Level::Ok);
        assert_eq!(row(71, "HOURS", 1), Level::Warning);
        assert_eq!(row(4_320, "MINUTES", 1), Level::Ok);
        assert_eq!(row(2, "DAYS", 0), Level::Ok);
        assert_eq!(retention(&[]).level, Level::Unknown);
    }

    #[test]
    fn a_zero_window_a_changed_text_and_a_scan_are_reported() {
        assert_eq!(settling(std::time::Duration::ZERO).level, Level::Warning);
        assert_eq!(settling(std::time::Duration::from_secs(5)).level, Level::Ok);
        assert_eq!(round_trip("x", "at", "1", true).level, Level::Ok);
        assert_eq!(round_trip("x", "at", "1", false).level, Level::Error);
        let how = || "x".to_owned();
        assert_eq!(planned_finding(Some(Shape::Seek(how()))).level, Level::Ok);
        assert_eq!(planned_finding(Some(Shape::SeekAndSort(how()))).level, Level::Warning);
        assert_eq!(planned_finding(Some(Shape::Scan(how()))).level, Level::Warning);
        assert_eq!(planned_finding(None).level, Level::Unknown);
    }
}

// Seeded breaks: each safety rule is broken once, and the fast suite must fail.
//
//   node .ci/mutants.mjs            all of them
//   node .ci/mutants.mjs 3          three of them, different ones with each commit
//   node .ci/mutants.mjs token row  those whose name contains one of the words
//   node .ci/mutants.mjs applies    builds nothing: only checks that each break still applies
//   node .ci/mutants.mjs complete [SHARD/SHARDS | NUMBER | WORD...]
//                                   mechanical mutants of document, lease and isolation: `.ci/mechanical.mjs`
//   node .ci/mutants.mjs elsewhere NUMBER | WORD...
//                                   a sample of the mechanical mutants of all other files
//
// A break is a text that occurs exactly once in a file, and its replacement. The source is copied
// below `target`, so the tree itself is never touched. Nearly all breaks are built in one build: each
// affected function gets a copy of its body per break, and an environment variable selects one. Breaks that cannot
// be selected like that (a constant, a signature, an opaque type) are built separately. The fast suite is
// the unit tests of the break's crate and, if they pass, `cargo test -p highwater-engine --test engine` and
// `cargo test -p highwater-engine --test sim`, or for the handler `sql` its tests over the wire; the crates are built without
// optimisation here, which takes a tenth of the time. The unbroken copy is run first, and must pass. Exits 1 if it does not, if a break is
// missed, or if any no longer applies.
//
// Not in the list, because only the suite against Azurite can detect it: "no If-Match to the blob service".
// Also not in the list, because they have no observable effect: "owner not compared" (no two grants
// share a token) and "a lost lease is written over" (the pure transitions reject it again).
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { mechanical } from "./mechanical.mjs";

const POLLER = "src/engine/poller.rs";
const TICK = "src/engine/tick.rs";
const FETCH = "src/engine/tick/fetch.rs";
const REDACTION = "src/engine/redaction.rs";
const EXEC_SETTINGS = "src/app/config/handler/exec.rs";
const STATE_LOCAL = "src/app/state/local.rs";
const ENTRY = "src/engine/journal/entry.rs";
const RECORD = "src/engine/journal/record.rs";
const FOLD = "src/engine/journal/fold.rs";
const VERIFY = "src/engine/journal/verify.rs";
const JOURNAL_SQL = "src/mssql/journal.rs";
const JOURNAL_FILE = "src/app/journal/file.rs";
const APPENDER = "src/engine/journal/appender.rs";
const RESTORED = "src/engine/document/transitions/restore.rs";
const RESTORE = "src/engine/admin/restore.rs";
const HISTORY = "src/engine/admin/history.rs";
const RESET = "src/engine/admin/reset.rs";
const PEEK = "src/engine/admin/peek.rs";
const DUPLICATE = "src/engine/admin/clone.rs";
const DIRECTION = "src/engine/range/direction.rs";
const STATE = "src/engine/document/state_document.rs";
const TRANSITIONS = "src/engine/document/transitions.rs";
const RECOVERED = "src/engine/document/transitions/recovery.rs";
const REPAIR = "src/engine/recovery/repair.rs";
const CALL = "src/engine/tick/call.rs";
const AUDIT = "src/engine/document/audit.rs";
const NOT_TAKEN = "src/engine/document/transitions/failure.rs";
const LOOK_BACK = "src/engine/tick/audit.rs";
const KNOWN = "src/engine/poller/delivered_ids.rs";
const FENCE = "src/engine/document/fence.rs";
const STEPS = "src/engine/document/step_results.rs";
const HANDLE = "src/engine/tick/call.rs";
const FORMAT = "src/engine/document/format.rs";
const LEASE = "src/engine/lease.rs";
const HOLD = "src/engine/lease/hold.rs";
const WRITE = "src/engine/lease/judge.rs";
const DOCUMENT_STORE = "src/engine/document/document_store.rs";
const MEMORY = "src/engine/poller/memory.rs";
const NOT_TAKEN_BY = "src/engine/tick/failure.rs";
const BATCH = "src/engine/tick/batch.rs";
const AHEAD = "src/engine/tick/prefetch.rs";
const OVERLAP = "src/engine/tick/commit.rs";
const ANEW = "src/engine/tick/rounds.rs";
const FLOW = "src/engine/policy/flow.rs";
const SIZE = "src/engine/policy/size.rs";
const PLAN = "src/mssql/source/plan.rs";
const PARTITION = "src/mssql/source/partition.rs";
const ORIGIN = "src/mssql/source/origin.rs";
const KIN = "src/engine/poller/partition_check.rs";
const BOUNDED = "src/engine/poller/bounded_source.rs";
const DIVIDED = "src/engine/document/partition.rs";
const REPARTITION = "src/engine/repartition.rs";
const MARK = "src/mssql/source/mark.rs";
const QUERY = "src/mssql/source/query.rs";
const ZONE = "src/mssql/source/zone.rs";
const CURSOR_CLOCK = "src/mssql/source/examine/clock.rs";
const SELECTION = "src/mssql/source/selection.rs";
const TRACKING = "src/mssql/source/tracking.rs";
const CHOICE = "src/mssql/source/choice.rs";
const EVENT = "src/engine/model/event.rs";
const EVENT_JSON = "src/engine/model/event/json.rs";
const VALUE_JSON = "src/engine/model/value/json.rs";
const KEYS = "src/mssql/connection_string.rs";
const QUOTES = "src/mssql/connection_string/text.rs";
const RETRY = "src/mssql/connection/retry.rs";
const NUMBER = "src/mssql/connection/number.rs";
const TOKEN = "src/azure/cached_token.rs";
const TOKEN_CLIENT = "src/azure/token_client.rs";
const ELF = "src/cli/package/contents/elf.rs";
const USER = "src/azure/user_password.rs";
const REFUSAL = "src/azure/user_password/refusal.rs";
const BLOB = "src/azure/handler/blob.rs";
const MESSAGE = "src/azure/handler/queue/message.rs";
const DISPATCH = "src/azure/handler/queue/dispatch.rs";
const PREFIX = "src/engine/handler/prefix.rs";
const DURABLE_REPLY = "src/app/handler/durable/reply.rs";
const EXEC_REPLY = "src/app/handler/exec/reply.rs";
const STDOUT = "src/app/handler/stdout.rs";
const EXPORT = "src/app/telemetry/export.rs";
const LINES = "src/app/telemetry/lines.rs";
const POLLER_JOURNAL = "src/engine/poller/journal.rs";
const RECOVERY = "src/engine/recovery.rs";
const HTTP_SPAN = "src/app/handler/http/traced.rs";
const BEHIND = "src/engine/tick/backlog.rs";
const CONCURRENCY = "src/app/handler/http/concurrency.rs";
const REPLY = "src/app/handler/http/reply.rs";
const SIGN = "src/app/handler/http/sign.rs";
const NORMALIZE = "src/engine/normalize.rs";
const LIMIT = "src/mssql/source/limit.rs";
const FORM = "src/mssql/source/form.rs";
const VARIANT = "src/mssql/source/variant.rs";
const KEY = "src/mssql/source/key.rs";
const CELLS = "src/mssql/source/cells.rs";
const CONNECT = "src/mssql/connection/connect.rs";
const UNIQUE_KEY = "src/mssql/source/unique_key.rs";
const SCHEMA = "src/mssql/source/schema.rs";
const IDENTITY = "src/mssql/source/identity.rs";
const LOSS = "src/engine/poller/position_loss.rs";
const STATE_LOSS = "src/engine/document/position_loss.rs";
const DESCRIBE = "src/mssql/source/describe.rs";
const FILTER = "src/mssql/filter.rs";
const TSQL = "src/mssql/tsql.rs";
const REACH = "src/mssql/tsql/database.rs";
const POLICY = "src/engine/policy.rs";
const DELIVER = "src/engine/tick/deliver.rs";
const QUARANTINE = "src/engine/tick/deliver.rs";
const ISOLATE = "src/engine/tick/isolate.rs";
const OBSERVE = "src/engine/tick/report.rs";
const BLOB_STORE = "src/azure/state.rs";
const MEMORY_STORE = "src/engine/store/memory.rs";
const DATE_CHECK = "src/engine/store/date_check.rs";
const FILE_STORE = "src/app/state/file.rs";
const MSSQL_FETCH = "src/mssql/source/fetch.rs";
const MSSQL_SOURCE = "src/mssql/source.rs";
const CONTAINER = "src/azure/container.rs";
const STATEMENT = "src/mssql/state/statement.rs";
const CURRENT = "src/mssql/source/current.rs";
const ENTRIES = "src/engine/quarantine.rs";
const ENTRIES_STORED = "src/engine/quarantine/entries.rs";
const KNOWN_KEYS = "src/engine/quarantine/known_keys.rs";
const PARK = "src/engine/tick/park.rs";
const RETRIES = "src/engine/tick/retry.rs";
const PARKED = "src/engine/document/parked.rs";
const REDRIVE = "src/engine/admin/redrive.rs";
const SQL = "src/mssql/handler.rs";
const SQL_PLAN = "src/mssql/handler/plan.rs";
const SQL_FORM = "src/mssql/handler/form.rs";
const SQL_TEXT = "src/mssql/handler/statement.rs";
const RANGE = "src/engine/range.rs";
const RANGE_STATE = "src/engine/document/range.rs";
const RANGES = "src/engine/admin/range.rs";
const MARKUP = "src/app/page/markup.rs";
const GUARD = "src/app/web/guard.rs";
const PAGE_SERVER = "src/app/page/server.rs";
const JUDGE = "src/engine/recovery/judge.rs";
const HOST_FILE = "src/app/project/host_file.rs";
const FUNCTION_FILE = "src/app/project/function_file.rs";

const BREAKS = [
  ["margin removed", TRANSITIONS, "const LAPSE_MARGIN: Duration = Duration::from_secs(2);", "const LAPSE_MARGIN: Duration = Duration::from_secs(0);"],
  ["clock's grain ignored", TRANSITIONS, "+ age.grain * 2 + LAPSE_MARGIN", "+ LAPSE_MARGIN"],
  ["idle time before a foreign write ignored", RECOVERED, "self.lease.idle_before().saturating_add(age.since_write)", "age.since_write"],
  ["fractions of idle time lost at each foreign write", RECOVERED, "self.idle_before_nanos = idle.subsec_nanos();", ""],
  ["token not raised", TRANSITIONS, "Ok(FencingToken(current + 1))", "Ok(FencingToken(current))"],
  ["released lease held on to", TRANSITIONS, ".filter(|_| lease.released_at.is_none())", ".filter(|_| true)"],
  ["lapsed lease never taken", TRANSITIONS, "if self.lapses_in(age).is_zero() {", "if false {"],
  ["token not compared", TRANSITIONS, "&& self.lease.fencing_token == holder.token\n", "\n"],
  ["generation dropped", TRANSITIONS, "&& self.generation == holder.generation", ""],
  ["release without token check", TRANSITIONS, "let mut next = self.held_by(holder)?;\n        next.touch(now);\n        next.release_lease(now, tick);", "let mut next = self.clone();\n        next.touch(now);\n        next.release_lease(now, tick);\n        drop(holder.clone());"],
  ["checkpoint may move back", TRANSITIONS, "next.refuse_backwards(&commit.upto)?;", ""],
  ["row that failed alone not tried alone again", POLICY, "(_, OnFailure::Park) if attempt.first_failed_alone => Verdict::Isolate,", "(_, OnFailure::Park) if false && attempt.first_failed_alone => Verdict::Isolate,"],
  ["rows that were probed taken for a batch", TRANSITIONS, "probing: previous.probing,", "probing: false,"],
  ["crash not counted", TRANSITIONS, ".filter(|_| crashed_with_batch)", ".filter(|_| false && crashed_with_batch)"],
  ["crash of a retry blamed on the batch in flight", TRANSITIONS, "let crashed_with_batch = has_lapsed && !self.parked.is_retrying;", "let crashed_with_batch = has_lapsed;"],
  ["pause ignored", TRANSITIONS, "if let Some(paused) = &self.paused {", "if let Some(paused) = self.paused.as_ref().filter(|_| false) {"],
  ["back-off ignored", TRANSITIONS, "(now + grain < until).then(", "(false && now + grain < until).then("],
  ["broken lease keeps its owner", TRANSITIONS, "        next.lease.owner_id = None;\n", ""],
  ["recovery releases a live lease", RECOVERED, "LeaseState::Held { owner_id } => return Err(Refusal::Held { owner_id }),", "LeaseState::Held { .. } => {}"],
  ["recovery ignores the margin", RECOVERED, "match self.lease_state_for_others(age) {\n            LeaseState::Held", "match self.lease_state_for_others(DocumentAge { since_write: age.since_write + Duration::from_secs(2), ..age }) {\n            LeaseState::Held"],
  ["recovery moves a checkpoint", RECOVERED, "let mut next = self.break_lease()?;", "let mut next = self.break_lease()?;\n        next.checkpoint = crate::document::Checkpoint::default();"],
  ["recovery keeps the token", RECOVERED, "let mut next = self.break_lease()?;", "let mut next = self.clone();\n        next.lease.released_at = Some(now);"],
  ["recovery counts no crash", RECOVERED, "batch.crashes = batch.crashes.saturating_add(1);", "let _ = &batch;"],
  ["recovery ends a back-off that was asked for", RECOVERED, "if until <= latest || !is_free", "if !is_free"],
  ["recovery acts on a document that changed", REPAIR, "let Some(etag) = &base.etag else {", "let fresh = self.parts.store.load(&StateKey::Document(name.clone())).await;\n        let fresh = fresh.ok().and_then(|loaded| loaded.stored).map(|stored| stored.etag);\n        let Some(etag) = &fresh else {"],
  ["fence admits anyone", FENCE, "if asked < self {", "if false {"],
  ["fence without generation", FENCE, "if asked < self {", "if asked.token < self.token {"],
  ["fence refuses its own", FENCE, "if asked < self {", "if asked <= self {"],
  ["unknown version read", FORMAT, ".filter(|found| **found != VERSION)", ".filter(|_| false)"],
  ["requirements ignored", FORMAT, ".find(|name| !KNOWN_REQUIREMENTS.contains(&name.as_str()))", ".find(|_| false)"],
  ["deadline counted from the reply", LEASE, "            snapshot,\n            renewed_at,\n", "            snapshot,\n            renewed_at: Instant::now(),\n"],
  ["no heartbeat", HOLD, "() = sleep_until(beat_at) => {}", "() = sleep_until(beat_at + Duration::from_secs(86_400)) => {}"],
  ["heartbeat beside the writer", LEASE, "let before = std::mem::replace(&mut self.snapshot, written);", "let before = match event {\n            None => written,\n            Some(_) => std::mem::replace(&mut self.snapshot, written),\n        };"],
  ["heartbeat counted from now", HOLD, "let beat_at = self.renewed_at + self.context.terms.heartbeat_interval;", "let beat_at = Instant::now() + self.context.terms.heartbeat_interval;"],
  ["refused write taken for a loss", WRITE, "Err(StoreError::Conflict { .. } | StoreError::Unknown { .. }) => {}", "Err(StoreError::Conflict { .. }) => return Err(LeaseError::Gone),\n                Err(StoreError::Unknown { .. }) => {}"],
  ["own write not recognised", WRITE, "if found.document.write_id == write_id\n                || ", "if "],
  ["retry reads another range", FETCH, "&& in_flight.after == document.checkpoint.cursor", "&& false"],
  ["rest of a batch begins where the whole did", BATCH, "let at = Position { after, ..self.at.clone() };", "let at = Position { after: Some(after).and(self.at.after.clone()), ..self.at.clone() };"],
  ["checkpoint of another source used", MEMORY, "if snapshot.document.source_fingerprint != shape.fingerprint {", "if false && snapshot.document.source_fingerprint != shape.fingerprint {"],
  ["cut batch remembered as whole", FETCH, "rows.remember.filter(|_| whole)", "rows.remember.filter(|_| whole || true)"],
  ["finished work waits for a read that is tried again", FETCH, "self.source.fetch_at_once(window).await", "self.source.fetch(window).await"],
  ["range read again remembered as all", FETCH, " && !again;", ";"],
  ["rest of a batch committed with its front's mark", BATCH, "self.remember.clone().filter(|_| is_end)", "self.remember.clone().filter(|_| is_end || true)"],
  ["poller that never ran started by a tick", MEMORY, "ran_since.is_none() && self.start_now && !has_position(&blank.document)", "ran_since.is_none() && self.start_now && blank.etag.is_none()"],
  ["no row more asked for than a batch may have", PLAN, ".unwrap_or(i64::MAX).saturating_add(1)", ".unwrap_or(i64::MAX)"],
  ["documents of two applications under one path", BLOB_STORE, '&["state", &encode(app)]', '&["state"]'],
  ["answer that was cut moves the mark", PLAN, "let remember = remember.filter(|_| !answer.is_full);", "let remember = remember.filter(|_| true);"],
  ["answer that was cut not checked", TRACKING, "(self.cursor.is_none() && answer.is_full).then(", "(false && answer.is_full).then("],
  ["reset keeps what was remembered", TRANSITIONS, "next.source_state.clear();", ""],
  ["mark kept over a clock set back", MARK, " && mark.taken_at.as_str() <= seen.now)", ")"],
  ["new mark not written at once", MARK, "let at_once = new_mark.is_some();", "let at_once = false;"],
  ["rows read past an open transaction", QUERY, 'conditions.push(format!("{cursor} < @hi"));', ""],
  ["times read before they settled", QUERY, '"DECLARE @hi {} = DATEADD(MILLISECOND, -@P2, {now});', '"DECLARE @hi {} = DATEADD(MILLISECOND, -@P2 * 0, {now});'],
  ["local times held against UTC", ZONE, 'SourceClock::Local => "SYSDATETIME()"', 'SourceClock::Local => "SYSUTCDATETIME()"'],
  ["bound ahead of a column's clock found well", CURSOR_CLOCK, "if assumed > stamped {", "if false {"],
  ["numbers read before they settled", QUERY, 'conditions.push(format!("{cursor} <= @hi"))', "{}"],
  ["highest number read after the clock", QUERY, "DECLARE @max BIGINT = (SELECT MAX(t.{}) FROM {} AS t);\\n\\\n             DECLARE @now DATETIME2(7) = SYSUTCDATETIME();", "DECLARE @now DATETIME2(7) = SYSUTCDATETIME();\\n\\\n             DECLARE @max BIGINT = (SELECT MAX(t.{}) FROM {} AS t);"],
  ["expired changes skipped", TRACKING, "match since.filter(|since| *since < kept_since) {", "match since.filter(|since| false && *since < kept_since) {"],
  ["database that went back read on", TRACKING, "range.after.filter(|at| at.version > current)", "range.after.filter(|_| false)"],
  ["half a version taken for the whole", TRACKING, "let since = if complete { at.version } else { at.version - 1 };", "let since = at.version;"],
  ["changes read past the current version", TRACKING, 'let mut conditions = vec![format!("{version} <= @cur")];', 'let mut conditions = vec!["1 = 1".to_owned()];'],
  ["rows left unread for changes", TRACKING, "known.is_none_or(|known| known < at.version)", "known.is_none()"],
  ["resting position not renewed", TRACKING, "let due = current > since && !recent;", "let due = false;"],
  ["changes ordered by half a key", CHOICE, "primary(described).count() == key.len() && ", ""],
  ["filter closes its parenthesis", TSQL, ".checked_sub(1)\n                    .ok_or_else(|| \"a closing parenthesis has no opening one\".to_owned())?;", ".saturating_sub(1);"],
  ["query with a hint that loses rows", TSQL, "    check_hints(&tokens)?;", ""],
  ["rowversion of a query of another database", ORIGIN, "is_none_or(|mode| !mode.is_time_based())", "is_none()"],
  ["another database taken for the connection's", REACH, "!unquoted(database).eq_ignore_ascii_case(connected)", "false"],
  ["query with an order of its own", TSQL, 'if ordered && !has("TOP") && !has("OFFSET") {', 'if ordered && has("") {'],
  ["value of a filter written into the text", FILTER, "None => place,", "None => self.values.get(*index).map(|value| value.text.clone()).unwrap_or_default(),"],
  ["filter without its value", FILTER, "problems.push(FilterProblem::Missing(name.to_owned()));", ""],
  ["values of filters not told apart", FILTER, 'written.collect::<Vec<_>>().join(",")', 'written.take(0).collect::<Vec<_>>().join(",")'],
  ["retyped key read on", SCHEMA, "if differs(ORDER, &self.order_hash) {", "if false && differs(ORDER, &self.order_hash) {"],
  ["key in another collation read on", FORM, 'format!("{name} {}", self.collation.as_deref().unwrap_or_default())', "name.to_owned()"],
  ["key value compared without its own type", FORM, "if let Some(base) = base {", "if let Some(base) = base.filter(|_| false) {"],
  ["statement kept for key values of other types", PLAN, "return Ok((complete(&self.text(&read, bounds)), params));", "let mut known = self.statements.lock().unwrap_or_else(PoisonError::into_inner);\n            let sql = known.entry(bounds).or_insert_with(|| complete(&self.text(&read, bounds)));\n            return Ok((Arc::clone(sql), params));"],
  ["text of a checkpoint taken for a collation", VARIANT, "Some(ident::collation(name)?)", "Some(name)"],
  ["sizes of a key value's type not checked", VARIANT, ".filter(|_| are_digits(digits))", ""],
  ["key value longer than its type cut", VARIANT, "|| value.encode_utf16().count() > length.into()", ""],
  ["key of a deleted row read from the row in part", KEY, 'selected.replace(&format!("t.{name}"), &format!("c.{name}"))', 'selected.replacen(&format!("t.{name}"), &format!("c.{name}"), 1)'],
  ["insert reported as an upsert", CELLS, '"I" if is_change => Operation::Insert,', '"I" if is_change => Operation::Upsert,'],
  ["existing row reported as an update", CELLS, "self.cursor.is_none() && matches!(position, Value::Int(_))", "self.cursor.is_none()"],
  ["operations not selected", TRACKING, "        conditions.extend(self.selection.of_change(&deleted));\n", ""],
  ["inserts selected without updates", SELECTION, "return check_pair(operations);", "return Ok(());"],
  ["live row hidden from a redrive", CURRENT, "row| !self.selection.is_possible(row.op)", "_row| false"],
  ["stored delete sent for a restored row", "src/engine/tick/alone.rs", "if rows.is_unselected {", "if false {"],
  ["text of half a unit delivered", CELLS, "if bytes.len().is_multiple_of(2) {", "if bytes.len() < usize::MAX {"],
  ["another encoding taken for UTF-16", CONNECT, "(bytes != expected).then(", "(bytes.len() > usize::MAX - expected.len()).then("],
  ["two rows at one position delivered", UNIQUE_KEY, "values.all(|(column, (one, other))| column.equates(one, other))", "values.any(|_| false)"],
  ["part told from a variant's value without its type", PARTITION, "variant::expression(&value)", "value"],
  ["table that was replaced read on", IDENTITY, "if differences.is_empty() {", "if differences.is_empty() || true {"],
  ["table forgotten by what the mode keeps", IDENTITY, "remember.state.extend(facts.into_iter()", "remember.state.extend(facts.into_iter().take(0)"],
  ["table of an earlier checkpoint replaced", IDENTITY, "let table = earlier.table.or_else(|| self.table.clone());", "let table = self.table.clone().or(earlier.table);"],
  ["loss not refused once the source looks right", LOSS, "match document.lost_position().or(unwritten) {", "match document.lost_position().or(unwritten).filter(|_| false) {"],
  ["loss forgotten at any higher generation", LOSS, "!document.was_reset_after(found.generation)", "document.generation <= found.generation"],
  ["loss in the journal not read by an import", RESTORE, "if !self.poller.keeps_journal() {", "if true {"],
  ["loss kept by a reset to a copy", STATE_LOSS, "    state.remove(LOST);\n    state", "    state.remove(\"\");\n    state"],
  ["columns remembered before rows had them", SCHEMA, "match if delivered { fact } else", "match if delivered || true { fact } else"],
  ["flag of deleted rows not read", DESCRIBE, 'Ok(format!("{column} <> 0"))', 'Ok(format!("{column} IS NOT NULL"))'],
  ["choice forgotten", CHOICE, "if let Some(ReasonedChoice { choice, .. }) = before {", "if let Some(ReasonedChoice { choice, .. }) = before.filter(|_| false) {"],
  ["late rows move the checkpoint", TRANSITIONS, "if commit.audit == AuditStep::ReadAgain {", "if false && commit.audit == AuditStep::ReadAgain {"],
  ["late rows keep others waiting", NOT_TAKEN, "        next.put_late_rows_back();\n", ""],
  ["late rows looked for too early", AUDIT, "(age >= wait && ", "(wait >= wait && "],
  ["late rows told without their ids", LOOK_BACK, "ids.binary_search(&event.id.number()).is_err()", "ids.len() < 1"],
  ["window forgotten before its rows are taken", LOOK_BACK, "                    found.late = Some(batch);\n", "                    found.finished = Some(window);\n                    found.late = Some(batch);\n"],
  ["window not compared", LOOK_BACK, "if sum == window.ids {", "if sum.rows >= window.ids.rows.min(sum.rows) {"],
  ["window read up to where rows were not taken", LOOK_BACK, "None if *end == window.upto => return", "None => return"],
  ["window moved on by rows of another", AUDIT, ".filter(|window| window.begin() == after)", ""],
  ["windows merged across a gap", AUDIT, "next.after.as_ref() == Some(&self.upto)\n            && ", ""],
  ["windows kept by a reset", TRANSITIONS, "        next.audit = Audit::default();\n", ""],
  ["windows without room not counted", AUDIT, "self.rows_skipped = self.rows_skipped.saturating_add(rows);", "drop(rows.to_string());"],
  ["ids of other rows taken for a window's", KNOWN, "if sum == window.ids {", "if sum.rows >= window.ids.rows {"],
  ["vanished state replayed by a warm process", MEMORY, "marked_at.or_else(|| self.ran_since.get().copied())", "marked_at"],
  ["first run under another app name not noticed", MEMORY, "if is_first && writes && blank.etag.is_some() {", "if false && is_first && writes && blank.etag.is_some() {"],
  ["document without a fencing token used", FORMAT, "if !found.is_u64() {", "if found.is_string() {"],
  ["document without a cursor replayed", FORMAT, "(None, Some(batch_id)) = (&checkpoint.cursor, &checkpoint.last_successful_batch_id)", "(None, Some(batch_id)) = (&checkpoint.cursor, &checkpoint.last_successful_batch_id.clone().filter(|_| false))"],
  ["missing state folder created", FILE_STORE, "!self.makes_folder && !state.is_dir()", "!self.makes_folder && !state.is_dir() && false"],
  ["failing process keeps its document", TICK, "        if result.is_err() {\n            self.memory.forget();", "        if false {\n            self.memory.forget();"],
  ["columns not described again after a refusal", MSSQL_SOURCE, "self.in_doubt |= is_refusal(error);", ""],
  ["refused order accepted at the next read", MSSQL_FETCH, "is_some_and(|refused| !unchanged(refused))", "is_some()"],
  ["refused order never accepted", MSSQL_FETCH, "is_some_and(|refused| !unchanged(refused))", "is_some_and(|refused| false && !unchanged(refused))"],
  ["marker ignored", MEMORY, "match self.limits.on_missing_state {", "match OnMissingState::Recreate {"],
  ["generation not above the marker's", MEMORY, "let floor = marker.map_or(1, |marker| marker.generation.0 + 1);", "let floor = u64::from(marker.is_none());"],
  ["document begun without a generation", STATE, "self.generation == Generation(0)", "false && self.generation == Generation(0)"],
  ["delivery without its generation", HANDLE, "generation: self.lease.generation(),", "generation: crate::document::Generation(0),"],
  ["events joined over a gap", EVENT_JSON, "let follows = event.part.start == end + SEPARATOR.len_utf8();", "let follows = event.part.start >= end;"],
  ["events of two batches joined", EVENT_JSON, "|| !Arc::ptr_eq(&event.batch, &first.batch)", "|| false"],
  ["half a surrogate pair lost in a row", VALUE_JSON, "push_half_pairs(json, units.iter().copied().map(u16::from_le_bytes));", "push_text(json, &String::from_utf16_lossy(&units.iter().copied().map(u16::from_le_bytes).collect::<Vec<_>>()));"],
  ["batch id without its bytes", EVENT, "        update_sized(&mut hash, identity.digest.as_str().as_bytes());\n", ""],
  ["rest of a password shown", KEYS, "after_open_password = *key == Key::Password && !pair.quoted;", "after_open_password = false;"],
  ["braces taken for a value", QUOTES, "if value.starts_with('{') {", "if false {"],
  ["read tried again for ever", RETRY, "self.tries >= TRIES_MAX || ", ""],
  ["read tried again beyond its time", RETRY, "|| self.began.elapsed() + pause >= self.terms.time_max", ""],
  ["unknown error tried again", NUMBER, "(Transient, None);", "(Transient, Some(Again::Soon));"],
  ["token never replaced", TOKEN, "&& rest > REFRESH_BEFORE", "&& rest > Duration::ZERO"],
  ["token used to its end", TOKEN, "if rest > REST_MIN =>", "if rest > Duration::ZERO =>"],
  ["service asked before its pause is over", USER, "                self.pause.start(pause);\n", ""],
  ["password told by a refusal", REFUSAL, "hold_token(user.password.expose_secret());", ""],
  ["blob named without its content", BLOB, "_{last}_{}.ndjson\", delivery.poller, delivery.batch_id)", "_{last}.ndjson\", delivery.poller)"],
  ["native lease taken for a blob that is there", BLOB, "412 => answer.code == \"ConditionNotMet\",", "412 => true,"],
  ["message larger than a queue takes", MESSAGE, "if self.text_bytes(json.len() + 1 + next.len() + end) > TEXT_BYTES_MAX {", "if self.text_bytes(json.len() + next.len()) > TEXT_BYTES_MAX {"],
  ["rows sent past one that is too large", MESSAGE, "self.packed = self.rows.len();", "self.packed += 1;"],
  ["any acceptance taken for a start", DURABLE_REPLY, "let is_ours = started.and_then(|started| started.id).as_deref() == Some(id);", "let is_ours = started.is_none_or(|started| started.id.is_none_or(|_| id.len() < 1000));"],
  ["any success taken for a status", DURABLE_REPLY, "200..=299 => Err(received.foreign()),\n        _ => Err(received.refused(\"status request\")),", "200..=299 => Ok(true),\n        _ => Err(received.refused(\"status request\")),"],
  ["end of a line that is too long not looked at", EXEC_REPLY, "self.word_beyond = self.word_beyond.or_else(|| word_in(beyond));", ""],
  ["failures further inside passed over", EXEC_REPLY, "return Err(MISPLACED.to_owned());", "return Ok(());"],
  ["failure of an unknown event passed over", EXEC_REPLY, "let index = self.index_of(failure.id.as_deref().unwrap_or_default())?;", "let Ok(index) = self.index_of(failure.id.as_deref().unwrap_or_default()) else { continue };"],
  ["rows after a gap taken for accepted", PREFIX, "rest.iter().take_while(|accepted| **accepted).count()", "rest.iter().filter(|accepted| **accepted).count()"],
  ["messages of one key sent at once", DISPATCH, "!rows.iter().any(|row| busy.contains(&key_of(row)))", "!rows.is_empty()"],
  ["messages far after a slow one sent", DISPATCH, "&& number - oldest < window", "&& number - oldest < window * 1_000"],
  ["rows written without a reader", STDOUT, "let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;", "let gone = PollFlags::NVAL;"],
  ["rows written to a closed output", STDOUT, "Ok(metadata.rdev() == null.rdev() && file.read(&mut [0]).is_ok())", "Ok(metadata.rdev() == null.rdev() && file.read(&mut [0]).is_err())"],
  ["batch taken as far as its best request", CONCURRENCY, "let accepted = failed.iter().map(|(position, _)| *position).min();", "let accepted = failed.iter().map(|(position, _)| *position).max();"],
  ["states of a key in several requests", CONCURRENCY, "serde_json::to_string(&event.cursor.key)", "serde_json::to_string(&event.cursor.value)"],
  ["failures further inside ignored", REPLY, "Ok(Partial { failures: None }) if mentions_failures(&received.body) => {", "Ok(Partial { failures: None }) if false && mentions_failures(&received.body) => {"],
  ["failure of an unknown event ignored", REPLY, ".map(|Failure { id }| indexes.get(id.as_deref().unwrap_or_default()).copied())", ".map(|Failure { id }| indexes.get(id.as_deref().unwrap_or_default()).copied())\n        .filter(Option::is_some)"],
  ["reply cut short taken for a success", REPLY, "    if let Some(cut) = &received.cut {", "    if let Some(cut) = received.cut.as_ref().filter(|_| false) {"],
  ["signature without its time", SIGN, 'let head = format!("{id}.{timestamp}.");', 'let head = format!("{id}.{}.", timestamp * 0);'],
  ["value over the limit delivered as NULL", LIMIT, ".find(|(_, bytes)| *bytes > bytes_max)?", ".find(|_| false)?"],
  ["row over the limit of a batch delivered", NORMALIZE, "if event.json.len() > bytes_max", "if event.json.len() > usize::MAX - 1"],
  ["key with half a surrogate pair mangled", NORMALIZE, "Some(Value::HalfPair(_)) => {", "Some(Value::HalfPair(_)) if false => {"],
  ["parameter in the code page of the database", FORM, "collation.map(|name| format!(\" COLLATE {name}\"))", "collation.map(|_| String::new())"],
  ["outage blamed on the rows", POLICY, "if attempt.blame == Blame::Target {", "if false {"],
  ["row set aside without a probe", POLICY, "OnFailure::Park => Verdict::Probe,", "OnFailure::Park => Verdict::Quarantine,"],
  ["age of a failure ignored", POLICY, "attempt.attempts >= self.attempts_max || too_old", "attempt.attempts >= self.attempts_max || (false && too_old)"],
  ["row set aside that nobody died with alone", POLICY, "(rows == 1 && alone).then_some(", "(rows == 1 && (alone || true)).then_some("],
  ["death with another row taken for one with this", FETCH, "let crashed = in_flight.rows == 1 && self.is_abandoned(base);", "let crashed = in_flight.rows == 1;"],
  ["batch accepted whole handed over again", "src/engine/handler.rs", "if accepted >= rows && !matches!(self, Self::Fenced(_)) {", "if false && accepted >= rows {"],
  ["probe that found nothing taken for a proof", ISOLATE, "            (ProbeAt::Only(_), _) => {\n                self.waiting.push(rest);\n                return State::GivenUp(End::Retry);", "            (ProbeAt::Only(_), _) => {\n                self.waiting.push(rest);\n                return State::RetryRow { accepted: None };"],
  ["row not tried again after its probe", ISOLATE, "        if self.evidence() == Some(Evidence::FailedBetween) {", "        if self.evidence() != Some(Evidence::Crashes) {"],
  ["fault looked for row by row", ISOLATE, "let half = (end - start) / 2;", "let half = usize::from(end - start > 1);"],
  ["rows that may kill not written down", ISOLATE, "            Some(Evidence::Crashes) => State::Announce,\n", ""],
  ["row passed that is not written down", QUARANTINE, "Err(NotRecorded::Store(why)) => failed = Some(why),", "Err(NotRecorded::Store(why)) => failed = Some(why).filter(|_| false),"],
  ["entry not announced", PARK, "self.lease.announce_entry(announced).await?;", "let _ = announced;"],
  ["retry not counted before the call", RETRIES, "let Some(etag) = self.write(key, &counted, etag).await? else { return Ok(Then::End) };", ""],
  ["row of a parked key probed", PARK, "let next = self.without_parked(next).await?;\n", ""],
  ["later version of a failing row probed", PARK, ".position(|event| failing.contains(&id(event)));", ".position(|event| false && failing.contains(&id(event)));"],
  ["diverted row passed that its entry does not have", ENTRIES_STORED, "Reading::Intact(entry) => (entry.with_version(version)?, None),", "Reading::Intact(entry) => (entry.with_version(version)?.filter(|_| false), None),"],
  ["diverted row passed although its entry cannot be written", PARK, "written.map_err(TickError::LeaseLost)?.map_err(TickError::from_entry)?;", "written.map_err(TickError::LeaseLost)?.unwrap_or_default();"],
  ["version of a former holder put in place of a later one", ENTRIES, "if is_same || (is_stale && event.cursor.is_before(&known.cursor)) {", "if is_same {"],
  ["row whose entry is gone not put back into its batch", PARK, "            if gone.is_empty() {\n                return Ok((batch, is_changed));", "            if gone.is_empty() || true {\n                return Ok((batch, is_changed));"],
  ["entry removed that has a later version", RETRIES, "let removed = self.lease.hold_while(self.poller.store.remove(&at, etag)).await;", "let now = self.poller.store.load(&at).await.ok().and_then(|loaded| loaded.stored);\n        let etag = now.map_or_else(|| etag.clone(), |now| now.etag);\n        let removed = self.lease.hold_while(self.poller.store.remove(&at, &etag)).await;"],
  ["entry removed before its row is accepted", RETRIES, "let failed = match self.call(&counted, &event).await? {", "self.remove(key, &etag, &counted).await?;\n        let failed = match self.call(&counted, &event).await? {"],
  ["entry removed after an older version was accepted", RETRIES, "if !entry.is_newer_than(&event, self.lease.generation()) {", "if true || !entry.is_newer_than(&event, self.lease.generation()) {"],
  ["limit of retries not checked after a crash", RETRIES, "if entry.may_be_retried(park) {", "if true || entry.may_be_retried(park) {"],
  ["parked row that crashes processes retried first", RETRIES, "if when == When::BeforeTheBatch && crashed_in_retry(poller, &base) {", "if false && when == When::BeforeTheBatch && crashed_in_retry(poller, &base) {"],
  ["batch of a crashed process not delivered first", RETRIES, "        && !crashed\n", ""],
  ["damaged entry replaced after the lease was lost", PARK, "self.lease.prove_held().await.map_err(TickError::LeaseLost)?;", ""],
  ["unreadable row counted before its entry is written", PARK, "            let entry = self.entry_of(event, &batch.id, Reason::Unreadable, &tried, why);\n", "            let entry = self.entry_of(event, &batch.id, Reason::Unreadable, &tried, why);\n            self.lease.count_unreadable();\n"],
  ["attempts reset by every resume", TRANSITIONS, "is_some_and(|paused| paused.is_by_policy())", "is_none_or(|_| true)"],
  ["row passed whose entry is gone", ENTRIES_STORED, "let Some(stored) = store.load(key).await?.stored else { return Ok(Diversion::Gone) };", "let Some(stored) = store.load(key).await?.stored else { return Ok(Diversion::Kept { replaced: None }) };"],
  ["entry of a newer build replaced", ENTRIES_STORED, "        Err(intact) => return Err(intact),\n", "        Err(intact) => intact,\n"],
  ["keys not compared with their number in the document", KNOWN_KEYS, "self.are_of_epoch(document) && number(self.keys.len()) == document.parked.keys", "self.are_of_epoch(document)"],
  ["number of keys corrected in the same epoch", PARKED, "if self.parked.keys != counted.keys {", "if false {"],
  ["dropped entries start no epoch", PARKED, "let mut next = self.written_by_other(age).with_next_entries();", "let mut next = self.written_by_other(age);"],
  ["keys of an earlier epoch taken for the latest", KNOWN_KEYS, "self.of == Some(epoch_of(document))", "self.of.is_some()"],
  ["counts of an earlier epoch recorded", PARKED, "if self.parked.epoch != counted.epoch {", "if false {"],
  ["entry put back to an older version", ENTRIES, "(is_same || event.cursor.is_before(&known.cursor))", "is_same"],
  ["probe of many rows while processes die", ISOLATE, "if is_open || self.evidence() == Some(Evidence::Crashes) {", "if is_open {"],
  ["breaker never opens", POLICY, "quarantined_in_a_row >= self.breaker_rows", "quarantined_in_a_row > self.breaker_rows.saturating_mul(1_000)"],
  ["breaker closed by a quarantined row", TRANSITIONS, "        if commit.rows > 0 {\n            next.quarantined_in_a_row = 0;", "        if commit.rows > 0 || self.quarantined_in_a_row > 0 {\n            next.quarantined_in_a_row = 0;"],
  ["open breaker asks a failing target for many rows", ISOLATE, "let is_open = self.policy.breaker_is_open(when.quarantined_in_a_row);", "let is_open = false;"],
  ["probe not written down", ISOLATE, "        State::AnnounceProbe(Probe { rest, at })\n", "        State::Probe(Probe { rest, at })\n"],
  ["one failure of a batch taken for proof of a bad row", ISOLATE, "Self::Failed | Self::FrontAccepted => Self::FrontAccepted,", "Self::Failed | Self::FrontAccepted => Self::Proven,"],
  ["handler tries a batch several times while halving", ISOLATE, "Halving::FirstRetry if rows > 1 || has_failed => CallTries::One,", "Halving::FirstRetry if rows > 1_000_000 => CallTries::One,"],
  ["crashes that were told of counted", TRANSITIONS, "self.crashes.saturating_sub(self.crashes_survived)", "self.crashes"],
  ["rows on renewals not counted", OBSERVE, "if let Some(last) = last.filter(|_| self.counted", "if let Some(last) = last.filter(|_| false && self.counted"],
  ["lease given up under a pause taken for a loss", WRITE, "                || (!unchanged && found.document.was_released_by(holder))\n", "                || (false && !unchanged)\n"],
  ["released grant forgotten", TRANSITIONS, "        self.lease.released.note(self.lease.fencing_token);\n", ""],
  ["successor's commit of the same batch taken for ours", TRANSITIONS, "            && self.checkpoint.fencing_token == Some(holder.token)\n", ""],
  ["changing version met without a pause", WRITE, "} else if rebased {", "} else if false && rebased {"],
  ["garbled read ends a write", DOCUMENT_STORE, "                Ok((found, _)) => return Ok(found),\n", "                Ok((found, _)) => return Ok(found),\n                Err(error @ LoadError::Format(_)) => return Err(error),\n"],
  ["wrong date believed", DATE_CHECK, "if self.counts(&mut history, loaded.date, now) {", "if self.counts(&mut history, loaded.date, now) || true {"],
  ["wrong date of a cold process believed", DATE_CHECK, "None => unchanged_since,", "None => stored.last_modified,"],
  ["lease kept though the target is ahead of the state", NOT_TAKEN_BY, "if !self.lease.is_newest_grant().await.unwrap_or(false) {", "if true {"],
  ["grant raised to the fence and not above it", RESTORED, "next.lease.fencing_token = fence.token;\n        let mut next = next.break_lease()?;", "next.lease.fencing_token = fence.token;"],
  ["marker of a later document overwritten", MEMORY, "if found.generation >= marker.generation {", "if false && found.generation >= marker.generation {"],
  ["handler not stopped while a renewal hangs", HOLD, "() = sleep_until(deadline) => return Err(LeaseError::Lapsed),", "() = sleep_until(deadline + Duration::from_secs(86_400)) => return Err(LeaseError::Lapsed),"],
  ["what the source wants kept sticks", LEASE, "(&self.holder, self.marked, self.remember.take());", "(&self.holder, self.marked, self.remember.clone());"],
  ["file tag repeated after a loss", FILE_STORE, "tag: before.max(floor) + 1,", "tag: before.max(0 * floor) + 1,"],
  ["own late prefix taken for a loss", WRITE, "let moved_by_us = unconfirmed_front.is_some() && found_at == unconfirmed_front;", "let moved_by_us = false && found_at == unconfirmed_front;"],
  ["prefix taken for the failure behind it", WRITE, "batch_id.filter(|id| committed_before != Some(*id))", "batch_id.filter(|_| committed_before.is_none() || true)"],
  ["verified and then written blindly", DOCUMENT_STORE, "let precondition = Precondition::Matches(etag.clone());", "let read = self.store.load(self.key).await?.stored.map(|stored| stored.etag);\n        if read.as_ref() != Some(etag) {\n            return Err(StoreError::Conflict { key: self.key.path() });\n        }\n        let now = self.store.load(self.key).await?.stored;\n        let precondition = now.map_or(Precondition::Absent, |now| Precondition::Matches(now.etag));"],
  ["no If-Match in memory", MEMORY_STORE, "(Precondition::Matches(etag), Some(stored)) => *etag == stored.etag,", "(Precondition::Matches(etag), Some(stored)) => *etag == stored.etag || true,"],
  ["no If-Match in a file", FILE_STORE, "(Precondition::Matches(etag), Some(stored)) => *etag == stored.etag,", "(Precondition::Matches(etag), Some(stored)) => *etag == stored.etag || true,"],
  ["no If-Match in a table", STATEMENT, "WHERE [app] = @P1 AND [name] = @P2 AND [etag] = CAST(@P4 AS binary(8)) \\", "WHERE [app] = @P1 AND [name] = @P2 AND @P4 = @P4 \\"],
  ["refused write taken for an unknown one", CONTAINER, "412 => !answer.code.starts_with(\"Lease\"),", "412 => false,"],
  ["committed before the handler", TICK, "                Box::pin(held.deliver()).await?;\n", "                let early = Box::pin(held.next()).await;\n                held.commit(&early).await?;\n                Box::pin(held.deliver()).await?;\n"],
  ["next handler goes on though the commit failed", HOLD, "committed = &mut commit => committed.map(|()| None),", "committed = &mut commit => committed.or(Ok(())).map(|()| None),"],
  ["result taken though the commit before it failed", HOLD, "commit.await.and(ended)", "commit.await.or(Ok(())).and(ended)"],
  ["result taken without waiting for the commit before it", HOLD, "commit.await.and(ended)", "ended"],
  ["next handler goes on under a newer lease", HOLD, "self.still_held().map(|()| ended)", "Ok(ended)"],
  ["next handler held to the lease as hoped for", HOLD, "let (stop_at, deadline) = (self.context.stop_at, self.deadline());", "let (stop_at, deadline) = (self.context.stop_at, self.deadline() + self.context.terms.ttl);"],
  ["write overtakes a commit", LEASE, "        self.settle().await?;\n", ""],
  ["commit overlapped unasked", OVERLAP, "self.flow.overlap_commit\n            && self.handler", "self.handler"],
  ["commit overlapped of rows that failed before", OVERLAP, "\n            && !has_failed_before(work, self.lease.expected())", ""],
  ["commit overlapped where one crash sets rows aside", OVERLAP, ">= OVERLAP_CRASHES_MIN", ">= OVERLAP_CRASHES_MIN - 1"],
  ["commit beside a handler not counted", DELIVER, "                    self.note_commit_alongside();\n", ""],
  ["batch in the air not counted", FETCH, "self.report.batches() + u64::from(self.lease.is_committing());", "self.report.batches();"],
  ["rows read ahead delivered though the commit failed", TICK, "held.commit(&next).await?;", "drop(held.commit(&next).await);"],
  ["rows read ahead from where the batch in hand began", BATCH, "let position = Position::under(document, Some(self.batch.upto.clone()));", "let position = Position::under(document, self.batch.at.after.clone());"],
  ["rows read ahead delivered though others lie before them", AHEAD, "prefetch.filter(|prefetch| prefetch.continues(&self.work, self.lease.expected()))?;", "prefetch?;"],
  ["read that failed since nobody listened not made again", AHEAD, "let was_unpolled = self.unpolled.started_at.is_some();", "let was_unpolled = false;"],
  ["rows asked for behind what may not be one batch", AHEAD, "is_sure_to_fit(shape, rows, poller.limits.batch_bytes_max).then_some((end, kept))", "Some((end, kept))"],
  ["rows asked for that no batch would take", AHEAD, "self.may_continue_by(2)", "self.may_continue_by(1)"],
  ["rows asked for without what the batch in hand wants kept", AHEAD, "kept.unwrap_or_else(|| self.work.end(document).1)", "kept.unwrap_or_else(|| document.source_state.clone())"],
  ["rows read ahead kept though the batch was not taken", DELIVER, "                    self.prefetch = None;\n", ""],
  ["read ahead that failed not made again", AHEAD, "return read.ok().map(Ok)", "return Some(read)"],
  ["read ahead of rows that failed before", AHEAD, "work.isolation.is_suspected() || !untroubled", "work.isolation.is_suspected() || (false && !untroubled)"],
  ["range read again cut to the next batch's size", FETCH, "            || self.batch_rows(),\n            |batch| usize::try_from(batch.rows).unwrap_or(0).max(self.limits.batch_rows_max),", "            || self.batch_rows(),\n            |_| self.batch_rows(),"],
  ["source followed past the tick's time", FLOW, "self.time.min(tick_time_max)", "self.time.max(tick_time_max)"],
  ["source followed after a stop", ANEW, "        stop.rest(pause).await;\n        !stop.is_set()", "        stop.rest(pause).await;\n        true"],
  ["slow handler given more", SIZE, "let wanted = if last.took > half {", "let wanted = if last.took > half && false {"],
  ["rows beside the checkpoint's skipped", QUERY, "Some(bound(&self.position(params, &self.bases.after), [\">\", \">\", \">=\"]))", "Some(format!(\"t.{} > {}\", quote(&self.cursor.name), self.leading(params)))"],
  ["redirect taken for a success", REPLY, "200..=299 => judge_success(target, received, events),", "200..=399 => judge_success(target, received, events),"],
  ["announced batch delivered under a pause", TICK, "Ok(Next::Work(next)) if !held.is_blocked() =>", "Ok(Next::Work(next)) if !held.is_blocked() || true =>"],
  ["entry taken under another's name", ENTRIES, "if *key != entry.state_key() {", "if false {"],
  ["position of a cleaned-up change kept", CURRENT, "} else if kept {", "} else if kept || true {"],
  ["replay goes on at a target that is at fault", REDRIVE, "if blame == Blame::Target {", "if false {"],
  ["redrive faster than its rate", REDRIVE, "next_at = Instant::now() + redrive.interval;", "next_at = Instant::now() + redrive.interval / 2;"],
  ["lease of a redrive not renewed between rows", REDRIVE, "lease.hold_while(redrive.stop.rest(wait)).await?;", "redrive.stop.rest(wait).await;"],
  ["rows that had a whole tick tried whole again", DELIVER, "                let given = if progressed || self.report.is_late_start() {", "                let given = if progressed || true {"],
  ["fence of a target not asked", SQL, "        self.pass_fence(transaction).await?;\n", ""],
  ["fence of a target not raised", SQL, "current.admit(generation, token)? == *current => return Ok(()),", "current.admit(generation, token)? >= *current => return Ok(()),"],
  ["refused batch committed in part", SQL, "            transaction.rollback().await;\n            return Err(failed);", "            drop(transaction.commit().await);\n            return Err(failed);"],
  ["ledger ignored", SQL, ".filter(|row| new.contains(&binary(&row.event.id)))", ".filter(|row| new.len() < 100_000 || new.contains(&binary(&row.event.id)))"],
  ["ledger forgets while events come again", SQL, "\n            && new.len() == self.rows.len()", ""],
  ["replay left out by the ledger", SQL_TEXT, " \\\n         AND l.[replay_id] = @P3", ""],
  ["more parameters than a server takes", SQL_TEXT, "PARAMETERS_MAX: usize = 2_098;", "PARAMETERS_MAX: usize = 2_100;"],
  ["first state of a row written", SQL_PLAN, "last.insert(key.collect::<Result<_, _>>()?, index);", "last.entry(key.collect::<Result<_, _>>()?).or_insert(index);"],
  ["text cut by its cast", SQL_FORM, "let narrow = if is_key { \"8000\" } else { \"max\" };", "let narrow = if is_key { \"8000\" } else { \"5\" };"],
  ["digits cut from a decimal", SQL_FORM, "if is_number && fraction.trim_end_matches('0').len() <= scale {", "if is_number && fraction.len() <= 40 + scale {"],
  ["write that is told of without a number", ENTRY, "document.journal_seq = document.journal_seq.saturating_add(1);", "document.journal_seq = document.journal_seq.saturating_add(0);"],
  ["line of a write that another has made", RECORD, "let wrote = event.writes() && is_ours;", "let wrote = event.writes() && (is_ours || true);"],
  ["line that builds on one that is missing", RECORD, "base.generation == next.generation && base.journal_seq.checked_add(1) == Some(next.journal_seq)", "base.generation == next.generation"],
  ["append that failed built on", RECORD, "(Some(_) | None, _) => self.recorded = None,", "(Some(_) | None, _) => {}"],
  ["changes kept that build on a failed append", RECORD, "if entry.changes.take().is_some() {", "if entry.changes.is_some() {"],
  ["append that was dropped built on", RECORD, "if self.is_appending {", "if self.is_appending && false {"],
  ["journal appended only when a tick ends", POLLER_JOURNAL, "timeout(self.terms.heartbeat_interval, &mut end)", "timeout(self.terms.heartbeat_interval * 1000, &mut end)"],
  ["journal that differs not reported", RECOVERY, "&& let Some(judged) = judge::journal_differs(name, &verdict)", "&& let Some(judged) = judge::journal_differs(name, &verdict).filter(|_| false)"],
  ["day without a snapshot", RECORD, "if *of_day == day && follows(base, document)", "if *of_day <= day && follows(base, document)"],
  ["gap in a history not named", FOLD, "            && !follows\n", "            && false\n"],
  ["changes put onto another document", FOLD, "(None, Some(last), Some(changes)) if follows =>", "(None, Some(last), Some(changes)) =>"],
  ["second write of a number passed over", FOLD, "if entry.write_id != self.write_id {", "if false {"],
  ["dropped history still folded", FOLD, "        entries.drain(..begin);\n", ""],
  ["old copy taken for the document", VERIFY, "if place(document) < place(history) {", "if false {"],
  ["difference passed over", VERIFY, "if journal == document || is_unrecorded(&pointer) {", "if journal == document || is_unrecorded(&pointer) || pointer == \"/checkpoint\" {"],
  ["removed journal taken for one that has not begun", RECORD, "document.journal_told |= self.recorded_before;", "let _ = self.recorded_before;"],
  ["escape in a query let through", TSQL, "if tokens.iter().any(|token| token.text == \"{\") {", "if false {"],
  ["line appended wherever the part ends", JOURNAL_SQL, "WHERE @P4 = 0 OR EXISTS (SELECT 1 FROM {table}", "WHERE @P4 >= 0 OR EXISTS (SELECT 1 FROM {table}"],
  ["line appended where the file does not end", JOURNAL_FILE, "if complete != position {", "if false {"],
  ["file dropped with what was appended since", JOURNAL_FILE, "if wanted.is_some() && wanted != Some(self.length_blocking(part)?) {", "if false {"],
  ["own lines of a lost answer appended again", APPENDER, "            if contains(&written_after, &append.bytes) {", "            if false && contains(&written_after, &append.bytes) {"],
  ["history looked for where it was dropped", APPENDER, "if written_after.is_empty() && matches!(error, StoreError::Conflict { .. }) {", "if false {"],
  ["pause of a tick not told of", LEASE, "if pauses && !is_recorded { EventKind::Paused } else { event }", "event"],
  ["what rides on a renewal not told of", ENTRY, "event.or_else(|| rode.then_some(Self::Noted))", "event.or_else(|| rode.then_some(Self::Noted).filter(|_| false))"],
  ["note of an idle tick not told of", MEMORY, "self.has_news |= !is_known;", "self.has_news &= !is_known;"],
  ["journal without a line never explained", VERIFY, "document.filter(|_| folded.findings.is_empty())", "document.filter(|_| folded.findings.is_empty() && false)"],
  ["lines that lead nowhere explained", VERIFY, "document.filter(|_| folded.findings.is_empty())", "document"],
  ["restored document under its old generation", RESTORED, "        next.generation = generation;\n", ""],
  ["restored document with a token that was given", RESTORED, "token.max(self.lease.fencing_token)", "self.lease.fencing_token"],
  ["restored document with its old holder", RESTORED, "next.lease.released = ReleasedGrants::default();\n        let mut next = next.break_lease()?;", "let mut next = Self { lease: crate::document::LeaseRecord { fencing_token: next.break_lease()?.lease.fencing_token, ..next.lease.clone() }, ..next };"],
  ["restored document without a marker of its own", RESTORED, "        next.marked = false;\n", ""],
  ["document replaced under a held lease", RESTORE, "if let Some(owner_id) = present.held_by.clone() {", "if let Some(owner_id) = present.held_by.clone().filter(|_| false) {"],
  ["generation of a restored document not above the marker's", RESTORE, "known.max(marker.map_or(Generation(0), |marker| marker.generation))", "known.max(marker.map_or(Generation(0), |_| Generation(0)))"],
  ["damaged document's generation not looked at", RESTORE, "number(\"/generation\")", "number(\"/nothing\")"],
  ["document replaced unsaved", RESTORE, "                Err(error) => return Err(error.into()),\n            }\n        }\n        Err(RestoreError::Moved)", "                Err(_) => return Ok((generation, None)),\n            }\n        }\n        Err(RestoreError::Moved)"],
  ["history dropped before the new one is there", HISTORY, "        if !is_there {", "        if false && !is_there {"],
  ["part dropped with what was appended since", HISTORY, "store.remove(&part, Some(length)).await", "store.remove(&part, Some(length).filter(|_| false)).await"],
  ["way forward taken for none", DIRECTION, "Ordering::Greater => Self::Forward,", "Ordering::Greater => Self::Stays,"],
  ["skip between two keys not asked about", DIRECTION, "Self::ByKey => Self::Forward,", "Self::ByKey => Self::Back,"],
  ["reset beyond what the source has", DIRECTION, "Some(Ordering::Greater) => Err(beyond(present.value.clone())),", "Some(Ordering::Greater) => Ok(()),"],
  ["way forward that nobody agreed to", RESET, "self.direction == Direction::Forward || !self.skipped.is_none()", "!self.skipped.is_none()"],
  ["reset planned under a held lease", RESET, "if let Some(owner_id) = present.held_by.clone() {", "if let Some(owner_id) = present.held_by.clone().filter(|_| false) {"],
  ["reset into another source unasked", RESET, "other.filter(|_| !new_source)", "other.filter(|_| !new_source && false)"],
  ["live lease broken unasked", RESTORED, "if lives && even_live {", "if lives {"],
  ["clone made over a document", DUPLICATE, "if !is_free {", "if false {"],
  ["clone under the name of a poller that ran", DUPLICATE, "other.read_marker().await.map_err(RestoreError::from)?.is_some()", "other.read_marker().await.map_err(RestoreError::from)?.is_some() && false"],
  ["range overtakes the poller", RANGE, "        Ordering::Less => Ok(upto),", "        Ordering::Less | Ordering::Greater => Ok(upto),"],
  ["range ends behind the checkpoint's key", RANGE, "Ordering::Equal if upto.key.is_empty() => Ok(checkpoint.clone()),", "Ordering::Equal if upto.key.is_empty() => Ok(upto),"],
  ["gap between two windows", RANGE, "after: after.replace(upto.clone()), upto", "after: after.replace(upto.clone()).and(after.clone()), upto"],
  ["range read on past its end", FETCH, ".or(position.end.as_ref())", ".or(position.end.as_ref().filter(|_| false))"],
  ["last row of a range left out", QUERY, "Some(format!(\"t.{cursor} <= {}\", self.leading(params)))", "Some(format!(\"t.{cursor} < {}\", self.leading(params)))"],
  ["row before a range delivered", QUERY, "Some(format!(\"t.{cursor} > {}\", self.leading(params)))", "Some(format!(\"t.{cursor} >= {}\", self.leading(params)))"],
  ["changes up to a whole version not bounded", TRACKING, "if operators == UPTO {", "if operators == UPTO && false {"],
  ["range delivered under the poller's own document", POLLER, "Self { range_of: Some(poller.to_owned()), start_now: true, ..self }", "Self { key: crate::store::StateKey::Document(poller.to_owned()), range_of: Some(poller.to_owned()), start_now: true, ..self }"],
  ["range without a document begun by a tick", POLLER, "Self { range_of: Some(poller.to_owned()), start_now: true, ..self }", "Self { range_of: Some(poller.to_owned()), ..self }"],
  ["range done before a read finds nothing", RANGES, "Ok(TickOutcome::Committed { .. })\n                | Err(", "Ok(TickOutcome::Committed { .. }) => self.end_range().await?,\n                Err("],
  ["range that was given up delivered on", RANGE_STATE, "self.range.as_ref().is_some_and(cancelled)", "self.range.as_ref().is_some_and(|range| false && cancelled(range))"],
  ["backfill that was given up still told of", RANGE_STATE, "self.done_at.is_some() || self.cancelled_at.is_some()", "self.done_at.is_some()"],
  ["older state of a row written over a newer one", SQL, "if replay_guard.rows.are_unchanged().await? {", "if replay_guard.rows.are_unchanged().await? || true {"],
  ["poller's fence not locked by a range", SQL, "let mut name = self.of_app(replay_guard.poller);", "let mut name = self.of_app(self.delivery.poller);"],
  ["result of other bytes counts", STEPS, "self.step == step && self.digest == *digest && ", "self.step == step && (true || self.digest == *digest) && "],
  ["results kept for other bytes", STEPS, "Some(previous) if previous.batch_id == self.batch_id => Self {", "Some(previous) if true || previous.batch_id == self.batch_id => Self {"],
  ["results survive into the next batch", TRANSITIONS, "AfterCommit::Announce(batch) => next.in_flight = Some(batch.announced(commit.now)),", "AfterCommit::Announce(batch) => {\n                let steps = next.in_flight.take().map(|done| done.steps).unwrap_or_default();\n                next.in_flight = Some(InFlight { steps, ..batch.announced(commit.now) });\n            }"],
  ["row set aside by a slow step before the one that failed", CALL, "if fails_later { None } else", "if fails_later && false { None } else"],
  ["result kept before the step ran", HANDLE, "            self.call_one(batch, call).await?;\n            if !is_last {\n                self.store_result(batch, index, &step.name).await?;\n            }\n", "            if !is_last {\n                self.store_result(batch, index, &step.name).await?;\n            }\n            self.call_one(batch, call).await?;\n"],
  ["step called before the last result is written", HANDLE, "        kept.map_err(|error| CallFailure::Lost(TickError::LeaseLost(error)))?;\n", "        drop(kept);\n"],
  ["steps done called again", HANDLE, ".enumerate().skip(done)", ".enumerate().skip(done * 0)"],
  ["batch begins anew at each attempt", STEPS, "started_at: previous.started_at,", "started_at: None,"],
  ["front that one step took committed", HANDLE, "&& *accepted > 0\n            && !self.is_last\n", "&& *accepted > 0\n            && false\n"],
  ["step accepts for the chain", HANDLE, "call.step.is_none() && poller.may_commit", "poller.may_commit"],
  ["throttled token endpoint asked again", TOKEN_CLIENT, "Some(rest) if rest > PAUSE_MAX => return Err(pause_requested(request, rest)),", "Some(rest) if rest > PAUSE_MAX => {}"],
  ["pause of a token endpoint forgotten with who waited", TOKEN_CLIENT, "            self.pause.start(pause);\n", ""],
  ["secret of a token request told", TOKEN_CLIENT, "fields.for_each(|(_, value)| hold_token(&value));", "drop(fields);"],
  ["secret left in a text", REDACTION, "redacted.push_str(MARK);", "redacted.push_str(text.get(start..end).unwrap_or_default());"],
  ["escaped secret not found", REDACTION, "let Some(next) = layer.unescaped(escapes) else { break };", "let Some(next) = layer.unescaped(escapes).filter(|_| false) else { break };"],
  ["secret cut before it is searched for", REDACTION, "text.trim().chars().take(chars_max).map(printable_char).collect()", "redact(&String::from_utf8_lossy(bytes).trim().chars().take(chars_max).map(printable_char).collect::<String>()).into_owned()"],
  ["child process inherits the environment", EXEC_SETTINGS, "names.retain(is_inherited);", ""],
  ["state file open to others", STATE_LOCAL, "FILE_MODE: u32 = 0o600", "FILE_MODE: u32 = 0o644"],
  ["newer C library packed", ELF, "Some(numbers) if numbers <= GLIBC_MAX => ", "Some(numbers) if numbers <= GLIBC_MAX || true => "],
  ["steps share the batch id", EVENT, "        update_sized(&mut hash, step.as_bytes());\n", ""],
  ["rows of other parts read", QUERY, "self.partition.map(|partition| partition::condition(partition, self.key, \"t\"))", "self.partition.map(|_| partition::condition).and(None)"],
  ["changes of other parts read", TRACKING, "        conditions.extend(self.of_partition(\"c\"));\n", ""],
  ["row without a key of no part", PARTITION, "format!(\"ISNULL({converted}, N'')\")", "converted"],
  ["number of parts not in the fingerprint", ORIGIN, "parts.extend(partition.as_deref().map(|partition| (\"partition\", partition)));", "drop(partition);"],
  ["part begun beside another division", KIN, "|| stored == configured", "|| stored == stored"],
  ["document of another part put in place", RESTORE, "document.partition == self.partition && document.taken_over_by.is_none()", "document.taken_over_by.is_none()"],
  ["document that others took over put in place", RESTORE, "document.partition == self.partition && document.taken_over_by.is_none()", "document.partition == self.partition"],
  ["division not written down before the first row", KIN, "            self.create_first(&first).await?;\n", ""],
  ["first part that lost its document taken for a new one", KIN, "            self.refuse_vanished(&first, marker.created_at).await?;\n", ""],
  ["reset beside another division", RESET, "Ok(Some(document)) => self.poller.reject_partition_count_of(document)?,", "Ok(Some(_)) => {}"],
  ["look at a part writes its division down", PEEK, "self.poller.read_to(false)", "self.poller.read_to(true)"],
  ["old part read past the bound", BOUNDED, "Some(window.upto.filter(ends_before).unwrap_or(&self.upto))", "window.upto.filter(ends_before)"],
  ["bound behind a checkpoint", DIVIDED, "Some(Some(std::cmp::Ordering::Less)) | None", "Some(Some(std::cmp::Ordering::Greater)) | None"],
  ["part that reads the table bounded by changes", DIVIDED, "checkpoint.is_some_and(reads_changes)", "checkpoint.is_some()"],
  ["windows left unread by new parts", DIVIDED, "Some(if is_earlier { begins.clone() } else { earliest })", "Some(if false { begins.clone() } else { earliest })"],
  ["blank document of a part outranks one that delivered", REPARTITION, "let parts = if has_position(&document) { &mut placed } else { &mut announced };", "let parts = &mut placed;"],
  ["new parts begun before the old ones came to the bound", REPARTITION, "if !record.caught_up {", "if false {"],
  ["text of others becomes markup", MARKUP, "'<' => out.push_str(\"&lt;\"),", "'<' => out.push('<'),"],
  ["text of others ends an attribute", MARKUP, "'\"' => out.push_str(\"&quot;\"),", "'\"' => out.push('\"'),"],
  ["page answers under anybody's name", GUARD, "if self.names.contains(&name) || name == \"localhost\" {", "if true || self.names.contains(&name) {"],
  ["form of another page's counts", PAGE_SERVER, "if !is_same_origin(", "if false && !is_same_origin("],
  ["form without the page's token counts", PAGE_SERVER, "if !is_token(", "if false && !is_token("],
  ["done unconfirmed from the page", PAGE_SERVER, "if field(\"confirm\") != \"yes\" {", "if false && field(\"confirm\") != \"yes\" {"],
  ["host does not start and validate passes it", HOST_FILE, 'if json.get("version") != Some(&Json::from("2.0")) {', "if false {"],
  ["settings of the host that override its file not read", HOST_FILE, "put(json, &path, value);", "drop(value);"],
  ["forgotten slot not told", JUDGE, "let since = subject.configured?.skipped_since?;", "let since = subject.configured?.skipped_since.filter(|_| false)?;"],
  ["ticks climb past a fence", TRANSITIONS, "if let Some(refused) = self.fence_ahead() {", "if let Some(refused) = self.fence_ahead().filter(|_| false) {"],
  ["status page for everybody", FUNCTION_FILE, 'let is_open = name == HEALTH_FUNCTION && is("anonymous");', 'let is_open = is("anonymous");'],
  ["a tick waits for a collector that hangs", EXPORT, "timeout(FLUSH_TIME_MAX, wait)", "timeout(FLUSH_TIME_MAX * 100, wait)"],
  ["each tick waits for a collector that hangs", EXPORT, "self.is_stuck.store(true, Ordering::Relaxed);", ""],
  ["log line overtakes those that were dropped", LINES, "self.dropped == 0 && fits", "fits"],
  ["dropped log lines not reported", LINES, "std::mem::take(&mut buffer.dropped);", "std::mem::take(&mut buffer.dropped) * 0;"],
  ["log stream that stays stalled", LINES, "buffer.is_stalled = false;", ""],
  ["a whole address is in a span", HTTP_SPAN, "server.address = url.host_str(),", "server.address = url.as_str(),"],
  ["an idle tick counts rows", BEHIND, "Ok(TickOutcome::Idle) => Some(false),", "Ok(TickOutcome::Idle) => Some(true),"],
  ["a count that took long made again at once", BEHIND, "if !in_time || !memory.may_count() {", "if !in_time {"],
];

// The package of each folder of `src` that has breaks.
const PACKAGES = {
  app: "highwater",
  azure: "highwater-azure",
  cli: "highwater-cli",
  engine: "highwater-engine",
  mssql: "highwater-mssql",
};
// The package of each suite below `tests` that is asked.
const OWNERS = { engine: "highwater-engine", sim: "highwater-engine", it: "highwater-cli" };

const root = new URL("..", import.meta.url).pathname;
const copy = join(root, "target", "mutant");
const words = process.argv.slice(2);
const isMechanical = ["complete", "elsewhere"].includes(words[0]);
// The simulation, which named breaks are also tried with, needs the optimised engine of the test profile.
const PROFILES = isMechanical ? ["dev", "test"] : ["dev"];
const UNOPTIMISED = Object.values(PACKAGES).flatMap((name) => PROFILES.flatMap((profile) => ["--config", `profile.${profile}.package.${name}.opt-level=0`]));
if (words.some((word) => word.startsWith("-"))) {
  console.error("usage: node .ci/mutants.mjs [applies | NUMBER | WORD... | complete [SHARD/SHARDS | NUMBER | WORD...] | elsewhere NUMBER | elsewhere WORD...]");
  process.exit(words.includes("--help") ? 0 : 2);
}

// The variable that chooses a break, and how long one may keep a suite busy.
const CHOSEN_BY = "BROKEN_RULE";
const SUITE_TIME_MAX = 300_000;
// Mechanical mutants include endless loops. Such a mutant counts as caught, as with `cargo mutants`.
// The unbroken copy needs a few seconds.
const MECHANICAL_TIME_MAX = 120_000;
// An endless loop may also allocate: the address space of a suite, in KiB.
const ADDRESS_SPACE_MAX = 16_000_000;
/** What a suite prints of a test that failed. */
const FAILED_TEST = /^test .* \.\.\. FAILED$/m;

const MODULES = ["state::", "document::", "store::", "tick::", "admin::", "lease::", "poller::", "event::", "value::", "repartition::", "handler::", "normalize::", "source::", "policy::", "quarantine::", "mssql::", "sql_connection::", "token::", "patient::", "elf::", "user_password::", "tsql::", "filter::", "audit::", "journal::", "recovery::", "range::", "page::", "project::", "telemetry::", "trace::"];
// What takes most of the time is asked last, and not at all where no break is about it.
const SLOW = [
  "journal::tests::a_crash_between_a_write_and_its_append",
  "journal::tests::folding_a_complete_journal",
  "recovery::tests::ten_thousand_documents",
  "poller::delivered_ids::tests::the_oldest_ids_are_dropped",
  "handler::exec::tests::lines_on_standard_output_report_failed_events",
];
const SLOW_ENGINE = ["failures::one_rejected_row_in_ten_thousand", "failures::a_receiver_that_rejects_everything"];
const NEVER = ["a_hundred_megabytes"];
const skip = (names) => names.flatMap((name) => ["--skip", name]);
const QUICK = [...MODULES, ...skip([...SLOW, ...NEVER])];
// What is asked, in this order: a target, and which of its tests. Those of a package are its unit tests.
function suitesOf([, file]) {
  const unit = PACKAGES[file.split("/")[1]];
  const quick = ["app", "engine"].includes(file.split("/")[1]) ? QUICK : skip([...SLOW, ...NEVER]);
  // There are hundreds of mechanical mutants, so only quick tests are asked about them, and of the engine all of these.
  if (isMechanical && unit === PACKAGES.engine) return [[unit, skip([...SLOW, ...NEVER])], ["engine", skip(SLOW_ENGINE)]];
  if (isMechanical) return [[unit, quick]];
  if (unit === PACKAGES.engine) {
    return [[unit, quick], ["engine", skip(SLOW_ENGINE)], [unit, SLOW], ["engine", SLOW_ENGINE], ["sim", []]];
  }
  if (file.startsWith("src/mssql/handler")) return [[unit, quick], ["it", ["sql_handler"]]];
  return [[unit, quick], [unit, SLOW], ["sim", []]];
}

function chosen() {
  if (words.length === 0) return BREAKS;
  const argument = words[0];
  if (!/^\d+$/.test(argument)) return BREAKS.filter(([name]) => words.some((word) => name.includes(word)));
  const commits = execFileSync("git", ["rev-list", "--count", "HEAD"], { cwd: root });
  const first = Number(commits) * Number(argument);
  return Array.from({ length: Number(argument) }, (_, n) => BREAKS[(first + n) % BREAKS.length]);
}

const applies = ([, file, find]) => readFileSync(join(root, file), "utf8").split(find).length === 2;

// Files whose content is new get a new time stamp, so that cargo sees them; others keep theirs.
function prepare() {
  rmSync(copy, { recursive: true, force: true });
  mkdirSync(copy, { recursive: true });
  for (const name of ["Cargo.toml", "Cargo.lock", ".clippy.toml", "LICENSE", "src", "function-definitions", "host.json", "local.settings.json.example", "tests", "docs", "README.md"]) {
    cpSync(join(root, name), join(copy, name), {
      recursive: true,
      preserveTimestamps: true,
      filter: (path) => !path.includes("node_modules"),
    });
  }
  // As another version they are other packages to cargo. Else the two would share what is built below `target`, and
  // a later `cargo test` in the tree would run the copy's tests.
  const versions = { "Cargo.toml": /(\[workspace\.package\]\nversion = ")([^"]*)"/g, "Cargo.lock": /(name = "highwater[a-z-]*"\nversion = ")([^"]*)"/g };
  for (const [name, own] of Object.entries(versions)) {
    const path = join(copy, name);
    const text = readFileSync(path, "utf8");
    const changed = text.replace(own, '$1$2-broken"');
    if (changed === text) throw new Error(`${name} names no version of ours`);
    writeFileSync(path, changed);
  }
  const switches = `
/// Which rule is broken in this run; none where it is 0.
pub fn broken() -> u32 {
    static BROKEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *BROKEN.get_or_init(|| std::env::var("${CHOSEN_BY}").ok().and_then(|n| n.parse().ok()).unwrap_or(0))
}
`;
  for (const folder of Object.keys(PACKAGES)) {
    const path = join(copy, "src", folder, folder === "cli" ? "main.rs" : "lib.rs");
    writeFileSync(path, readFileSync(path, "utf8") + switches);
  }
}

// Blanks what is no code, so that braces can be counted: comments, texts and characters.
function code(source) {
  const blank = (text) => text.replace(/[^\n]/g, " ");
  const other =
    /\/\/[^\n]*|\/\*[\s\S]*?\*\/|\bb?r(#*)"[\s\S]*?"\1|b?"(?:[^"\\]|\\[\s\S])*"|b?'(?:[^'\\\n]|\\(?:u\{[^}]*\}|x..|.))'/g;
  return source.replace(other, blank);
}

// Returns where the body of each function begins and ends, inner ones behind the one they are in.
function bodies(source) {
  const text = code(source);
  const found = [];
  for (const { index } of text.matchAll(/\bfn\s+[a-z_]/g)) {
    let depth = 0;
    let open = index;
    for (; open < text.length; open += 1) {
      if ("([".includes(text[open])) depth += 1;
      if (")]".includes(text[open])) depth -= 1;
      if (depth === 0 && "{;".includes(text[open])) break;
    }
    if (text[open] !== "{") continue;
    let braces = 0;
    let close = open;
    for (; close < text.length; close += 1) {
      if (text[close] === "{") braces += 1;
      if (text[close] === "}" && (braces -= 1) === 0) break;
    }
    found.push([open, close + 1]);
  }
  return found;
}

const sourceOf = (file) => readFileSync(join(root, file), "utf8");
// Where the text that a break replaces begins. A mechanical mutant knows it; the text of others occurs once.
const placeOf = (one, original) => one[4] ?? original.indexOf(one[2]);
function brokenBy(one, original) {
  const at = placeOf(one, original);
  return original.slice(0, at) + one[3] + original.slice(at + one[2].length);
}

// Builds the chosen breaks into the copy of a file. Returns for each function that has some the lines
// they take there, so that an error of the compiler can be told whose it is.
function switched(file, breaks) {
  const original = sourceOf(file);
  const found = bodies(original);
  const functions = new Map();
  for (const one of breaks) {
    const at = placeOf(one, original);
    const around = found.filter(([open, close]) => open < at && at + one[2].length < close).at(-1);
    if (!around) alone.add(one);
    else functions.set(around[0], [...(functions.get(around[0]) ?? []), one]);
  }
  let text = original;
  const places = [];
  for (const open of [...functions.keys()].sort((a, b) => b - a)) {
    const [, close] = found.find((body) => body[0] === open);
    const body = original.slice(open, close);
    const arms = functions.get(open).map((one) => `${number(one)} => ${brokenBy(one, original).slice(open, close + one[3].length - one[2].length)}\n`);
    const whole = `{ match crate::broken() {\n${arms.join("")}_ => ${body}\n} }`;
    text = text.slice(0, open) + whole + text.slice(close);
    const lines = (part) => part.split("\n").length - 1;
    const inner = arms.map((arm, n) => [functions.get(open)[n], lines(arm)]);
    places.forEach((place) => (place.first += lines(whole) - lines(body)));
    const head = original.slice(original.lastIndexOf("fn ", open), open);
    places.push({ first: lines(original.slice(0, open)) + 1, length: lines(whole) + 1, inner, isOpaque: /-> .*\bimpl\b/s.test(head) });
  }
  const path = join(copy, file);
  if (readFileSync(path, "utf8") !== text) writeFileSync(path, text);
  return places;
}

const alone = new Set();
// Mechanical mutants that the compiler rejects.
const unviable = new Set();
const number = (one) => list.indexOf(one) + 1;

function build(...targets) {
  const result = spawnSync(
    "cargo",
    ["test", "--quiet", "--no-run", "--message-format=json", ...UNOPTIMISED, ...optionsOf(targets)],
    { cwd: copy, env, encoding: "utf8", maxBuffer: 1 << 30 },
  );
  const said = result.stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  for (const { executable, target, package_id } of said.filter((one) => one.executable && one.profile.test)) {
    const name = target.kind.includes("test") ? target.name : /#(.+)@/.exec(package_id)[1];
    executables[name] = executable;
  }
  const errors = said.filter((one) => one.reason === "compiler-message" && one.message.level === "error");
  return { built: result.status === 0, errors: errors.map((one) => one.message), text: result.stderr };
}

// A function that has all its broken bodies beside its own takes more of a test's stack than the program's.
const env = { CARGO_TARGET_DIR: join(root, "target"), ...process.env, RUST_BACKTRACE: "0", RUST_MIN_STACK: "16777216" };
const executables = {};
// What few breaks will ask for is built only once one does.
const isFew = () => isMechanical || /^\d+$/.test(words[0] ?? "");
// What tells cargo to build these targets, each option once: `--lib` may not be given twice.
const optionsOf = (targets) => {
  const packages = targets.map((target) => `--package=${OWNERS[target] ?? target}`);
  const kinds = targets.map((target) => {
    if (OWNERS[target]) return `--test=${target}`;
    return target === PACKAGES.cli ? "--bins" : "--lib";
  });
  return [...new Set([...packages, ...kinds])];
};
const targetsOf = (breaks) => {
  const asked = new Set(breaks.flatMap(suitesOf).map(([target]) => target));
  return [...asked].filter((target) => target !== "sim" || !isFew());
};

// Builds all that can be chosen at once; what the compiler refuses like that is left to be built alone.
function buildSwitched(breaks) {
  for (;;) {
    const files = new Map();
    for (const one of breaks.filter((one) => !alone.has(one) && !unviable.has(one))) files.set(one[1], [...(files.get(one[1]) ?? []), one]);
    for (const one of [...alone, ...unviable]) if (!files.has(one[1])) files.set(one[1], []);
    const places = new Map([...files].map(([file, some]) => [file, switched(file, some)]));
    const { built, errors, text } = build(...targetsOf(breaks));
    if (built) return;
    const before = alone.size + unviable.size;
    for (const { spans } of errors) {
      const some = spans.filter((span) => !isMechanical || span.is_primary);
      for (const span of some) refuse(places.get(span.file_name) ?? [], span.line_start);
    }
    if (alone.size + unviable.size > before) continue;
    console.error(`the copy does not build\n${errors.map((error) => error.rendered).join("\n")}\n${text}`);
    process.exit(1);
  }
}

function refuse(places, line) {
  const place = places.find(({ first, length }) => first <= line && line < first + length);
  if (!place) return;
  let begin = place.first + 1;
  for (const [one, lines] of place.inner) {
    // The error of a mechanical mutant in its own body is its own, unless all bodies must have one opaque type.
    if (begin <= line && line < begin + lines) return (isMechanical && !place.isOpaque ? unviable : alone).add(one);
    begin += lines;
  }
  place.inner.forEach(([one]) => alone.add(one));
}

// The unbroken copy is only to show that it runs: `cargo test` has played more worlds before.
const CONTROL = { SIM_CASES: "100" };

// Suites that start no other process, which can be ended at the first test that fails.
const ENDS_EARLY = [PACKAGES.engine, "engine", "sim"];

function passes([target, tests], choice) {
  return new Promise((done) => {
    const child = spawn("sh", ["-c", `ulimit -v ${ADDRESS_SPACE_MAX}; exec "$0" "$@"`, executables[target], ...tests], {
      cwd: copy,
      env: { ...env, ...(choice === 0 ? CONTROL : {}), [CHOSEN_BY]: String(choice), CARGO_MANIFEST_DIR: copy },
      stdio: ["ignore", "pipe", "ignore"],
    });
    let said = "";
    let ended = true;
    const end = () => {
      ended = false;
      child.kill("SIGKILL");
    };
    const timer = setTimeout(end, isMechanical && choice !== 0 ? MECHANICAL_TIME_MAX : SUITE_TIME_MAX);
    child.stdout.setEncoding("utf8");
    child.stdout.on("data", (text) => {
      said += text;
      if (choice !== 0 && ENDS_EARLY.includes(target) && FAILED_TEST.test(said)) child.kill("SIGKILL");
    });
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      done({ passed: code === 0, ended: ended && signal === null, said });
    });
  });
}

// The copy as it is: where that fails, a break that "is caught" would prove nothing.
async function control(suites) {
  for (const suite of suites) {
    const { passed, said } = await passes(suite, 0);
    if (passed) continue;
    console.error(`the unbroken copy fails: ${suite.flat().join(" ")}\n${said.slice(-10_000)}`);
    return false;
  }
  return true;
}

async function verdict(one) {
  const file = one[1];
  if (unviable.has(one)) return "does not compile";
  if (!alone.has(one)) return asked(one);
  const original = sourceOf(file);
  writeFileSync(join(copy, file), brokenBy(one, original));
  try {
    const { built, errors } = build(suitesOf(one)[0][0]);
    return built ? await asked(one) : `does not compile\n${errors.map((error) => error.rendered).join("\n")}`;
  } finally {
    writeFileSync(join(copy, file), original);
  }
}

async function asked(one) {
  for (const suite of suitesOf(one)) {
    if (!alone.has(one) && !executables[suite[0]] && !(build(suite[0]).built && (await control([suite])))) return "cannot be asked";
    if (alone.has(one) && suite[0] !== suitesOf(one)[0][0] && !build(suite[0]).built) return "does not build";
    const { passed, ended, said } = await passes(suite, number(one));
    // A suite that was ended for its time proves nothing, since the machine may have been slow; but a test of it that
    // had failed by then does, though the break keeps another one from ending.
    if (!ended && !FAILED_TEST.test(said)) return `${isMechanical ? "caught: " : ""}did not end: ${suite[0]}`;
    if (!passed) return `caught by ${OWNERS[suite[0]] ? suite[0] : "its crate's tests"}`;
  }
  return "MISSED";
}

const stale = BREAKS.filter((one) => !applies(one));
for (const [name] of stale) console.error(`${name.padEnd(42)} no longer applies`);
if (stale.length > 0) process.exit(1);
if (words[0] === "applies") process.exit(0);
const { list, reasons } = isMechanical ? mechanical(root, words) : { list: chosen(), reasons: new Map() };
prepare();
buildSwitched(list);
const all = new Map(list.flatMap(suitesOf).map((suite) => [JSON.stringify(suite), suite]));
if (!(await control([...all.values()].filter(([target]) => executables[target])))) process.exit(1);
console.log("unbroken copy                              passes");
// What is built alone comes last, since it undoes the switches of its file.
const inOrder = [...list.filter((one) => !alone.has(one)), ...list.filter((one) => alone.has(one))];
let bad = 0;
const counts = { caught: 0, explained: 0, "does not compile": 0 };
// A mechanical mutant that does not compile shows nothing. A named break that does not compile is out of date.
function judged(one, found) {
  const isExplained = reasons.has(one[0]);
  if (found.startsWith("caught") && !isExplained) return "caught";
  if (found === "MISSED" && isExplained) return "explained";
  if (isMechanical && !isExplained && found.startsWith("does not compile")) return "does not compile";
  return undefined;
}
for (const one of inOrder) {
  const began = Date.now();
  let found = await verdict(one);
  // On a busy machine a test may fail by itself, which must not contradict an explanation.
  if (reasons.has(one[0]) && found.startsWith("caught")) found = await verdict(one);
  const kind = judged(one, found);
  if (kind) counts[kind] += 1;
  else bad += 1;
  const remark = reasons.has(one[0]) ? (kind ? ` (explained: ${reasons.get(one[0])})` : "; its explanation is out of date") : "";
  const short = isMechanical ? found.split("\n")[0] : found;
  if (kind === "does not compile") continue;
  console.log(`${one[0].padEnd(42)} ${short}${remark} (${Math.round((Date.now() - began) / 1000)} s)`);
}
rmSync(copy, { recursive: true, force: true });
const rest = isMechanical ? `, ${counts.explained} explained, ${counts["does not compile"]} do not compile, ${bad} to be fixed` : "";
console.log(`${counts.caught} of ${list.length} caught${rest}`);
process.exit(bad === 0 ? 0 : 1);

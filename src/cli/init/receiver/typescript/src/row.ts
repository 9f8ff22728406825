// The columns of @@table@@ as types, written by `highwater init` from the table.
//
// Decimals, dates and times are text with all their digits. A bigint is a `bigint`: a number of JavaScript would change
// it beyond 2^53. JSON.stringify rejects it, so convert it first.
import { base64, bool, column, float, int64, integer, nullable, object, text } from "./core/columns.js";

void [base64, bool, column, float, int64, integer, nullable, text];

// Identifies a row.
export interface Key {
@@key_fields@@
}

function keyFromJson(columns: Record<string, unknown>): Key {
  return {
@@key_values@@
  };
}

// A row in its current state.
export interface Row {
@@row_fields@@
}

function rowFromJson(columns: Record<string, unknown>): Row {
  return {
@@row_values@@
  };
}

// One change of a row.
export interface Change {
  id: string; // the same on every delivery of this state of the row
  op: string; // `upsert` or `delete`; with change tracking also `insert` and `update`
  key: Key;
  row: Row | null; // null for a deleted row
}

export function changeFromJson(event: Record<string, unknown>): Change {
  return {
    id: column(event, "id", text),
    op: column(event, "op", text),
    key: keyFromJson(column(event, "pk", object)),
    row: event.after === null ? null : rowFromJson(column(event, "after", object)),
  };
}

// The file to edit: what happens with each change of @@table@@.
import type { DatabaseSync } from "node:sqlite";
import type { Change } from "./row.js";

// Applies one change. `db` is in the transaction that also records the change's id: do not commit it.
//
// Throw EventFailed (core/receive.ts) if this change itself cannot be applied, such as a value that your target
// rejects. Let every other error pass: the whole batch is then redelivered later.
export async function handle(change: Change, db: DatabaseSync): Promise<void> {
  if (change.row === null) {
    console.log("deleted", change.key);
  } else {
    console.log(change.op, change.row);
  }
}

//! Settings of sources.

use super::Fallback::{Required, Text, Words};
use super::Setting;

pub(in crate::config) const SOURCE_CONNECTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CONNECTION",
    Required,
    "Name of the setting with the ADO.NET connection string.",
);
pub(in crate::config) const SOURCE_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__TABLE",
    Words("required without `SOURCE__QUERY`"),
    "Table or view, such as `dbo.orders`.",
);
pub(in crate::config) const SOURCE_QUERY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__QUERY",
    Words("none"),
    "One `SELECT` to read from instead of a table; requires `SOURCE__CURSOR` and `SOURCE__KEY`.",
);
pub(in crate::config) const SOURCE_MODE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__MODE",
    Text("rowversion"),
    "How rows are ordered: `rowversion`, `change_tracking`, `timestamp+pk`, `integer+pk`, or `auto` to \
     choose from what the table has.",
);
pub(in crate::config) const SOURCE_CURSOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CURSOR",
    Words("required except with `change_tracking` or `auto`"),
    "Column that grows with every change.",
);
pub(in crate::config) const SOURCE_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__KEY",
    Required,
    "Primary key columns, separated by commas; `[a,b]` is one name.",
);
pub(in crate::config) const SOURCE_COLUMNS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__COLUMNS",
    Words("all columns"),
    "Columns to deliver, separated by commas.",
);
pub(in crate::config) const SOURCE_COLUMNS_EXCLUDED: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__COLUMNS_EXCLUDED",
    Words("none"),
    "Columns not to deliver, separated by commas; instead of `SOURCE__COLUMNS`.",
);
pub(in crate::config) const SOURCE_MASK: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__MASK",
    Words("none"),
    "Columns to [mask](sources.md#masking), such as `email:sha256,phone:drop`: `drop` leaves a column out, `sha256` and \
     `hmac-sha256` replace each value by a hash.",
);
pub(in crate::config) const SOURCE_MASK_SECRET: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__MASK_SECRET",
    Words("required for `hmac-sha256`"),
    "Name of the setting with the secret of `hmac-sha256`, at least 16 characters.",
);
pub(in crate::config) const SOURCE_FILTER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__FILTER",
    Words("all rows"),
    "T-SQL condition that rows must meet; values as `@name`.",
);
pub(in crate::config) const SOURCE_FILTER_PARAMS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__FILTER_PARAMS__<PARAM>",
    Words("required for each `@param` of the filter"),
    "Value of that parameter, as text or with a type prefix: `int:5`, `varchar(9):EU`.",
);
pub(in crate::config) const SOURCE_SOFT_DELETE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__SOFT_DELETE",
    Words("none"),
    "Column that marks a row as deleted: a flag if it is not 0, any other type if it is not `NULL`.",
);
pub(in crate::config) const SOURCE_OPERATIONS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__OPERATIONS",
    Words("all"),
    "Operations to deliver, separated by commas: with `change_tracking` `insert,update` (always together) or \
     `delete`; in other modes `upsert` or, with `SOURCE__SOFT_DELETE`, `delete`.",
);
pub(in crate::config) const SOURCE_SETTLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__SETTLE",
    Text("5s"),
    "`timestamp+pk`, `integer+pk`: longest time between a write and its commit. Rows are delivered this \
     much later.",
);
pub(in crate::config) const SOURCE_CLOCK: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CLOCK",
    Text("utc"),
    "`timestamp+pk`: the clock that sets a cursor column without an offset, `utc`, `local` (the server's \
     time zone) or a fixed offset such as `+01:00`. Read [local time](sources.md#local-time) first.",
);
pub(in crate::config) const SOURCE_ON_SCHEMA_CHANGE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__ON_SCHEMA_CHANGE",
    Text("follow"),
    "When columns are added, removed or retyped: `follow` the change, or `stop`.",
);
pub(in crate::config) const SOURCE_AUDIT_AFTER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__AUDIT_AFTER",
    Words("off"),
    "`timestamp+pk`, `integer+pk`: how long after delivery a range is read again, to find and deliver \
     rows committed later than `SETTLE`.",
);
pub(in crate::config) const COUNT_ROWS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__COUNT_ROWS_MAX",
    Text("10000"),
    "Maximum number of pending rows to count when a tick leaves some; `0` disables the count.",
);
pub(in crate::config) const SOURCE_START: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__START",
    Text("beginning"),
    "Where a new poller starts: at the `beginning`, or `now` (at `highwater init`).",
);
pub(in crate::config) const PARTITIONS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PARTITIONS",
    Text("1"),
    "Number of partitions that share the keys, up to 64. Each runs in its own function, `<name>__p0` and \
     so on: [partitions](../how-to/partitions.md).",
);

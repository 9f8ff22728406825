//! Settings of sources.

use super::Fallback::{Required, Text, Words};
use super::Setting;

pub(in crate::config) const SOURCE_CONNECTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CONNECTION",
    Required,
    "Name of the setting that holds the ADO.NET connection string.",
);
pub(in crate::config) const SOURCE_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__TABLE",
    Words("required without `SOURCE__QUERY`"),
    "Table or view, such as `dbo.orders`.",
);
pub(in crate::config) const SOURCE_QUERY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__QUERY",
    Words("none"),
    "One `SELECT` to read from in place of a table; it needs `SOURCE__CURSOR` and `SOURCE__KEY`.",
);
pub(in crate::config) const SOURCE_MODE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__MODE",
    Text("rowversion"),
    "How rows are ordered: `rowversion`, `change_tracking`, `timestamp+pk`, `integer+pk`, or `auto` to \
     choose by what the table has.",
);
pub(in crate::config) const SOURCE_CURSOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CURSOR",
    Words("required but for `change_tracking`, `auto`"),
    "Column that grows with each change.",
);
pub(in crate::config) const SOURCE_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__KEY",
    Required,
    "Columns of the primary key, separated by commas; `[a,b]` is one name.",
);
pub(in crate::config) const SOURCE_COLUMNS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__COLUMNS",
    Words("all columns"),
    "Columns to deliver, separated by commas.",
);
pub(in crate::config) const SOURCE_COLUMNS_EXCLUDED: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__COLUMNS_EXCLUDED",
    Words("none"),
    "Columns not to deliver, separated by commas, in place of `SOURCE__COLUMNS`.",
);
pub(in crate::config) const SOURCE_FILTER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__FILTER",
    Words("all rows"),
    "Condition in T-SQL that rows must meet, with values as `@name`.",
);
pub(in crate::config) const SOURCE_FILTER_PARAMS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__FILTER_PARAMS__<PARAM>",
    Words("required for each `@param` of the filter"),
    "Value of that parameter, as text or with its type in front: `int:5`, `varchar(9):EU`.",
);
pub(in crate::config) const SOURCE_SOFT_DELETE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__SOFT_DELETE",
    Words("none"),
    "Column that tells that a row counts as deleted: a flag that is not 0, or anything else that is not `NULL`.",
);
pub(in crate::config) const SOURCE_SETTLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__SETTLE",
    Text("5s"),
    "`timestamp+pk`, `integer+pk`: how late a commit may come after its row was written; rows wait as long.",
);
pub(in crate::config) const SOURCE_CLOCK: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__CLOCK",
    Text("utc"),
    "`timestamp+pk`, columns without an offset: the clock that fills them, `utc`, `local` (the server's zone) or a fixed \
     offset like `+01:00`; read [what summer time does](docs/sources.md#local-time) first.",
);
pub(in crate::config) const SOURCE_ON_SCHEMA_CHANGE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__ON_SCHEMA_CHANGE",
    Text("follow"),
    "When columns that are read are added, removed or retyped: `follow` them, or `stop`.",
);
pub(in crate::config) const SOURCE_AUDIT_AFTER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__AUDIT_AFTER",
    Words("off"),
    "`timestamp+pk`, `integer+pk`: how long after their delivery rows are read again, to find and deliver those that were committed later than `SETTLE`.",
);
pub(in crate::config) const COUNT_ROWS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__COUNT_ROWS_MAX",
    Text("10000"),
    "Most rows that are counted behind the checkpoint where a tick leaves some; `0` for none.",
);
pub(in crate::config) const SOURCE_START: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__SOURCE__START",
    Text("beginning"),
    "Where a poller starts that never ran: at the `beginning`, or `now`, at its `highwater init`.",
);
pub(in crate::config) const PARTITIONS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PARTITIONS",
    Text("1"),
    "How many parts share the keys, up to 64; each is run by a function of its own, `<name>__p0` and so on: see \
     [partitions](docs/partitions.md).",
);

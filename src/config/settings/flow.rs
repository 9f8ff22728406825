//! Settings of how large batches get, how they follow each other, and how long a tick goes on.

use super::Fallback::{Text, Words};
use super::Setting;

pub(in crate::config) const BATCH_ROWS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_ROWS_MAX",
    Text("1000"),
    "Most rows in one batch, up to 100000.",
);
pub(in crate::config) const BATCH_BYTES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_BYTES_MAX",
    Text("4MiB"),
    "Most bytes of encoded events in one batch; a single row that is larger stops the poller.",
);
pub(in crate::config) const VALUE_BYTES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__VALUE_BYTES_MAX",
    Text("4MiB"),
    "Most bytes in one value, as `DATALENGTH` tells; a larger one is not read and stops the poller.",
);
pub(in crate::config) const BATCHES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCHES_MAX",
    Words("unlimited"),
    "Most batches in one tick.",
);
pub(in crate::config) const TICK_TIME_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__TICK_TIME_MAX",
    Text("4m"),
    "Time after which a tick starts no further batch; the default follows a short function time-out.",
);
pub(in crate::config) const BATCH_ROWS_MIN: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_ROWS_MIN",
    Text("100"),
    "Rows below which a slow handler makes no batch smaller; with the value of `BATCH_ROWS_MAX`, which it \
     follows where that is less, it makes none smaller.",
);
pub(in crate::config) const PREFETCH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PREFETCH",
    Text("true"),
    "Whether the next batch is read while the handler has the one before it; needs the memory of one more.",
);
pub(in crate::config) const OVERLAP_COMMIT: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__OVERLAP_COMMIT",
    Text("false"),
    "Whether the next handler is called before the commit of the batch before it is confirmed; two batches may \
     come again after a crash then.",
);
pub(in crate::config) const FOLLOW_FOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__FOLLOW_FOR",
    Text("0"),
    "How long after its beginning a tick that has run out of rows goes on to look for new ones, within \
     `TICK_TIME_MAX`; `0` for not at all.",
);
pub(in crate::config) const FOLLOW_INTERVAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__FOLLOW_INTERVAL",
    Text("200ms"),
    "Pause between two such looks, each of which is one round trip to the database; at least 10ms.",
);

//! Settings of batch sizes, prefetch, overlapped commits and the duration of a tick.

use super::Fallback::{Text, Words};
use super::Setting;

pub(in crate::config) const BATCH_ROWS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_ROWS_MAX",
    Text("1000"),
    "Maximum rows in one batch, up to 100000.",
);
pub(in crate::config) const BATCH_BYTES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_BYTES_MAX",
    Text("4MiB"),
    "Maximum bytes of encoded events in one batch. A single larger row stops the poller.",
);
pub(in crate::config) const VALUE_BYTES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__VALUE_BYTES_MAX",
    Text("4MiB"),
    "Maximum bytes in one value, as `DATALENGTH` reports. A larger value is not read, and stops the poller.",
);
pub(in crate::config) const BATCHES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCHES_MAX",
    Words("unlimited"),
    "Maximum batches in one tick.",
);
pub(in crate::config) const TICK_TIME_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__TICK_TIME_MAX",
    Text("4m"),
    "After this time, a tick starts no further batch. The default follows a shorter function timeout.",
);
pub(in crate::config) const BATCH_ROWS_MIN: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BATCH_ROWS_MIN",
    Text("100"),
    "A slow handler does not shrink batches below this size; follows `BATCH_ROWS_MAX` if that is smaller. \
     Set both to the same value for a fixed size.",
);
pub(in crate::config) const PREFETCH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PREFETCH",
    Text("true"),
    "Read the next batch while the handler runs; needs the memory of one more batch.",
);
pub(in crate::config) const OVERLAP_COMMIT: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__OVERLAP_COMMIT",
    Text("false"),
    "Call the next handler before the previous commit is confirmed. After a crash, two batches may be \
     redelivered instead of one.",
);
pub(in crate::config) const FOLLOW_FOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__FOLLOW_FOR",
    Text("0"),
    "How long a tick keeps polling for new rows, counted from its start, within `TICK_TIME_MAX`; `0` disables \
     follow mode.",
);
pub(in crate::config) const FOLLOW_INTERVAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__FOLLOW_INTERVAL",
    Text("200ms"),
    "Time between two polls in follow mode. Each poll is one round trip to the database; at least 10ms.",
);

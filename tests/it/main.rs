//! Integration tests over real protocols and the embedded servers, one binary.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod any_server;
mod bad_input;
mod broken_answers;
mod builds;
mod code_blocks;
mod dashboards;
mod ddl;
mod deploy;
mod doctor;
mod documentation;
mod documents;
mod flights;
mod infra;
mod journal_sql;
mod lag;
mod limits;
mod lives;
mod log_events;
mod named_server;
mod notices;
mod pages;
mod protocol;
mod repository;
mod row_path;
mod settings;
mod source;
mod source_auto;
mod source_clock;
mod source_connection;
mod source_current;
mod source_deletes;
mod source_encoding;
mod source_faults;
mod source_identity;
mod source_integer;
mod source_keys;
mod source_lookup;
mod source_mask;
mod source_partitions;
mod source_query;
mod source_range;
mod source_schema;
mod source_shapes;
mod source_start;
mod source_tracking;
mod source_variant;
mod sql;
mod sql_handler;
mod sql_handler_faults;
mod sql_handler_ranges;
mod sql_handler_ticks;
mod state_sql;
mod state_sql_ticks;
mod statements;
mod steps;
mod stores;
mod tick_faults;
mod ticks;
mod types;
mod writers;

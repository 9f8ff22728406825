//! Receives changes of `@@table@@`. The file to edit is `handler.rs`.

pub mod handler;
pub mod row;
pub mod support;

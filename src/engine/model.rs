//! The vocabulary of the engine: values, rows, positions, errors. No async, no I/O.

pub mod clock;
pub mod cursor;
pub mod error;
pub mod event;
pub mod grant;
pub mod partition;
pub mod value;

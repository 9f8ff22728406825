"""The package `azure-functions-db` in the measurement: one poller over a table of flights.

The embedded SQL Server does not take the drivers that SQLAlchemy knows for SQL Server: FreeTDS (pymssql)
sets session properties that it refuses, and ODBC needs a driver that pip does not bring. So the table is
an SQLite file, in this process and without a network: the fastest of the package's own ways, and the one
its own benchmark takes. Its state is kept by its own blob store, on the same Azurite.

The argument is a JSON object. Lines go out, and each is answered by one before the next step begins: the
storage calls of a step are counted in between.
"""

import csv
import gzip
import json
import resource
import sqlite3
import sys
import time

from azure.storage.blob import ContainerClient
from azure_functions_db import BlobCheckpointStore, PollTrigger, SqlAlchemySource

# The shortest delay after which a released lease can be acquired again is half of this.
LEASE_SECONDS = 2
PAUSE_SECONDS = LEASE_SECONDS / 2 + 0.1


def tell(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()


def make(path, flights, columns, rows):
    with gzip.open(flights, "rt") as file:
        lines = [[row[at] for _, at in columns] for row in csv.reader(file)][1:]
    names = ", ".join(name for name, _ in columns)
    marks = ", ".join("?" for _ in columns)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE flights (id INTEGER PRIMARY KEY, time_hour TEXT, carrier TEXT, flight INTEGER,"
            " tailnum TEXT, origin TEXT, dest TEXT, sched_dep_time INTEGER, dep_time INTEGER,"
            " dep_delay INTEGER, arr_delay INTEGER, distance INTEGER, version INTEGER NOT NULL)"
        )
        each = ([number + 1, *lines[number % len(lines)][1:], number + 1] for number in range(rows))
        database.executemany(f"INSERT INTO flights ({names}, version) VALUES ({marks}, ?)", each)
        database.execute("CREATE UNIQUE INDEX flights_version ON flights (version, id)")


def main():
    job = json.loads(sys.argv[1])
    if job["make"]:
        make(job["path"], job["flights"], job["columns"], job["rows"])
        return tell({})
    source = SqlAlchemySource(
        url=f"sqlite:///{job['path']}", table="flights", cursor_column="version", pk_columns=["id"]
    )
    # The package's own storage client uses a newer version than Azurite supports.
    container = ContainerClient.from_connection_string(
        job["connection"], job["container"], api_version="2025-11-05"
    )
    store = BlobCheckpointStore(
        container_client=container, source_fingerprint=source.source_descriptor.fingerprint
    )
    seen = 0

    def handler(events):
        nonlocal seen
        seen += len(events)

    def tick(batches_max):
        time.sleep(PAUSE_SECONDS)
        trigger = PollTrigger(
            name="measure",
            source=source,
            checkpoint_store=store,
            batch_size=job["batch"],
            max_batches_per_tick=batches_max,
            lease_ttl_seconds=LEASE_SECONDS,
        )
        before, wall, cpu = seen, time.perf_counter(), time.process_time()
        trigger.run(timer=None, handler=handler)
        took = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        return {"rows": seen - before, **took}

    # The first tick creates the document and describes the table: it is not counted.
    tell(tick(1))
    tell(tick(1))
    tell(tick(10**9))
    idle = [tick(1) for _ in range(job["idle_ticks"])]
    tell({
        "rows": sum(each["rows"] for each in idle),
        "seconds": sum(each["seconds"] for each in idle) / len(idle),
        "cpu_seconds": sum(each["cpu_seconds"] for each in idle) / len(idle),
        "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    })


main()

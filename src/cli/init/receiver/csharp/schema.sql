-- The tables of Core/SqlOnce.cs, in the database of the setting DATABASE.
CREATE TABLE dbo.processed_events (
    poller_name nvarchar(200) NOT NULL,
    event_id char(32) NOT NULL,
    processed_at datetime2(0) NOT NULL DEFAULT SYSUTCDATETIME(),
    PRIMARY KEY (poller_name, event_id)
);
CREATE INDEX processed_events_by_time ON dbo.processed_events (processed_at);
CREATE TABLE dbo.fences (
    poller_name nvarchar(200) NOT NULL PRIMARY KEY,
    generation bigint NOT NULL,
    token bigint NOT NULL
);

CREATE TABLE events (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    type      TEXT NOT NULL,
    resource  TEXT NOT NULL,
    state     TEXT NOT NULL,
    detail    TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_resource ON events (resource, seq);
CREATE INDEX events_by_type ON events (type, seq);
CREATE INDEX events_by_age ON events (at);

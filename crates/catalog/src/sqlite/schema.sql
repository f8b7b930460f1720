CREATE TABLE sandboxes (
    id       TEXT PRIMARY KEY,
    name     TEXT,
    labels   TEXT NOT NULL,
    state    TEXT NOT NULL,
    created  INTEGER NOT NULL,
    ended    INTEGER,
    deleted  INTEGER,
    detail   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sandbox_names ON sandboxes (name) WHERE name IS NOT NULL AND ended IS NULL AND deleted IS NULL;
CREATE INDEX sandboxes_live ON sandboxes (id) WHERE deleted IS NULL;

CREATE TABLE slots (
    slot     INTEGER PRIMARY KEY,
    sandbox  TEXT NOT NULL UNIQUE REFERENCES sandboxes (id) ON DELETE CASCADE
) STRICT;

CREATE TABLE snapshots (
    id         TEXT PRIMARY KEY,
    name       TEXT,
    labels     TEXT NOT NULL,
    state      TEXT NOT NULL,
    source     TEXT NOT NULL,
    created    INTEGER NOT NULL,
    temporary  INTEGER NOT NULL,
    detail     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshots_by_source ON snapshots (source);

CREATE TABLE answers (
    account      TEXT NOT NULL,
    key          TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    status       INTEGER NOT NULL,
    body         TEXT NOT NULL,
    created      INTEGER NOT NULL,
    PRIMARY KEY (account, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (created);

CREATE TABLE usage (
    sandbox        TEXT PRIMARY KEY,
    running_ms     INTEGER NOT NULL DEFAULT 0,
    cpu_us         INTEGER NOT NULL DEFAULT 0,
    memory_mib_ms  INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
    name   TEXT PRIMARY KEY,
    value  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

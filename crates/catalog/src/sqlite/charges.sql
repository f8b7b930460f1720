CREATE TABLE charges (
    resource  TEXT NOT NULL,
    hour      INTEGER NOT NULL,
    account   TEXT NOT NULL,
    pico      INTEGER NOT NULL,
    PRIMARY KEY (resource, hour, account)
) STRICT, WITHOUT ROWID;
CREATE INDEX charges_by_account ON charges (account, hour);

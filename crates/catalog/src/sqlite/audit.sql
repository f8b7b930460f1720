CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    action  TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_action ON audit (action, seq);
CREATE TRIGGER audit_only_grows BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'a line of the audit log is never changed');
END;

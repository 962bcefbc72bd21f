-- Rows of `fires` are dropped in the end, the oldest of each schedule first: up to which fire time, by the schedule's name.
CREATE TABLE forgotten (
    schedule TEXT PRIMARY KEY,
    until_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

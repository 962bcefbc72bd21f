-- How long a request waits (mainspring.resources.holds).
ALTER TABLE requests ADD COLUMN limit_us INTEGER NOT NULL DEFAULT 0;  -- when its wait is over; 0: it has no limit

-- Since when a run is paused (mainspring.workflows.pausing).
ALTER TABLE runs ADD COLUMN paused_us INTEGER;

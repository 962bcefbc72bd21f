-- compatible from: 22
-- Pauses of runs (mainspring.workflows.pausing).
ALTER TABLE runs ADD COLUMN paused_us bigint;

-- Nodes of schema 22 to 40 would go on with paused runs, and leave their activities behind. They may share the store until the first
-- run is paused (`admits_pauses`). From then on they are refused: at their start, because the schema needs version 41, and here if
-- they run already and begin another term.
CREATE FUNCTION refuse_nodes_without_pauses() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    needed int;
BEGIN
    SELECT compatible_from INTO needed FROM migrations WHERE number = 41 FOR SHARE;
    IF needed >= 41 THEN
        RAISE EXCEPTION 'the store has paused runs, which this version of the node does not know: install the version of the other nodes';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION refuse_nodes_without_pauses() FROM PUBLIC;

CREATE TRIGGER refuse_nodes_without_pauses BEFORE INSERT ON nodes
FOR EACH ROW WHEN (NEW.about ->> 'pauses' IS DISTINCT FROM 'true') EXECUTE FUNCTION refuse_nodes_without_pauses();

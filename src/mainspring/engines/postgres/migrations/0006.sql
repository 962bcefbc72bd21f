-- compatible from: 6
-- Nodes that somebody asked to drain, by their names: it holds for whatever term a node of that name has, until it has left.
CREATE TABLE drains (node text COLLATE "C" PRIMARY KEY);

INSERT INTO drains SELECT DISTINCT about ->> 'name' FROM nodes WHERE draining;

-- An older node would read the mark where nobody writes it any more.
ALTER TABLE nodes DROP COLUMN draining;

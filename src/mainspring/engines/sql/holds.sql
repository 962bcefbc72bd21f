-- Resources, and who holds and awaits their slots (mainspring.resources.definition_store, hold_store).

-- name: resources
SELECT name, version, definition FROM resources WHERE name > $1 ORDER BY name LIMIT $2;

-- name: resources_among
SELECT name, version, definition FROM resources WHERE name {among($1, text)};

-- The version is a guard.
-- name: save_resource
INSERT INTO resources AS stored (name, version, definition) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, definition = excluded.definition
WHERE stored.version = excluded.version - 1;

-- name: holds
SELECT resource, item, kind, holder, term, turn, units, number, since_us, until_us FROM holds WHERE resource {among($1, text)};

-- A request for several of the resources is found for each.
-- name: requests
SELECT kind, holder, term, turn, priority, since_us, until_us, limit_us, function, lines FROM requests
WHERE resource {among($1, text)};

-- name: add_requests
INSERT INTO requests (resource, kind, holder, term, turn, priority, since_us, until_us, limit_us, function, lines)
{rows(text, smallint, bigint, bigint, bigint, smallint, bigint, bigint, bigint, bytea, bytea)};

-- name: delete_holds
DELETE FROM holds {index(holds_of)} WHERE resource = $1 AND kind = $2 AND term = $3 AND holder {among($4)};

-- name: delete_requests
DELETE FROM requests WHERE resource = $1 AND kind = $2 AND term = $3 AND holder {among($4)};

-- name: held_by
SELECT resource FROM holds WHERE holder {among($1)} UNION ALL SELECT resource FROM requests WHERE holder {among($1)};

-- name: turns_of
SELECT kind, holder, term, turn FROM holds WHERE holder {among($1)};

-- name: works_submitted
SELECT job FROM works WHERE job {among($1)} AND status < 2;

-- name: awaited_by
SELECT DISTINCT resource FROM requests WHERE kind = $1;

-- name: grants
INSERT INTO grants AS g (resource, number) {rows(text, bigint)}
ON CONFLICT (resource) DO UPDATE SET number = g.number + excluded.number RETURNING resource, number;

-- name: all_instances
SELECT instance FROM instances ORDER BY resource, name;

-- name: instances
SELECT instance FROM instances WHERE resource {among($1, text)} ORDER BY resource, name;

-- name: save_instances
INSERT INTO instances (resource, name, instance)
{rows(text, text, bytea)}
ON CONFLICT (resource, name) DO UPDATE SET instance = excluded.instance;

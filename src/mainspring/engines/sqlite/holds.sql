-- name: leased
SELECT id, term = $2 AND state IN ({leased}, {running}) FROM jobs WHERE id {among($1)} AND state < {succeeded};

-- name: delete_instance
DELETE FROM instances WHERE resource = $1 AND name = $2;

-- name: open_among
SELECT id FROM runs WHERE id {among($1)} AND status = 0;

-- name: add_holds
INSERT INTO holds (resource, item, kind, holder, term, turn, units, number, since_us, until_us)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

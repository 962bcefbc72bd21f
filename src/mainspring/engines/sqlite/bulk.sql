-- One node has the file.
-- part: may_take
$1 IS NOT NULL;
-- part: skip_locked
;

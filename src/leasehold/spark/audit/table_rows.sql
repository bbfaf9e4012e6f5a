-- What an audit asks of a table in PostgreSQL. All of it only reads. Names in braces are
-- identifiers, which are quoted when they are put in.

-- name: begin
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: session
-- A policy that hides rows from this user must be an error: hidden rows would be taken for lost
-- ones. The transaction of the driver stands still while the tasks read.
SELECT
    set_config('row_security', 'off', true),
    set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('lock_timeout', CAST(CAST(:lock_timeout_ms AS bigint) AS text), true);

-- name: snapshot_export
SELECT pg_export_snapshot();

-- name: snapshot_import
SET TRANSACTION SNAPSHOT {snapshot};

-- name: shape
-- A table in one piece is cut into pages; a view, or a table of many tables, is read as one.
SELECT
    CASE
        WHEN found.relkind IN ('r', 'm')
            THEN
                pg_relation_size(found.oid)
                / CAST(current_setting('block_size') AS bigint)
    END,
    (
        SELECT coalesce(array_agg(CAST(part.attname AS text)), CAST(ARRAY[] AS text []))
        FROM pg_attribute AS part
        WHERE part.attrelid = found.oid AND part.attnum > 0 AND NOT part.attisdropped
    )
FROM pg_class AS found
WHERE found.oid = to_regclass(:written);

-- name: keys
-- The columns of each index by which a row could take the place of another. Not those over a column
-- that the server numbers by itself: no row comes with one.
SELECT array_agg(CAST(found.attname AS text) ORDER BY entry.place)
FROM pg_index AS list
CROSS JOIN LATERAL unnest(CAST(list.indkey AS smallint [])) WITH ORDINALITY AS entry (attnum, place)
JOIN pg_attribute AS found ON found.attrelid = list.indrelid AND found.attnum = entry.attnum
LEFT JOIN pg_attrdef AS given ON given.adrelid = found.attrelid AND given.adnum = found.attnum
WHERE
    list.indrelid = to_regclass(:written)
    AND list.indisunique AND list.indimmediate AND list.indisvalid
    AND list.indpred IS NULL AND list.indexprs IS NULL
    AND entry.place <= list.indnkeyatts
GROUP BY list.indexrelid
HAVING
    NOT bool_or(
        found.attidentity <> ''
        OR coalesce(pg_get_expr(given.adbin, given.adrelid), '') LIKE 'nextval(%'
    )
ORDER BY list.indexrelid;

-- name: count
SELECT count(*) FROM {table};

-- name: probe
-- Locks the table against being dropped, and finds out what is not allowed.
SELECT 1 FROM {table} LIMIT 0;

-- name: rows
SELECT CAST({partition} AS text), CAST({number} AS bigint) FROM {table};

-- name: rows_of_pages
SELECT CAST({partition} AS text), CAST({number} AS bigint) FROM {table}
WHERE ctid >= CAST(:low AS tid) AND ctid < CAST(:high AS tid);

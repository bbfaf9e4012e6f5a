-- The statements of the PostgreSQL sink beside those of the ledger. Names in braces are identifiers,
-- which are quoted when they are put in.

-- name: session
-- For each new connection. A process that is stopped inside a transaction blocks its successor:
-- the server ends it. A commit is durable when it is answered, and a step that has waited for a lock
-- sees what was committed in the meantime, whatever the server's defaults are.
SELECT
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('lock_timeout', CAST(CAST(:patience_ms AS bigint) AS text), false),
    set_config(
        'idle_in_transaction_session_timeout', CAST(CAST(:idle_ms AS bigint) AS text), false
    ),
    CASE
        WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN set_config('synchronous_commit', 'on', false)
    END;

-- name: clock
SELECT CAST(extract(EPOCH FROM clock_timestamp()) AS double precision);

-- name: is_ready
SELECT to_regclass('leasehold_sink.sink_staging') IS NOT NULL;

-- name: alone
-- For what ten drivers may do at the same time when they start: create the schema or the table.
SELECT pg_advisory_xact_lock(hashtextextended('leasehold_sink', 0));

-- name: table_parts
SELECT parse_ident(:written), current_schema();

-- name: table_find
SELECT space.nspname, found.relname
FROM pg_class AS found
JOIN pg_namespace AS space ON space.oid = found.relnamespace
WHERE found.oid = to_regclass(:written);

-- name: table_columns
-- For a domain the type below it.
SELECT
    found.attname,
    format_type(found.atttypid, found.atttypmod),
    coalesce(base.typname, kind.typname),
    found.attnotnull AND NOT found.atthasdef AND found.attidentity = ''
FROM pg_attribute AS found
JOIN pg_type AS kind ON kind.oid = found.atttypid
LEFT JOIN pg_type AS base ON base.oid = kind.typbasetype
WHERE found.attrelid = to_regclass(:written) AND found.attnum > 0 AND NOT found.attisdropped
ORDER BY found.attnum;

-- name: table_keys
-- The columns of each index by which ON CONFLICT can find a row.
SELECT array_agg(CAST(found.attname AS text))
FROM pg_index AS list
CROSS JOIN LATERAL unnest(CAST(list.indkey AS smallint [])) WITH ORDINALITY AS entry (attnum, place)
JOIN pg_attribute AS found ON found.attrelid = list.indrelid AND found.attnum = entry.attnum
WHERE
    list.indrelid = to_regclass(:written)
    AND list.indisunique AND list.indimmediate AND list.indisvalid
    AND list.indpred IS NULL AND list.indexprs IS NULL
    AND entry.place <= list.indnkeyatts
GROUP BY list.indexrelid;

-- name: table_make
CREATE TABLE IF NOT EXISTS {table} ({columns});

-- name: column
{name} {kind}

-- name: primary_key
PRIMARY KEY ({key})

-- name: unique_index
CREATE UNIQUE INDEX ON {table} ({key});

-- name: stage_make
-- It may be there: made by the same step, whose answer was lost. So may its row.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_sink.{stage} WITH (autovacuum_enabled = false) AS
SELECT {columns}, CAST(NULL AS text) AS {attempt} FROM {table}
WITH NO DATA;

-- name: stage_put
INSERT INTO leasehold_sink.sink_staging (id, sink, grp, epochs)
VALUES (:id, :sink, :grp, :epochs)
ON CONFLICT (id) DO NOTHING;

-- name: stage_is_there
SELECT to_regclass(:written) IS NOT NULL;

-- name: stages
SELECT
    id, grp, epochs,
    is_done OR made_at < clock_timestamp() - make_interval(secs => :age_s)
FROM leasehold_sink.sink_staging
WHERE sink = :sink;

-- name: stage_done
UPDATE leasehold_sink.sink_staging SET is_done = true WHERE id = :id;

-- name: stage_forget
DELETE FROM leasehold_sink.sink_staging WHERE id = :id;

-- name: stage_lock
-- An abandoned task may still be writing into it.
LOCK TABLE leasehold_sink.{stage} IN ACCESS EXCLUSIVE MODE NOWAIT;

-- name: stage_drop
DROP TABLE leasehold_sink.{stage};

-- name: copy
COPY leasehold_sink.{stage} ({columns}, {attempt}) FROM STDIN (FORMAT csv);

-- name: stage_count
SELECT count(*) FROM leasehold_sink.{stage} WHERE {attempt} = ANY(:attempts);

-- name: take
INSERT INTO {table} ({columns})
SELECT {columns} FROM leasehold_sink.{stage} WHERE {attempt} = ANY(:attempts);

-- name: take_by_key
INSERT INTO {table} ({columns})
SELECT {columns} FROM leasehold_sink.{stage} WHERE {attempt} = ANY(:attempts)
ON CONFLICT ({key}) DO UPDATE SET {changes};

-- name: change
{name} = excluded.{name}

-- What the blocking door itself asks of PostgreSQL.

-- name: session
-- For each new connection. Whoever is stopped in the middle of a transaction holds up all others:
-- the server ends it. A commit is durable when it is answered, and a step that has waited for a lock
-- sees what was committed in the meantime, whatever the server's defaults are.
-- All that is asked has an index, also while the planner's statistics are those of empty tables.
SELECT
    set_config('search_path', 'leasehold, pg_temp', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('lock_timeout', CAST(CAST(:patience_ms AS bigint) AS text), false),
    set_config(
        'idle_in_transaction_session_timeout', CAST(CAST(:idle_ms AS bigint) AS text), false
    ),
    set_config('enable_seqscan', 'off', false),
    set_config('jit', 'off', false),
    CASE
        WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN set_config('synchronous_commit', 'on', false)
    END;

-- name: clock
SELECT CAST(extract(EPOCH FROM leasehold.store_clock_1()) AS double precision);

-- The highest token that was shown for each job, in the database of the user's tables and beside
-- them. Read and written by leasehold/jobs/fences/table.py.

-- name: make
-- "create schema if not exists" asks for the right to create even where the schema is there. Those
-- that come at the same time wait here for each other.
do $$ begin
    perform pg_advisory_xact_lock(hashtextextended('leasehold_fence', 0));
    if to_regnamespace('leasehold_fence') is null then
        create schema leasehold_fence;
    end if;
    create table if not exists leasehold_fence.fence (
        job       text collate "C" primary key,
        token     bigint not null,
        raised_at timestamptz not null default clock_timestamp()
    );
    -- Apart from the token, so that counting is in nobody's way.
    create table if not exists leasehold_fence.refused (
        job      text collate "C" primary key,
        refusals bigint not null,
        last_at  timestamptz not null
    );
end $$;

-- name: session
set session characteristics as transaction isolation level read committed;

-- name: durable
-- For this transaction, also on a connection that was passed in: an epoch that was raised, and what
-- was written under it, must outlive a crash, whatever the default or the block has set.
select set_config('synchronous_commit', 'on', true)
where current_setting('synchronous_commit') not in ('on', 'remote_apply');

-- name: raise_token
-- Writes only if it rises: an owner that comes again is in nobody's way.
insert into leasehold_fence.fence as f (job, token) values (:job, :token)
on conflict (job) do update set token = excluded.token, raised_at = clock_timestamp()
where f.token < excluded.token;

-- name: seen
select token from leasehold_fence.fence where job = :job;

-- name: began
-- Gone with the transaction it was set in: whoever ends that by a statement is found out. Takes no
-- snapshot, so that the caller may still choose the isolation level.
set local leasehold.fence = 'open';

-- name: concluded
-- What was deferred is done before the check. From the check to the commit the row is locked, and the
-- next owner waits for it: a program that stands still just then is ended by the server.
set constraints all immediate;
set local idle_in_transaction_session_timeout = '5s';

-- name: still_open
select coalesce(current_setting('leasehold.fence', true), '');

-- name: holds
-- Shared: several transactions of one owner may end at the same time. Whoever raises the token waits
-- until they have ended.
select token from leasehold_fence.fence where job = :job for share;

-- name: count_refusal
insert into leasehold_fence.refused as r (job, refusals, last_at)
values (:job, 1, clock_timestamp())
on conflict (job) do update set refusals = r.refusals + 1, last_at = excluded.last_at;

-- name: refusals
select refusals from leasehold_fence.refused where job = :job;

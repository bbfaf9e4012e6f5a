-- What stands around the caller's own statements in a transaction; the check itself is the query
-- "checkpoint" of the store.

-- name: began
-- Gone with the transaction it was set in: whoever ends that by a statement is found out. Takes no
-- snapshot, so that the caller may still choose the isolation level.
set local leasehold.block = 'open';

-- name: concluded
-- Before the check, because from the check to the commit the caller's lease is locked, and others
-- may wait for it: what was deferred is done now, and a program that stands still in between is
-- ended by the server. The last row says in what kind of transaction this is, and if in the first.
set constraints all immediate;
set local lock_timeout = '5s';
set local idle_in_transaction_session_timeout = '2s';
select
    current_setting('transaction_isolation') as isolation,
    coalesce(current_setting('leasehold.block', true), '') as block;

-- name: unchanged
-- Under a snapshot the check has judged what was. This fails if the key's row is another by now.
select 1 from leasehold.resource where key = %(key)s for share;

-- name: fresh
set transaction isolation level read committed;

-- name: clean
-- All that a session keeps, but for prepared statements, of which the driver keeps account.
reset session authorization;
reset all;
close all;
unlisten *;
select pg_advisory_unlock_all();
discard temp;
discard sequences;

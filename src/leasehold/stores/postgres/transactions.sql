-- What stands around the caller's own statements in a transaction; the check itself is the query
-- "checkpoint_in_block" of the store.

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

-- name: alone
-- Held to the end of the transaction, and so through a commit whose answer nobody waits for any more:
-- the next block of the same key waits here until the outcome of that one is certain. The lock on the
-- lease would not do, because the blocks of one owner share it.
select pg_advisory_xact_lock(hashtextextended('leasehold.block ' || %(key)s::text, 0));

-- name: reached
-- A statement of its own, after the lock was had: it has to see what was committed meanwhile.
select coalesce(p.bases[3 * c.place + 1] + p.steps[3 * c.place + 1], c.sequence_number)
from leasehold.checkpoint as c left join leasehold.checkpoint_page as p on p.id = c.page
where c.key = %(key)s;

-- name: unchanged
-- Under a snapshot the check has judged what was. This fails if the key's row is another by now.
select 1 from leasehold.resource where key = %(key)s for share;

-- name: fresh
set transaction isolation level read committed;

-- name: clean
-- All that a session keeps, but for prepared statements, of which the driver keeps account. A block
-- begins in READ COMMITTED, whatever the server's default is; it may choose another level. Its commit
-- is durable, whatever the default or the block says: the check raises the setting once more.
reset session authorization;
reset all;
set session characteristics as transaction isolation level read committed;
select set_config('synchronous_commit', 'on', false)
where current_setting('synchronous_commit') not in ('on', 'remote_apply');
close all;
unlisten *;
select pg_advisory_unlock_all();
discard temp;
discard sequences;

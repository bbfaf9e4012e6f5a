-- One statement for each call of the store; the work is done by the functions in sql/.

-- name: session
-- For each new connection, whatever the default of server, database or role is: a step that has waited
-- for a lock must see what was committed in the meantime, which a snapshot from before does not show;
-- and an answer must outlive a crash of the server and of a synchronous standby's primary.
set session characteristics as transaction isolation level read committed;
select set_config('synchronous_commit', 'on', false)
where current_setting('synchronous_commit') not in ('on', 'remote_apply');

-- name: migrated
select coalesce(max(number), 0) from leasehold.migration;

-- name: migration_lock
select pg_advisory_xact_lock(hashtextextended('leasehold.migration', 0));

-- name: migration_done
insert into leasehold.migration (number, name) values (%(number)s, %(name)s);

-- name: declare
select leasehold.declare_1(%(keys)s::text[], %(ids)s::text[], %(names)s::text[]);

-- name: forget
select leasehold.forget_1(%(keys)s::text[]);

-- name: grant
select lost, grp, duration_s from leasehold.grant_1(
    %(holder)s::text, %(token)s::text, %(group)s::text, %(duration_s)s::float8, %(info)s::jsonb,
    %(remember_s)s::float8, %(remember_loose_s)s::float8, %(ids)s::text[], %(names)s::text[]
);

-- name: renew
select lost, version, next_end_s from leasehold.renew_5(
    %(holder)s::text, %(token)s::text, %(info)s::jsonb
);

-- name: changes
-- After a renewal, and apart from it: no lock is held while the answer is sent.
select version, full_group, keys, resources, members, peers, ended
from leasehold.changes_5(%(holder)s::text, %(since)s::bigint);

-- name: revoke
select leasehold.revoke_2(%(holder)s::text, %(token)s::text, %(reason)s::text);

-- name: claim
select lost, places, epochs from leasehold.claim_2(
    %(holder)s::text, %(token)s::text, %(keys)s::text[], %(seen)s::bigint[], %(notes)s::text[],
    %(force)s::boolean, %(keep)s::integer
);

-- name: ask
select lost, stands from leasehold.ask_1(
    %(holder)s::text, %(token)s::text, %(key)s::text, %(seen)s::bigint
);

-- name: hand_over
select leasehold.hand_over_2(
    %(keys)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(tokens)s::text[],
    %(to)s::text[], %(notes)s::text[], %(limit_s)s::float8
);

-- name: release
select leasehold.release_2(
    %(keys)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(tokens)s::text[],
    %(notes)s::text[], %(reasons)s::text[]
);

-- name: break
select known, shown from leasehold.break_1(
    %(key)s::text, %(epoch)s::bigint, %(after_s)s::float8
);

-- name: checkpoint
select places, refusals from leasehold.checkpoint_2(
    %(keys)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(tokens)s::text[],
    %(sequences)s::bigint[], %(offsets)s::text[]
);

-- name: checkpoint_in_block
-- In a transaction of a caller: does not wait for others of the same holder.
select places, refusals from leasehold.checkpoint_1(
    %(keys)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(tokens)s::text[],
    %(sequences)s::bigint[], %(offsets)s::text[]
);

-- name: annotate
select leasehold.annotate_1(
    %(keys)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(tokens)s::text[],
    %(texts)s::text[]
);

-- name: suggest
select leasehold.suggest_1(%(key)s::text, %(epoch)s::bigint, %(to)s::text);

-- name: dismiss
select leasehold.dismiss_1(%(holder)s::text);

-- name: reset
select unknown, places, holders from leasehold.reset_1(
    %(keys)s::text[], %(sequences)s::bigint[], %(offsets)s::text[], %(keep)s::integer
);

-- name: groups
select leasehold.groups_1();

-- name: checkpoints
select leasehold.checkpoints_1(%(group)s::text);

-- name: resources
select leasehold.resources_1(%(group)s::text);

-- name: peers
select leasehold.peers_2(%(group)s::text);

-- name: history
select leasehold.history_2(%(key)s::text, %(limit)s::integer);

-- name: fenced_writes
select leasehold.fenced_writes_1(%(group)s::text);

-- What the calls are made of. These functions are called by the calls only, which set the path.
--
-- Locks, always in this order, so that nobody can wait in a circle:
--   1. the mutex (the row of meta)   all that change owners or members
--   2. lease rows, by holder         "for update": who judges or ends a lease, or ends one of its
--                                    terms. "for no key update": a renewal. "for key share": a
--                                    checkpoint; it goes well with a renewal and waits for the rest.
-- Resources and terms are written under the mutex alone and are never waited for. A checkpoint
-- holds no mutex: it is the lock on its lease that keeps its ownership from ending meanwhile.
-- Time is read after the locks were had.

set local search_path = leasehold, pg_temp;

-- The store's clock: the one place where it is read.
create function leasehold.store_clock_1() returns timestamptz
    language sql volatile as 'select clock_timestamp()';

create function leasehold.group_of_1(p_key text) returns text
    language sql immutable as $$ select coalesce(substring(p_key from '(.*)/'), '') $$;

create function leasehold.seconds_1(p_seconds double precision) returns interval
    language sql immutable as $$ select p_seconds * interval '1 second' $$;

-- The same as state_of in core/lease_rules.py. A holder without a lease row has expired.
create function leasehold.state_1(
    p_holder text, p_ends_at timestamptz, p_break_at timestamptz, p_now timestamptz
) returns text language sql immutable as $$
    select case
        when p_holder is null then 'available'
        when p_break_at <= least(p_now, coalesce(p_ends_at, '-infinity')) then 'broken'
        when coalesce(p_ends_at, '-infinity') <= p_now then 'expired'
        when p_break_at is null then 'leased'
        else 'breaking'
    end
$$;

-- Counts how often a key came up before in the list: 1, 2, ... Calls that take a list work through
-- it in such rounds, in each of which no key is twice. There is nearly always one.
create function leasehold.rounds_1(p_keys text[]) returns bigint[]
    language sql immutable as $$
    select array_agg(w.round order by w.i) from (
        select u.i, row_number() over (partition by u.key order by u.i) as round
        from unnest(p_keys) with ordinality as u (key, i)
    ) as w
$$;

-- What a holder was told must outlive a crash of the server, whatever its default is: a renewal
-- or a claim that is forgotten would let somebody else in too early.
create function leasehold.durable_1() returns void language plpgsql as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

-- Takes the mutex, then the leases of the holders and those of all owners and receivers of the
-- keys. Returns the time at which everything is judged.
create function leasehold.lock_1(p_holders text[], p_keys text[]) returns timestamptz
    language plpgsql as $$
begin
    perform durable_1();
    perform 1 from meta where one for update;
    perform 1 from lease
    where holder = any (
        p_holders
        || array(select r.holder from resource as r where r.key = any (p_keys))
        || array(select r.handed_to from resource as r where r.key = any (p_keys))
    )
    order by holder
    for update;
    return store_clock_1();
end
$$;

-- Takes the next p_count versions; the first of them is the result plus one.
create function leasehold.take_versions_1(p_count integer) returns bigint language sql as $$
    update meta set version = version + p_count where one returning version - p_count
$$;

-- Ends the terms of keys that are all of them held.
create function leasehold.end_terms_1(p_keys text[], p_reason text, p_now timestamptz)
    returns void language plpgsql as $$
declare
    v_last bigint;
begin
    if coalesce(cardinality(p_keys), 0) = 0 then
        return;
    end if;
    v_last := take_versions_1(cardinality(p_keys));
    with over as (
        update resource as r
        set holder = null, asked_by = null, break_at = null, version = v_last + w.i
        from unnest(p_keys) with ordinality as w (key, i)
        where r.key = w.key
        returning r.key, r.epoch, r.version
    )
    update term as t
    set ended_at = p_now, reason = p_reason, version = over.version
    from over
    where t.key = over.key and t.epoch = over.epoch;
end
$$;

create function leasehold.begin_terms_1(
    p_keys text[], p_holder text, p_keep integer, p_now timestamptz
) returns void language plpgsql as $$
declare
    v_last bigint;
begin
    if coalesce(cardinality(p_keys), 0) = 0 then
        return;
    end if;
    v_last := take_versions_1(cardinality(p_keys));
    with begun as (
        update resource as r
        set epoch = r.epoch + 1, holder = p_holder, handed_to = null, handed_by = null,
            version = v_last + w.i
        from unnest(p_keys) with ordinality as w (key, i)
        where r.key = w.key
        returning r.key, r.grp, r.epoch, r.version
    ), invited as (
        insert into guest (grp, holder)
        select distinct b.grp, p_holder from begun as b join lease as l on l.holder = p_holder
        where b.grp <> l.grp
        on conflict do nothing
    ), pruned as (
        delete from term as t using begun
        where t.key = begun.key and t.epoch <= begun.epoch - p_keep
    )
    insert into term (key, epoch, holder, started_at, version)
    select key, epoch, p_holder, p_now, version from begun;
end
$$;

-- Ends leases whose rows are locked, with all that they cover. A break that fell due before the
-- lease ended has ended its term already.
create function leasehold.end_leases_1(p_holders text[], p_reason text, p_now timestamptz)
    returns void language plpgsql as $$
declare
    v_broken text[];
    v_others text[];
    v_last   bigint;
begin
    if coalesce(cardinality(p_holders), 0) = 0 then
        return;
    end if;
    select
        array_agg(r.key order by r.key) filter (where r.break_at <= least(l.ends_at, p_now)),
        array_agg(r.key order by r.key)
            filter (where (r.break_at <= least(l.ends_at, p_now)) is not true)
    into v_broken, v_others
    from resource as r left join lease as l on l.holder = r.holder
    where r.holder = any (p_holders);
    perform end_terms_1(v_broken, 'broken', p_now);
    perform end_terms_1(v_others, p_reason, p_now);
    v_last := take_versions_1(cardinality(p_holders));
    update lease as l
    set ended = p_reason, ends_at = least(l.ends_at, p_now), version = v_last + w.i
    from unnest(p_holders) with ordinality as w (holder, i)
    where l.holder = w.holder and l.ended is null;
    delete from guest where holder = any (p_holders);
end
$$;

-- Why the lease is not honoured, or null. A lease that is found expired is ended for good in the
-- same step: a server clock that steps back can not bring it to life again.
create function leasehold.lost_1(p_holder text, p_token text, p_now timestamptz) returns text
    language plpgsql as $$
declare
    me lease;
begin
    select * into me from lease where holder = p_holder;
    if not found then
        return 'unknown';
    elsif me.token <> p_token then
        return 'another token is in use';
    elsif me.ended is not null then
        return me.ended;
    elsif me.ends_at <= p_now then
        perform end_leases_1(array[p_holder], 'expired', p_now);
        return 'expired';
    end if;
    return null;
end
$$;

-- Ends what time has ended on these keys; the leases of their owners and receivers are locked.
create function leasehold.settle_1(p_keys text[], p_now timestamptz) returns void
    language plpgsql as $$
declare
    v_broken text[];
    v_dead   text[];
    v_lapsed text[];
    v_last   bigint;
begin
    select
        array_agg(h.key order by h.key) filter (where h.state = 'broken'),
        array_agg(distinct h.holder) filter (where h.state = 'expired')
    into v_broken, v_dead
    from (
        select r.key, r.holder, state_1(r.holder, l.ends_at, r.break_at, p_now) as state
        from resource as r left join lease as l on l.holder = r.holder
        where r.key = any (p_keys)
    ) as h;
    perform end_terms_1(v_broken, 'broken', p_now);
    perform end_leases_1(v_dead, 'expired', p_now);

    select array_agg(r.key order by r.key) filter (
        where r.handed_to is not null and (r.handed_until <= p_now or l.holder is null)
    )
    into v_lapsed
    from resource as r
    left join lease as l on l.holder = r.handed_to and l.ended is null and l.ends_at > p_now
    where r.key = any (p_keys);
    if v_lapsed is not null then
        v_last := take_versions_1(cardinality(v_lapsed));
        update resource as r set handed_to = null, version = v_last + w.i
        from unnest(v_lapsed) with ordinality as w (key, i)
        where r.key = w.key;
    end if;
end
$$;

-- What a key or group is called outside. The mark of a short name can not be in a real one.
create function leasehold.full_1(p_id text) returns text language sql stable as $$
    select coalesce((select n.name from long_name as n where n.id = p_id), p_id)
$$;

create function leasehold.name_1(p_id text) returns text language sql stable as $$
    select case when strpos(p_id, E'\x01') > 0 then leasehold.full_1(p_id) else p_id end
$$;

create function leasehold.remember_names_1(p_ids text[], p_names text[]) returns void
    language sql as $$
    insert into long_name (id, name)
    select w.id, w.name from unnest(p_ids, p_names) as w (id, name) order by w.id
    on conflict do nothing
$$;

-- A key as anybody may see it: no token comes near it. It is joined with the lease of its owner,
-- and with that of its receiver if that has not ended.
create function leasehold.shown_1(
    r leasehold.resource, p_ends_at timestamptz, p_receiver_ends_at timestamptz, p_now timestamptz
) returns json language sql stable as $$
    select json_build_object(
        'key', leasehold.name_1(r.key), 'epoch', r.epoch, 'version', r.version, 'holder', r.holder,
        'state', leasehold.state_1(r.holder, p_ends_at, r.break_at, p_now),
        'handed_to', case when least(r.handed_until, p_receiver_ends_at) > p_now
            and p_receiver_ends_at is not null then r.handed_to end,
        'asked_by', r.asked_by, 'forgotten', r.forgotten,
        'breaking_s', case when r.break_at is not null then
            greatest(0, extract(epoch from r.break_at - p_now)::double precision) end
    )
$$;

create function leasehold.peer_1(l leasehold.lease, p_now timestamptz) returns json
    language sql stable as $$
    select json_build_object(
        'holder', l.holder, 'group', leasehold.name_1(l.grp), 'info', l.info, 'version', l.version,
        'alive', l.ended is null and l.ends_at > p_now,
        'remaining_s', greatest(0, extract(epoch from l.ends_at - p_now)::double precision)
    )
$$;

create function leasehold.term_1(t leasehold.term) returns json
    language sql stable as $$
    select json_build_object(
        'key', leasehold.name_1(t.key), 'epoch', t.epoch, 'holder', t.holder,
        'started_at', t.started_at, 'ended_at', t.ended_at, 'reason', t.reason
    )
$$;

-- What operators may ask for: hand a key to somebody, leave, put a checkpoint anywhere. And what a
-- renewal tells since then: of a member the length of its lease, and whether it was asked to leave;
-- of the group when time will next end something in it.
-- Functions of older programs stay as they are.

set local search_path = leasehold, pg_temp;

alter table leasehold.lease add column dismissed boolean not null default false;

create function leasehold.peer_2(l leasehold.lease, p_now timestamptz) returns json
    language sql stable as $$
    select json_build_object(
        'holder', l.holder, 'group', leasehold.name_1(l.grp), 'info', l.info, 'version', l.version,
        'alive', l.ended is null and l.ends_at > p_now,
        'remaining_s', greatest(0, extract(epoch from l.ends_at - p_now)::double precision),
        'duration_s', l.duration_s, 'dismissed', l.dismissed
    )
$$;

-- As before, with peer_2. A reset is nobody's own term, though a holder may be called the same.
create function leasehold.changes_2(
    p_holder text, p_grp text, p_since bigint, p_now timestamptz,
    out version bigint, out resources json, out peers json, out ended json
) language sql stable as $$
    select
        m.version,
        (
            select json_agg(
                shown_1(x.r, l.ends_at, t.ends_at, p_now) order by x.elsewhere, (x.r).version
            )
            from (
                select r, false as elsewhere from resource as r
                where r.grp = p_grp and r.version > p_since
                union all
                select r, true as elsewhere from resource as r
                where r.holder = p_holder and r.grp <> p_grp and r.version > p_since
            ) as x
            left join lease as l on l.holder = (x.r).holder
            left join lease as t on t.holder = (x.r).handed_to and t.ended is null
        ),
        (
            select json_agg(peer_2(l, p_now) order by l.version)
            from lease as l where l.grp = p_grp and p_grp <> '' and l.version > p_since
        ),
        (
            select json_agg(term_1(t) order by t.version)
            from term as t
            where t.holder = p_holder and t.version > p_since and t.ended_at is not null
                and t.reason <> 'reset'
        )
    from meta as m where m.one
$$;

-- When time next ends something in the group, or has ended it already: whatever due_1 looks for, but
-- for the lease of the one who asks. Who has no lease row has ended long ago. In plpgsql, which keeps
-- the plan: every renewal asks this.
create function leasehold.next_end_1(p_holder text, p_grp text) returns timestamptz
    language plpgsql stable as $$
begin
    if p_grp = '' then
        return null;
    end if;
    return least(
        (
            select min(l.ends_at) from lease as l
            where l.grp = p_grp and l.ended is null and l.holder <> p_holder
        ),
        (
            select min(l.ends_at) filter (where l.ended is null)
            from guest as g join lease as l on l.holder = g.holder
            where g.grp = p_grp
        ),
        (
            select min(least(
                r.break_at, case when r.handed_to is not null then r.handed_until end,
                case when coalesce(r.holder, r.handed_to) <> p_holder
                    then coalesce(case when l.ended is null then l.ends_at end, '-infinity') end
            ))
            from resource as r
            left join lease as l on l.holder = coalesce(r.holder, r.handed_to)
            where r.grp = p_grp and (r.break_at is not null or r.handed_to is not null)
        )
    );
end
$$;

-- As before, with changes_2 and next_end_1: it is asked once, for what is due and for the answer.
create function leasehold.renew_2(
    p_holder text, p_token text, p_since bigint, p_info jsonb,
    out lost text, out version bigint, out resources json, out peers json, out ended json,
    out next_end_s double precision
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    me      lease;
    v_now   timestamptz := store_clock_1();
    v_next  timestamptz;
    v_quiet boolean := false;
begin
    select * into me from lease as l where l.holder = p_holder;
    v_next := next_end_1(p_holder, me.grp);
    if me.token = p_token and me.ended is null and me.ends_at > v_now
        and (p_info is null or p_info = me.info) and (v_next <= v_now) is not true
    then
        perform durable_1();
        perform 1 from lease as l where l.holder = p_holder and l.ended is null
        for no key update skip locked;
        v_quiet := found;
    end if;
    if not v_quiet then
        select s.lost, s.renewed into lost, v_now
        from renew_and_settle_1(p_holder, p_token, coalesce(me.grp, ''), p_info) as s;
        if lost is not null then
            return;
        end if;
        v_next := next_end_1(p_holder, me.grp);
    end if;
    if v_next is not null then
        next_end_s := extract(epoch from greatest(v_next, v_now) - v_now)::double precision;
    end if;
    update lease as l
    set ends_at = greatest(l.ends_at, v_now + seconds_1(l.duration_s)), renewed_at = v_now
    where l.holder = p_holder;
    select m.version into version from meta as m where m.one;
    if version <> p_since then
        select c.version, c.resources, c.peers, c.ended into version, resources, peers, ended
        from changes_2(p_holder, me.grp, p_since, v_now) as c;
    end if;
end
$$;

create function leasehold.peers_2(p_grp text) returns json
language plpgsql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := store_clock_1();
begin
    return (
        select json_agg(peer_2(l, v_now) order by l.holder)
        from lease as l where l.grp = p_grp and l.ended is null and l.ends_at > v_now
    );
end
$$;

-- From one group to the next by the index: a group of ten thousand keys costs one look. The full
-- name of a group is that of any of its keys, without its last part.
create function leasehold.groups_1() returns json
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    with recursive step (grp) as (
        (select r.grp from resource as r order by r.grp limit 1)
        union all
        select n.grp
        from step as s
        cross join lateral (
            select r.grp from resource as r where r.grp > s.grp order by r.grp limit 1
        ) as n
    )
    select json_agg(group_of_1(name_1(k.key)))
    from step as s
    cross join lateral (
        select r.key from resource as r where r.grp = s.grp and not r.forgotten limit 1
    ) as k
$$;

-- Whether the lease of a holder whose token is not known runs. It is locked; one that is found
-- expired is ended for good.
create function leasehold.living_1(p_holder text, p_now timestamptz) returns boolean
    language sql as $$
    select lost_1(p_holder, (select l.token from lease as l where l.holder = p_holder), p_now)
        is null
$$;

create function leasehold.suggest_1(p_key text, p_epoch bigint, p_to text) returns boolean
language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := lock_1(array[p_to], array[p_key]);
begin
    if not living_1(p_to, v_now) then
        return false;
    end if;
    perform 1 from lease as l
    where l.holder = p_to and l.grp = group_of_1(p_key) and not l.dismissed
        and not (l.info ->> 'draining')::boolean;
    if not found then
        return false;
    end if;
    perform settle_1(array[p_key], v_now);
    update resource as r set asked_by = p_to, version = take_versions_1(1) + 1
    where r.key = p_key and r.epoch = p_epoch and r.holder <> p_to
        and r.asked_by is distinct from p_to;
    return exists (
        select 1 from resource as r
        where r.key = p_key and r.epoch = p_epoch and r.holder <> p_to
    );
end
$$;

create function leasehold.dismiss_1(p_holder text) returns boolean
language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := lock_1(array[p_holder], '{}');
begin
    if not living_1(p_holder, v_now) then
        return false;
    end if;
    update lease as l set dismissed = true, version = take_versions_1(1) + 1
    where l.holder = p_holder and l.grp <> '' and not l.dismissed;
    return exists (select 1 from lease as l where l.holder = p_holder and l.dismissed);
end
$$;

-- Puts checkpoints where the caller says; no sequence: removes one. Answers with the places of the
-- keys that are not known, or else of those that are owned and by whom, or else it is done.
-- The mutex keeps all keys as they are judged. No former owner can be writing a checkpoint still:
-- whoever ended its term waited for that.
create function leasehold.reset_1(
    p_keys text[], p_sequences bigint[], p_offsets text[], p_keep integer,
    out unknown bigint[], out places bigint[], out holders text[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now  timestamptz := lock_1('{}', p_keys);
    v_todo bigint[];
    v_last bigint;
begin
    select array_agg(u.i order by u.i) into unknown
    from unnest(p_keys) with ordinality as u (key, i)
    left join resource as r on r.key = u.key and not r.forgotten
    where r.key is null;
    if unknown is not null then
        return;
    end if;
    perform settle_1(p_keys, v_now);
    select array_agg(u.i order by u.i), array_agg(coalesce(r.holder, r.handed_to) order by u.i)
    into places, holders
    from unnest(p_keys) with ordinality as u (key, i)
    join resource as r on r.key = u.key
    where coalesce(r.holder, r.handed_to) is not null;
    if places is not null then
        return;
    end if;
    -- What was put there before, and has had no owner since, is left: the call is a repetition.
    v_todo := array(
        select u.i
        from unnest(p_keys, p_sequences, p_offsets) with ordinality
            as u (key, sequence, position_offset, i)
        join resource as r on r.key = u.key
        left join term as t on t.key = u.key and t.epoch = r.epoch
        left join checkpoint as c on c.key = u.key
        where (
            t.reason = 'reset' and c.sequence_number is not distinct from u.sequence
            and c.position_offset is not distinct from u.position_offset
        ) is not true
        order by u.i
    );
    if cardinality(v_todo) = 0 then
        return;
    end if;
    v_last := take_versions_1(cardinality(v_todo));
    with raised as (
        update resource as r set epoch = r.epoch + 1, handed_by = null, version = v_last + w.n
        from unnest(v_todo) with ordinality as w (i, n)
        where r.key = p_keys[w.i]
        returning r.key, r.grp, r.epoch, r.version, w.i
    ), pruned as (
        delete from term as t using raised
        where t.key = raised.key and t.epoch <= raised.epoch - p_keep
    ), noted as (
        insert into term (key, epoch, holder, started_at, ended_at, reason, version)
        select key, epoch, 'operator', v_now, v_now, 'reset', version from raised
    ), removed as (
        delete from checkpoint as c using raised
        where c.key = raised.key and p_sequences[raised.i] is null
    )
    insert into checkpoint (key, grp, epoch, sequence_number, position_offset, updated_at)
    select key, grp, epoch, p_sequences[i], p_offsets[i], v_now
    from raised where p_sequences[i] is not null
    order by key
    on conflict (key) do update set
        epoch = excluded.epoch, sequence_number = excluded.sequence_number,
        position_offset = excluded.position_offset, updated_at = excluded.updated_at;
end
$$;

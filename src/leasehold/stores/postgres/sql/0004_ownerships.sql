-- The calls on keys and who owns them. Those that take a list answer with places in it.

set local search_path = leasehold, pg_temp;

create function leasehold.declare_1(p_keys text[], p_ids text[], p_names text[]) returns integer
language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now  timestamptz;
    v_new  text[];
    v_last bigint;
begin
    -- Nearly always everything is there: that is seen without a lock.
    perform 1 from unnest(p_keys) as w (key)
    left join resource as r on r.key = w.key and not r.forgotten
    where r.key is null;
    if not found then
        return 0;
    end if;
    v_now := lock_1('{}', '{}');
    perform remember_names_1(p_ids, p_names);
    v_new := array(
        select w.key from unnest(p_keys) with ordinality as w (key, i)
        left join resource as r on r.key = w.key and not r.forgotten
        where r.key is null order by w.i
    );
    -- The row of a key may have been deleted by hand. Then its epoch goes on from its last term or
    -- checkpoint, and whoever still owned it is told that this has ended.
    v_last := take_versions_1(cardinality(v_new));
    update term as t set ended_at = v_now, reason = 'broken', version = v_last + w.i
    from unnest(v_new) with ordinality as w (key, i)
    where t.key = w.key and t.ended_at is null;
    insert into resource as r (key, grp, epoch, version)
    select
        w.key, group_of_1(w.key),
        greatest(
            0, (select max(t.epoch) from term as t where t.key = w.key),
            (select c.epoch from checkpoint as c where c.key = w.key)
        ),
        v_last + w.i
    from unnest(v_new) with ordinality as w (key, i)
    on conflict (key) do update set forgotten = false, version = excluded.version;
    return cardinality(v_new);
end
$$;

create function leasehold.forget_1(p_keys text[]) returns integer
language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now  timestamptz := lock_1('{}', p_keys);
    v_gone text[];
    v_last bigint;
begin
    perform settle_1(p_keys, v_now);
    select array_agg(r.key order by r.key) filter (where r.holder is null and not r.forgotten)
    into v_gone
    from resource as r where r.key = any (p_keys);
    if v_gone is not null then
        v_last := take_versions_1(cardinality(v_gone));
        update resource as r set forgotten = true, handed_to = null, version = v_last + w.i
        from unnest(v_gone) with ordinality as w (key, i)
        where r.key = w.key;
    end if;
    return coalesce(cardinality(v_gone), 0);
end
$$;

create function leasehold.claim_1(
    p_holder text, p_token text, p_keys text[], p_seen bigint[], p_force boolean, p_keep integer,
    out lost text, out places bigint[], out epochs bigint[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now    timestamptz := lock_1(array[p_holder], p_keys);
    v_rounds bigint[] := rounds_1(p_keys);
    v_want   text[];
    v_take   text[];
    v_steal  text[];
begin
    lost := lost_1(p_holder, p_token, v_now);
    if lost is not null then
        return;
    end if;
    for v_round in 1 .. coalesce((select max(n) from unnest(v_rounds) as n), 0) loop
        -- By the lease rules. What is the claimer's own is not stolen, only taken anew when broken.
        select array_agg(u.key order by u.i) into v_want
        from unnest(p_keys, p_seen, v_rounds) with ordinality as u (key, seen, round, i)
        join resource as r on r.key = u.key and r.epoch = u.seen and not r.forgotten
        left join lease as l on l.holder = r.holder
        where u.round = v_round and (
            (p_force and r.holder is distinct from p_holder)
            or state_1(r.holder, l.ends_at, r.break_at, v_now) in ('available', 'broken', 'expired')
        );
        perform settle_1(v_want, v_now);
        select
            array_agg(w.key order by w.i),
            array_agg(w.key order by w.i) filter (where r.holder is not null)
        into v_take, v_steal
        from unnest(v_want) with ordinality as w (key, i)
        join resource as r on r.key = w.key
        where r.handed_to is null or r.handed_to = p_holder;
        perform end_terms_1(v_steal, 'stolen', v_now);
        perform begin_terms_1(v_take, p_holder, p_keep, v_now);
        -- What it holds now from that epoch on, taken in this call or in an earlier one.
        select places || array_agg(u.i), epochs || array_agg(r.epoch) into places, epochs
        from unnest(p_keys, p_seen, v_rounds) with ordinality as u (key, seen, round, i)
        join resource as r on r.key = u.key
        where u.round = v_round and r.holder is not distinct from p_holder
            and r.epoch - u.seen in (0, 1) and r.break_at is null;
    end loop;
    select array_agg(h.i order by h.i), array_agg(h.epoch order by h.i) into places, epochs
    from unnest(places, epochs) as h (i, epoch);
end
$$;

create function leasehold.ask_1(
    p_holder text, p_token text, p_key text, p_seen bigint, out lost text, out stands boolean
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := lock_1(array[p_holder], array[p_key]);
begin
    lost := lost_1(p_holder, p_token, v_now);
    if lost is not null then
        return;
    end if;
    perform settle_1(array[p_key], v_now);
    update resource as r set asked_by = p_holder, version = take_versions_1(1) + 1
    where r.key = p_key and r.epoch = p_seen and r.holder <> p_holder
        and r.asked_by is distinct from p_holder;
    stands := exists (
        select 1 from resource as r
        where r.key = p_key and r.epoch = p_seen and r.holder <> p_holder
    );
end
$$;

create function leasehold.hand_over_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_to text[],
    p_limit_s double precision
) returns bigint[] language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now    timestamptz := lock_1(p_holders || p_to, p_keys);
    v_rounds bigint[] := rounds_1(p_keys);
    v_given  text[];
    v_pass   text[];
    v_to     text[];
    v_by     text[];
    v_passed bigint[];
    v_last   bigint;
begin
    perform settle_1(p_keys, v_now);
    for v_round in 1 .. coalesce((select max(n) from unnest(v_rounds) as n), 0) loop
        -- Given: what its owner holds. Kept: what is kept for the caller. Before: passed by an
        -- earlier call, whose answer may have been lost.
        select
            array_agg(w.key order by w.i) filter (where w.given),
            array_agg(w.key order by w.i) filter (where w.given or w.kept),
            array_agg(w.receiver order by w.i) filter (where w.given or w.kept),
            array_agg(w.holder order by w.i) filter (where w.given or w.kept),
            v_passed || array_agg(w.i)
        into v_given, v_pass, v_to, v_by, v_passed
        from (
            select
                u.i, u.key, u.receiver, u.holder,
                r.epoch = u.epoch and r.holder = u.holder
                    and state_1(r.holder, l.ends_at, r.break_at, v_now) = 'leased' as given,
                r.epoch = u.epoch and r.holder is null and r.handed_to = u.holder as kept,
                t.key is not null or (r.epoch = u.epoch and r.handed_by = u.holder) as before
            from unnest(p_keys, p_epochs, p_holders, p_tokens, p_to, v_rounds) with ordinality
                as u (key, epoch, holder, token, receiver, round, i)
            join resource as r on r.key = u.key
            join lease as l on l.holder = u.holder and l.token = u.token
            left join term as t on t.key = u.key and t.epoch = u.epoch
                and t.holder is not distinct from u.holder and t.reason = 'handed over'
            where u.round = v_round
        ) as w
        where w.given or w.kept or w.before;
        if v_pass is not null then
            perform end_terms_1(v_given, 'handed over', v_now);
            v_last := take_versions_1(cardinality(v_pass));
            update resource as r
            set handed_to = w.receiver, handed_until = v_now + seconds_1(p_limit_s),
                handed_by = w.giver, version = v_last + w.i
            from unnest(v_pass, v_to, v_by) with ordinality as w (key, receiver, giver, i)
            where r.key = w.key;
            perform settle_1(v_pass, v_now);
        end if;
    end loop;
    return array(select i from unnest(v_passed) as i order by i);
end
$$;

create function leasehold.release_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_reasons text[]
) returns bigint[] language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now  timestamptz := lock_1('{}', p_keys);
    v_held text[];
begin
    select array_agg(distinct r.key) into v_held
    from unnest(p_keys, p_epochs, p_holders, p_tokens) as u (key, epoch, holder, token)
    join resource as r on r.key = u.key and r.epoch = u.epoch
        and r.holder is not distinct from u.holder
    join lease as l on l.holder = u.holder and l.token = u.token;
    -- What time has ended was not ended by the release that came after.
    perform settle_1(v_held, v_now);
    select array_agg(r.key order by r.key) filter (where r.holder is not null) into v_held
    from resource as r where r.key = any (v_held);
    perform end_terms_1(v_held, 'released', v_now);
    -- Over by this call, by an earlier one, or because time was faster: the answer is the same.
    return array(
        select u.i
        from unnest(p_keys, p_epochs, p_holders, p_tokens) with ordinality
            as u (key, epoch, holder, token, i)
        join lease as l on l.holder = u.holder and l.token = u.token
        join resource as r on r.key = u.key
        join term as t on t.key = u.key and t.epoch = u.epoch
            and t.holder is not distinct from u.holder and t.reason = any (p_reasons)
        order by u.i
    );
end
$$;

create function leasehold.break_1(
    p_key text, p_epoch bigint, p_after_s double precision, out known boolean, out shown json
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now     timestamptz := lock_1('{}', array[p_key]);
    v_ends_at timestamptz;
    v_state   text;
    r         resource;
begin
    select * into r from resource as x where x.key = p_key and not x.forgotten;
    known := found;
    if r.epoch is distinct from p_epoch or r.holder is null then
        return;
    end if;
    select l.ends_at into v_ends_at from lease as l where l.holder = r.holder;
    v_state := state_1(r.holder, v_ends_at, r.break_at, v_now);
    if v_state = 'expired' then
        perform end_leases_1(array[r.holder], 'expired', v_now);
    elsif v_state = 'broken' or p_after_s <= 0 then
        perform end_terms_1(array[p_key], 'broken', v_now);
    else
        -- It can only shorten what is left.
        update resource as x set break_at = w.moment, version = take_versions_1(1) + 1
        from (
            select least(v_now + seconds_1(p_after_s), coalesce(r.break_at, v_ends_at)) as moment
        ) as w
        where x.key = p_key and x.break_at is distinct from w.moment;
    end if;
    select shown_1(x, l.ends_at, null, v_now) into shown
    from resource as x left join lease as l on l.holder = x.holder
    where x.key = p_key;
end
$$;

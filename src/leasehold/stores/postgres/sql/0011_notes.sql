-- Notes: what the holder says of its term. The term begins and ends with one in the same step, and
-- may get another while it lasts. Functions of older programs stay as they are: theirs is empty.
--
-- Claims and releases go a shorter way since then. What is nobody's, and what its owner holds in
-- time, has nothing to settle and is not looked at for that. And their plans are kept
-- (plan_cache_mode): left to itself the server finds that a list of one key is cheaper than the ten
-- it reckons with, and plans each statement anew in each call, which takes longer than to run them.
-- With an index for each look-up there is nothing to choose.

set local search_path = leasehold, pg_temp;

alter table leasehold.term add column note text not null default '';

create function leasehold.term_2(t leasehold.term) returns json
    language sql stable as $$
    select json_build_object(
        'key', leasehold.name_1(t.key), 'epoch', t.epoch, 'holder', t.holder,
        'started_at', t.started_at, 'ended_at', t.ended_at, 'reason', t.reason, 'note', t.note
    )
$$;

create function leasehold.history_2(p_key text, p_limit integer) returns json
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    select json_agg(term_2(x.t) order by (x.t).epoch desc)
    from (select t from term as t where t.key = p_key order by t.epoch desc limit p_limit) as x
$$;

-- As before, with term_2.
create function leasehold.changes_3(
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
            select json_agg(term_2(t) order by t.version)
            from term as t
            where t.holder = p_holder and t.version > p_since and t.ended_at is not null
                and t.reason <> 'reset'
        )
    from meta as m where m.one
$$;

-- As before, with changes_3.
create function leasehold.renew_3(
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
        from changes_3(p_holder, me.grp, p_since, v_now) as c;
    end if;
end
$$;

-- As before. The notes are in the order of the keys; without one the term begins with none.
create function leasehold.begin_terms_2(
    p_keys text[], p_notes text[], p_holder text, p_keep integer, p_now timestamptz
) returns void language plpgsql as $$
declare
    v_last bigint;
begin
    if coalesce(cardinality(p_keys), 0) = 0 then
        return;
    end if;
    update meta set version = version + cardinality(p_keys) where one
    returning version - cardinality(p_keys) into v_last;
    with begun as (
        update resource as r
        set epoch = r.epoch + 1, holder = p_holder, handed_to = null, handed_by = null,
            version = v_last + w.i
        from unnest(p_keys, p_notes) with ordinality as w (key, note, i)
        where r.key = w.key
        returning r.key, r.grp, r.epoch, r.version, w.note
    ), invited as (
        insert into guest (grp, holder)
        select distinct b.grp, p_holder from begun as b join lease as l on l.holder = p_holder
        where b.grp <> l.grp
        on conflict do nothing
    ), pruned as (
        delete from term as t using begun
        where t.key = begun.key and t.epoch <= begun.epoch - p_keep
    )
    insert into term (key, epoch, holder, started_at, version, note)
    select key, epoch, p_holder, p_now, version, coalesce(note, '') from begun;
end
$$;

-- As before. The notes are in the order of the keys; without one the term keeps the one it has.
create function leasehold.end_terms_2(
    p_keys text[], p_notes text[], p_reason text, p_now timestamptz
) returns void language plpgsql as $$
declare
    v_last bigint;
begin
    if coalesce(cardinality(p_keys), 0) = 0 then
        return;
    end if;
    update meta set version = version + cardinality(p_keys) where one
    returning version - cardinality(p_keys) into v_last;
    with over as (
        update resource as r
        set holder = null, asked_by = null, break_at = null, version = v_last + w.i
        from unnest(p_keys, p_notes) with ordinality as w (key, note, i)
        where r.key = w.key
        returning r.key, r.epoch, r.version, w.note
    )
    update term as t
    set ended_at = p_now, reason = p_reason, version = over.version,
        note = coalesce(over.note, t.note)
    from over
    where t.key = over.key and t.epoch = over.epoch;
end
$$;

create function leasehold.claim_2(
    p_holder text, p_token text, p_keys text[], p_seen bigint[], p_notes text[], p_force boolean,
    p_keep integer, out lost text, out places bigint[], out epochs bigint[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz := lock_1(array[p_holder], p_keys);
    v_one    boolean := cardinality(p_keys) = 1;
    v_rounds bigint[] := case when v_one then '{1}' else rounds_1(p_keys) end;
    v_last   bigint := case when v_one then 1 else (select max(n) from unnest(v_rounds) as n) end;
    v_take   text[];
    v_notes  text[];
    v_steal  text[];
    v_loose  boolean;
begin
    lost := lost_1(p_holder, p_token, v_now);
    if lost is not null then
        return;
    end if;
    for v_round in 1 .. coalesce(v_last, 0) loop
        -- By the lease rules. What is the claimer's own is not stolen, only taken anew when broken.
        select
            array_agg(u.key order by u.i), array_agg(u.note order by u.i),
            bool_and(r.holder is null and r.handed_to is null)
        into v_take, v_notes, v_loose
        from unnest(p_keys, p_seen, p_notes, v_rounds) with ordinality
            as u (key, seen, note, round, i)
        join resource as r on r.key = u.key and r.epoch = u.seen and not r.forgotten
        left join lease as l on l.holder = r.holder
        where u.round = v_round and (
            (p_force and r.holder is distinct from p_holder)
            or state_1(r.holder, l.ends_at, r.break_at, v_now) in ('available', 'broken', 'expired')
        );
        if not v_loose then
            perform settle_1(v_take, v_now);
            select
                array_agg(w.key order by w.i), array_agg(w.note order by w.i),
                array_agg(w.key order by w.i) filter (where r.holder is not null)
            into v_take, v_notes, v_steal
            from unnest(v_take, v_notes) with ordinality as w (key, note, i)
            join resource as r on r.key = w.key
            where r.handed_to is null or r.handed_to = p_holder;
            perform end_terms_1(v_steal, 'stolen', v_now);
        end if;
        perform begin_terms_2(v_take, v_notes, p_holder, p_keep, v_now);
        -- What it holds now from that epoch on, taken in this call or in an earlier one.
        select places || array_agg(u.i order by u.i), epochs || array_agg(r.epoch order by u.i)
        into places, epochs
        from unnest(p_keys, p_seen, v_rounds) with ordinality as u (key, seen, round, i)
        join resource as r on r.key = u.key
        where u.round = v_round and r.holder is not distinct from p_holder
            and r.epoch - u.seen in (0, 1) and r.break_at is null;
    end loop;
    if v_last > 1 then
        select array_agg(h.i order by h.i), array_agg(h.epoch order by h.i) into places, epochs
        from unnest(places, epochs) as h (i, epoch);
    end if;
end
$$;

create function leasehold.hand_over_2(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_to text[],
    p_notes text[], p_limit_s double precision
) returns bigint[] language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz := lock_1(p_holders || p_to, p_keys);
    v_rounds bigint[] := rounds_1(p_keys);
    v_given  text[];
    v_notes  text[];
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
            array_agg(w.note order by w.i) filter (where w.given),
            array_agg(w.key order by w.i) filter (where w.given or w.kept),
            array_agg(w.receiver order by w.i) filter (where w.given or w.kept),
            array_agg(w.holder order by w.i) filter (where w.given or w.kept),
            v_passed || array_agg(w.i)
        into v_given, v_notes, v_pass, v_to, v_by, v_passed
        from (
            select
                u.i, u.key, u.receiver, u.holder, u.note,
                r.epoch = u.epoch and r.holder = u.holder
                    and state_1(r.holder, l.ends_at, r.break_at, v_now) = 'leased' as given,
                r.epoch = u.epoch and r.holder is null and r.handed_to = u.holder as kept,
                t.key is not null or (r.epoch = u.epoch and r.handed_by = u.holder) as before
            from unnest(p_keys, p_epochs, p_holders, p_tokens, p_to, p_notes, v_rounds)
                with ordinality as u (key, epoch, holder, token, receiver, note, round, i)
            join resource as r on r.key = u.key
            join lease as l on l.holder = u.holder and l.token = u.token
            left join term as t on t.key = u.key and t.epoch = u.epoch
                and t.holder is not distinct from u.holder and t.reason = 'handed over'
            where u.round = v_round
        ) as w
        where w.given or w.kept or w.before;
        if v_pass is not null then
            perform end_terms_2(v_given, v_notes, 'handed over', v_now);
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

-- The notes are in the order of the ownerships, and the same for the same key.
create function leasehold.release_2(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_notes text[],
    p_reasons text[]
) returns bigint[] language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now   timestamptz := lock_1('{}', p_keys);
    v_held  text[];
    v_notes text[];
    v_firm  boolean;
begin
    select
        array_agg(h.key order by h.key), array_agg(h.note order by h.key),
        bool_and(h.state in ('leased', 'breaking'))
    into v_held, v_notes, v_firm
    from (
        select distinct
            r.key, u.note, state_1(r.holder, l.ends_at, r.break_at, v_now) as state
        from unnest(p_keys, p_epochs, p_holders, p_tokens, p_notes)
            as u (key, epoch, holder, token, note)
        join resource as r on r.key = u.key and r.epoch = u.epoch
            and r.holder is not distinct from u.holder
        join lease as l on l.holder = u.holder and l.token = u.token
    ) as h;
    if not v_firm then
        -- What time has ended was not ended by the release that came after.
        perform settle_1(v_held, v_now);
        select array_agg(w.key order by w.key), array_agg(w.note order by w.key)
        into v_held, v_notes
        from unnest(v_held, v_notes) as w (key, note)
        join resource as r on r.key = w.key
        where r.holder is not null;
    end if;
    perform end_terms_2(v_held, v_notes, 'released', v_now);
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

-- Answers with the places of the refused ones. As in a checkpoint, the lock on the lease keeps the
-- ownership from ending before this is written. Terms are locked by key, so that two such calls of
-- one holder can not wait for each other.
create function leasehold.annotate_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_texts text[]
) returns bigint[] language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now     timestamptz;
    v_may     bigint[];
    v_refused bigint[];
begin
    perform durable_1();
    perform 1 from lease where holder = any (p_holders) order by holder for key share;
    v_now := store_clock_1();
    v_may := array(
        select u.i
        from unnest(p_keys, p_epochs, p_holders, p_tokens) with ordinality
            as u (key, epoch, holder, token, i)
        join lease as l on l.holder = u.holder and l.token = u.token
        join resource as r on r.key = u.key and r.epoch = u.epoch
            and r.holder is not distinct from l.holder
        where state_1(r.holder, l.ends_at, r.break_at, v_now) in ('leased', 'breaking')
    );
    with said as (
        select distinct on (u.key) u.key, u.epoch, u.said
        from unnest(p_keys, p_epochs, p_texts) with ordinality as u (key, epoch, said, i)
        where u.i in (select unnest(v_may))
        order by u.key, u.i desc
    ), locked as (
        select t.key, t.epoch, w.said
        from said as w join term as t on t.key = w.key and t.epoch = w.epoch
        order by t.key
        for no key update of t
    )
    update term as t set note = w.said
    from locked as w
    where t.key = w.key and t.epoch = w.epoch;
    v_refused := array(
        select i::bigint from generate_subscripts(p_keys, 1) as i
        except select unnest(v_may)
        order by 1
    );
    if cardinality(v_refused) > 0 then
        insert into fenced as f (grp, writes)
        select group_of_1(u.key), count(*)
        from unnest(p_keys) with ordinality as u (key, i)
        where u.i in (select unnest(v_refused))
        group by 1 order by 1
        on conflict (grp) do update set writes = f.writes + excluded.writes;
    end if;
    return v_refused;
end
$$;

-- The calls on leases. A name ends in a number that rises when the function changes what it takes
-- or gives, so that old and new programs can work on the same database.
--
-- Every call fixes the path, for safety, and two settings of the planner: a plan is kept as long as
-- the connection, and one that was made while the tables were empty must not search them from end
-- to end when they are full; to compile such small queries would take longer than to run them.
-- For the same reason rows that are looked up by a list of keys have no other condition that an
-- index could serve ("is not distinct from" and filters of aggregates are none): looked up in any
-- other way, n keys would take n times n steps.

set local search_path = leasehold, pg_temp;

-- Whether time has ended something in the group that nobody has noted yet.
create function leasehold.due_1(p_grp text, p_now timestamptz) returns boolean
    language sql stable as $$
    select p_grp <> '' and (
        exists (
            select 1 from lease as l
            where l.grp = p_grp and l.ended is null and l.ends_at <= p_now
        )
        or exists (
            select 1 from guest as g join lease as l on l.holder = g.holder
            where g.grp = p_grp and l.ended is null and l.ends_at <= p_now
        )
        or exists (
            select 1 from resource as r
            left join lease as o on o.holder = r.holder
            left join lease as t
                on t.holder = r.handed_to and t.ended is null and t.ends_at > p_now
            where r.grp = p_grp and (r.break_at is not null or r.handed_to is not null)
                and (
                    state_1(r.holder, o.ends_at, r.break_at, p_now) in ('broken', 'expired')
                    or r.handed_to is not null and (r.handed_until <= p_now or t.holder is null)
                )
        )
    )
$$;

-- Renews under the mutex and ends what time has ended in the group.
create function leasehold.renew_and_settle_1(
    p_holder text, p_token text, p_grp text, p_info jsonb, out lost text, out renewed timestamptz
) language plpgsql as $$
declare
    v_over  text[];
    v_timed text[];
begin
    perform 1 from meta where one for update;
    if p_grp <> '' then
        v_over := array(
            select l.holder from lease as l
            where l.grp = p_grp and l.ended is null and l.ends_at <= store_clock_1()
            union
            select l.holder from guest as g join lease as l on l.holder = g.holder
            where g.grp = p_grp and l.ended is null and l.ends_at <= store_clock_1()
        );
        v_timed := array(
            select r.key from resource as r
            where r.grp = p_grp and (r.break_at is not null or r.handed_to is not null)
            order by r.version
        );
    end if;
    renewed := lock_1(v_over || p_holder, v_timed);
    lost := lost_1(p_holder, p_token, renewed);
    if lost is not null then
        return;
    end if;
    update lease as l set info = p_info, version = take_versions_1(1) + 1
    where l.holder = p_holder and l.info <> p_info;
    -- Only what is locked may be judged: another may be renewing at this very moment.
    perform end_leases_1(
        array(
            select l.holder from lease as l
            where l.holder = any (v_over) and l.ended is null and l.ends_at <= renewed
            order by l.version
        ),
        'expired', renewed
    );
    perform settle_1(v_timed, renewed);
end
$$;

create function leasehold.grant_1(
    p_holder text, p_token text, p_grp text, p_duration_s double precision, p_info jsonb,
    p_remember_s double precision, p_remember_loose_s double precision,
    p_ids text[], p_names text[],
    out lost text, out grp text, out duration_s double precision
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz;
begin
    v_now := lock_1(array[p_holder], '{}');
    update lease as l set ends_at = v_now + seconds_1(l.duration_s), renewed_at = v_now
    where l.holder = p_holder and l.token = p_token and l.ended is null and l.ends_at > v_now
    returning name_1(l.grp), l.duration_s into grp, duration_s;
    if found then
        return;
    end if;
    lost := lost_1(p_holder, p_token, v_now);
    if lost <> 'unknown' then
        return;
    end if;
    lost := null;
    -- Leases that ended long ago. One that is locked is left for the next time: never wait here.
    delete from lease where holder in (
        select l.holder from lease as l
        where l.ended is not null and v_now > l.ends_at
            + seconds_1(case l.grp when '' then p_remember_loose_s else p_remember_s end)
        for update skip locked
    );
    perform remember_names_1(p_ids, p_names);
    insert into lease (
        holder, token, grp, info, duration_s, granted_at, renewed_at, ends_at, version
    ) values (
        p_holder, p_token, p_grp, p_info, p_duration_s, v_now, v_now,
        v_now + seconds_1(p_duration_s), take_versions_1(1) + 1
    );
    grp := name_1(p_grp);
    duration_s := p_duration_s;
end
$$;

-- What a renewal tells; who has no group hears only of what is its own. One statement, so that the
-- version and the rows are of one snapshot: the version never promises more than the rows hold.
create function leasehold.changes_1(
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
            select json_agg(peer_1(l, p_now) order by l.version)
            from lease as l where l.grp = p_grp and p_grp <> '' and l.version > p_since
        ),
        (
            select json_agg(term_1(t) order by t.version)
            from term as t
            where t.holder = p_holder and t.version > p_since and t.ended_at is not null
        )
    from meta as m where m.one
$$;

-- A quiet renewal writes one row and holds no mutex. It does so only if there is nothing to settle
-- and nobody holds the row; else it begins again from the mutex, which comes before any row. The
-- time it read before is good then, because it did not have to wait.
create function leasehold.renew_1(
    p_holder text, p_token text, p_since bigint, p_info jsonb,
    out lost text, out version bigint, out resources json, out peers json, out ended json
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    me      lease;
    v_now   timestamptz := store_clock_1();
    v_quiet boolean := false;
begin
    select * into me from lease as l where l.holder = p_holder;
    if me.token = p_token and me.ended is null and me.ends_at > v_now
        and (p_info is null or p_info = me.info) and not due_1(me.grp, v_now)
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
    end if;
    update lease as l
    set ends_at = greatest(l.ends_at, v_now + seconds_1(l.duration_s)), renewed_at = v_now
    where l.holder = p_holder;
    select m.version into version from meta as m where m.one;
    if version <> p_since then
        select c.version, c.resources, c.peers, c.ended into version, resources, peers, ended
        from changes_1(p_holder, me.grp, p_since, v_now) as c;
    end if;
end
$$;

create function leasehold.revoke_1(p_holder text, p_token text) returns void
language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := lock_1(array[p_holder], '{}');
    me    lease;
begin
    select * into me from lease
    where holder = p_holder and token = p_token and ended is null;
    if found then
        perform end_leases_1(
            array[p_holder], case when me.ends_at <= v_now then 'expired' else 'released' end, v_now
        );
    end if;
end
$$;

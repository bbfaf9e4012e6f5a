-- What a renewal tells takes a fifteenth of the bytes, and of the work: a newcomer hears of every key of
-- its group at once, and in a large group that starts together all hear of all.
--
-- A key of the group on which nothing is asked for, breaking or reserved is told by its last part,
-- epoch and version, in one list for each holder; all others as before. Members likewise.

set local search_path = leasehold, pg_temp;

-- The lists of one holder, whose state is the same for all of them: [holder, state, keys, epochs,
-- versions]. The last parts of keys have no slash, so one stands between them. Versions count from
-- p_since. Epochs that are all the same are told once.
--
-- One statement, so that the version and the rows are of one snapshot: the version never promises more
-- than the rows hold.
create function leasehold.changes_4(
    p_holder text, p_grp text, p_since bigint, p_now timestamptz,
    out version bigint, out full_group text, out keys json, out resources json, out members json,
    out peers json, out ended json
) language plpgsql stable as $$
declare
    v_from integer := length(p_grp) + 2;
begin
    select
        m.version, name_1(p_grp),
        (
            select json_agg(json_build_array(
                w.holder, state_1(w.holder, l.ends_at, null, p_now), w.keys,
                case when w.least = w.most then w.most::text else w.epochs end, w.versions
            ))
            from (
                select
                    r.holder, string_agg(substr(r.key, v_from), '/') as keys,
                    min(r.epoch) as least, max(r.epoch) as most,
                    string_agg(r.epoch::text, ' ') as epochs,
                    string_agg((r.version - p_since)::text, ' ') as versions
                from resource as r
                where r.grp = p_grp and r.version > p_since and r.handed_to is null
                    and r.asked_by is null and r.break_at is null and not r.forgotten
                    and strpos(r.key, E'\x01') = 0
                group by r.holder
            ) as w
            left join lease as l on l.holder = w.holder
        ),
        (
            select json_agg(shown_1(x.r, l.ends_at, t.ends_at, p_now))
            from (
                select r from resource as r
                where r.grp = p_grp and r.version > p_since and (
                    r.handed_to is not null or r.asked_by is not null or r.break_at is not null
                    or r.forgotten or strpos(r.key, E'\x01') > 0
                )
                union all
                select r from resource as r
                where r.holder = p_holder and r.grp <> p_grp and r.version > p_since
            ) as x
            left join lease as l on l.holder = (x.r).holder
            left join lease as t on t.holder = (x.r).handed_to and t.ended is null
        ),
        (
            select json_agg(json_build_array(
                l.holder, l.info, l.version, l.duration_s,
                extract(epoch from l.ends_at - p_now)::double precision
            ))
            from lease as l
            where l.grp = p_grp and p_grp <> '' and l.version > p_since
                and l.ended is null and l.ends_at > p_now and not l.dismissed
        ),
        (
            select json_agg(peer_2(l, p_now))
            from lease as l
            where l.grp = p_grp and p_grp <> '' and l.version > p_since
                and (l.ended is not null or l.ends_at <= p_now or l.dismissed)
        ),
        (
            select json_agg(term_2(t) order by t.version)
            from term as t
            where t.holder = p_holder and t.version > p_since and t.ended_at is not null
                and t.reason <> 'reset'
        )
    into version, full_group, keys, resources, members, peers, ended
    from meta as m where m.one;
end
$$;

-- As before, with changes_4.
create function leasehold.renew_4(
    p_holder text, p_token text, p_since bigint, p_info jsonb,
    out lost text, out version bigint, out full_group text, out keys json, out resources json,
    out members json, out peers json, out ended json, out next_end_s double precision
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
        select c.version, c.full_group, c.keys, c.resources, c.members, c.peers, c.ended
        into version, full_group, keys, resources, members, peers, ended
        from changes_4(p_holder, me.grp, p_since, v_now) as c;
    end if;
end
$$;

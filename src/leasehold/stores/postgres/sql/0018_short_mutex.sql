-- A renewal commits before it is told what changed. The answer of a large group takes a while to make
-- and to send, and while the server sent it to a slow or paused client, the transaction was open: it
-- held the mutex if there was something to settle, and the whole group waited for that client.

set local search_path = leasehold, pg_temp;

-- As before, without the changes: the caller asks for them if the version is not the one it knows.
create function leasehold.renew_5(
    p_holder text, p_token text, p_info jsonb,
    out lost text, out version bigint, out next_end_s double precision
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
end
$$;

-- What changed for a holder since a version. Takes no lock.
create function leasehold.changes_5(
    p_holder text, p_since bigint,
    out version bigint, out full_group text, out keys json, out resources json, out members json,
    out peers json, out ended json
) language plpgsql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_grp text := (select l.grp from lease as l where l.holder = p_holder);
begin
    select c.* into version, full_group, keys, resources, members, peers, ended
    from changes_4(p_holder, coalesce(v_grp, ''), p_since, store_clock_1()) as c;
end
$$;

-- Checkpoints, and the calls that only read.

set local search_path = leasehold, pg_temp;

-- The lock on the lease keeps the ownership from ending before this is written: whoever ends a
-- term locks its lease "for update" first. Renewals are not held up by it.
create function leasehold.checkpoint_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_sequences bigint[],
    p_offsets text[], out places bigint[], out refusals text[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now    timestamptz;
    v_rounds bigint[] := rounds_1(p_keys);
begin
    perform durable_1();
    perform 1 from lease where holder = any (p_holders) order by holder for key share;
    v_now := store_clock_1();
    for v_round in 1 .. coalesce((select max(n) from unnest(v_rounds) as n), 0) loop
        with mark as (
            select
                u.i, u.key, group_of_1(u.key) as grp, u.epoch, u.sequence, u.position_offset,
                coalesce(
                    state_1(r.holder, l.ends_at, r.break_at, v_now) in ('leased', 'breaking'),
                    false
                ) as may
            from unnest(p_keys, p_epochs, p_holders, p_tokens, p_sequences, p_offsets, v_rounds)
                with ordinality as u (key, epoch, holder, token, sequence, position_offset, round, i)
            left join lease as l on l.holder = u.holder and l.token = u.token
            left join resource as r on r.key = u.key and r.epoch = u.epoch
                and r.holder is not distinct from l.holder
            where u.round = v_round
        ), written as (
            insert into checkpoint as c (key, grp, epoch, sequence_number, position_offset, updated_at)
            select key, grp, epoch, sequence, position_offset, v_now from mark where may order by key
            on conflict (key) do update set
                epoch = excluded.epoch, sequence_number = excluded.sequence_number,
                position_offset = excluded.position_offset, updated_at = excluded.updated_at
            where c.sequence_number <= excluded.sequence_number
            returning c.key
        ), counted as (
            insert into fenced as f (grp, writes)
            select grp, count(*) from mark where not may group by grp order by grp
            on conflict (grp) do update set writes = f.writes + excluded.writes
        )
        select
            places || array_agg(m.i),
            refusals || array_agg(case when m.may then 'behind' else 'fenced' end)
        into places, refusals
        from mark as m left join written as w on w.key = m.key
        where w.key is null;
    end loop;
end
$$;

create function leasehold.checkpoints_1(p_grp text) returns json
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    select json_agg(json_build_object(
        'key', name_1(c.key), 'epoch', c.epoch, 'sequence_number', c.sequence_number,
        'offset', c.position_offset, 'updated_at', c.updated_at
    ) order by c.key)
    from checkpoint as c where c.grp = p_grp
$$;

create function leasehold.resources_1(p_grp text) returns json
language plpgsql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := store_clock_1();
begin
    return (
        select json_agg(shown_1(r, l.ends_at, t.ends_at, v_now) order by r.key)
        from resource as r
        left join lease as l on l.holder = r.holder
        left join lease as t on t.holder = r.handed_to and t.ended is null
        where r.grp = p_grp and not r.forgotten
    );
end
$$;

create function leasehold.peers_1(p_grp text) returns json
language plpgsql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := store_clock_1();
begin
    return (
        select json_agg(peer_1(l, v_now) order by l.holder)
        from lease as l where l.grp = p_grp and l.ended is null and l.ends_at > v_now
    );
end
$$;

create function leasehold.history_1(p_key text, p_limit integer) returns json
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    select json_agg(term_1(x.t) order by (x.t).epoch desc)
    from (select t from term as t where t.key = p_key order by t.epoch desc limit p_limit) as x
$$;

create function leasehold.fenced_writes_1(p_grp text) returns bigint
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    select coalesce((select f.writes from fenced as f where f.grp = p_grp), 0)
$$;

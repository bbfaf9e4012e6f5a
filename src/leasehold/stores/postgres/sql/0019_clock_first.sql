-- The clock is read before the rows. A lease that was renewed between the two looked ended: whoever was
-- told so heard no more of it, because a renewal is no change.

set local search_path = leasehold, pg_temp;

-- As before, but volatile: each of its statements sees what was committed when it began.
create or replace function leasehold.changes_5(
    p_holder text, p_since bigint,
    out version bigint, out full_group text, out keys json, out resources json, out members json,
    out peers json, out ended json
) language plpgsql volatile
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := store_clock_1();
    v_grp text := (select l.grp from lease as l where l.holder = p_holder);
begin
    select c.* into version, full_group, keys, resources, members, peers, ended
    from changes_4(p_holder, coalesce(v_grp, ''), p_since, v_now) as c;
end
$$;

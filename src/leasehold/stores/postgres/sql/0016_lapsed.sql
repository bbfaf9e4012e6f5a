-- A lease that is revoked says why: released in order, or lapsed, when its holder had stopped trusting
-- it before.

create function leasehold.revoke_2(p_holder text, p_token text, p_reason text) returns void
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
            array[p_holder], case when me.ends_at <= v_now then 'expired' else p_reason end, v_now
        );
    end if;
end
$$;

-- Processes of the release before still call this one.
create or replace function leasehold.revoke_1(p_holder text, p_token text) returns void
language sql
set search_path = leasehold, pg_temp
as $$ select revoke_2(p_holder, p_token, 'released') $$;

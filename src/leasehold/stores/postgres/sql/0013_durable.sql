-- An answer outlives a crash of the server, and the loss of a primary that has a synchronous standby,
-- whatever the default is: "local" and "remote_write" promise less than that, too.

set local search_path = leasehold, pg_temp;

create or replace function leasehold.durable_1() returns void language plpgsql as $$
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

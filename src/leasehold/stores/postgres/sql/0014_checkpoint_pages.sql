-- Checkpoints that one holder writes together share a row, a page of up to 32 positions: one small
-- change of one row for all of them, instead of a change of a row for each, costs a tenth of the
-- write-ahead log.
--
-- A key gets a place in a page at its second checkpoint in a term; the first is written as before, so
-- that what is checkpointed once in a term (an occurrence of a job) costs what it did. From then on
-- its row in "checkpoint" says where, and the page has the position. When the term ends, however it
-- does, the position goes back to the row of its key in the same step: a page has only positions of
-- terms that are held. An offset that is neither empty nor a plain number stays in the row.
--
-- Locks: after the lease (see 0002) that of its holder's pages, an advisory one. It is held alone by
-- who writes to pages, and shared by who does not and may only take a position out of one: the
-- transactions of callers, which must not wait for each other. Who ends a term needs none, because
-- its lock on the lease keeps all of these out.

set local search_path = leasehold, pg_temp;

-- For place n (from 0) the numbers from 3n + 1 on: the sequence, the time of the checkpoint in
-- microseconds, and the offset. Each is a base plus a step: a checkpoint changes only the steps, half
-- as long, and what comes before them in the row is not logged. A base moves when a step would not
-- fit any more, which is after 35 minutes at the latest. No index may know what a checkpoint changes.
create table leasehold.checkpoint_page (
    id    bigint generated always as identity primary key,
    taken integer not null,
    bases bigint[] not null,
    steps integer[] not null
) with (fillfactor = 50);

alter table leasehold.checkpoint add column page bigint, add column place integer;

-- An offset as a number, or null if it can not be one. -1 is no offset.
create function leasehold.offset_number_1(p_offset text) returns bigint
    language sql immutable as $$
    select case
        when p_offset = '' then -1
        when p_offset ~ '^(0|[1-9][0-9]{0,17})$' then p_offset::bigint
    end
$$;

create function leasehold.offset_text_1(p_number bigint) returns text
    language sql immutable as $$ select case when p_number = -1 then '' else p_number::text end $$;

create function leasehold.micros_1(p_time timestamptz) returns bigint
    language sql immutable as $$ select (extract(epoch from p_time) * 1000000)::bigint $$;

create function leasehold.moment_1(p_micros bigint) returns timestamptz
    language sql immutable as $$
    select timestamptz '1970-01-01 00:00:00+00' + p_micros * interval '1 microsecond'
$$;

-- Takes the lock on the pages of these holders.
create function leasehold.lock_pages_1(p_holders text[], p_alone boolean) returns void
    language plpgsql as $$
begin
    if p_alone then
        perform pg_advisory_xact_lock(w.id)
        from (
            select distinct hashtextextended('leasehold.checkpoint ' || h, 0) as id
            from unnest(p_holders) as h order by 1
        ) as w;
    else
        perform pg_advisory_xact_lock_shared(w.id)
        from (
            select distinct hashtextextended('leasehold.checkpoint ' || h, 0) as id
            from unnest(p_holders) as h order by 1
        ) as w;
    end if;
end
$$;

-- Takes the positions of these keys out of their pages, back to the rows of the keys.
create function leasehold.fold_1(p_keys text[]) returns void language plpgsql as $$
declare
    v_empty bigint[];
begin
    with folded as (
        update checkpoint as c
        set sequence_number = p.bases[3 * c.place + 1] + p.steps[3 * c.place + 1],
            updated_at = moment_1(p.bases[3 * c.place + 2] + p.steps[3 * c.place + 2]),
            position_offset = offset_text_1(p.bases[3 * c.place + 3] + p.steps[3 * c.place + 3]),
            page = null, place = null
        from checkpoint_page as p
        where c.key = any (p_keys) and p.id = c.page
        returning p.id
    ), smaller as (
        update checkpoint_page as p set taken = p.taken - f.keys
        from (select id, count(*)::integer as keys from folded group by id) as f
        where p.id = f.id
        returning p.id, p.taken
    )
    select array_agg(id) into v_empty from smaller where taken <= 0;
    if v_empty is not null then
        delete from checkpoint_page where id = any (v_empty);
    end if;
end
$$;

-- Puts the positions of these keys, all of one holder, into pages of their own.
create function leasehold.place_1(p_keys text[]) returns void language plpgsql as $$
declare
    v_keys text[];
    v_some text[];
    v_page bigint;
begin
    perform fold_1(p_keys);
    v_keys := array(select c.key from checkpoint as c where c.key = any (p_keys) order by c.key);
    for v_first in 1 .. cardinality(v_keys) by 32 loop
        v_some := v_keys[v_first:v_first + 31];
        insert into checkpoint_page (taken, bases, steps)
        select
            cardinality(v_some), array_agg(n.number order by w.i, n.n),
            array_fill(0, array[3 * cardinality(v_some)])
        from unnest(v_some) with ordinality as w (key, i)
        join checkpoint as c on c.key = w.key
        cross join lateral (
            values (1, c.sequence_number), (2, micros_1(c.updated_at)),
                (3, offset_number_1(c.position_offset))
        ) as n (n, number)
        returning id into v_page;
        update checkpoint as c set page = v_page, place = w.i - 1
        from unnest(v_some) with ordinality as w (key, i)
        where c.key = w.key;
    end loop;
end
$$;

-- Which of the marks their ownership allows, in their order. The leases are locked.
create function leasehold.allowed_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_now timestamptz
) returns boolean[] language plpgsql as $$
begin
    return (
        select array_agg(
            coalesce(state_1(r.holder, l.ends_at, r.break_at, p_now) in ('leased', 'breaking'), false)
            order by u.i
        )
        from unnest(p_keys, p_epochs, p_holders, p_tokens) with ordinality
            as u (key, epoch, holder, token, i)
        left join lease as l on l.holder = u.holder and l.token = u.token
        left join resource as r on r.key = u.key and r.epoch = u.epoch
            and r.holder is not distinct from l.holder
    );
end
$$;

-- Writes the allowed marks, to rows or pages, and answers with the places of the refused ones. A key
-- may come several times: a mark is behind if the stored position or one before it is ahead.
create function leasehold.write_positions_1(
    p_keys text[], p_epochs bigint[], p_sequences bigint[], p_offsets text[], p_may boolean[],
    p_now timestamptz, out places bigint[], out refusals text[]
) language plpgsql as $$
declare
    v_micros    bigint := micros_1(p_now);
    v_pages     bigint[];
    v_starts    integer[];
    v_sequences bigint[];
    v_offsets   bigint[];
    v_page      bigint;
    v_bases     bigint[];
    v_steps     integer[];
    v_numbers   bigint[];
    v_step      numeric;
begin
    with mark as (
        select
            u.i, u.key, u.epoch, u.sequence, u.position_offset, u.may, c.page, c.place,
            coalesce(p.bases[3 * c.place + 1] + p.steps[3 * c.place + 1], c.sequence_number)
                as reached,
            max(case when u.may then u.sequence end) over (
                partition by u.key order by u.i rows between unbounded preceding and 1 preceding
            ) as before
        from unnest(p_keys, p_epochs, p_sequences, p_offsets, p_may) with ordinality
            as u (key, epoch, sequence, position_offset, may, i)
        left join checkpoint as c on c.key = u.key
        left join checkpoint_page as p on p.id = c.page
    ), judged as (
        select m.*, m.may and m.sequence >= greatest(m.reached, m.before, m.sequence) as good
        from mark as m
    ), newest as (
        select distinct on (j.key) j.* from judged as j where j.good order by j.key, j.i desc
    ), written as (
        insert into checkpoint as c (key, grp, epoch, sequence_number, position_offset, updated_at)
        select key, group_of_1(key), epoch, sequence, position_offset, p_now
        from newest where page is null order by key
        on conflict (key) do update set
            epoch = excluded.epoch, sequence_number = excluded.sequence_number,
            position_offset = excluded.position_offset, updated_at = excluded.updated_at
        where c.sequence_number <= excluded.sequence_number
    ), counted as (
        insert into fenced as f (grp, writes)
        select group_of_1(key), count(*) from judged where not may group by 1 order by 1
        on conflict (grp) do update set writes = f.writes + excluded.writes
    ), paged as (
        select page, 3 * place as start, sequence, offset_number_1(position_offset) as number
        from newest where page is not null
    )
    select r.places, r.refusals, w.pages, w.starts, w.sequences, w.offsets
    into places, refusals, v_pages, v_starts, v_sequences, v_offsets
    from (
        select
            array_agg(i order by i) as places,
            array_agg(case when may then 'behind' else 'fenced' end order by i) as refusals
        from judged where not good
    ) as r, (
        select
            array_agg(page order by page, start) as pages,
            array_agg(start order by page, start) as starts,
            array_agg(sequence order by page, start) as sequences,
            array_agg(number order by page, start) as offsets
        from paged
    ) as w;
    for n in 1 .. coalesce(cardinality(v_pages), 0) loop
        if v_page is distinct from v_pages[n] then
            update checkpoint_page set steps = v_steps where id = v_page;
            v_page := v_pages[n];
            select p.bases, p.steps into v_bases, v_steps from checkpoint_page as p where p.id = v_page;
        end if;
        v_numbers := array[v_sequences[n], v_micros, v_offsets[n]];
        for k in 1 .. 3 loop
            v_step := v_numbers[k]::numeric - v_bases[v_starts[n] + k];
            if abs(v_step) < 2147483648 then
                v_steps[v_starts[n] + k] := v_step;
            else
                v_bases[v_starts[n] + k] := v_numbers[k];
                v_steps[v_starts[n] + k] := 0;
                update checkpoint_page set bases = v_bases where id = v_page;
            end if;
        end loop;
    end loop;
    update checkpoint_page set steps = v_steps where id = v_page;
end
$$;

-- As before, for transactions of callers and for programs of older versions, which read a position
-- in the row of its key: there it is from then on.
create or replace function leasehold.checkpoint_1(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_sequences bigint[],
    p_offsets text[], out places bigint[], out refusals text[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz;
    v_may    boolean[];
    v_placed text[];
begin
    perform durable_1();
    perform 1 from lease where holder = any (p_holders) order by holder for key share;
    perform lock_pages_1(p_holders, false);
    v_now := store_clock_1();
    v_may := allowed_1(p_keys, p_epochs, p_holders, p_tokens, v_now);
    v_placed := array(
        select u.key from unnest(p_keys, v_may) as u (key, may)
        join checkpoint as c on c.key = u.key
        where u.may and c.page is not null
    );
    if cardinality(v_placed) > 0 then
        perform fold_1(v_placed);
    end if;
    select w.places, w.refusals into places, refusals
    from write_positions_1(p_keys, p_epochs, p_sequences, p_offsets, v_may, v_now) as w;
end
$$;

-- As before, by pages. Keys that come together for the first time move to pages together, with those
-- that were in pages which are not full; so do keys that are spread over many nearly empty pages.
create function leasehold.checkpoint_2(
    p_keys text[], p_epochs bigint[], p_holders text[], p_tokens text[], p_sequences bigint[],
    p_offsets text[], out places bigint[], out refusals text[]
) language plpgsql
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz;
    v_may    boolean[];
    v_out    text[];
    v_new    text[];
    v_loose  text[];
    v_placed integer;
    v_pages  integer;
    v_taken  integer;
begin
    perform durable_1();
    perform 1 from lease where holder = any (p_holders) order by holder for key share;
    perform lock_pages_1(p_holders, true);
    v_now := store_clock_1();
    v_may := allowed_1(p_keys, p_epochs, p_holders, p_tokens, v_now);
    with mark as (
        select
            c.key, c.page, p.taken, c.epoch = u.epoch as mine,
            offset_number_1(u.position_offset) is not null
                and offset_number_1(c.position_offset) is not null as plain
        from unnest(p_keys, p_epochs, p_offsets, v_may) as u (key, epoch, position_offset, may)
        join checkpoint as c on c.key = u.key
        left join checkpoint_page as p on p.id = c.page
        where u.may
    ), page as (
        select distinct page, taken from mark where page is not null
    )
    select
        array_agg(m.key) filter (where m.page is not null and not (m.mine and m.plain)),
        array_agg(m.key) filter (where m.page is null and m.mine and m.plain),
        array_agg(m.key) filter (where m.page is not null and m.mine and m.plain and m.taken < 32),
        count(m.page), (select count(*) from page), (select sum(taken) from page)
    into v_out, v_new, v_loose, v_placed, v_pages, v_taken
    from mark as m;
    if v_out is not null then
        perform fold_1(v_out);
    end if;
    if v_new is not null or (v_pages > 2 + v_placed / 16 and v_taken <= 2 * v_placed) then
        if p_holders[1] = all (p_holders) then
            perform place_1(v_new || v_loose);
        end if;
    end if;
    select w.places, w.refusals into places, refusals
    from write_positions_1(p_keys, p_epochs, p_sequences, p_offsets, v_may, v_now) as w;
end
$$;

-- As before, and the positions leave their pages.
create or replace function leasehold.end_terms_1(p_keys text[], p_reason text, p_now timestamptz)
    returns void language plpgsql as $$
begin
    perform end_terms_2(p_keys, '{}', p_reason, p_now);
end
$$;

create or replace function leasehold.end_terms_2(
    p_keys text[], p_notes text[], p_reason text, p_now timestamptz
) returns void language plpgsql as $$
declare
    v_last bigint;
begin
    if coalesce(cardinality(p_keys), 0) = 0 then
        return;
    end if;
    perform fold_1(p_keys);
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

create or replace function leasehold.checkpoints_1(p_grp text) returns json
language sql stable
set search_path = leasehold, pg_temp set enable_seqscan = off set jit = off
as $$
    select json_agg(json_build_object(
        'key', name_1(c.key), 'epoch', c.epoch,
        'sequence_number', coalesce(
            p.bases[3 * c.place + 1] + p.steps[3 * c.place + 1], c.sequence_number
        ),
        'offset', coalesce(
            offset_text_1(p.bases[3 * c.place + 3] + p.steps[3 * c.place + 3]), c.position_offset
        ),
        'updated_at', coalesce(
            moment_1(p.bases[3 * c.place + 2] + p.steps[3 * c.place + 2]), c.updated_at
        )
    ) order by c.key)
    from checkpoint as c left join checkpoint_page as p on p.id = c.page
    where c.grp = p_grp
$$;

create or replace view leasehold.log_position as
select
    coalesce(long_name.name, checkpoint.key) as key,
    coalesce(
        checkpoint_page.bases[3 * checkpoint.place + 1]
        + checkpoint_page.steps[3 * checkpoint.place + 1],
        checkpoint.sequence_number
    ) as sequence_number
from leasehold.checkpoint
left join leasehold.long_name on long_name.id = checkpoint.key
left join leasehold.checkpoint_page on checkpoint_page.id = checkpoint.page;

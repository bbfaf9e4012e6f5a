-- Positions that say of which stream they are, as those of an event log do, share rows too: the row of
-- the key keeps the mark of the stream, and the page the number before it. And a key that comes several
-- times in one call has a page only if all of its positions fit into one: a position without a number
-- left a null there, and the term could not end.

set local search_path = leasehold, pg_temp;

-- What follows the offset in the text of a position: the mark of the stream, or nothing.
create function leasehold.stream_mark_1(p_offset text) returns text
    language sql immutable as $$
    select substr(p_offset, length(split_part(p_offset, E'\x1fstream=', 1)) + 1)
$$;

-- As before, of what precedes the mark.
create or replace function leasehold.offset_number_1(p_offset text) returns bigint
    language sql immutable as $$
    select case
        when w.number = '' then -1
        when w.number ~ '^(0|[1-9][0-9]{0,17})$' then w.number::bigint
    end
    from split_part(p_offset, E'\x1fstream=', 1) as w (number)
$$;

-- As before, with the mark. Where a page has a null, the offset is that of the row.
create or replace function leasehold.fold_1(p_keys text[]) returns void language plpgsql as $$
declare
    v_empty bigint[];
begin
    with folded as (
        update checkpoint as c
        set sequence_number = p.bases[3 * c.place + 1] + p.steps[3 * c.place + 1],
            updated_at = moment_1(p.bases[3 * c.place + 2] + p.steps[3 * c.place + 2]),
            position_offset = coalesce(
                offset_text_1(p.bases[3 * c.place + 3] + p.steps[3 * c.place + 3])
                || stream_mark_1(c.position_offset),
                c.position_offset
            ),
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

-- As before; what is plain is of the same stream as the row, and so are all positions of its key.
create or replace function leasehold.checkpoint_2(
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
            c.key, c.page, p.taken, bool_and(c.epoch = u.epoch) as mine,
            bool_and(
                offset_number_1(u.position_offset) is not null
                and offset_number_1(c.position_offset) is not null
                and stream_mark_1(u.position_offset) = stream_mark_1(c.position_offset)
            ) as plain
        from unnest(p_keys, p_epochs, p_offsets, v_may) as u (key, epoch, position_offset, may)
        join checkpoint as c on c.key = u.key
        left join checkpoint_page as p on p.id = c.page
        where u.may
        group by c.key, c.page, p.taken
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
            offset_text_1(p.bases[3 * c.place + 3] + p.steps[3 * c.place + 3])
            || stream_mark_1(c.position_offset),
            c.position_offset
        ),
        'updated_at', coalesce(
            moment_1(p.bases[3 * c.place + 2] + p.steps[3 * c.place + 2]), c.updated_at
        )
    ) order by c.key)
    from checkpoint as c left join checkpoint_page as p on p.id = c.page
    where c.grp = p_grp
$$;

create schema plain;
create table plain.lease (holder text collate "C" primary key) with (fillfactor = 40);
create table plain.checkpoint (
    key             text collate "C" primary key,
    grp             text collate "C" not null,
    epoch           bigint not null,
    sequence_number bigint not null,
    position_offset text not null,
    updated_at      timestamptz not null
) with (fillfactor = 50);
create index on plain.checkpoint (grp);
with held as materialized (
    select 1 from plain.lease where holder = %(holder)s for key share
)
insert into plain.checkpoint as c (key, grp, epoch, sequence_number, position_offset, updated_at)
select u.key, %(grp)s, 1, u.sequence, u.position_offset, clock_timestamp()
from held, unnest(%(keys)s::text[], %(sequences)s::bigint[], %(offsets)s::text[])
    as u (key, sequence, position_offset)
order by u.key
on conflict (key) do update set
    epoch = excluded.epoch, sequence_number = excluded.sequence_number,
    position_offset = excluded.position_offset, updated_at = excluded.updated_at
where c.sequence_number <= excluded.sequence_number;

-- The namespace of files: who writes what, and where the blocks lie. Columns named *_s are seconds
-- of the server's clock since 1970, by which everything is decided; those named *_at are text for
-- people. The statements over these tables are in leasehold/files/journal/queries.sql, written once
-- for SQLite and for PostgreSQL.

-- One row: the last numbers that were given out, how many steps were refused, and by its row lock
-- the mutex of all that change the namespace. The page is left empty so that updates stay HOT.
create table leasehold.fs_meta (
    id            integer primary key check (id = 1),
    last_file_id  bigint not null,
    last_block_id bigint not null,
    last_epoch    bigint not null,
    last_line     bigint not null,
    refused       bigint not null,
    namespace     text not null
) with (fillfactor = 10);
insert into leasehold.fs_meta (
    id, last_file_id, last_block_id, last_epoch, last_line, refused, namespace
)
values (1, 0, 0, 0, 0, 0, '');

create table leasehold.fs_volume (
    id       text collate "C" primary key,
    path     text not null,
    added_at text not null
);

-- A holder's lease over all its files: a renewal writes one of these rows and nothing else.
create table leasehold.fs_holder (
    id        text collate "C" primary key,
    token     text collate "C" not null,
    host      text not null,
    pid       bigint not null,
    address   text not null,
    since_at  text not null,
    renewed_s double precision not null
) with (fillfactor = 40);
create index fs_holder_by_age on leasehold.fs_holder (renewed_s);

-- holder: who writes or recovers it; of a closed file, who did last. recovered: the id of the last
-- recovery that was committed. request: the caller's own name for the call that opened it.
create table leasehold.fs_file (
    id              bigint primary key,
    path            text collate "C" not null unique,
    state           text collate "C" not null,
    epoch           bigint not null,
    holder          text collate "C" not null,
    length          bigint not null,
    replication     bigint not null,
    block_size      bigint not null,
    created_at      text collate "C" not null,
    modified_at     text collate "C" not null,
    opened_at       text collate "C" not null,
    request         text collate "C" not null,
    recovered       bigint not null default 0,
    attempts        bigint not null default 0,
    attempt_until_s double precision not null default 0.0,
    next_attempt_s  double precision not null default 0.0,
    trouble         text not null default ''
);
create index fs_file_held on leasehold.fs_file (holder, state) where state <> 'closed';
create index fs_file_open on leasehold.fs_file (id) where state <> 'closed';
create index fs_file_recovering on leasehold.fs_file (next_attempt_s) where state = 'recovering';

create table leasehold.fs_block (
    id         bigint primary key,
    file_id    bigint not null,
    idx        bigint not null,
    generation bigint not null,
    state      text collate "C" not null,
    start      bigint not null,
    length     bigint not null,
    checksum   bigint not null,
    unique (file_id, idx)
);
-- Only one block of a file may be open.
create unique index fs_block_open on leasehold.fs_block (file_id) where state = 'open';

create table leasehold.fs_replica (
    block_id  bigint,
    volume_id text collate "C",
    primary key (block_id, volume_id)
);

-- Replicas that no file has any more, to be removed from their volumes.
create table leasehold.fs_trash (
    block_id  bigint,
    volume_id text collate "C",
    primary key (block_id, volume_id)
);

create table leasehold.fs_journal (
    number  bigint primary key,
    at      text not null,
    step    text not null,
    file_id bigint not null,
    path    text not null,
    epoch   bigint not null,
    holder  text not null,
    detail  text not null
);
create index fs_journal_of_file on leasehold.fs_journal (file_id, number);

-- A file with what is known of its holder. No row of the holder: as if silent for ever.
create view leasehold.fs_seen as
select
    f.id, f.path, f.state, f.epoch, f.holder, f.length, f.replication, f.block_size, f.created_at,
    f.modified_at, f.opened_at, f.request, f.recovered, f.attempts, f.attempt_until_s,
    f.next_attempt_s, f.trouble,
    coalesce(h.token, '') as token,
    coalesce(h.host, '') as host,
    coalesce(h.pid, 0) as pid,
    coalesce(h.address, '') as address,
    coalesce(h.renewed_s, -1000000000.0) as renewed_s
from leasehold.fs_file as f left join leasehold.fs_holder as h on h.id = f.holder;

-- What SQLite has under this name, for lists of texts: so that one query does for both. The search
-- path also keeps it from being inlined, which would hide from the planner that lists are short.
create function leasehold.json_each(p_list text) returns table (value text)
language sql immutable rows 10
set search_path = pg_catalog
as $$ select pg_catalog.json_array_elements_text(p_list::json) $$;

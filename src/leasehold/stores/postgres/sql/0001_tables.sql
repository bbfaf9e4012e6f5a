-- The tables of Leasehold. All names and keys compare byte by byte (collate "C"): that is the
-- order of their code points, the same on every server, and the fastest.

do $$
begin
    -- "create schema if not exists" asks for the right to create even where the schema is there.
    if to_regnamespace('leasehold') is null then
        create schema leasehold;
    end if;
end
$$;

create table leasehold.migration (
    number     integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- One row: the counter of all changes, and by its row lock the mutex of all that change owners or
-- members. Versions are therefore committed in their order: a watcher that was told version v
-- can never miss a change with a smaller one. The page is left empty so that updates stay HOT.
create table leasehold.meta (
    one     boolean primary key default true check (one),
    version bigint not null
) with (fillfactor = 10);
insert into leasehold.meta (version) values (0);

-- A quiet renewal writes ends_at and renewed_at of one row. No index may know these columns, not
-- even in the condition of a partial one: such an update would not be HOT any more.
create table leasehold.lease (
    holder     text collate "C" primary key,
    token      text collate "C" not null,
    grp        text collate "C" not null,
    info       jsonb not null,
    duration_s double precision not null,
    granted_at timestamptz not null,
    renewed_at timestamptz not null,
    ends_at    timestamptz not null,
    ended      text,
    version    bigint not null
) with (fillfactor = 40);
create index lease_by_change on leasehold.lease (grp, version);
create index lease_not_ended on leasehold.lease (grp) where ended is null;

create table leasehold.resource (
    key          text collate "C" primary key,
    grp          text collate "C" not null,
    epoch        bigint not null,
    holder       text collate "C",
    handed_to    text collate "C",
    handed_until timestamptz,
    handed_by    text collate "C",
    asked_by     text collate "C",
    break_at     timestamptz,
    forgotten    boolean not null default false,
    version      bigint not null
);
create index resource_by_change on leasehold.resource (grp, version);
create index resource_by_holder on leasehold.resource (holder, version);
-- What may end by time alone: looked at in every renewal, so it must be found without searching.
create index resource_timed on leasehold.resource (grp)
    where break_at is not null or handed_to is not null;

-- Leases from outside a group that hold, or held, a key of it: when they run out, the members of
-- the group are told as well.
create table leasehold.guest (
    grp    text collate "C",
    holder text collate "C",
    primary key (grp, holder)
);
create index guest_by_holder on leasehold.guest (holder);

create table leasehold.term (
    key        text collate "C" not null,
    epoch      bigint not null,
    holder     text collate "C" not null,
    started_at timestamptz not null,
    ended_at   timestamptz,
    reason     text,
    version    bigint not null,
    primary key (key, epoch)
);
create index term_by_holder on leasehold.term (holder, version);

create table leasehold.checkpoint (
    key             text collate "C" primary key,
    grp             text collate "C" not null,
    epoch           bigint not null,
    sequence_number bigint not null,
    position_offset text not null,
    updated_at      timestamptz not null
) with (fillfactor = 50);
create index checkpoint_by_group on leasehold.checkpoint (grp);

-- Keys and groups too long for an index are kept under a short name with a hash (long_names.py);
-- this is what they are in full.
create table leasehold.long_name (
    id   text collate "C" primary key,
    name text not null
);

-- Writes that were refused for an old epoch, ever.
create table leasehold.fenced (
    grp    text collate "C" primary key,
    writes bigint not null
) with (fillfactor = 10);

-- Batches that Spark writes to the event log. What is committed here is in the log, or on its way.
-- The statements over these tables are in leasehold/spark/log_writer/queries.sql, written once for SQLite
-- and for PostgreSQL.

-- Who writes batches to a stream. stream_made tells the stream from another of its name; refused
-- counts writes under an older epoch.
create table leasehold.log_sink (
    name        text collate "C" primary key,
    stream      text collate "C" not null,
    stream_made text not null,
    last_number bigint not null,
    refused     bigint not null
);

-- How far a sink has come in a partition of what it reads, and the highest epoch it has heard of.
-- moved_epoch is that of the last commit.
create table leasehold.log_sink_place (
    sink        text collate "C" not null,
    grp         text collate "C" not null,
    part        text collate "C" not null,
    position    bigint,
    epoch       bigint not null,
    moved_epoch bigint not null,
    primary key (sink, grp, part)
) with (fillfactor = 50);

-- tended_at: seconds of the store's clock, when somebody was last at work on publishing it.
create table leasehold.log_sink_commit (
    sink         text collate "C" not null,
    number       bigint not null,
    stream       text collate "C" not null,
    stream_made  text not null,
    lane         text not null,
    partitions   integer not null,
    grp          text collate "C" not null,
    holder       text not null,
    began_at     text not null,
    committed_at text not null,
    row_count    bigint not null,
    byte_count   bigint not null,
    files        text not null,
    tended_at    double precision not null,
    published    integer not null,
    primary key (sink, number)
);
create index log_sink_left on leasehold.log_sink_commit (stream, number) where published = 0;

create table leasehold.log_sink_share (
    sink     text collate "C" not null,
    number   bigint not null,
    part     text collate "C" not null,
    start_at bigint not null,
    end_at   bigint not null,
    epoch    bigint not null,
    primary key (sink, number, part)
);

-- Who holds a key, by its full name, and when that ends by itself, in seconds of the store's clock.
create view leasehold.log_owner as
select
    resource.key, resource.epoch, resource.holder,
    cast(
        extract(epoch from least(lease.ends_at, resource.break_at)) as double precision
    ) as ends_at
from leasehold.resource
inner join leasehold.lease on lease.holder = resource.holder and lease.ended is null
union all
select
    long_name.name, resource.epoch, resource.holder,
    cast(
        extract(epoch from least(lease.ends_at, resource.break_at)) as double precision
    )
from leasehold.long_name
inner join leasehold.resource on resource.key = long_name.id
inner join leasehold.lease on lease.holder = resource.holder and lease.ended is null;

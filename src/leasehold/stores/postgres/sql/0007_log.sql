-- The event log: the streams there are, and who may read a partition under an epoch. The events
-- themselves lie in files; who writes them is decided there. The statements over these tables are
-- in leasehold/log/sql/queries.sql, written once for SQLite and for PostgreSQL.

-- One row: by its row lock the mutex of all that change these tables.
create table leasehold.log_meta (
    id integer primary key check (id = 1)
);
insert into leasehold.log_meta (id) values (1);

create table leasehold.log_stream (
    name          text collate "C" primary key,
    partitions    integer not null,
    segment_bytes bigint not null,
    segment_age_s double precision not null,
    replication   integer not null,
    retain_age_s  double precision not null,
    retain_bytes  bigint not null,
    created_at    text not null
);

-- The highest epoch that a group has shown for a partition, and the reader that showed it last.
create table leasehold.log_reader (
    stream     text collate "C" not null,
    part       integer not null,
    grp        text collate "C" not null,
    epoch      bigint not null,
    name       text not null,
    claimed_at text not null,
    primary key (stream, part, grp)
);

-- Checkpoints by their full key.
create view leasehold.log_position as
select coalesce(long_name.name, checkpoint.key) as key, checkpoint.sequence_number
from leasehold.checkpoint
left join leasehold.long_name on long_name.id = checkpoint.key;

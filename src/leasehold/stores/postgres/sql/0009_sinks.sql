-- What sinks of pipelines remember: how far each group has come in them, under which epoch, by
-- which commits; and which files of a directory are committed. The statements over these tables are
-- in leasehold/spark/sinks/sql/, written once for SQLite and for PostgreSQL.

-- One row: by its row lock the mutex of all that change these tables.
create table leasehold.sink_meta (
    id integer primary key check (id = 1)
);
insert into leasehold.sink_meta (id) values (1);

-- A directory that is a sink. ``columns`` is null until something was committed.
create table leasehold.sink_home (
    sink    text collate "C" primary key,
    place   text collate "C" not null unique,
    columns text,
    made_at text not null
);

-- ``position`` is the first event that the sink does not hold; null: nobody has said.
create table leasehold.sink_position (
    sink       text collate "C" not null,
    grp        text collate "C" not null,
    part       text collate "C" not null,
    epoch      bigint not null,
    position   bigint,
    changed_at text not null,
    primary key (sink, grp, part)
);

create table leasehold.sink_commit (
    number       bigint generated always as identity primary key,
    id           text collate "C" not null unique,
    sink         text collate "C" not null,
    grp          text collate "C" not null,
    holder       text not null,
    began_at     text not null,
    committed_at text not null,
    row_count    bigint not null,
    byte_count   bigint not null,
    file_count   bigint not null
);
create index sink_commit_by_group on leasehold.sink_commit (sink, grp, number);

create table leasehold.sink_share (
    commit_id   text collate "C" not null,
    part        text collate "C" not null,
    first_event bigint not null,
    next_event  bigint not null,
    epoch       bigint not null,
    primary key (commit_id, part)
);

-- The manifest: the files that a reader may read, by their paths in the directory.
create table leasehold.sink_file (
    sink       text collate "C" not null,
    path       text collate "C" not null,
    commit_id  text collate "C" not null,
    row_count  bigint not null,
    byte_count bigint not null,
    primary key (sink, path)
);

-- Batches whose files were swept away, and that can no longer be committed.
create table leasehold.sink_swept (
    id       text collate "C" primary key,
    swept_at text not null
);

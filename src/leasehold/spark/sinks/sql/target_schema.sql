-- What the PostgreSQL sink remembers, in the database of the user's table and beside it. The rows
-- are those of the ledger of sinks; see leasehold/spark/sinks/commit_ledger.py.
create schema if not exists leasehold_sink;

-- ``position`` is the first event that the table does not hold; null: nobody has said.
create table if not exists leasehold_sink.sink_position (
    sink       text collate "C" not null,
    grp        text collate "C" not null,
    part       text collate "C" not null,
    epoch      bigint not null,
    position   bigint,
    changed_at text not null,
    primary key (sink, grp, part)
);

create table if not exists leasehold_sink.sink_commit (
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
create index if not exists sink_commit_by_group
on leasehold_sink.sink_commit (sink, grp, number);

create table if not exists leasehold_sink.sink_share (
    commit_id   text collate "C" not null,
    part        text collate "C" not null,
    first_event bigint not null,
    next_event  bigint not null,
    epoch       bigint not null,
    primary key (commit_id, part)
);

-- The tables with rows that are staged: "stage_" and the id. The last table of this file: where it
-- is, all are.
create table if not exists leasehold_sink.sink_staging (
    id      text collate "C" primary key,
    sink    text collate "C" not null,
    grp     text collate "C" not null,
    epochs  text not null, -- JSON: partition -> epoch
    is_done boolean not null default false,
    made_at timestamptz not null default clock_timestamp()
);

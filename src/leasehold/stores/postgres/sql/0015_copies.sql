-- Copies of complete blocks that were made again. copy_epoch: the epoch under which this replica was
-- copied, which is in the names of its files; 0 is the one that the writer wrote.
alter table leasehold.fs_replica add column copy_epoch bigint not null default 0;

-- Copies that are being made, until until_s at the latest, and (is_over) those to be removed.
create table leasehold.fs_copy (
    block_id  bigint,
    volume_id text collate "C",
    epoch     bigint,
    holder    text not null,
    until_s   double precision not null,
    is_over   bigint not null,
    primary key (block_id, volume_id, epoch)
);

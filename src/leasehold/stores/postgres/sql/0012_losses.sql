-- Acknowledged bytes that no volume had any more when a file was recovered under this epoch; they
-- followed the byte at start.
create table leasehold.fs_loss (
    file_id bigint,
    epoch   bigint,
    at      text not null,
    start   bigint not null,
    bytes   bigint not null,
    detail  text not null,
    primary key (file_id, epoch)
);

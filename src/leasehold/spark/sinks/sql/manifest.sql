-- The statements of the manifest of Parquet directories, for SQLite and for PostgreSQL.

-- name: guard
-- PostgreSQL only: the write lock.
SELECT id FROM sink_meta WHERE id = 1 FOR UPDATE;

-- name: home_put
INSERT INTO sink_home (sink, place, made_at) VALUES (:sink, :place, :wall)
ON CONFLICT (place) DO NOTHING;

-- name: home_at
SELECT sink FROM sink_home WHERE place = :place;

-- name: home_get
SELECT place, columns FROM sink_home WHERE sink = :sink;

-- name: home_used
SELECT 1 FROM sink_commit WHERE sink = :sink LIMIT 1;

-- name: columns_put
UPDATE sink_home SET columns = :columns WHERE sink = :sink AND columns IS NULL;

-- name: file_put
INSERT INTO sink_file (sink, path, commit_id, row_count, byte_count)
VALUES (:sink, :path, :id, :rows, :bytes);

-- name: files
SELECT path FROM sink_file WHERE sink = :sink ORDER BY path;

-- name: swept_get
SELECT swept_at FROM sink_swept WHERE id = :id;

-- name: swept_put
INSERT INTO sink_swept (id, swept_at) VALUES (:id, :wall) ON CONFLICT (id) DO NOTHING;

-- The pictures of an attached file in the order of their ids, each as a file that browsers show.
CREATE TABLE picture (
    id         INTEGER PRIMARY KEY,
    attachment INTEGER NOT NULL REFERENCES attachment (id) ON DELETE CASCADE,
    file       BLOB NOT NULL
) STRICT;

CREATE INDEX picture_by_attachment ON picture (attachment);

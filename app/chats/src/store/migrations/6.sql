-- Vectors of passages, made by embedding models. Passages whose meanings are close have close vectors.
CREATE TABLE passage_vector (
    passage INTEGER NOT NULL REFERENCES passage (id) ON DELETE CASCADE,
    -- Key of the embedding model.
    model   TEXT NOT NULL,
    -- 32-bit floats, little-endian.
    vector  BLOB NOT NULL,
    PRIMARY KEY (passage, model)
) STRICT, WITHOUT ROWID;

-- How the passages given with a message were ranked.
CREATE TABLE ranking (
    message INTEGER PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
    -- Name of the embedding model; NULL: ranked by their words.
    model   TEXT,
    -- Why an embedding model did not rank them.
    failure TEXT
) STRICT;

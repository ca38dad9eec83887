-- A file that goes with a message: its text only.
CREATE TABLE attachment (
    id         INTEGER PRIMARY KEY,
    chat       INTEGER NOT NULL REFERENCES chat (id) ON DELETE CASCADE,
    -- NULL: the message is being written.
    message    INTEGER REFERENCES message (id) ON DELETE CASCADE,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    -- Number of tokens, and the key of the model that they were counted for.
    tokens     INTEGER,
    counted_by TEXT,
    -- 1: the model was given all of it; 0: passages; NULL: not decided yet.
    whole      INTEGER
) STRICT;

CREATE INDEX attachment_by_chat ON attachment (chat);
CREATE INDEX attachment_by_message ON attachment (message);

-- Those of one file, in the order of their ids, are its text.
CREATE TABLE passage (
    id         INTEGER PRIMARY KEY,
    attachment INTEGER NOT NULL REFERENCES attachment (id) ON DELETE CASCADE,
    place      TEXT NOT NULL,
    text       TEXT NOT NULL
) STRICT;

CREATE INDEX passage_by_attachment ON passage (attachment);

-- The passages that the model was given with a message.
CREATE TABLE given (
    message INTEGER NOT NULL REFERENCES message (id) ON DELETE CASCADE,
    passage INTEGER NOT NULL REFERENCES passage (id) ON DELETE CASCADE,
    PRIMARY KEY (message, passage)
) STRICT, WITHOUT ROWID;

CREATE INDEX given_by_passage ON given (passage);

-- Words of passages; letters of scripts without spaces are words of their own.
CREATE VIRTUAL TABLE passage_text USING fts5 (
    words, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);

CREATE TRIGGER passage_removed AFTER DELETE ON passage BEGIN
    DELETE FROM passage_text WHERE rowid = old.id;
END;

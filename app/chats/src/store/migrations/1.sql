-- Times are milliseconds since 1970, UTC.

CREATE TABLE folder (
    id       INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    position INTEGER NOT NULL
) STRICT;

CREATE TABLE chat (
    id            INTEGER PRIMARY KEY,
    title         TEXT NOT NULL,
    -- Chosen by the user: never replaced by one made from the first message.
    titled        INTEGER NOT NULL DEFAULT 0,
    folder        INTEGER REFERENCES folder (id) ON DELETE SET NULL,
    pinned        INTEGER NOT NULL DEFAULT 0,
    created       INTEGER NOT NULL,
    updated       INTEGER NOT NULL,
    deleted       INTEGER,
    model         TEXT,
    system_prompt TEXT NOT NULL DEFAULT '',
    -- JSON; NULL: the model's own.
    sampling      TEXT,
    draft         TEXT NOT NULL DEFAULT '',
    -- Last message of the branch that is shown.
    leaf          INTEGER
) STRICT;

CREATE TABLE message (
    id      INTEGER PRIMARY KEY,
    chat    INTEGER NOT NULL REFERENCES chat (id) ON DELETE CASCADE,
    -- Siblings, messages of one parent, are versions of each other.
    parent  INTEGER REFERENCES message (id) ON DELETE CASCADE,
    role    TEXT NOT NULL,
    content TEXT NOT NULL,
    created INTEGER NOT NULL,
    -- Last sign of life of the program that writes it.
    touched INTEGER NOT NULL,
    state   TEXT NOT NULL,
    edited  INTEGER NOT NULL DEFAULT 0,
    model   TEXT,
    -- JSON: how it was generated.
    stats   TEXT
) STRICT;

CREATE INDEX message_by_chat ON message (chat);
CREATE INDEX message_by_parent ON message (parent);

CREATE TABLE preset (
    id            INTEGER PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    -- Only offered for this model, if not NULL.
    model         TEXT,
    system_prompt TEXT NOT NULL,
    -- JSON; NULL: the model's own.
    sampling      TEXT
) STRICT;

-- Three characters at a time: finds parts of words, and words of scripts that do not separate them.
CREATE VIRTUAL TABLE message_text USING fts5 (content, tokenize = 'trigram');

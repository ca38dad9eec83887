-- Words of answers at which neurons fired. Nothing is put here unless the user has switched that on.
CREATE TABLE neuron_word (
    -- Fingerprint of the model.
    model   TEXT NOT NULL,
    layer   INTEGER NOT NULL,
    neuron  INTEGER NOT NULL,
    word    TEXT NOT NULL,
    times   INTEGER NOT NULL,
    touched INTEGER NOT NULL,
    PRIMARY KEY (model, layer, neuron, word)
) STRICT, WITHOUT ROWID;

CREATE INDEX neuron_word_by_word ON neuron_word (model, word, times);
CREATE INDEX neuron_word_by_age ON neuron_word (touched, times);

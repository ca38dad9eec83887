-- 1: the model may call tools in this chat.
ALTER TABLE chat ADD COLUMN tools INTEGER NOT NULL DEFAULT 0;

-- JSON. Of an answer: the calls of tools in it, as a list; of a message of the role `tool`: the call it is the result of.
ALTER TABLE message ADD COLUMN tools TEXT;

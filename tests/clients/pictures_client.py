"""A chat with three pictures by each client of Python.

The server is restarted after the first picture. FILE keeps the chats meanwhile.
Usage: pictures_client.py 1|2 FILE
"""

import base64
import json
import struct
import sys
import urllib.request
import zlib
from pathlib import Path

import anthropic
import ollama
import openai
from checks import URL, refused, run

STAGE, FILE = sys.argv[1], Path(sys.argv[2])
MODEL, LIMIT = "eyes", 12
QUESTIONS = ["Look at this.", "And this?", "And the last one?"]
CHATS = json.loads(FILE.read_text()) if FILE.exists() else {}
OPENAI = openai.OpenAI(base_url=URL + "/v1", max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=URL, max_retries=0)
OLLAMA = ollama.Client(host=URL)


def png(colour):
    """A board of 6 x 6 fields in this colour and white, as base64 of a PNG file."""
    pixel = lambda x, y: bytes(colour) if (x // 8 + y // 8) % 2 else b"\xff\xff\xff"
    rows = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(48)) for y in range(48))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", 48, 48, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()


PICTURES = [png((200, 0, 0)), png((0, 160, 0)), png((0, 0, 90))]


def by_chat(history, picture, question):
    """OpenAI's chats: the messages, the answer and the tokens of the prompt."""
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}, {"type": "text", "text": question}]
    messages = [*history, {"role": "user", "content": parts}]
    answer = OPENAI.chat.completions.create(model=MODEL, messages=messages, max_tokens=LIMIT, temperature=0)
    text = answer.choices[0].message.content
    return [*messages, {"role": "assistant", "content": text}], text, answer.usage.prompt_tokens


def by_responses(history, picture, question):
    """OpenAI's responses."""
    parts = [{"type": "input_image", "image_url": f"data:image/png;base64,{picture}"}, {"type": "input_text", "text": question}]
    items = [*history, {"role": "user", "content": parts}]
    answer = OPENAI.responses.create(model=MODEL, input=items, max_output_tokens=LIMIT, temperature=0, store=False)
    text = answer.output_text
    return [*items, {"role": "assistant", "content": text}], text, answer.usage.input_tokens


def by_messages(history, picture, question):
    """Anthropic's messages."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    messages = [*history, {"role": "user", "content": [image, {"type": "text", "text": question}]}]
    answer = ANTHROPIC.messages.create(model=MODEL, messages=messages, max_tokens=LIMIT, extra_body={"temperature": 0})
    text, usage = answer.content[0].text, answer.usage
    counted = ANTHROPIC.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)
    return [*messages, {"role": "assistant", "content": text}], text, counted


def by_ollama(history, picture, question):
    """Ollama's chats."""
    messages = [*history, {"role": "user", "content": question, "images": [picture]}]
    answer = OLLAMA.chat(model=MODEL, messages=messages, options={"temperature": 0, "num_predict": LIMIT})
    text = answer.message.content
    return [*messages, {"role": "assistant", "content": text}], text, answer.prompt_eval_count


def computed():
    """Number of pictures that the server has computed."""
    metrics = urllib.request.urlopen(URL + "/metrics").read().decode()
    return int(next(line.split()[1] for line in metrics.splitlines() if line.startswith("thermocline_pictures_total ")))


def begin(name, ask):
    history, answer, tokens = ask([], PICTURES[0], QUESTIONS[0])
    assert ask([], PICTURES[1], QUESTIONS[0])[1] != answer, answer
    CHATS[name] = {"history": history, "answer": answer, "tokens": tokens}
    FILE.write_text(json.dumps(CHATS))


def go_on(name, ask):
    chat = CHATS[name]
    assert ask([], PICTURES[0], QUESTIONS[0])[1:] == (chat["answer"], chat["tokens"]), chat["answer"]
    history, tokens, before = chat["history"], chat["tokens"], computed()
    for at in (1, 2):
        history, answer, more = ask(history, PICTURES[at], QUESTIONS[at])
        assert more > tokens, (more, tokens)
        tokens = more
    # The first picture is still known.
    assert computed() <= before + 2, (computed(), before)


STEP = begin if STAGE == "1" else go_on


def openai_chat():
    STEP("chat", by_chat)


def openai_responses():
    STEP("responses", by_responses)


def anthropic_messages():
    STEP("messages", by_messages)


def ollama_chat():
    STEP("ollama", by_ollama)


def addresses_are_refused():
    address = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
    messages = [{"role": "user", "content": [address]}]
    ask = lambda: OPENAI.chat.completions.create(model=MODEL, messages=messages)
    assert "fetches no addresses" in str(refused(ask, openai.BadRequestError))


CHECKS = [openai_chat, openai_responses, anthropic_messages, ollama_chat, addresses_are_refused]
run("three pictures", f"turn {STAGE}", CHECKS)

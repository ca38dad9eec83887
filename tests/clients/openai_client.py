"""openai for Python."""

import asyncio
import json
import math
import os
import struct
import subprocess
import tempfile
from typing import Literal

import openai
from checks import FORCED, QUESTION, TOOL, URL, arguments, refused, run
from pydantic import BaseModel

client = openai.OpenAI(base_url=URL + "/v1", max_retries=0)
chat = client.chat.completions
LIMITS = {"model": "any", "max_tokens": 24, "temperature": 0}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    legs: Literal[2, 4]


def models():
    assert [model.id for model in client.models.list()] == ["Storyteller"]


def chat_and_stream_agree():
    whole = chat.create(messages=QUESTION, **LIMITS)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 24, whole
    text, usage = "", None
    for chunk in chat.create(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **LIMITS):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content, (text, whole)
    assert usage.completion_tokens == 24 and usage.prompt_tokens == whole.usage.prompt_tokens, usage


def asynchronous_stream():
    async def tell():
        asynchronous = openai.AsyncOpenAI(base_url=URL + "/v1", max_retries=0)
        stream = await asynchronous.chat.completions.create(messages=QUESTION, stream=True, **LIMITS)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(tell()) == chat.create(messages=QUESTION, **LIMITS).choices[0].message.content


def several_answers_with_seeds():
    limits = {**LIMITS, "temperature": 1, "seed": 5}
    first, again = (chat.create(messages=QUESTION, n=2, **limits) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 2 and texts == [choice.message.content for choice in again.choices], texts


def agent_loop_with_a_forced_call():
    messages = [{"role": "user", "content": "How is the weather?"}]
    limits = {**LIMITS, "max_tokens": 100}
    asked = chat.create(messages=messages, tools=[TOOL], tool_choice=FORCED, **limits).choices[0]
    call = asked.message.tool_calls[0]
    assert asked.finish_reason == "tool_calls" and call.function.name == "weather", asked
    arguments(call.function.arguments)
    messages += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "blue"}'}]
    answer = chat.create(messages=messages, tools=[TOOL], tool_choice="none", **limits).choices[0]
    assert answer.message.content.strip() and not answer.message.tool_calls, answer


def call_streams_in_deltas():
    identity, text, name, end = None, "", "", None
    with chat.stream(messages=QUESTION, tools=[TOOL], tool_choice="required", **{**LIMITS, "max_tokens": 100}) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                end = event.chunk.choices[0].finish_reason or end
                for call in event.chunk.choices[0].delta.tool_calls or []:
                    identity, name = identity or call.id, name + (call.function.name or "")
                    text += call.function.arguments or ""
    assert identity and name == "weather" and end == "tool_calls", (identity, name, end)
    arguments(text)


def parsed_answer():
    parsed = chat.parse(messages=QUESTION, response_format=Animal, **{**LIMITS, "max_tokens": 100})
    assert isinstance(parsed.choices[0].message.parsed, Animal), parsed


def json_object():
    limits = {**LIMITS, "max_tokens": 400, "temperature": 1, "seed": 3}
    answer = chat.create(messages=QUESTION, response_format={"type": "json_object"}, **limits).choices[0]
    assert answer.message.content.lstrip().startswith("{"), answer
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


def log_probabilities_of_chats():
    scored = chat.create(messages=QUESTION, logprobs=True, top_logprobs=3, **LIMITS).choices[0].logprobs.content
    assert len(scored) == 24 and all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in scored)
    # Greedy answers are the likeliest tokens.
    assert all(token.logprob == max(top.logprob for top in token.top_logprobs) for token in scored)


def echoed_log_probabilities_are_those_of_logits():
    text = "Once upon a time there was a little dog. He liked to run."
    ids = client.post("/../tokenize", body={"prompt": text, "add_special_tokens": False}, cast_to=object)["tokens"]
    echoed = client.completions.create(model="any", prompt=[ids], max_tokens=1, echo=True, logprobs=1, temperature=0)
    scores = echoed.choices[0].logprobs.token_logprobs
    assert len(scores) == len(ids) + 1 and scores[0] is None, scores
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits")
        command = [os.environ["THERMOCLINE"], "logits", "--tokens", ",".join(map(str, ids)), "--out", out, "--kv-type", "f32"]
        subprocess.run(command, check=True, capture_output=True)
        data = open(out, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    info = json.loads(data[8 : 8 + length])["logits"]
    begin, end = info["data_offsets"]
    rows, columns = info["shape"]
    logits = struct.unpack(f"<{rows * columns}f", data[8 + length + begin : 8 + length + end])
    for at, token in enumerate(ids[1:]):
        row = logits[at * columns : (at + 1) * columns]
        top = max(row)
        expected = row[token] - top - math.log(sum(math.exp(value - top) for value in row))
        assert abs(expected - scores[at + 1]) < 1e-4, (at, expected, scores[at + 1])


def embeddings():
    texts = ["The dog runs.", "The dog runs fast.", "Rain fell on the old boat."]
    found = client.embeddings.create(model="any", input=texts)
    vectors = [item.embedding for item in found.data]
    floats = client.embeddings.create(model="any", input=texts[0], encoding_format="float").data[0].embedding
    assert len(vectors) == 3 and len(set(map(len, vectors))) == 1 and found.usage.prompt_tokens > 0
    assert max(abs(a - b) for a, b in zip(vectors[0], floats)) < 1e-6

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b)) / math.dist(a, [0] * len(a)) / math.dist(b, [0] * len(b))

    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])


def errors_have_their_classes():
    wrong = refused(lambda: chat.create(messages=QUESTION, **{**LIMITS, "temperature": -1}), openai.BadRequestError)
    assert "temperature" in wrong.message and isinstance(wrong.body, dict), wrong
    refused(lambda: client.get("/nowhere", cast_to=object), openai.NotFoundError)
    long = [{"role": "user", "content": "dog " * 5000}]
    refused(lambda: chat.create(messages=long, **LIMITS), openai.BadRequestError)


run("openai-python", openai.__version__, [
    models, chat_and_stream_agree, asynchronous_stream, several_answers_with_seeds, agent_loop_with_a_forced_call,
    call_streams_in_deltas, parsed_answer, json_object, log_probabilities_of_chats,
    echoed_log_probabilities_are_those_of_logits, embeddings, errors_have_their_classes,
])

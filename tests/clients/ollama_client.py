"""ollama."""

import json
from importlib.metadata import version

import ollama
from checks import QUESTION, TOOL, URL, refused, run

client = ollama.Client(host=URL)
LIMITS = {"temperature": 0, "num_predict": 24}


def models():
    names = [model.model for model in client.list().models]
    assert len(names) == 1 and names[0].startswith("Storyteller"), names
    assert client.show(names[0]).modelinfo and client.ps().models[0].model == names[0]


def chat_and_stream_agree():
    whole = client.chat(model="any", messages=QUESTION, options=LIMITS)
    parts = list(client.chat(model="any", messages=QUESTION, options=LIMITS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content, whole
    assert whole.eval_count == parts[-1].eval_count == 24 and parts[-1].done, parts[-1]


def text_is_generated():
    whole = client.generate(model="any", prompt="Once upon a time", raw=True, options=LIMITS)
    parts = client.generate(model="any", prompt="Once upon a time", raw=True, options=LIMITS, stream=True)
    assert whole.response == "".join(part.response for part in parts) and whole.response, whole


def schema_is_followed():
    schema = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"], "additionalProperties": False}
    answer = client.chat(model="any", messages=QUESTION, format=schema, options={**LIMITS, "num_predict": 200})
    assert json.loads(answer.message.content)["kind"] in ("cat", "dog"), answer


def tools_are_accepted():
    answer = client.chat(model="any", messages=QUESTION, tools=[TOOL], options=LIMITS)
    assert answer.message.content or answer.message.tool_calls, answer


def embeddings():
    found = client.embed(model="any", input=["The dog runs.", "Rain fell."])
    assert len(found.embeddings) == 2 and len(found.embeddings[0]) == len(found.embeddings[1]) > 8, found


def errors_are_told():
    wrong = refused(lambda: client.chat(model="any", messages=QUESTION, options={"temperature": -1}), ollama.ResponseError)
    assert wrong.status_code == 400 and "temperature" in wrong.error, wrong


run("ollama", version("ollama"), [
    models, chat_and_stream_agree, text_is_generated, schema_is_followed, tools_are_accepted, embeddings, errors_are_told,
])

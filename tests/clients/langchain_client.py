"""langchain-openai."""

from importlib.metadata import version
from typing import Literal

from checks import TOOL, URL, arguments, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

TO = {"model": "any", "base_url": URL + "/v1", "api_key": "none", "max_retries": 0}
llm = ChatOpenAI(max_tokens=100, temperature=0, **TO)
QUESTION = "Tell me a story about a dog."


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]


def answer_and_stream_agree():
    whole = llm.invoke(QUESTION)
    assert whole.content == "".join(chunk.content for chunk in llm.stream(QUESTION)) and whole.content, whole
    assert whole.usage_metadata["output_tokens"] > 0, whole


def structured_output():
    for method in ("json_schema", "function_calling"):
        animal = llm.with_structured_output(Animal, method=method, strict=True).invoke(QUESTION)
        assert isinstance(animal, Animal), (method, animal)


def agent_loop_with_a_forced_call():
    asked = llm.bind_tools([TOOL], tool_choice="weather").invoke("How is the weather?")
    call = asked.tool_calls[0]
    arguments(call["args"])
    messages = [HumanMessage("How is the weather?"), asked, ToolMessage("blue", tool_call_id=call["id"])]
    assert llm.invoke(messages).content.strip()


def embeddings():
    # Tokens would be counted by a table of another model, which would be downloaded.
    embedder = OpenAIEmbeddings(check_embedding_ctx_length=False, **TO)
    found = embedder.embed_documents(["The dog runs.", "Rain fell."])
    assert len(found) == 2 and len(found[0]) == len(found[1]) > 8


run("langchain-openai", version("langchain-openai"), [
    answer_and_stream_agree, structured_output, agent_loop_with_a_forced_call, embeddings,
])

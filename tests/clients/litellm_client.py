"""litellm, which asks servers of OpenAI's protocol for other programs."""

from importlib.metadata import version

import litellm
from checks import FORCED, QUESTION, TOOL, URL, arguments, refused, run

TO = {"model": "openai/any", "api_base": URL + "/v1", "api_key": "none", "max_retries": 0, "num_retries": 0}
LIMITS = {**TO, "max_tokens": 24, "temperature": 0}


def chat_and_stream_agree():
    whole = litellm.completion(messages=QUESTION, **LIMITS)
    text = ""
    for chunk in litellm.completion(messages=QUESTION, stream=True, **LIMITS):
        text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content and whole.usage.completion_tokens == 24, (text, whole)


def agent_loop_with_a_forced_call():
    messages = [{"role": "user", "content": "How is the weather?"}]
    limits = {**LIMITS, "max_tokens": 100}
    asked = litellm.completion(messages=messages, tools=[TOOL], tool_choice=FORCED, **limits).choices[0]
    call = asked.message.tool_calls[0]
    arguments(call.function.arguments)
    messages += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": "blue"}]
    assert litellm.completion(messages=messages, **limits).choices[0].message.content.strip()


def text_is_completed():
    to = {**LIMITS, "model": "text-completion-openai/any"}
    assert litellm.text_completion(prompt="Once upon a time", **to).choices[0].text


def errors_have_their_classes():
    refused(lambda: litellm.completion(messages=QUESTION, **{**LIMITS, "temperature": -1}), litellm.BadRequestError)


run("litellm", version("litellm"), [
    chat_and_stream_agree, agent_loop_with_a_forced_call, text_is_completed, errors_have_their_classes,
])

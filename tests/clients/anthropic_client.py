"""anthropic."""

import anthropic
from checks import QUESTION, URL, WEATHER, arguments, refused, run

client = anthropic.Anthropic(base_url=URL, max_retries=0)
# The client has no argument for the temperature any more.
LIMITS = {"model": "any", "max_tokens": 24, "extra_body": {"temperature": 0}}
TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER}


def message_and_stream_agree():
    whole = client.messages.create(messages=QUESTION, **LIMITS)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 24, whole
    with client.messages.stream(messages=QUESTION, **LIMITS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.usage.output_tokens == 24, (text, whole)


def tokens_are_counted():
    counted = client.messages.count_tokens(model="any", messages=QUESTION).input_tokens
    usage = client.messages.create(messages=QUESTION, **LIMITS).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)


def agent_loop_with_a_forced_call():
    messages = [{"role": "user", "content": "How is the weather?"}]
    limits = {**LIMITS, "max_tokens": 100}
    asked = client.messages.create(messages=messages, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, **limits)
    call = next(block for block in asked.content if block.type == "tool_use")
    assert asked.stop_reason == "tool_use" and call.name == "weather", asked
    arguments(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "The sky is blue."}
    messages += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=messages, tools=[TOOL], tool_choice={"type": "none"}, **limits)
    assert answer.content[0].text.strip(), answer


def errors_have_their_classes():
    wrong = refused(lambda: client.messages.create(messages=QUESTION, **{**LIMITS, "extra_body": {"temperature": -1}}), anthropic.BadRequestError)
    assert "temperature" in wrong.message, wrong
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/x"}}
    images = [{"role": "user", "content": [image]}]
    refused(lambda: client.messages.create(messages=images, **LIMITS), anthropic.BadRequestError)


run("anthropic", anthropic.__version__, [
    message_and_stream_agree, tokens_are_counted, agent_loop_with_a_forced_call, errors_have_their_classes,
])

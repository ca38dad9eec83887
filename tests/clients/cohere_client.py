"""cohere."""

import json
from importlib.metadata import version
from pathlib import Path

import cohere
from checks import URL, refused, run

EXPECTED = Path(__file__).resolve().parent.parent / "fixtures" / "encoders" / "bert-reranker" / "expected.json"
expected = json.loads(EXPECTED.read_text())
client = cohere.Client(api_key="none", base_url=URL)
ASKED = {"model": "reranker", "query": expected["query"], "documents": expected["documents"]}


def documents_are_ranked():
    found, scores = client.rerank(**ASKED).results, sorted(expected["scores"], reverse=True)
    assert [expected["scores"][it.index] for it in found] == scores, found
    assert all(abs(it.relevance_score - score) < 1e-4 for it, score in zip(found, scores)), found


def best_documents_are_returned():
    best = client.rerank(**ASKED, top_n=1, return_documents=True).results
    assert len(best) == 1 and best[0].document.text == expected["documents"][best[0].index], best


def errors_are_told():
    wrong = refused(lambda: client.rerank(**{**ASKED, "documents": []}), cohere.BadRequestError)
    assert "documents" in str(wrong.body), wrong


run("cohere", version("cohere"), [documents_are_ranked, best_documents_are_returned, errors_are_told])

"""Writes folders of tests/fixtures/encoders: small embedding models and rerankers of seeded random weights, and what
sentence-transformers makes of them.

    OMP_NUM_THREADS=1 python3 make_encoder.py [NAME ...]     (needs torch, transformers, sentence-transformers)
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import jina_v2
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

warnings.filterwarnings("ignore")
FIXTURES = Path(__file__).parent.parent / "fixtures"
ENCODERS, VOCABULARIES = FIXTURES / "encoders", FIXTURES / "vocabularies"
TEXTS = ["The old dog found a ball.", "a", "What a day! She looked at the tree, the sky and the small red bird.", "Ünïcode ﬁne 12,345"]
LONG = " ".join(f"word {n} of the story about a dog." for n in range(70))
QUERY = "Where is the red ball?"
DOCUMENTS = ["The ball is under the tree.", "One day, a cat sat.", "a"]
SIZE = dict(vocab_size=503, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)
BERT = dict(SIZE, intermediate_size=56, max_position_embeddings=64)
XLMR = dict(BERT, type_vocab_size=1, max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
ROTARY = dict(SIZE, intermediate_size=48, max_position_embeddings=1024)
MODERN = dict(ROTARY, num_hidden_layers=4, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
GEMMA = dict(ROTARY, num_hidden_layers=7, num_key_value_heads=2, head_dim=16, use_bidirectional_attention=True, query_pre_attn_scalar=20,
             bos_token_id=2, eos_token_id=3, pad_token_id=0)
QWEN = dict(ROTARY, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True)
ONE = dict(num_labels=1)

# Class, configuration, vocabulary, pooling (none: a reranker), lengths of linear maps, prompts.
MODELS = {
    "bert": ("BertModel", BERT, "wordpiece", "mean", [], {"query": "query: ", "passage": "passage: "}),
    "bert-cls": ("BertModel", dict(BERT, num_attention_heads=2, hidden_act="gelu_new", type_vocab_size=1), "wordpiece_cased", "cls", [], {}),
    "bert-reranker": ("BertForSequenceClassification", dict(BERT, **ONE), "wordpiece", None, [], {}),
    "xlm-roberta": ("XLMRobertaModel", XLMR, "unigram", "cls", [], {}),
    "xlm-roberta-reranker": ("XLMRobertaForSequenceClassification", dict(XLMR, **ONE), "unigram", None, [], {}),
    "nomic-bert": ("NomicBertModel", ROTARY, "wordpiece", "mean", [], {}),
    "nomic-bert-wide": ("NomicBertModel", dict(ROTARY, num_attention_heads=2, type_vocab_size=1), "wordpiece", "cls", [], {}),
    "jina-v3": ("JinaEmbeddingsV3Model", dict(ROTARY, type_vocab_size=1), "unigram", "mean", [], {}),
    "jina-v3-cls": ("JinaEmbeddingsV3Model", dict(ROTARY, type_vocab_size=1, num_attention_heads=2), "unigram", "cls", [], {}),
    "modernbert": ("ModernBertModel", dict(MODERN, local_attention=8), "wordpiece", "cls", [], {}),
    "modernbert-reranker": ("ModernBertForSequenceClassification", dict(MODERN, local_attention=16, norm_bias=True, classifier_pooling="mean",
                                                                       **ONE), "wordpiece", None, [], {}),
    "gemma-embedding": ("Gemma3TextModel", dict(GEMMA, sliding_window=8), "wordpiece", "mean", [48, 24],
                        {"query": "task: search result | query: ", "document": "title: none | text: "}),
    "gemma-embedding-wide": ("Gemma3TextModel", dict(GEMMA, sliding_window=12, num_attention_heads=2), "wordpiece", "mean", [], {}),
    "qwen3-embedding": ("Qwen3Model", QWEN, "wordpiece", "last", [], {"query": "Instruct: find\nQuery:"}),
    "qwen3-embedding-wide": ("Qwen3Model", dict(QWEN, num_key_value_heads=4, tie_word_embeddings=False), "unigram", "last", [], {}),
    "qwen3-reranker": ("Qwen3ForCausalLM", QWEN, "wordpiece", None, [], {}),
    "qwen3-reranker-wide": ("Qwen3ForCausalLM", dict(QWEN, num_key_value_heads=4, tie_word_embeddings=False), "wordpiece", None, [], {}),
}
# The question of Qwen3-Reranker's page.
QUESTION = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""


def fill(model, seed):
    """Random weights in bfloat16; those of norms and biases are far from ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        with torch.no_grad():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() < 2:
                centre = 1.0 if "norm" in name.lower() and name.endswith("weight") and "gemma" not in type(model).__name__.lower() else 0.0
                weight.copy_(centre + 0.3 * noise)
            elif "embed" in name:
                weight.copy_(noise)
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(torch.bfloat16))


def tokenizer_files(vocabulary, target):
    shutil.copy(VOCABULARIES / f"{vocabulary}.json", target / "tokenizer.json")
    bert = dict(cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")
    xlmr = dict(bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>", pad_token="<pad>", unk_token="<unk>")
    names = xlmr if vocabulary == "unigram" else bert
    if "Qwen3ForCausalLM" in (target / "config.json").read_text():
        tokenizer = json.loads((target / "tokenizer.json").read_text())
        for answer, free in [("yes", 500), ("no", 501)]:
            tokenizer["model"]["vocab"].setdefault(answer, free)
        (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))


def embedder(source, pooling, dense, prompts, width):
    # In bfloat16 the factor of Gemma's embeddings would be rounded.
    modules = [Transformer(str(source), model_kwargs={"dtype": torch.float32}), Pooling(width, {"last": "lasttoken"}.get(pooling, pooling))]
    for n, out in enumerate(dense):
        modules.append(Dense(width, out, bias=n > 0, activation_function=torch.nn.Identity()))
        fill(modules[-1], 90 + n)
        width = out
    return SentenceTransformer(modules=[*modules, Normalize()], prompts=prompts, device="cpu")


def make(name, seed=1):
    kind, config, vocabulary, pooling, dense, prompts = MODELS[name]
    target = ENCODERS / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**config)).eval()
    fill(model, seed)
    model.to(torch.bfloat16).save_pretrained(target)
    # Converting it back would leave the frequencies of its rotations rounded.
    model = getattr(transformers, kind).from_pretrained(target, dtype=torch.float32).eval()
    tokenizer_files(vocabulary, target)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(target)
    if kind == "Qwen3ForCausalLM":
        answers = tokenizer.convert_tokens_to_ids(["yes", "no"])
        scores = []
        for document in DOCUMENTS:
            ids = tokenizer(QUESTION.format(query=QUERY, document=document), add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([[tokenizer.cls_token_id, *ids]])).logits[0, -1]
            scores.append(logits[answers].softmax(0)[0].item())
        expected = {"query": QUERY, "documents": DOCUMENTS, "scores": scores}
    elif pooling is None:
        pairs = [tokenizer(QUERY, document, return_tensors="pt", return_token_type_ids=True) for document in DOCUMENTS]
        types = config.get("type_vocab_size", 2) > 1 and kind.startswith("Bert")
        keep = lambda pair: {key: value for key, value in pair.items() if key != "token_type_ids" or types}
        with torch.no_grad():
            scores = [model(**keep(pair)).logits[0].sigmoid().item() for pair in pairs]
        expected = {"query": QUERY, "documents": DOCUMENTS, "scores": scores}
    else:
        st = embedder(target, pooling, dense, prompts, config["hidden_size"]).float()
        texts = TEXTS + ([LONG] if config["max_position_embeddings"] >= 1024 else [])
        rows = lambda **how: [[float(f"{x:.8g}") for x in row] for row in st.encode(texts, normalize_embeddings=True, **how).tolist()]
        expected = {"texts": texts, "embeddings": rows()}
        for kind in prompts:
            expected[kind] = rows(prompt_name=kind)
        weights = (target / "model.safetensors").read_bytes()
        st.save_pretrained(str(target), create_model_card=False)
        (target / "model.safetensors").write_bytes(weights)
        tokenizer_files(vocabulary, target)
    scores = expected.get("scores")
    if scores and (min(scores) < 0.1 or max(scores) > 0.9 or max(scores) - min(scores) < 0.1):
        return make(name, seed + 1)
    (target / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    for extra in ["README.md", "sentence_bert_config.json", "special_tokens_map.json", "vocab.txt", "generation_config.json"]:
        (target / extra).unlink(missing_ok=True)
    print(name, sorted(str(it.relative_to(target)) for it in target.rglob("*") if it.is_file()))


# Heads, and whether query and key have norms.
JINA_V2 = {"jina-v2": (4, False), "jina-v2-norms": (6, True)}


def make_jina_v2(name):
    heads, norms = JINA_V2[name]
    size, n_ff, layers, vocab = 8 * heads, 40, 3, 503
    target = ENCODERS / name
    shutil.rmtree(target, ignore_errors=True)
    (target / "1_Pooling").mkdir(parents=True)
    named = jina_v2.weights(size, n_ff, layers, vocab, norms, 1)
    save_file(named, target / "model.safetensors", {"format": "pt"})
    config = dict(model_type="bert", architectures=["JinaBertModel"], position_embedding_type="alibi", feed_forward_type="geglu", vocab_size=vocab,
                  hidden_size=size, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=n_ff, max_position_embeddings=1024,
                  type_vocab_size=2, layer_norm_eps=jina_v2.EPS, hidden_act="gelu")
    (target / "config.json").write_text(json.dumps(config))
    tokenizer_files("wordpiece", target)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(target)
    pooling = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (target / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}, pooling]))
    (target / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": size, "pooling_mode_mean_tokens": True}))
    texts, rows = TEXTS + [LONG], []
    for text in texts:
        mean = jina_v2.hidden_states(named, heads, torch.tensor(tokenizer(text)["input_ids"])).mean(0)
        rows.append([float(f"{x:.8g}") for x in (mean / mean.norm()).tolist()])
    (target / "expected.json").write_text(json.dumps({"texts": texts, "embeddings": rows}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or [*MODELS, *JINA_V2]:
        make_jina_v2(chosen) if chosen in JINA_V2 else make(chosen)

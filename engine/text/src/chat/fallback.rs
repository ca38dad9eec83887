//! Templates for models whose file has none that works, chosen by the tokens of the vocabulary.

use super::super::Tokenizer;

/// A known way of writing conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Name of the format.
    pub name: &'static str,
    /// The template.
    pub source: &'static str,
    /// Texts after which an answer is over, where no token says so.
    pub stops: &'static [&'static str],
}

const CHATML: Format = Format {
    name: "ChatML",
    source: "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    stops: &[],
};

const HARMONY: Format = Format {
    name: "Harmony",
    source: "{% for m in messages %}<|start|>{{ m.role }}{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    stops: &[],
};

const GEMMA4: Format = Format {
    name: "Gemma 4",
    source: "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content|trim }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}",
    stops: &[],
};

const LLAMA3: Format = Format {
    name: "Llama 3",
    source: "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content|trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    stops: &[],
};

const GEMMA: Format = Format {
    name: "Gemma",
    source: "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content|trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    stops: &[],
};

const PHI3: Format = Format {
    name: "Phi-3",
    source: "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    stops: &[],
};

const ZEPHYR: Format = Format {
    name: "Zephyr",
    source: "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    stops: &["<|user|>", "<|system|>"],
};

const LLAMA2: Format = Format {
    name: "Llama 2",
    source: "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' ~ m.content ~ '\n<</SYS>>\n\n' %}{% elif m.role == 'user' %}{{ bos_token }}[INST] {{ ns.system }}{{ m.content|trim }} [/INST]{% set ns.system = '' %}{% else %} {{ m.content|trim }} {{ eos_token }}{% endif %}{% endfor %}",
    stops: &["[INST]"],
};

const PLAIN: Format = Format {
    name: "plain",
    source: "{% for m in messages %}{% if m.role == 'system' %}{{ m.content|trim }}\n\n{% else %}{{ 'Assistant' if m.role == 'assistant' else 'User' }}: {{ m.content|trim }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
    stops: &["\nUser:"],
};

/// The format whose tokens the vocabulary has, and why; `name` is the model's.
pub fn choose(tokenizer: &Tokenizer, name: &str) -> (Format, String) {
    let known = |format: Format, tokens: &[&str]| {
        let found = tokens.iter().all(|token| tokenizer.token_id(token).is_some());
        found.then(|| (format, format!("the vocabulary has {}", tokens.join(" and "))))
    };
    let name = name.to_lowercase();
    let called = |format: Format, words: &[&str]| {
        let found = words.iter().find(|word| name.contains(**word) && (name.contains("chat") || name.contains("inst")));
        found.map(|word| (format, format!("the model's name has `{word}`")))
    };
    None.or_else(|| known(CHATML, &["<|im_start|>", "<|im_end|>"]))
        .or_else(|| known(HARMONY, &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]))
        .or_else(|| known(GEMMA4, &["<|turn>", "<turn|>"]))
        .or_else(|| known(LLAMA3, &["<|start_header_id|>", "<|eot_id|>"]))
        .or_else(|| known(GEMMA, &["<start_of_turn>", "<end_of_turn>"]))
        .or_else(|| known(PHI3, &["<|user|>", "<|assistant|>", "<|end|>"]))
        .or_else(|| known(ZEPHYR, &["<|user|>", "<|assistant|>"]))
        .or_else(|| known(LLAMA2, &["[INST]", "[/INST]"]))
        .or_else(|| called(LLAMA2, &["llama-2", "llama2", "mistral", "mixtral"]))
        .or_else(|| called(ZEPHYR, &["zephyr", "tinyllama"]))
        .unwrap_or_else(|| (PLAIN, "the vocabulary has no tokens for turns".to_owned()))
}

//! Templates for models without a working template, chosen by the tokens of the vocabulary.

use super::super::Tokenizer;

/// A known conversation format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Name of the format.
    pub name: &'static str,
    /// The template.
    pub source: &'static str,
    /// Texts that end an answer, for formats without an end token.
    pub stops: &'static [&'static str],
    /// Texts of tokens that a vocabulary for the format contains.
    tokens: &'static [&'static str],
    /// Words in the names of chat models trained on the format.
    words: &'static [&'static str],
}

const fn format(name: &'static str, tokens: &'static [&'static str], source: &'static str) -> Format {
    Format { name, source, stops: &[], tokens, words: &[] }
}

/// Formats that can be detected by tokens or names, more specific ones first.
const KNOWN: [Format; 8] = [
    format(
        "ChatML",
        &["<|im_start|>", "<|im_end|>"],
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    format(
        "Harmony",
        &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
        "{% for m in messages %}<|start|>{{ m.role }}{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ),
    format(
        "Gemma 4",
        &["<|turn>", "<turn|>"],
        "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content|trim }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}",
    ),
    format(
        "Llama 3",
        &["<|start_header_id|>", "<|eot_id|>"],
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content|trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    format(
        "Gemma",
        &["<start_of_turn>", "<end_of_turn>"],
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content|trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    format(
        "Phi-3",
        &["<|user|>", "<|assistant|>", "<|end|>"],
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    Format {
        stops: &["<|user|>", "<|system|>"],
        words: &["zephyr", "tinyllama"],
        ..format(
            "Zephyr",
            &["<|user|>", "<|assistant|>"],
            "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        )
    },
    Format {
        stops: &["[INST]"],
        words: &["llama-2", "llama2", "mistral", "mixtral"],
        ..format(
            "Llama 2",
            &["[INST]", "[/INST]"],
            "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' ~ m.content ~ '\n<</SYS>>\n\n' %}{% elif m.role == 'user' %}{{ bos_token }}[INST] {{ ns.system }}{{ m.content|trim }} [/INST]{% set ns.system = '' %}{% else %} {{ m.content|trim }} {{ eos_token }}{% endif %}{% endfor %}",
        )
    },
];

const PLAIN: Format = Format {
    stops: &["\nUser:"],
    ..format(
        "plain",
        &[],
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content|trim }}\n\n{% else %}{{ 'Assistant' if m.role == 'assistant' else 'User' }}: {{ m.content|trim }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
    )
};

/// The format whose tokens the vocabulary contains, and the reason; `name` is the model's.
pub fn choose(tokenizer: &Tokenizer, name: &str) -> (Format, String) {
    let has = |format: &&Format| format.tokens.iter().all(|token| tokenizer.token_id(token).is_some());
    if let Some(format) = KNOWN.iter().find(has) {
        return (*format, format!("the vocabulary contains {}", format.tokens.join(" and ")));
    }
    let name = name.to_lowercase();
    let named = |format: &Format| format.words.iter().find(|word| name.contains(**word)).map(|word| (*format, *word));
    // If a name contains the words of both, Llama 2 is the older format.
    match KNOWN.iter().rev().find_map(named).filter(|_| name.contains("chat") || name.contains("inst")) {
        Some((format, word)) => (format, format!("the model's name contains `{word}`")),
        None => (PLAIN, "the vocabulary contains no tokens for turns".to_owned()),
    }
}

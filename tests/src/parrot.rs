//! Models that always say one given text.

use std::{collections::BTreeSet, fs, path::Path};

use thermocline_engine::session::{Engine, EngineOptions};

use crate::raw_gguf::{RawGguf, RawPair, array, pair, tensor, text};

/// Length of a hidden state, and maximum size of the vocabulary.
const WIDTH: usize = 512;

/// Number of neurons of the FFN.
const NEURONS: usize = 64;

/// Control tokens. The second ends the answer; the fourth comes before the answer.
const CONTROL: [&str; 5] = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"];

/// Chat template that lists tools and puts calls between tags.
const TEMPLATE: &str = "{{ bos_token }}{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}</tool_call>{% endfor %}\
    {% for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content or '' }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Opens a model that says `pieces`. Each piece is a token of at least two bytes and occurs once.
/// The model's file is in `folder`.
///
/// The model is a Llama of one layer whose weights are zero. A hidden state is the token's row of
/// the identity, and the head maps each token to the next.
pub fn parrot(folder: &Path, pieces: &[&str]) -> Engine {
    let path = folder.join("parrot.gguf");
    fs::write(&path, file(pieces)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Engine::open(&path, EngineOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn file(pieces: &[&str]) -> Vec<u8> {
    let mut tokens: Vec<String> = CONTROL.map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| letter(byte).to_string()));
    // A merge, so that the list of merges is not empty.
    tokens.push("ab".to_owned());
    let first = tokens.len();
    tokens.extend(pieces.iter().map(|piece| piece.bytes().map(letter).collect::<String>()));
    assert!(tokens.len() <= WIDTH && pieces.iter().collect::<BTreeSet<_>>().len() == pieces.len());
    let mut model = RawGguf { pairs: metadata(&tokens), ..RawGguf::empty() };
    let mut data = Vec::new();
    let mut add = |name: &str, ne: &[usize], bytes: Vec<u8>| {
        let ne: Vec<u64> = ne.iter().map(|dim| *dim as u64).collect();
        model.tensors.push(tensor(name, &ne, u32::from(ne.len() > 1), data.len() as u64));
        data.extend(bytes);
    };
    let chain = [3].into_iter().chain(first..tokens.len()).chain([1]);
    let mut head = vec![0; tokens.len() * WIDTH];
    chain.clone().zip(chain.skip(1)).for_each(|(before, after)| head[after * WIDTH + before] = 1);
    let identity = (0..tokens.len() * WIDTH).map(|at| u8::from(at / WIDTH == at % WIDTH)).collect();
    add("token_embd.weight", &[WIDTH, tokens.len()], halves(identity));
    add("output.weight", &[WIDTH, tokens.len()], halves(head));
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        add(&format!("{name}.weight"), &[WIDTH], 1f32.to_le_bytes().repeat(WIDTH));
    }
    for (name, columns, rows) in [
        ("attn_q", WIDTH, WIDTH),
        ("attn_k", WIDTH, WIDTH),
        ("attn_v", WIDTH, WIDTH),
        ("attn_output", WIDTH, WIDTH),
        ("ffn_gate", WIDTH, NEURONS),
        ("ffn_up", WIDTH, NEURONS),
        ("ffn_down", NEURONS, WIDTH),
    ] {
        add(&format!("blk.0.{name}.weight"), &[columns, rows], halves(vec![0; columns * rows]));
    }
    let mut bytes = model.head();
    bytes.resize(bytes.len().next_multiple_of(model.alignment), 0);
    bytes.extend(data);
    bytes
}

fn metadata(tokens: &[String]) -> Vec<RawPair> {
    let number = |key: &str, number: usize| pair(key, 4, &(number as u32).to_le_bytes());
    let string = |text: &String| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let strings = |list: &[String]| list.iter().flat_map(string).collect::<Vec<u8>>();
    let kind = |at: usize| if at < CONTROL.len() { 3_i32 } else { 1 };
    let kinds: Vec<u8> = (0..tokens.len()).flat_map(|at| kind(at).to_le_bytes()).collect();
    vec![
        text("general.architecture", "llama"),
        number("llama.context_length", 2048),
        number("llama.embedding_length", WIDTH),
        number("llama.block_count", 1),
        number("llama.feed_forward_length", NEURONS),
        number("llama.attention.head_count", 8),
        number("llama.attention.head_count_kv", 8),
        pair("llama.attention.layer_norm_rms_epsilon", 6, &1e-6f32.to_le_bytes()),
        number("llama.rope.dimension_count", WIDTH / 8),
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "gpt-2"),
        array("tokenizer.ggml.tokens", 8, tokens.len() as u64, &strings(tokens)),
        array("tokenizer.ggml.token_type", 5, tokens.len() as u64, &kinds),
        array("tokenizer.ggml.merges", 8, 1, &strings(&["a b".to_owned()])),
        number("tokenizer.ggml.bos_token_id", 0),
        number("tokenizer.ggml.eos_token_id", 1),
        text("tokenizer.chat_template", TEMPLATE),
    ]
}

/// Returns GPT-2's letter for a byte.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if plain(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !plain(*byte)).count() as u32;
    char::from_u32(256 + before).unwrap_or_default()
}

/// Converts zeros and ones to F16.
fn halves(values: Vec<u8>) -> Vec<u8> {
    values.iter().flat_map(|value| (0x3c00 * u16::from(*value)).to_le_bytes()).collect()
}

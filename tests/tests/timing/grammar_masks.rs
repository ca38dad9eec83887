//! Time of a grammar's masks for a vocabulary of 150,000 tokens, and time to refuse a grammar.

use std::time::Duration;

use cpu_time::ThreadTime;
use serde_json::{Value as Json, json};
use thermocline_engine::{
    format::{Array, Metadata, Value},
    session::{
        Grammar,
        sampling::{GrammarCompiler, GrammarState, JsonSchema},
    },
    tokenizer::Tokenizer,
};
use thermocline_tests::dice::Dice;

use super::alone;

const VOCAB: usize = 150_000;

/// Maximum median time of a mask. Libraries of debug builds are not optimised.
const LONGEST: Duration = if cfg!(debug_assertions) { Duration::from_millis(40) } else { Duration::from_millis(1) };

/// Maximum time to refuse a grammar, or to compute the first mask of an accepted one.
const LONGEST_COMPILATION: Duration = Duration::from_secs(10);

/// Returns a tokenizer with bytes, an end token, and words as in real vocabularies: with spaces,
/// capitals, digits, and the punctuation of JSON.
fn tokenizer() -> Tokenizer {
    let mut dice = Dice(3);
    let mut tokens: Vec<String> = vec!["</s>".to_owned()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let punctuation = [
        "\"", "\":", "\",", "{\"", "\"}", "},", "[", "]", "],", " {", "\n", "  ", ": ", ", \"", "\": \"", "true",
        "false",
    ];
    tokens.extend(punctuation.map(str::to_owned));
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    while tokens.len() < VOCAB {
        let letters: Vec<char> = match dice.below(12) {
            0 => ('0'..='9').collect(),
            1 => "{}[]\":,.-_/\\()<>=+*&%$#@!?;' ".chars().collect(),
            2 => ('а'..='я').collect(),
            3 => ('一'..='龥').collect(),
            _ => ('a'..='z').collect(),
        };
        let most = if letters.len() > 100 { 3 } else { 9 };
        let mut word: String = (0..1 + dice.below(most)).map(|_| letters[dice.below(letters.len())]).collect();
        match dice.below(3) {
            0 => word.insert(0, ' '),
            1 if word.is_ascii() => word = word[..1].to_uppercase() + &word[1..],
            _ => {}
        }
        if seen.insert(word.clone()) {
            tokens.push(word);
        }
    }
    let mut metadata = Metadata::new("m.gguf");
    let types = (0..tokens.len())
        .map(|id| {
            if id == 0 {
                3
            } else if id <= 256 {
                6
            } else {
                1
            }
        })
        .collect();
    metadata.set("tokenizer.ggml.model", Value::String("llama".into()));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(0));
    Tokenizer::from_metadata(&metadata).unwrap()
}

fn schema_grammar(schema: &Json) -> Grammar {
    Grammar::JsonSchema(JsonSchema::new(schema, false).unwrap())
}

/// Returns the times of the masks along `text`, byte by byte.
fn times(compiler: &GrammarCompiler, grammar: &Grammar, text: &str) -> Vec<Duration> {
    let mut state: GrammarState = compiler.compile(grammar).unwrap();
    let mut logits = vec![0.0; VOCAB];
    let mut times = Vec::new();
    for byte in text.bytes() {
        let began = ThreadTime::now();
        state.compute_mask().unwrap();
        times.push(began.elapsed());
        logits.fill(0.0);
        state.apply(&mut logits).unwrap();
        let id = 1 + u32::from(byte);
        assert_eq!(logits[id as usize], 0.0, "{:?} is allowed in {text}", char::from(byte));
        state.accept(id).unwrap();
    }
    times
}

#[test]
fn masks_of_150_000_tokens_are_computed_in_less_than_a_millisecond() {
    let _alone = alone();
    let compiler = GrammarCompiler::new(&tokenizer(), VOCAB).unwrap();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "kind": { "enum": ["cat", "dog", "bird"] },
            "legs": { "type": "integer" },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 20 } },
        },
        "required": ["name", "kind", "legs", "tags"],
        "additionalProperties": false,
    });
    let gbnf = r#"
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (string ": " value (", " string ": " value)*)? "}"
array ::= "[" (value (", " value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?
"#;
    let text = r#"{"name": "Tom the cat", "kind": "cat", "legs": 4, "tags": ["small", "grey and soft"]}"#;
    for (what, grammar) in [
        ("schema", schema_grammar(&schema)),
        ("JSON of any form", Grammar::JsonSchema(JsonSchema::any_object())),
        ("GBNF", Grammar::Gbnf(gbnf.to_owned())),
        ("expression", Grammar::Regex("[^<>]{1,200}".to_owned())),
    ] {
        // Takes the shortest time of each position, because page faults and a shared core add to
        // this thread's time.
        let mut best = times(&compiler, &grammar, text);
        for _ in 0..2 {
            let again = times(&compiler, &grammar, text);
            best.iter_mut().zip(again).for_each(|(best, time)| *best = time.min(*best));
        }
        best.sort_unstable();
        let (median, longest) = (best[best.len() / 2], best[best.len() - 1]);
        println!("{what}: median {median:?}, longest {longest:?}");
        assert!(median < LONGEST, "{what}: median {median:?}, longest {longest:?}");
    }
}

#[test]
fn grammars_that_are_too_hard_are_refused_in_time() {
    let _alone = alone();
    let compiler = GrammarCompiler::new(&tokenizer(), VOCAB).unwrap();
    let many: Vec<_> = (0..2000).map(|at| json!({ "type": "object", "properties": { format!("a{at}"): { "type": "string", "pattern": "(a|b)*c{1,50}" } } })).collect();
    let constants: Vec<Json> = (0..90_000).map(|at| json!({ "const": format!("{at}x") })).collect();
    for (what, grammar) in [
        ("repetitions", Grammar::Regex("((a{1,1000}b){1,1000}c){1,1000}".to_owned())),
        ("long repetitions", Grammar::Regex("(a{1,1000}){1,1000}b{1,100000}".to_owned())),
        ("intersections", schema_grammar(&json!({ "allOf": many }))),
        ("alternatives", schema_grammar(&json!({ "anyOf": constants }))),
        ("groups", Grammar::Gbnf(format!("root ::= {}\"a\"{}", "(".repeat(50), "){1,99}".repeat(50)))),
        ("four groups", Grammar::Gbnf("root ::= (((\"a\"{1,999}){1,999}){1,999}){1,999}".to_owned())),
        ("a long rule", Grammar::Gbnf("root ::= [a-z]{1,200000} root".to_owned())),
        ("recursion", Grammar::Gbnf("root ::= root root | [a-z]* root?".to_owned())),
        ("left recursion", Grammar::Gbnf("root ::= root".to_owned())),
        ("endless rules", Grammar::Lark("start: start".to_owned())),
    ] {
        let began = ThreadTime::now();
        let outcome = compiler.compile(&grammar).and_then(|mut state| state.compute_mask());
        let took = began.elapsed();
        println!("{what}: {took:?}, {outcome:?}");
        assert!(took < LONGEST_COMPILATION, "{what}: {took:?}");
    }
}

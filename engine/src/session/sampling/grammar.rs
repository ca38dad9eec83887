//! Grammars that constrain an answer, as masks over the vocabulary. The `llguidance` library
//! supplies the automata.

use std::{fmt, sync::Arc};

use llguidance::{Matcher, ParserFactory, api::TopLevelGrammar};
use toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use super::{
    gbnf,
    json_schema::JsonSchema,
    number_length::{NumberLength, leading_digits},
    pattern,
};
use thermocline_base::error::{Error, Result};
use thermocline_text::{TokenKind, Tokenizer};

/// Byte before the text of a non-text token. No text contains it.
const CONTROL: u8 = 0xff;

/// Largest number of symbols in a grammar. Larger grammars take seconds to compile.
const MAX_SYMBOLS: usize = 100_000;

/// The required form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON value that a schema describes.
    JsonSchema(JsonSchema),
    /// A text that a regular expression matches completely.
    Regex(String),
    /// A text of this Lark grammar, whose start rule is `start`.
    Lark(String),
    /// A text of this grammar in llama.cpp's notation (GBNF), whose start rule is `root`.
    Gbnf(String),
}

impl Grammar {
    /// A grammar in Lark's or llama.cpp's notation, detected from the text.
    pub fn of_text(text: String) -> Self {
        if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) }
    }

    /// A grammar that allows exactly one of these texts.
    pub fn one_of(texts: &[String]) -> Self {
        Grammar::Regex(gbnf::one_of(texts))
    }
}

/// Compiles grammars for one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocab: usize,
    /// Tokens that start with digits.
    digits: Arc<[DigitToken]>,
}

/// A token that starts with digits, and their number.
struct DigitToken {
    id: u32,
    digits: usize,
}

/// The state of a grammar after the tokens so far.
pub struct GrammarState {
    matcher: Matcher,
    /// Mask of the tokens that may follow, once computed.
    mask: Option<SimpleVob>,
    /// Digits of the current number, if the text is JSON.
    length: Option<NumberLength>,
    digits: Arc<[DigitToken]>,
    environment: TokEnv,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState").finish_non_exhaustive()
    }
}

/// The error for an unusable grammar.
fn refused(why: impl fmt::Display) -> Error {
    // The library's messages continue with its state, line by line.
    Error::invalid("grammar", "a supported grammar", pattern::summary(why))
}

impl GrammarCompiler {
    /// A compiler for the `vocab` tokens of `tokenizer`.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Self> {
        let ends: Vec<u32> = tokenizer.ends().collect();
        let Some(&end) = ends.first() else {
            return Err(refused("the vocabulary has no token that ends a text"));
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32)
            .map(|id| {
                let bytes = tokenizer.token_bytes(id);
                match tokenizer.token_kind(id) {
                    _ if tokenizer.is_end(id) || tokenizer.is_special(id) => [&[CONTROL], bytes].concat(),
                    None => Vec::new(),
                    Some(TokenKind::Unused) => Vec::new(),
                    Some(_) => bytes.to_vec(),
                }
            })
            .collect();
        let token = |(id, bytes): (u32, &Vec<u8>)| DigitToken { id, digits: leading_digits(bytes) };
        let digits = (0..).zip(&words).map(token).filter(|token| token.digits > 0).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_grammar_size = MAX_SYMBOLS;
        Ok(GrammarCompiler { factory, vocab, digits })
    }

    /// The state of `grammar` before the first token. [`Error::Invalid`] if the grammar is
    /// malformed or too large.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarState> {
        let translated = match grammar {
            Grammar::Gbnf(text) => Some(gbnf::translate(text)?),
            _ => None,
        };
        let grammar = translated.as_ref().unwrap_or(grammar);
        let length = matches!(grammar, Grammar::JsonSchema(_)).then(NumberLength::default);
        let grammar = match grammar {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.for_library()),
            Grammar::Regex(regex) => {
                if translated.is_none() {
                    pattern::check(regex, "")?;
                }
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Lark(text) | Grammar::Gbnf(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(why) => Err(refused(why)),
            None => {
                let (digits, environment) = (Arc::clone(&self.digits), self.factory.tok_env().clone());
                Ok(GrammarState { matcher, mask: None, length, digits, environment })
            }
        }
    }
}

impl GrammarState {
    /// Computes the mask of the tokens that may follow.
    pub fn compute_mask(&mut self) -> Result<()> {
        if self.mask.is_none() {
            let mut mask = self.matcher.compute_mask_or_eos().map_err(refused)?;
            self.limit_numbers(&mut mask);
            self.mask = Some(mask);
        }
        Ok(())
    }

    /// Removes tokens that would make a number too long, unless the schema requires a longer one.
    fn limit_numbers(&self, mask: &mut SimpleVob) {
        let Some(length) = self.length.as_ref().filter(|it| !it.allows(usize::from(u8::MAX))) else { return };
        let mut limited = mask.clone();
        let too_long = self.digits.iter().filter(|token| !length.allows(token.digits));
        too_long.for_each(|token| limited.disallow_token(token.id));
        if !limited.is_zero() {
            *mask = limited;
        }
    }

    /// Number of tokens at the beginning of `tokens` that the grammar allows one after another,
    /// whatever digits their numbers have.
    pub fn allowed(&mut self, tokens: &[u32]) -> usize {
        let vocab = self.environment.tok_trie().vocab_size();
        let known = tokens.iter().take_while(|id| (**id as usize) < vocab).count();
        self.matcher.validate_tokens(&tokens[..known]).unwrap_or(0)
    }

    /// Bans the tokens that may not follow in `logits`, `[vocab]`.
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        self.compute_mask()?;
        if let Some(mask) = &self.mask {
            for (id, logit) in logits.iter_mut().enumerate() {
                if id >= mask.len() || !mask.get(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    /// Advances past a token that the mask allowed.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        self.mask = None;
        if let Some(length) = &mut self.length {
            length.push(self.environment.tok_trie().token(id));
        }
        self.matcher.consume_token(id).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use thermocline_formats::format::{Array, Metadata, Value as Meta};

    /// A tokenizer of all bytes and an end token.
    fn tokenizer() -> Tokenizer {
        let mut metadata = Metadata::new("m.gguf");
        let mut tokens = ["<s>", "</s>", "true", "\"a\""].map(str::to_owned).to_vec();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let types = (0..tokens.len()).map(|id| [3, 3, 1, 1].get(id).copied().unwrap_or(6)).collect();
        metadata.set("tokenizer.ggml.model", Meta::String("llama".into()));
        metadata.set("tokenizer.ggml.scores", Meta::Array(Array::F32(vec![0.0; tokens.len()])));
        metadata.set("tokenizer.ggml.tokens", Meta::Array(Array::String(tokens)));
        metadata.set("tokenizer.ggml.token_type", Meta::Array(Array::I32(types)));
        metadata.set("tokenizer.ggml.eos_token_id", Meta::U32(1));
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    fn schema(schema: Value) -> Grammar {
        Grammar::JsonSchema(JsonSchema::new(&schema, false).expect("a schema"))
    }

    fn compiler() -> (GrammarCompiler, usize) {
        let tokenizer = tokenizer();
        // A model may have more logits than its vocabulary has tokens.
        let vocab = tokenizer.vocab_len() + 4;
        (GrammarCompiler::new(&tokenizer, vocab).expect("a vocabulary"), vocab)
    }

    fn allowed(state: &mut GrammarState, vocab: usize) -> Vec<u32> {
        let mut logits = vec![0.0; vocab];
        state.apply(&mut logits).expect("a mask");
        (0..vocab as u32).filter(|id| logits[*id as usize] == 0.0).collect()
    }

    fn byte(byte: u8) -> u32 {
        4 + u32::from(byte)
    }

    #[test]
    fn masks_allow_what_the_schema_allows_and_the_end_when_it_is_complete() {
        let (compiler, vocab) = compiler();
        let mut state = compiler.compile(&schema(json!({ "type": "boolean" }))).expect("a schema");
        let first = allowed(&mut state, vocab);
        assert!(first.contains(&2) && first.contains(&byte(b't')) && first.contains(&byte(b'f')), "{first:?}");
        assert!(!first.contains(&1) && !first.contains(&3) && !first.contains(&byte(b'x')), "{first:?}");
        state.accept(2).expect("true");
        assert_eq!(allowed(&mut state, vocab), [1]);
    }

    #[test]
    fn allowed_beginnings_of_drafts_are_found_without_advancing() {
        let (compiler, vocab) = compiler();
        let mut state = compiler.compile(&Grammar::Regex("ab?c".to_owned())).expect("a grammar");
        let draft = |text: &str| text.bytes().map(byte).collect::<Vec<u32>>();
        for (text, wanted) in [("", 0), ("abc", 3), ("abd", 2), ("ba", 0), ("acc", 2)] {
            assert_eq!(state.allowed(&draft(text)), wanted, "{text}");
        }
        // The end, and an id behind the vocabulary.
        assert_eq!(state.allowed(&[&draft("ac")[..], &[1, 1]].concat()), 3);
        assert_eq!(state.allowed(&[&draft("ab")[..], &[u32::MAX]].concat()), 2);
        assert_eq!(allowed(&mut state, vocab), [byte(b'a')]);
        state.accept(byte(b'a')).expect("a");
        assert_eq!((state.allowed(&draft("c")), state.allowed(&draft("a"))), (1, 0));
        assert_eq!(allowed(&mut state, vocab), [byte(b'b'), byte(b'c')]);
    }

    #[test]
    fn every_kind_of_grammar_is_followed() {
        let (compiler, vocab) = compiler();
        for grammar in [Grammar::Regex("ab?".to_owned()), Grammar::Lark("start: \"a\" \"b\"?".to_owned())] {
            let mut state = compiler.compile(&grammar).expect("a grammar");
            assert_eq!(allowed(&mut state, vocab), [byte(b'a')], "{grammar:?}");
            state.accept(byte(b'a')).expect("a");
            assert_eq!(allowed(&mut state, vocab), [1, byte(b'b')], "{grammar:?}");
        }
    }

    /// True if the grammar accepts `text`, byte by byte.
    fn accepts(compiler: &GrammarCompiler, vocab: usize, grammar: &Grammar, text: &str) -> bool {
        let mut state = compiler.compile(grammar).expect("a grammar");
        for at in text.bytes() {
            if !allowed(&mut state, vocab).contains(&byte(at)) {
                return false;
            }
            state.accept(byte(at)).expect("an allowed byte");
        }
        allowed(&mut state, vocab).contains(&1)
    }

    #[test]
    fn gbnf_is_followed_with_and_without_recursion() {
        let (compiler, vocab) = compiler();
        let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
        let list = "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"";
        let nested = "root ::= \"(\" root? \")\" | [é-ü]";
        let objects = [r#"{}"#, r#"{"a": [1, -2.5e3, {"b": null}], "c": "\u00e9\n"}"#, "{\n  }"];
        for (grammar, good, bad) in [
            (json, &objects[..], &["", "[]", r#"{"a"}"#, r#"{"a": 01}"#, "{]"][..]),
            (list, &["- a\n", "- a\n- é (b)\n"], &["", "a", "- \n", "- a"]),
            (nested, &["()", "((()))", "é", "(ü)"], &["(", "(()", "())", "a"]),
        ] {
            let grammar = Grammar::of_text(grammar.to_owned());
            assert!(matches!(grammar, Grammar::Gbnf(_)));
            good.iter().for_each(|text| assert!(accepts(&compiler, vocab, &grammar, text), "{text}"));
            bad.iter().for_each(|text| assert!(!accepts(&compiler, vocab, &grammar, text), "{text}"));
        }
        assert!(compiler.compile(&Grammar::Gbnf("root ::= other".to_owned())).is_err());
    }

    #[test]
    fn local_references_of_schemas_are_followed() {
        let (compiler, vocab) = compiler();
        let yes = schema(json!({ "$ref": "#/$defs/yes", "$defs": { "yes": { "const": true } } }));
        let mut state = compiler.compile(&yes).expect("a schema");
        assert_eq!(allowed(&mut state, vocab), [2, byte(b't')]);
        let tree = schema(json!({
            "type": "object", "properties": { "a": { "$ref": "#/x~1y" }, "b": { "type": "array", "items": { "$ref": "#" } } },
            "additionalProperties": false, "x/y": { "enum": [1, 2] },
        }));
        for (text, good) in
            [(r#"{"a": 1, "b": [{}, {"b": []}]}"#, true), (r#"{"a": 3}"#, false), (r#"{"b": [1]}"#, false)]
        {
            assert_eq!(accepts(&compiler, vocab, &tree, text), good, "{text}");
        }
        let circle = schema(
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        );
        if let Ok(mut state) = compiler.compile(&circle) {
            assert!(state.compute_mask().is_err() || allowed(&mut state, vocab).iter().all(|id| *id == 1));
        }
    }

    #[test]
    fn alternatives_that_may_both_fit_are_taken_as_any_of_them() {
        let (compiler, vocab) = compiler();
        let numbers = schema(json!({ "oneOf": [{ "const": 1 }, { "const": 2 }] }));
        let keys = schema(json!({
            "properties": { "f": { "enum": [true] }, "l": { "enum": [false] } }, "additionalProperties": false,
            "type": "object", "oneOf": [{ "required": ["f"] }, { "required": ["l"] }],
        }));
        for (grammar, text, good) in [
            (&numbers, "1", true),
            (&numbers, "2", true),
            (&numbers, "3", false),
            (&keys, r#"{"f": true}"#, true),
            (&keys, r#"{"l": false}"#, true),
            (&keys, "{}", false),
        ] {
            assert_eq!(accepts(&compiler, vocab, grammar, text), good, "{text}");
        }
    }

    #[test]
    fn numbers_have_at_most_16_digits_in_each_part_unless_the_schema_wants_more() {
        let (compiler, vocab) = compiler();
        let (number, any) = (schema(json!({ "type": "number" })), schema(json!({})));
        let fixed = schema(json!({ "const": 123_456_789_012_345_680_i64 }));
        let least = schema(json!({ "type": "integer", "minimum": 100_000_000_000_000_000_i64 }));
        for (grammar, text, good) in [
            (&number, "-1234567890123456.1234567890123456e-1234567890123456", true),
            (&number, "12345678901234567", false),
            (&number, "3.31000000000000000", false),
            (&any, r#"{"a": [1.5, "12345678901234567890"]}"#, true),
            (&any, r#"{"a": [0.12345678901234567]}"#, false),
            (&fixed, "123456789012345680", true),
            (&least, "100000000000000007", true),
            (&least, "1000000000000000071", false),
        ] {
            assert_eq!(accepts(&compiler, vocab, grammar, text), good, "{text}");
        }
    }

    #[test]
    fn invalid_and_huge_grammars_are_refused() {
        let (compiler, _) = compiler();
        let many: Vec<Value> = (0..90_000).map(|at| json!({ "const": format!("{at}x") })).collect();
        for grammar in [
            schema(json!({ "type": "nonsense" })),
            schema(json!({ "anyOf": many })),
            Grammar::Regex("(".to_owned()),
            Grammar::Regex("(a{1,1000}){1,1000}b{1,100000}".to_owned()),
            Grammar::Lark("nonsense".to_owned()),
            Grammar::Lark("start: start".to_owned()),
            Grammar::Gbnf("root ::= root".to_owned()),
            Grammar::Gbnf("root ::= [a-z]{1,200000} root".to_owned()),
            Grammar::Gbnf("root ::= (((\"a\"{1,999}){1,999}){1,999}){1,999}".to_owned()),
        ] {
            if let Some(error) = compiler.compile(&grammar).err() {
                assert!(matches!(error, Error::Invalid { what: "grammar", .. }), "{error}");
            }
        }
        let error = compiler.compile(&Grammar::Lark("nonsense".to_owned())).expect_err("no rule");
        assert!(matches!(error, Error::Invalid { what: "grammar", .. }), "{error}");
    }
}

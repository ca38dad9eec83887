//! Pre-tokenisers of byte-level vocabularies split text into words before merging. They are listed
//! by their GGUF names (`tokenizer.ggml.pre`), with the patterns of the models' published
//! `tokenizer.json` files. Patterns apply in order, and each splits what the previous pattern left.
//! Text between matches is a word too.

use tokenizers::{
    PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::vocab::Spelling;

/// GPT-2's split.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen2's split, with combining marks as parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen2's split without English contractions.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const MINICPM5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Llama 3's split, with white space in powers of two.
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";

/// Words of several parts with single spaces between them.
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's split for text without Han characters; runs of Han characters are words.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's split with single digits, applied after [`YOUTU_SCRIPTS`].
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";

const BLOOM: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";

/// Lines, and the line ends between them.
const LINES: &str = "[^\n]+|[\n]+";
/// Runs of punctuation.
pub const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const PUNCTUATION_AND_BACKTICK: &str = r"[\p{P}\$\+<=>\^~\|`]+";
/// One digit.
pub const DIGIT: &str = r"\p{N}";
/// Runs of digits.
pub const DIGITS: &str = r"\p{N}+";
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";
const NEW_LINE: &str = r"[\r\n]";
const HAN_AND_HANGUL: &str = "[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const HAN_AND_KANA: &str = "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const YOUTU_SCRIPTS: &str = "[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";

/// Letters with case, as listed in the Unicode version of that time.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\
    \u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\
    \u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\
    \u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\
    \u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\
    \u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\
    \u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\
    \u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\
    \u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\
    \u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\
    \u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\
    \u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\
    \u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const DEEPSEEK_PUNCTUATION: &str = "\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Name of the scheme for the tokenizer model of the same name.
pub const GEMMA4: &str = "gemma4";

/// A way of splitting text into words, with the settings that llama.cpp derives from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// A word that is a token is taken whole, regardless of the merges.
    pub ignore_merges: bool,
    /// A text begins with BOS, unless the file says otherwise.
    pub add_bos: bool,
    /// How tokens represent text. With SentencePiece's spelling, characters without a token become
    /// byte tokens.
    pub spelling: Spelling,
}

const fn scheme(names: &'static [&'static str], patterns: &'static [&'static str]) -> Scheme {
    Scheme { names, patterns, ignore_merges: false, add_bos: false, spelling: Spelling::ByteLevel }
}

const SCHEMES: &[Scheme] = &[
    scheme(&["default"], &[PUNCTUATION, GPT2, DIGITS, THREE_DIGITS]),
    Scheme {
        ignore_merges: true,
        add_bos: true,
        ..scheme(&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], &[LLAMA3])
    },
    scheme(
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "modern-bert",
            "roberta-bpe",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-es",
            "jina-v2-de",
            "jina-es",
            "jina-de",
        ],
        &[GPT2],
    ),
    scheme(
        &["qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "grok-2", "solar-open", "f2llmv2"],
        &[QWEN2],
    ),
    scheme(&["qwen35"], &[QWEN35]),
    scheme(&["laguna"], &[LINES, QWEN2]),
    scheme(&["ufakzeka"], &[UFAKZEKA]),
    scheme(&["falcon"], &[PUNCTUATION_AND_BACKTICK, GPT2, THREE_DIGITS]),
    scheme(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    scheme(&["jais-2"], &[JAIS2]),
    Scheme { ignore_merges: true, ..scheme(&["minicpm5"], &[UP_TO_THREE_DIGITS, MINICPM5]) },
    scheme(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    scheme(&["exaone-moe"], &[EXAONE_MOE]),
    scheme(&["deepseek-llm"], &[NEW_LINE, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", HAN_AND_HANGUL, DIGITS]),
    scheme(&["deepseek-coder"], &[NEW_LINE, r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, DIGIT]),
    scheme(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[UP_TO_THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3]),
    Scheme { ignore_merges: true, add_bos: true, ..scheme(&["tekken"], &[TEKKEN]) },
    scheme(&["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"], &[GPT4O]),
    scheme(&["kimi-k2"], &[KIMI]),
    Scheme { ignore_merges: true, ..scheme(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]) },
    scheme(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    scheme(&["viking"], &[BLOOM, DIGIT]),
    scheme(&["seed-coder"], &[SEED_CODER]),
    scheme(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    Scheme { add_bos: true, spelling: Spelling::SentencePiece, ..scheme(&[GEMMA4], &[LINES]) },
    Scheme { spelling: Spelling::SentencePiece, ..scheme(&["sarvam-moe"], &[LINES]) },
];

impl Scheme {
    /// The scheme with the GGUF name `name`.
    pub fn named(name: &str) -> Option<&'static Scheme> {
        SCHEMES.iter().find(|scheme| scheme.names.contains(&name))
    }

    /// True for Gemma 4's scheme.
    pub fn is_gemma4(&self) -> bool {
        self.names == [GEMMA4]
    }

    /// All names, for error messages.
    pub fn names() -> String {
        SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// The GGUF name of the scheme with exactly these patterns.
    pub fn name_of(patterns: &[String], ignore_merges: bool) -> Option<&'static str> {
        let same =
            |scheme: &&Scheme| scheme.spelling == Spelling::ByteLevel && scheme.patterns.iter().eq(patterns.iter());
        let mut candidates: Vec<&Scheme> = SCHEMES.iter().filter(same).collect();
        candidates.sort_by_key(|scheme| scheme.ignore_merges != ignore_merges);
        candidates.first().map(|scheme| scheme.names[0])
    }

    /// The splits, followed by the byte alphabet if tokens use it. The error text is the regex
    /// library's.
    pub fn build(&self) -> Result<PreTokenizerWrapper, String> {
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for &pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(PreTokenizerWrapper::Split(split.map_err(|error| error.to_string())?));
        }
        if self.spelling == Spelling::ByteLevel {
            steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        }
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;
    use crate::byte_level::byte_char;

    fn split(name: &str, text: &str) -> Vec<String> {
        let splits = Scheme::named(name).expect("known").build().expect("valid patterns");
        let mut pieces = PreTokenizedString::from(text);
        splits.pre_tokenize(&mut pieces).expect("splits");
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        pieces.iter().map(|piece| piece.0.to_owned()).collect()
    }

    fn words(name: &str, text: &str) -> String {
        split(name, text).join("|").replace('Ġ', "_")
    }

    #[test]
    fn every_scheme_builds_and_keeps_all_text() {
        let text = "it's 12345 Ünï 你好  \n\n!?x 한국";
        for scheme in SCHEMES {
            let length = match scheme.spelling {
                Spelling::ByteLevel => text.len(),
                Spelling::SentencePiece | Spelling::WordPiece => text.chars().count(),
            };
            for name in scheme.names {
                assert_eq!(split(name, text).concat().chars().count(), length, "{name}");
            }
        }
    }

    /// The fixture is described in tests/fixtures/pre_tokenizers/README.md.
    #[test]
    fn schemes_split_as_the_published_patterns_do() {
        let fixture = include_str!("../../../tests/fixtures/pre_tokenizers/splits.json");
        let mut fixture: BTreeMap<String, serde_json::Value> = serde_json::from_str(fixture).expect("a table");
        let texts: Vec<String> = serde_json::from_value(fixture.remove("texts").expect("texts")).expect("strings");
        assert!(fixture.len() > 20 && texts.len() > 15);
        for (name, rows) in fixture {
            let rows: Vec<Vec<String>> = serde_json::from_value(rows).expect("words of each text");
            for (text, want) in texts.iter().zip(rows) {
                let want: Vec<String> = match Scheme::named(&name).expect("known").spelling {
                    Spelling::ByteLevel => want.iter().map(|word| word.bytes().map(byte_char).collect()).collect(),
                    Spelling::SentencePiece | Spelling::WordPiece => want,
                };
                assert_eq!(split(&name, text), want, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn schemes_split_as_published() {
        let text = "I'LL buy 12345  apples!!\n";
        assert_eq!(words("gpt-2", text), "I|'|LL|_buy|_12345|_|_apples|!!|Ċ");
        assert_eq!(words("llama-bpe", text), "I|'LL|_buy|_|123|45|_|_apples|!!Ċ");
        assert_eq!(words("qwen2", text), "I|'LL|_buy|_|1|2|3|4|5|_|_apples|!!Ċ");
        assert_eq!(words("starcoder", text), "I|'|LL|_buy|_|1|2|3|4|5|_|_apples|!!|Ċ");
        assert_eq!(words("falcon", text), "I|'|LL|_buy|_|123|45|_|_apples|!!|Ċ");
        assert_eq!(words("tekken", "camelCase HTMLPage don't"), "camel|Case|_HTMLPage|_don|'t");
        assert_eq!(words("gpt-4o", "camelCase HTMLPage don't"), "camel|Case|_HTMLPage|_don't");
    }

    #[test]
    fn scheme_name_is_found_by_its_pattern() {
        assert_eq!(Scheme::name_of(&[LLAMA3.to_owned()], true), Some("llama-bpe"));
        assert_eq!(Scheme::name_of(&[LLAMA3.to_owned()], false), Some("dbrx"));
        assert_eq!(Scheme::name_of(&[GPT2.to_owned()], false), Some("gpt-2"));
        assert_eq!(Scheme::name_of(&["x".to_owned()], false), None);
    }
}

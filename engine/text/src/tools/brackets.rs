//! The texts around calls in published models.

use super::tag_call::{TagValue, Tags};

/// Texts around calls, as models are trained on them.
#[derive(Debug, Clone, Copy)]
pub struct KnownBrackets {
    /// Text before the calls.
    pub open: &'static str,
    /// Text after the calls, which some models omit; empty if there is none.
    pub close: &'static str,
    /// Texts around each of several calls.
    pub each: &'static [&'static str],
    /// Where a template or a vocabulary reveals these brackets.
    pub sign: BracketSign,
}

/// The sign that a model uses brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BracketSign {
    /// The template contains the opening text.
    Template,
    /// The template contains the opening text, or the vocabulary has it as a token.
    Token,
    /// The template contains the opening text and this text.
    Both(&'static str),
}

const fn known(open: &'static str, close: &'static str) -> KnownBrackets {
    KnownBrackets { open, close, each: &[], sign: BracketSign::Template }
}

/// Hermes, Qwen, GLM, Granite 4, SmolLM3, EXAONE, ERNIE, and templates without tools.
pub const TOOL_CALL: KnownBrackets = known("<tool_call>", "</tool_call>");
/// Qwen3-Coder and Nemotron 3, which may omit the surrounding tags.
pub const FUNCTION: KnownBrackets = known("<function=", "");
/// MiniCPM 5.
pub const ATTRIBUTES: KnownBrackets = known("<function name=", "");
/// HunYuan, Hy3 and Hy4. In most vocabularies of Hy3 and Hy4 a suffix is part of each tag.
pub const HUNYUAN: KnownBrackets =
    KnownBrackets { each: &["<tool_call>", "</tool_call>"], ..known("<tool_calls>", "</tool_calls>") };
/// Llama 3, which may also answer with calls without brackets.
pub const LLAMA: KnownBrackets = known("<|python_tag|>", "");
/// Llama 4, which may also answer with calls without brackets.
pub const LLAMA4: KnownBrackets = known("<|python_start|>", "<|python_end|>");

/// All brackets, more specific ones first.
pub const ALL: &[KnownBrackets] = &[
    FUNCTION,
    ATTRIBUTES,
    // Gemma 4 and FunctionGemma.
    known("<|tool_call>", "<tool_call|>"),
    known("<start_function_call>", "<end_function_call>"),
    // Nemotron 2, and Minitron.
    known("<TOOLCALL>", "</TOOLCALL>"),
    known("<toolcall>", "</toolcall>"),
    known("<minimax:tool_call>", "</minimax:tool_call>"),
    known("<seed:tool_call>", "</seed:tool_call>"),
    HUNYUAN,
    TOOL_CALL,
    // Mistral.
    known("[TOOL_CALLS]", ""),
    LLAMA,
    LLAMA4,
    // LFM2, and MiniCPM 3 and 4. Some templates do not contain the brackets.
    KnownBrackets { sign: BracketSign::Token, ..known("<|tool_call_start|>", "<|tool_call_end|>") },
    // Granite 3 and Phi-4-mini.
    KnownBrackets { sign: BracketSign::Token, ..known("<|tool_call|>", "<|/tool_call|>") },
    // Command R7B and A, and Command R.
    KnownBrackets { sign: BracketSign::Token, ..known("<|START_ACTION|>", "<|END_ACTION|>") },
    KnownBrackets { sign: BracketSign::Both("tool_name"), ..known("Action:", "") },
    // OLMo 3.
    known("<function_calls>", "</function_calls>"),
    // DeepSeek V3, V3.1 and R1.
    KnownBrackets {
        each: &["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
        sign: BracketSign::Token,
        ..known("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    },
    known("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    known("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    // Kimi K2, which has DeepSeek's architecture.
    KnownBrackets {
        each: &["<|tool_call_begin|>", "<|tool_call_end|>"],
        sign: BracketSign::Token,
        ..known("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    },
    // Step 3.
    KnownBrackets {
        each: &["<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_call_end｜>"],
        ..known("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")
    },
];

/// Separators between the name of a tool and its arguments.
pub const SEPARATORS: &[&str] = &["[ARGS]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "<tool_sep>"];
/// Mistral's text before the identifier of a call.
pub const CALL_ID: &str = "[CALL_ID]";
/// Gemma 4's and FunctionGemma's quotes around strings.
pub const QUOTES: &[&str] = &["<|\"|>", "<escape>"];
/// Parts of tags that are tokens in some vocabularies.
const PARTS_OF_TAGS: &[&str] = &["<function", "<param", "｜DSML｜"];

/// Texts around calls as they appear in one model's answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brackets {
    /// Text before the calls; empty for calls without brackets.
    pub open: String,
    /// Text after the calls; empty if there is none.
    pub close: String,
    /// Texts around each call.
    pub each: Vec<String>,
}

impl Brackets {
    /// Converts the texts of `known` with `spell`.
    pub fn of(known: &KnownBrackets, spell: &dyn Fn(&str) -> String) -> Self {
        let each = known.each.iter().map(|text| spell(text)).collect();
        Brackets { open: spell(known.open), close: spell(known.close), each }
    }

    /// True if the opening text ends directly before the function name, so that both are read
    /// together.
    pub fn ends_with_name(&self) -> bool {
        self.open.ends_with('=')
    }
}

/// Texts within calls as they appear in one model's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpelling {
    /// Tags of calls that use tags.
    pub tags: Vec<Tags>,
    /// GLM's and Hy3's tags.
    pub keys: Tags,
    /// Separators between a name and its arguments.
    pub separators: Vec<String>,
    /// Text before the identifier of a call.
    pub call_id: String,
    /// Gemma's quotes around strings.
    pub quotes: Vec<String>,
}

impl CallSpelling {
    /// Converts each text with `spell`.
    pub fn of(spell: &dyn Fn(&str) -> String) -> Self {
        let tags = |prefix: &str, close: &str, names: [&str; 2], attributes: bool| {
            let sign = if attributes { " name=" } else { "=" };
            let [function, parameter] = names.map(|name| spell(&format!("{prefix}{name}{sign}")));
            let [function_end, parameter_end] = names.map(|name| spell(&format!("{close}{name}>")));
            Tags { function, function_end, parameter, value: TagValue::Bracket, parameter_end, attributes }
        };
        CallSpelling {
            tags: vec![
                tags("<", "</", ["function", "parameter"], false),
                tags("<", "</", ["function", "param"], true),
                tags("<", "</", ["invoke", "parameter"], true),
                tags("<｜DSML｜", "</｜DSML｜", ["invoke", "parameter"], true),
                tags("<steptml:", "</steptml:", ["invoke", "parameter"], true),
            ],
            keys: Tags {
                function: String::new(),
                function_end: String::new(),
                parameter: spell("<arg_key>"),
                value: TagValue::Tags { key_end: spell("</arg_key>"), open: spell("<arg_value>") },
                parameter_end: spell("</arg_value>"),
                attributes: false,
            },
            separators: SEPARATORS.iter().map(|text| spell(text)).collect(),
            call_id: spell(CALL_ID),
            quotes: QUOTES.iter().map(|text| spell(text)).collect(),
        }
    }

    /// Texts that are tokens in some vocabularies, both around (`known`) and within calls.
    pub fn token_texts(known: &[KnownBrackets]) -> Vec<String> {
        let mut texts: Vec<String> = PARTS_OF_TAGS.iter().map(|text| (*text).to_owned()).collect();
        let mut add = |text: &str| {
            if !text.is_empty() && !texts.iter().any(|known| known == text) {
                texts.push(text.to_owned());
            }
        };
        for brackets in known {
            [&[brackets.open, brackets.close][..], brackets.each].concat().into_iter().for_each(&mut add);
        }
        SEPARATORS.iter().chain(QUOTES).chain([&CALL_ID]).for_each(|text| add(text));
        let CallSpelling { tags, keys, .. } = CallSpelling::of(&str::to_owned);
        for Tags { function, function_end, parameter, value, parameter_end, .. } in tags.iter().chain([&keys]) {
            [function, function_end, parameter, parameter_end].into_iter().for_each(|text| add(text));
            if let TagValue::Tags { key_end, open } = value {
                [key_end, open].into_iter().for_each(|text| add(text));
            }
        }
        texts
    }
}

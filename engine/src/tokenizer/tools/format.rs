//! The ways in which published models write calls of tools.

use crate::tokenizer::Tokenizer;

/// Texts around calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Brackets {
    pub open: &'static str,
    /// Empty: the call ends with its JSON.
    pub close: &'static str,
}

impl Brackets {
    /// True if the opening text ends where the name of the function begins, so that it is read with the name.
    pub fn ends_with_name(self) -> bool {
        self.open.ends_with('=')
    }
}

/// Hermes, Qwen, GLM, and templates that know no tools.
const TOOL_CALL: Brackets = Brackets { open: "<tool_call>", close: "</tool_call>" };
/// Qwen3-Coder and Nemotron 3, which may leave out the tags around.
const FUNCTION: Brackets = Brackets { open: "<function=", close: "" };
/// MiniCPM 5.
const ATTRIBUTES: Brackets = Brackets { open: "<function name=", close: "" };
/// Nemotron 2.
const NEMOTRON: Brackets = Brackets { open: "<TOOLCALL>", close: "</TOOLCALL>" };
const MISTRAL: Brackets = Brackets { open: "[TOOL_CALLS]", close: "" };
const LLAMA: Brackets = Brackets { open: "<|python_tag|>", close: "" };
const FUNCTION_GEMMA: Brackets = Brackets { open: "<start_function_call>", close: "<end_function_call>" };
/// Gemma 4.
const GEMMA: Brackets = Brackets { open: "<|tool_call>", close: "<tool_call|>" };

/// Texts that are control tokens in some vocabularies and part of calls.
const MARKERS: [&str; 18] = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<function",
    "</function>",
    "<param",
    "</param>",
    "<escape>",
];

/// How a model writes calls of tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFormat {
    pub(super) brackets: Vec<Brackets>,
    /// An answer that begins with a JSON object is a call.
    pub(super) bare_json: bool,
    markers: Vec<(u32, &'static str)>,
}

impl ToolFormat {
    /// The format of a model with this vocabulary and the source of this chat template. Templates that know no tools are given
    /// instructions for the first of them.
    pub fn detect(tokenizer: &Tokenizer, template: &str) -> Self {
        let with = |brackets: &[Brackets], bare_json| {
            let markers = MARKERS.into_iter().chain(["<start_function_call>", "<end_function_call>"]);
            let markers = markers.filter_map(|text| Some((tokenizer.token_id(text)?, text))).collect();
            ToolFormat { brackets: brackets.to_vec(), bare_json, markers }
        };
        let known = |brackets: Brackets| template.contains(brackets.open);
        if known(FUNCTION) {
            with(&[TOOL_CALL, FUNCTION], false)
        } else if known(ATTRIBUTES) {
            with(if known(TOOL_CALL) { &[TOOL_CALL, ATTRIBUTES] } else { &[ATTRIBUTES] }, false)
        } else if known(GEMMA) {
            with(&[GEMMA], false)
        } else if known(FUNCTION_GEMMA) {
            with(&[FUNCTION_GEMMA], false)
        } else if known(NEMOTRON) {
            with(&[NEMOTRON], false)
        } else if known(TOOL_CALL) {
            with(&[TOOL_CALL], false)
        } else if known(MISTRAL) {
            with(&[MISTRAL], false)
        } else if known(LLAMA) || template.contains("Environment: ipython") {
            with(&[LLAMA], true)
        } else {
            with(&[TOOL_CALL], false)
        }
    }

    /// Answers that are JSON from the first character: a grammar forces them.
    pub fn forced() -> Self {
        ToolFormat { brackets: Vec::new(), bare_json: true, markers: Vec::new() }
    }

    /// Tokens that are part of calls, and their texts, which a caller must see though the vocabulary may hide them.
    pub fn markers(&self) -> &[(u32, &'static str)] {
        &self.markers
    }

    /// The format of one kind of brackets, without markers.
    #[cfg(test)]
    pub(super) fn of_texts(open: &str) -> Self {
        let all = [TOOL_CALL, FUNCTION, ATTRIBUTES, NEMOTRON, MISTRAL, LLAMA, FUNCTION_GEMMA, GEMMA];
        let brackets = all.into_iter().filter(|it| it.open == open).collect();
        ToolFormat { brackets, bare_json: open == LLAMA.open, markers: Vec::new() }
    }
}

#[cfg(test)]
mod tests;

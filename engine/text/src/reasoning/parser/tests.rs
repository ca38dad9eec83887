use proptest::prelude::*;

use super::*;
use crate::{ContentGuard, PromptText};

/// The parts of an answer that arrives in these pieces, each part as one text.
fn parts(format: &str, prompt: &str, pieces: &[&str]) -> Vec<(AnswerPart, String)> {
    let mut parser = ReasoningFormat::of_texts(format).parser(prompt, None);
    let mut parts: AnswerPieces = Vec::new();
    let mut add = |more: AnswerPieces| {
        for (part, text) in more {
            match parts.last_mut() {
                Some((last, whole)) if *last == part => whole.push_str(&text),
                _ => parts.push((part, text)),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    let holding = parser.is_holding();
    let rest = parser.finish(true);
    assert!(holding || rest.is_empty(), "what is held back is said to be: {rest:?}");
    add(rest);
    parts
}

fn show(format: &str, prompt: &str, text: &str) -> String {
    let letter = |part| match part {
        AnswerPart::Thinking => 'T',
        AnswerPart::Answer => 'A',
        AnswerPart::ToolCall => 'C',
    };
    let parts = parts(format, prompt, &[text]);
    parts.iter().map(|(part, text)| format!("{}[{text}]", letter(*part))).collect()
}

#[test]
fn tags_hold_thoughts_at_the_beginning_only() {
    for (text, want) in [
        ("<think>\nHm\n</think>\n\nYes", "T[\nHm\n]A[\n\nYes]"),
        (" \n<think>a</think>b<think>c</think>", "T[a]A[b<think>c</think>]"),
        ("<thin", "A[<thin]"),
        ("<think", "A[<think]"),
        (" \n", "A[ \n]"),
        ("<think>a</thin", "T[a</thin]"),
        ("Yes <think>", "A[Yes <think>]"),
        ("<think></think>", ""),
    ] {
        assert_eq!(show("<think>", "<s>", text), want, "{text}");
    }
    assert_eq!(show("<think>", "<a><think>\n", "Hm</think>Yes"), "T[Hm]A[Yes]", "the prompt may open them");
    assert_eq!(show("<think>", "<a><think>\n\n</think>\n\n", "Yes</think>"), "A[Yes</think>]", "or leave them out");
    assert_eq!(show("[THINK]", "[INST]", "[THINK]a[/THINK]b</think>"), "T[a]A[b</think>]");
    assert_eq!(show("channel", "<|turn>model\n", "<|channel>thought\nHm\n<channel|>Yes"), "T[Hm\n]A[Yes]");
    assert_eq!(show("channel", "<|turn>model\n", "<|channel>thou"), "");
    assert_eq!(show("channel", "<|channel>thought\n<channel|>", "Yes"), "A[Yes]");
}

#[test]
fn end_of_thoughts_leads_to_the_answer_in_every_format() {
    for (name, prompt) in [
        ("<think>", "<a><think>\n"),
        ("[THINK]", "[INST][THINK]"),
        ("channel", "<|turn>model\n<|channel>thought\n"),
        ("harmony", "<|start|>assistant"),
    ] {
        let format = ReasoningFormat::of_texts(name);
        let mut parser = format.parser(prompt, None);
        if name == "harmony" {
            parser.push("<|channel|>analysis<|message|>");
        }
        parser.push("Hm");
        assert!(parser.is_thinking() && !parser.is_answering(), "{name}");
        let pieces = parser.push(&(format.end_of_thoughts() + "Yes"));
        assert!(parser.is_answering() && !parser.is_thinking(), "{name}");
        let answer: String =
            pieces.into_iter().filter(|(part, _)| *part == AnswerPart::Answer).map(|(_, text)| text).collect();
        assert_eq!(answer.trim_start(), "Yes", "{name}");
    }
}

#[test]
fn harmony_has_channels() {
    let prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
    for (text, want) in [
        (
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>",
            "T[Hm]A[Yes]",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.now \
             <|constrain|>json<|message|>{\"x\": 1}<|call|>",
            "T[a]C[<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": 1}}\n</tool_call>]",
        ),
        (
            " to=functions.f<|channel|>commentary json<|message|>{}",
            "C[<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>]",
        ),
        ("<|channel|>analysis to=python code<|message|>1+1", "C[<tool_call>\npython\n1+1\n</tool_call>]"),
        ("<|channel|>commentary<|message|>I will look.<|end|>", "A[I will look.]"),
        ("<|channel|>final<|mess", ""),
        ("<|channel|>ana", ""),
        ("<|channel|>final<|message|>a<|retu", "A[a<|retu]"),
        ("Plain words", "A[Plain words]"),
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "T[a]A[b]"),
    ] {
        assert_eq!(show("harmony", prompt, text), want, "{text}");
    }
    let long = "word ".repeat(100);
    assert_eq!(show("harmony", prompt, &long), format!("A[{long}]"));
}

#[test]
fn markers_that_are_tokens_count_only_as_tokens() {
    let mut format = ReasoningFormat::of_texts("<think>");
    let FormatGrammar::Tags { open, close, .. } = &mut format.grammar else { panic!() };
    (open.token, close.token) = (Some(1), Some(2));
    let mut parser = format.parser("", None);
    assert!(parser.is_marker(1) && parser.is_marker(2) && !parser.is_marker(3));
    let mut all = parser.push("\n");
    all.extend(parser.push_marker(1, true));
    all.extend(parser.push("of </think> a"));
    all.extend(parser.push_marker(2, true));
    all.extend(parser.push("b"));
    all.extend(parser.push_marker(1, true));
    all.extend(parser.push_marker(2, false));
    use AnswerPart::{Answer, Thinking};
    let want = [(Thinking, "of </think> a"), (Answer, "b"), (Answer, "<think>")];
    assert_eq!(all, want.map(|(part, text)| (part, text.to_owned())));
}

#[test]
fn answer_goes_on_where_it_stopped() {
    let prompt = "<|start|>assistant";
    let harmony = ReasoningFormat::of_texts("harmony");
    let begun = |text| Thoughts::of(text);
    let written = |format: &ReasoningFormat, prompt: &str, text: &str| {
        let mut whole = PromptText::default();
        whole.push_format(prompt);
        format.write(&mut whole, &Thoughts::of(text), ContentGuard::new(None));
        whole.plain()[prompt.len()..].to_owned()
    };
    assert_eq!(written(&harmony, prompt, "<think>\nHm"), "<|channel|>analysis<|message|>Hm");
    assert_eq!(
        written(&harmony, prompt, "<think>\nHm\n</think>\n\nYe"),
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Ye"
    );
    assert_eq!(written(&harmony, prompt, "Ye"), "<|channel|>final<|message|>Ye");
    let mut parser = harmony.parser(prompt, Some(&begun("<think>\nHm")));
    let mut all = parser.push("m<|end|><|start|>assistant<|channel|>final<|message|>Yes");
    all.extend(parser.finish(true));
    assert_eq!(all, [(AnswerPart::Thinking, "m".to_owned()), (AnswerPart::Answer, "Yes".to_owned())]);

    let tags = ReasoningFormat::of_texts("<think>");
    assert_eq!(written(&tags, "", "<think>\nHm\n</think>\n\nYe"), "<think>\nHm\n</think>\n\nYe");
    assert_eq!(written(&tags, "<think>\n", "<think>\nHm"), "Hm");
    assert_eq!(written(&tags, "<think>\n", "Ye"), "</think>\n\nYe");
    assert_eq!(written(&tags, "", "Ye"), "Ye");
    let channel = ReasoningFormat::of_texts("channel");
    assert_eq!(written(&channel, "", "<think>\nHm\n</think>Ye"), "<|channel>thought\nHm\n<channel|>Ye");
}

/// Texts of markers, parts of markers, and words.
fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<thi",
        "nk>",
        "<",
        "/",
        "a",
        "é ",
        "\n",
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|",
        "|>",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "to=py",
        "assistant",
        "<|channel>",
        "<channel|>",
        "thought\n",
        "{}",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn parts_do_not_depend_on_where_pieces_end(
        text in text(),
        format in prop::sample::select(vec!["<think>", "harmony", "channel"]),
        prompt in prop::sample::select(vec!["", "<think>\n", "<|start|>assistant"]),
        splits in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let whole = parts(format, prompt, &[&text]);
        let mut splits: Vec<usize> = splits.iter().map(|split| split.index(text.len() + 1)).collect();
        splits.extend([0, text.len()]);
        splits.retain(|&at| text.is_char_boundary(at));
        splits.sort_unstable();
        let pieces: Vec<&str> = splits.windows(2).map(|split| &text[split[0]..split[1]]).collect();
        prop_assert_eq!(&parts(format, prompt, &pieces), &whole);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(&parts(format, prompt, &letters), &whole);
    }
}

#[test]
fn unfinished_calls_are_not_closed() {
    for (ended, want) in [(true, "}\n</tool_call>"), (false, "")] {
        let mut parser = ReasoningFormat::of_texts("harmony").parser("<|start|>assistant", None);
        let mut all = parser.push("<|channel|>commentary to=functions.f<|message|>{\"a\": {\"b\": 1}");
        all.extend(parser.finish(ended));
        let text: String = all.into_iter().map(|(_, text)| text).collect();
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": 1}";
        assert_eq!(text, format!("{call}{want}"));
    }
}

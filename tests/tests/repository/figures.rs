//! Figures of the pages that are constants of the program: a page says what the source says.

use std::{collections::BTreeMap, fs, path::Path};

use syn::{BinOp, Expr, Item, Lit};

/// A sentence of a page, in which `{}` stands for a figure, and the constant that this figure is.
struct Figure {
    page: &'static str,
    sentence: &'static str,
    file: &'static str,
    constant: &'static str,
}

/// A figure of the page about the window.
const fn window(sentence: &'static str, file: &'static str, constant: &'static str) -> Figure {
    Figure { page: "docs/window.md", sentence, file, constant }
}

/// A figure of the page about the server.
const fn server(sentence: &'static str, file: &'static str, constant: &'static str) -> Figure {
    Figure { page: "docs/server.md", sentence, file, constant }
}

const FIGURES: &[Figure] = &[
    server("at each position, up to {} in chats", "app/server/src/openai/prompts.rs", "MAX_TOP"),
    server("a list of up to {} strings", "app/server/src/openai/prompts.rs", "MAX_PROMPTS"),
    server("`n` and `best_of` (up to {})", "app/server/src/openai/prompts.rs", "MAX_ANSWERS"),
    server("keeps the latest {} responses in memory", "app/server/src/openai/responses/store.rs", "MOST"),
    server("at most {} requests wait", "app/server/src/options.rs", "MAX_WAITING"),
    server("It follows {} redirections", "app/server/src/picture_fetch.rs", "MOST_REDIRECTIONS"),
    server("may take 30 seconds and {} MiB together", "app/server/src/read_body.rs", "LARGEST_BODY"),
    server("{} requests are answered at once", "app/server/src/options.rs", "PARALLEL"),
    window("| answers with calls in a row | {} |", "app/chats/src/chat/tool_round.rs", "MOST_ROUNDS"),
    window("| calls in one answer | {} |", "app/chats/src/chat/call_reader.rs", "MOST_CALLS"),
    window("fit the message best ({} at most)", "app/chats/src/chat/given/ranked_passages.rs", "MOST_PASSAGES"),
    window("{} tokens are assumed", "app/chats/src/chat/given.rs", "SERVER_CONTEXT"),
    window("files over {} MiB", "app/chats/src/attachment/document.rs", "LARGEST_FILE"),
    window("with more than {} MiB of text", "app/chats/src/attachment/document.rs", "LARGEST_TEXT"),
    window("neurons that carry {} % of the layer's output mass", "engine/src/session/neuron_norms.rs", "USUAL_MASS"),
    window("a card {} pixels wide", "app/window/src/neurons/picture_card.rs", "WIDTH"),
    window("shows the last {} tokens on such a card", "app/window/src/neurons/animation.rs", "MOST_FRAMES"),
    window("an animated PNG of at most {} MiB", "app/window/src/neurons/animation.rs", "MOST_BYTES"),
    Figure {
        page: "README.md",
        sentence: "the last {} tokens to go back through",
        file: "app/window/src/neurons/layer_values.rs",
        constant: "LONG_AGO",
    },
];

/// The value of an expression of literals, shifts and products; of what is in brackets and of the
/// argument of a call.
fn value(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse().ok(),
            Lit::Float(number) => number.base10_parse().ok(),
            _ => None,
        },
        Expr::Paren(inner) => value(&inner.expr),
        Expr::Binary(both) => {
            let (left, right) = (value(&both.left)?, value(&both.right)?);
            match both.op {
                BinOp::Mul(_) => Some(left * right),
                BinOp::Shl(_) => Some(left * 2f64.powf(right)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Constants of a source file and of its `impl` blocks, by name.
fn constants(source: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for item in syn::parse_file(source).unwrap().items {
        match item {
            Item::Const(constant) => {
                found.extend(value(&constant.expr).map(|value| (constant.ident.to_string(), value)));
            }
            Item::Impl(block) => found.extend(block.items.iter().filter_map(|item| match item {
                syn::ImplItem::Const(constant) => Some((constant.ident.to_string(), value(&constant.expr)?)),
                _ => None,
            })),
            _ => {}
        }
    }
    found
}

/// How a page may write a value: in digits, with a comma before thousands, in a word; MiB and per
/// cent as their own number.
fn written(value: f64, sentence: &str) -> Vec<String> {
    let value = if sentence.contains("{} MiB") { value / f64::from(1 << 20) } else { value };
    let value = if sentence.contains("{} %") { (value * 100.0).round() } else { value };
    let words = ["four", "eight", "sixteen"].map(str::to_owned);
    let word = [4.0, 8.0, 16.0].iter().position(|number| *number == value).map(|at| words[at].clone());
    let mut all = vec![value.to_string()];
    if value >= 1000.0 {
        all.push(format!("{},{:03}", (value / 1000.0).floor(), value % 1000.0));
    }
    if let Some(word) = word {
        let capital = word[..1].to_uppercase() + &word[1..];
        all.extend([word, capital]);
    }
    all
}

#[test]
fn figures_of_pages_are_those_of_the_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut wrong = Vec::new();
    for Figure { page, sentence, file, constant } in FIGURES {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let value = constants(&fs::read_to_string(root.join(file)).unwrap()).get(*constant).copied();
        let Some(value) = value else {
            wrong.push(format!("{file} has no constant {constant} with a value that can be read"));
            continue;
        };
        if !written(value, sentence).iter().any(|figure| text.contains(&sentence.replace("{}", figure))) {
            wrong.push(format!("{page} does not say: {}", sentence.replace("{}", &value.to_string())));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn values_are_read_and_written_as_pages_do() {
    let source = "const A: usize = 64 << 20; const B: u64 = 2 * (3 << 1); struct S; impl S { pub const C: f32 = 0.9; }";
    let found = constants(source);
    assert_eq!((found["A"], found["B"], found["C"]), (67_108_864.0, 12.0, 0.9));
    assert_eq!(written(found["A"], "{} MiB"), ["64"]);
    assert_eq!(written(found["C"], "{} %"), ["90"]);
    assert_eq!(written(16_384.0, "{}"), ["16384", "16,384"]);
    assert_eq!(written(8.0, "{}"), ["8", "eight", "Eight"]);
}

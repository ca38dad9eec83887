//! The words of the sources: the field's terms, one per thing. What has been replaced does not come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};

/// Parts of identifiers and words of comments that have a successor, which is the second of each pair.
const REPLACED: [(&str, &str); 13] = [
    ("extent", "neuron block"),
    ("extents", "neuron blocks"),
    ("slab", "streaming buffer"),
    ("slabs", "streaming buffers"),
    ("laps", "GPU timestamps"),
    ("wish", "requested settings"),
    ("wishes", "requested settings"),
    ("prospect", "planner"),
    ("outlook", "forecast"),
    ("residence", "device manager"),
    ("purse", "token bucket"),
    ("whoever", "the noun"),
    ("somebody", "the noun"),
];

/// Whole identifiers that have a successor.
const RENAMED: [(&str, &str); 11] = [
    ("Talk", "chat controller"),
    ("Company", "other instances"),
    ("News", "events"),
    ("Heat", "decayed counts"),
    ("Terms", "plan inputs"),
    ("Basis", "plan inputs"),
    ("Demand", "plan inputs"),
    ("Expectation", "forecast"),
    ("Steering", "threshold correction"),
    ("Picked", "row selection"),
    ("Apart", "gathered rows"),
];

/// Parts of identifiers that have a successor, for words that prose, file formats and the command line still have.
const REPLACED_IN_IDENTIFIERS: [(&str, &str); 8] = [
    ("cut", "activation threshold, or truncate, split"),
    ("cuts", "activation thresholds, or truncates, splits"),
    ("mixture", "MoE, experts"),
    ("mixtures", "MoE, experts"),
    ("turned", "neuron-major, transposed"),
    ("guess", "prediction, estimate"),
    ("guessed", "predicted, estimated"),
    ("guesses", "predictions, estimates"),
];

/// Whole identifiers that have a successor and are words of prose: things share a buffer, an identifier is a fraction.
const RENAMED_IN_IDENTIFIERS: [(&str, &str); 4] = [
    ("share", "fraction, partial sum, range, router weight"),
    ("shares", "fractions, partial sums, ranges, router weights"),
    ("Share", "fraction"),
    ("SHARE", "fraction, range"),
];

/// Identifiers of other crates that have such a part.
const FOREIGN: [(&str, &str); 3] = [
    ("app/src/attachment/text.rs", "guess"),
    ("app/src/ui/text/shaping.rs", "guess_segment_properties"),
    ("app/src/ui/window.rs", "Cut"),
];

/// Beginnings of doc comments that do not say what the item is.
const OPENINGS: [&str; 3] = ["What ", "Whether ", "Who "];

/// Every Rust and WGSL source of the workspace but this folder's, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["app", "engine", "shaders", "tests", "fuzz/fuzz_targets"].map(|it| root.join(it)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests/tests/repository") && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs" || it == "wgsl") {
                found.push((path.strip_prefix(root).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 400, "only {} sources found", found.len());
    found
}

/// The parts of an identifier, in lower case: `HotSlab` and `hot_slab` have `hot` and `slab`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in identifier.chars() {
        if (c == '_' || c.is_uppercase()) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if c != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

/// Places of `found` words. `found` gets a line and whether it begins a comment.
fn places(found: impl Fn(&str, bool) -> Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let comment = |line: &str| line.trim_start().starts_with("//");
    for (path, text) in sources() {
        let mut before = false;
        for (number, line) in text.lines().enumerate() {
            for word in found(line, comment(line) && !before) {
                places.entry(word).or_default().push(format!("{}:{}", path.display(), number + 1));
            }
            before = comment(line);
        }
    }
    places
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Identifiers of a source: the words of its code without comments and string literals.
fn identifiers_in_code(path: &Path, text: &str) -> Vec<String> {
    if path.extension().is_some_and(|it| it == "wgsl") {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        return code.flat_map(identifiers).map(str::to_owned).collect();
    }
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Vec::new();
    collect_identifiers(tokens, &mut found);
    found
}

fn collect_identifiers(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => found.push(name.to_string()),
            TokenTree::Group(group) => collect_identifiers(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn replaced_words_do_not_come_back() {
    let found = places(|line, _| {
        let part = |word: &str| parts(word).into_iter().filter(|part| REPLACED.iter().any(|(old, _)| old == part));
        let renamed = |word: &&str| RENAMED.iter().any(|(old, _)| old == word);
        let whole = identifiers(line).filter(renamed).map(str::to_owned);
        identifiers(line).flat_map(part).chain(whole).collect()
    });
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn replaced_identifiers_do_not_come_back() {
    let replaced = |part: &String| REPLACED_IN_IDENTIFIERS.iter().any(|(old, _)| old == part);
    let renamed = |name: &str| RENAMED_IN_IDENTIFIERS.iter().any(|(old, _)| *old == name);
    let mut found: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        for name in identifiers_in_code(&path, &text) {
            let is_foreign = FOREIGN.iter().any(|(file, foreign)| path.ends_with(file) && *foreign == name);
            if renamed(&name) || (!is_foreign && parts(&name).iter().any(replaced)) {
                found.entry(path.clone()).or_default().insert(name);
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn comments_and_strings_have_no_identifiers() {
    let rust = "/// a cut\nfn name() { let key = \"thermocline.cut.value\"; } // turned";
    assert_eq!(identifiers_in_code(Path::new("a.rs"), rust), ["doc", "fn", "name", "let", "key"]);
    assert_eq!(identifiers_in_code(Path::new("a.wgsl"), "let x = y; // a share"), ["let", "x", "y"]);
}

#[test]
fn doc_comments_begin_with_the_thing() {
    let found = places(|line, begins| {
        let line = line.trim_start();
        let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        let opening = |text: &str| OPENINGS.into_iter().find(|opening| text.starts_with(opening));
        doc.filter(|_| begins).and_then(opening).map(str::to_owned).into_iter().collect()
    });
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn identifiers_are_split_at_capitals_and_underscores() {
    assert_eq!(parts("HotSlab"), ["hot", "slab"]);
    assert_eq!(parts("slab_bytes"), ["slab", "bytes"]);
    assert_eq!(parts("tablespoon"), ["tablespoon"]);
}

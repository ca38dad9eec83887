//! Links of the Markdown pages.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Pages whose links are checked.
const PAGES: [&str; 12] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/window.md",
    "docs/models.md",
    "docs/server.md",
    "docs/benchmarks.md",
    "docs/drivers.md",
    "engine/ARCHITECTURE.md",
    "engine/GLOSSARY.md",
    "packaging/README.md",
    "tests/reference/README.md",
    "assets/storyteller/README.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the targets of `[text](target)` and `![text](target)` within the repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Returns GitHub's anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_pages_resolve_to_files_and_headings() {
    let (root, mut wrong, mut count) = (root(), Vec::new(), 0);
    for page in PAGES {
        let path = root.join(page);
        let Ok(text) = fs::read_to_string(&path) else {
            wrong.push(format!("{page}: no such page"));
            continue;
        };
        for link in links(&text) {
            count += 1;
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            if !target.exists() {
                wrong.push(format!("{page}: {link} leads nowhere"));
            } else if let Some(heading) = heading {
                let text = fs::read_to_string(&target).unwrap_or_default();
                let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                if !headings.map(|line| anchor(line.trim_start_matches('#'))).any(|anchor| anchor == heading) {
                    wrong.push(format!("{page}: {link} has no such heading"));
                }
            }
        }
    }
    assert!(count > 20, "only {count} links found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_page_has_a_paragraph_twice() {
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut lines: Vec<_> = text.lines().filter(|line| line.len() > 60 && !line.starts_with('|')).collect();
        lines.sort_unstable();
        let twice: Vec<_> = lines.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        assert!(twice.is_empty(), "{page}: twice\n{}", twice.join("\n"));
    }
}

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(anchor(" Models that profit"), "models-that-profit");
    assert_eq!(anchor("What's `exact`?"), "whats-exact");
    assert_eq!(links("[a](b.md#c) ![d](e.png) [f](https://g)"), ["b.md#c", "e.png"]);
}

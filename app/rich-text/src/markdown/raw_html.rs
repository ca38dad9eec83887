//! HTML elements whose content is no Markdown, such as `<script>`. CommonMark lets one that does not
//! end reach to the end of the text; here it is a word, and what follows it stays Markdown.

use std::borrow::Cow;

use super::stand_in::BETWEEN;

/// Their names.
const NAMES: [&str; 4] = ["script", "style", "pre", "textarea"];

/// `text`, in which elements that do not end are no HTML for the parser.
pub fn ended(text: &str) -> Cow<'_, str> {
    let (mut out, mut written) = (String::new(), 0);
    for (at, _) in text.match_indices('<') {
        if opened(&text[at..]).is_some_and(|name| !ends(&text[at..], name)) {
            out.push_str(&text[written..=at]);
            out.push(BETWEEN);
            written = at + 1;
        }
    }
    if written == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[written..]);
    Cow::Owned(out)
}

/// True if a line opens such an element.
pub fn opens(line: &str) -> bool {
    opened(line.trim_start()).is_some()
}

/// The name of the element that `text` begins with.
fn opened(text: &str) -> Option<&'static str> {
    let tag = text.strip_prefix('<')?;
    let begins = |name: &&str| {
        let named = tag.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        named && tag[name.len()..].chars().next().is_none_or(|c| c == '>' || c.is_ascii_whitespace())
    };
    NAMES.into_iter().find(begins)
}

/// True if the end tag follows, as the parser looks for it.
fn ends(text: &str, name: &str) -> bool {
    text.contains(&format!("</{name}>"))
}

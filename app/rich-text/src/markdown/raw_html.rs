//! HTML elements whose content is not Markdown, such as `<script>`. In CommonMark, an unclosed
//! element extends to the end of the text. Here it is treated as text, and the rest stays Markdown.

use std::borrow::Cow;

use super::stand_in::BETWEEN;

/// Names of these elements.
const NAMES: [&str; 4] = ["script", "style", "pre", "textarea"];

/// Rewrites `text` so that the parser does not see unclosed elements as HTML.
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

/// The name of the element at the beginning of `text`.
fn opened(text: &str) -> Option<&'static str> {
    let tag = text.strip_prefix('<')?;
    let begins = |name: &&str| {
        let named = tag.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        named && tag[name.len()..].chars().next().is_none_or(|c| c == '>' || c.is_ascii_whitespace())
    };
    NAMES.into_iter().find(begins)
}

/// True if the end tag follows, found in the same way as by the parser.
fn ends(text: &str, name: &str) -> bool {
    text.contains(&format!("</{name}>"))
}

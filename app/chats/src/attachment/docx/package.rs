//! The archive of a docx file: its parts, and the relation files that name them.

use std::io::{Cursor, Read};

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use zip::{ZipArchive, result::ZipError};

use super::{AttachmentFault, damaged};
use crate::attachment::text;

/// Name of the main part if no relation names it.
const MAIN: &str = "word/document.xml";

/// Largest unpacked size of all parts, in bytes.
const LARGEST: u64 = 64 << 20;

pub(super) struct Package<'a> {
    archive: ZipArchive<Cursor<&'a [u8]>>,
    /// Bytes that may still be unpacked.
    left: u64,
}

impl<'a> Package<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Self, AttachmentFault> {
        let archive = ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
        Ok(Package { archive, left: LARGEST })
    }

    /// The text of a part, if it exists.
    pub fn part(&mut self, name: &str) -> Result<Option<String>, AttachmentFault> {
        let part = match self.archive.by_name(name) {
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED)) => return Err(AttachmentFault::Encrypted),
            part => part.map_err(damaged)?,
        };
        let mut bytes = Vec::new();
        part.take(self.left).read_to_end(&mut bytes).map_err(damaged)?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        match text::decode(&bytes) {
            Ok(text) => Ok(Some(text.into_owned())),
            Err(error) => Err(damaged(format!("{name}: {error}"))),
        }
    }

    /// The name of the main part.
    pub fn main(&mut self) -> Result<String, AttachmentFault> {
        let named = self.relations("")?.into_iter().find(|relation| relation.is("officeDocument"));
        Ok(named.map_or_else(|| MAIN.to_owned(), |relation| relation.target))
    }

    /// The parts that `of` names in this relation. If `of` has no relations at all, the part with
    /// the usual name.
    pub fn related(&mut self, of: &str, relation: &str) -> Result<Vec<String>, AttachmentFault> {
        let relations = self.relations(of)?;
        if relations.is_empty() {
            return Ok(vec![resolved(of, &format!("{relation}.xml"))]);
        }
        Ok(relations.into_iter().filter(|it| it.is(relation)).map(|it| it.target).collect())
    }

    /// The relations of a part, or of the whole package if its name is empty.
    fn relations(&mut self, of: &str) -> Result<Vec<Relation>, AttachmentFault> {
        let (folder, file) = of.rsplit_once('/').unwrap_or(("", of));
        let name = format!("{folder}/_rels/{file}.rels");
        let Some(xml) = self.part(name.trim_start_matches('/'))? else { return Ok(Vec::new()) };
        let (mut reader, mut relations) = (Reader::from_str(&xml), Vec::new());
        loop {
            match reader.read_event().map_err(damaged)? {
                Event::Start(tag) | Event::Empty(tag) => relations.extend(Relation::of(of, &tag)),
                Event::Eof => return Ok(relations),
                _ => {}
            }
        }
    }
}

/// A relation from one part to another.
struct Relation {
    /// Address whose last segment is the kind of the relation.
    kind: String,
    /// Name of the other part.
    target: String,
}

impl Relation {
    /// Reads the relation of the part `of` from an XML element; `None` if it points outside the
    /// package.
    fn of(of: &str, tag: &BytesStart<'_>) -> Option<Self> {
        let value = |name| attribute(tag, name);
        let is_outside = value("TargetMode").is_some_and(|mode| mode == "External");
        let (kind, target) = value("Type").zip(value("Target")).filter(|_| !is_outside)?;
        Some(Relation { kind, target: resolved(of, &target) })
    }

    fn is(&self, relation: &str) -> bool {
        self.kind.rsplit('/').next() == Some(relation)
    }
}

/// The value of an attribute, in any namespace.
pub(super) fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.attributes().flatten().find(|attribute| attribute.key.local_name().as_ref() == name)?;
    Some(found.value.into_owned())
}

/// Resolves `target`, relative to the part `from`, to the name of a part.
fn resolved(from: &str, target: &str) -> String {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (start, rest) = match target.strip_prefix('/') {
        Some(rest) => ("", rest),
        None => (folder, target),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in start.split('/').chain(rest.split('/')) {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lead_from_their_part() {
        assert_eq!(resolved("", "word/document2.xml"), "word/document2.xml");
        assert_eq!(resolved("word/document.xml", "footnotes.xml"), "word/footnotes.xml");
        assert_eq!(resolved("word/document.xml", "/word/notes/a.xml"), "word/notes/a.xml");
        assert_eq!(resolved("word/document.xml", "../x/./b.xml"), "x/b.xml");
    }
}

//! Pictures as text: base64 and data URLs, in which clients of servers send pictures.

use std::borrow::Cow;

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{Picture, PictureFile};
use thermocline_base::error::{Error, Result};

/// Padding may be left out, as some clients do.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

const CODEC: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const URL_CODEC: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

impl PictureFile {
    /// The file as a data URL.
    pub fn data_url(&self) -> String {
        format!("data:{};base64,{}", self.media_type, CODEC.encode(&self.bytes))
    }
}

impl Picture {
    /// Decodes a file in base64. A data URL is read, too.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other text; the errors of [`Picture::decode`].
    pub fn from_base64(text: &str) -> Result<Self> {
        let coded = match text.trim_start().strip_prefix("data:") {
            Some(url) => contents_of(url)?,
            None => text,
        };
        let coded: Cow<'_, str> = match coded.contains(char::is_whitespace) {
            true => coded.split_whitespace().collect::<String>().into(),
            false => coded.into(),
        };
        let codec = if coded.contains(['-', '_']) { &URL_CODEC } else { &CODEC };
        let bytes = codec.decode(coded.as_bytes()).map_err(|error| Error::invalid("picture", "base64", error))?;
        Picture::decode(&bytes)
    }
}

/// Returns the base64 of a data URL without its `data:`.
fn contents_of(url: &str) -> Result<&str> {
    let (kind, coded) = url.split_once(',').unwrap_or((url, ""));
    if kind.ends_with(";base64") {
        return Ok(coded);
    }
    let shown: String = kind.chars().take(60).collect();
    Err(Error::invalid("picture", "a data URL in base64", format!("data:{shown}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_in_base64_are_those_of_their_files() {
        let picture = Picture::from_rgb(3, 2, (0..18).collect()).unwrap();
        let file = picture.file().unwrap();
        assert_eq!(file.media_type, "image/png");
        let url = file.data_url();
        let coded = url.strip_prefix("data:image/png;base64,").unwrap();
        let broken = coded.split_at(20);
        let unpadded = coded.trim_end_matches('=');
        let for_urls = coded.replace('+', "-").replace('/', "_");
        for text in [&url, coded, &format!("{}\r\n {}\n", broken.0, broken.1), unpadded, &for_urls] {
            let read = Picture::from_base64(text).unwrap();
            assert_eq!(read, picture);
            assert_eq!(read.file().unwrap(), file);
        }
    }

    #[test]
    fn text_without_a_picture_is_refused() {
        for (text, said) in [
            ("a picture!", "expected base64"),
            ("data:image/png,abc", "a data URL in base64, got data:image/png"),
            ("data:image/png;base64,QUJD", "picture format"),
            ("", "picture format"),
        ] {
            let error = Picture::from_base64(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

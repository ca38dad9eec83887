//! Names of file formats that people have and this program does not read.

/// Brands of AVIF and HEIC in the first box of a file (ISO/IEC 14496-12).
const BRANDS: [(&[u8; 4], &str); 11] = [
    (b"avif", "AVIF"),
    (b"avis", "AVIF"),
    (b"heic", "HEIC"),
    (b"heix", "HEIC"),
    (b"heim", "HEIC"),
    (b"heis", "HEIC"),
    (b"hevc", "HEIC"),
    (b"hevx", "HEIC"),
    (b"mif1", "HEIF"),
    (b"msf1", "HEIF"),
    (b"jxl ", "JPEG XL"),
];

/// First bytes of other formats.
const BEGINNINGS: [(&[u8], &str); 8] = [
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \x0d\x0a\x87\x0a", "JPEG XL"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<?xml", "SVG or XML"),
    (b"8BPS", "Photoshop"),
    (b"\x00\x00\x01\x00", "an icon (ICO)"),
    (b"\x00\x00\x00\x0cjP  \x0d\x0a\x87\x0a", "JPEG 2000"),
];

/// Returns the name of the format of a file that begins with `bytes`; `None` if it is unknown.
pub(super) fn name(bytes: &[u8]) -> Option<&'static str> {
    if bytes.get(4..8) == Some(b"ftyp") {
        let brand = BRANDS.into_iter().find(|(brand, _)| bytes.get(8..12) == Some(&brand[..]));
        return Some(brand.map_or("video (MP4)", |(_, name)| name));
    }
    BEGINNINGS.into_iter().find(|(beginning, _)| bytes.starts_with(beginning)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn formats_are_named_by_their_first_bytes() {
        assert_eq!(name(b"\0\0\0\x20ftypavif\0\0\0\0"), Some("AVIF"));
        assert_eq!(name(b"\0\0\0\x20ftypheic\0\0\0\0"), Some("HEIC"));
        assert_eq!(name(b"\0\0\0\x20ftypisom\0\0\0\0"), Some("video (MP4)"));
        assert_eq!(name(b"%PDF-1.7"), Some("PDF"));
        assert_eq!(name(b"\x89PNG"), None);
        assert_eq!(name(b""), None);
    }
}

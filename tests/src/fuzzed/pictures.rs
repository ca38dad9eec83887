//! Property of the decoders of pictures. They must not panic, hang or allocate more than their
//! limit. A decoded picture is whole, and can be resized.

use thermocline_engine::pictures::{Picture, ResizeFilter};

/// Checks the property on one input.
pub fn check(input: &[u8]) {
    let Ok(picture) = Picture::decode(input) else { return };
    assert!(picture.rgb().expect("decoded").len() == picture.width() * picture.height() * 3);
    let small = picture.resized(9, 4, ResizeFilter::Bicubic).expect("any picture can be resized");
    assert!(small.rgb().expect("decoded").len() == 9 * 4 * 3);
}

//! The last tokens on a card, one after the other, as an animated PNG. Frames after the first
//! contain only the changed area.

use std::io::Cursor;

use egui::{ColorImage, FontDefinitions};
use png::EncodingError;
use thermocline_engine::telemetry::neurons::TokenTrace;

use super::{facts, picture_card::PictureCard, sentence::Sentence};

/// Maximum number of tokens. Each token is a frame.
pub const MOST_FRAMES: usize = 100;

/// Maximum size of the file, in bytes.
pub const MOST_BYTES: usize = 16 << 20;

/// Pixels per point of a card.
const SCALE: f32 = 0.5;

/// Frames per second.
const PACE: u16 = 10;

/// Minimum sizes of a dot, in pixels. The next one is tried while the file is too large.
const DOTS: [usize; 4] = [1, 2, 4, 8];

/// Converts tokens to text.
pub type TokenText = Box<dyn Fn(&[u32]) -> String + Send>;

/// A card and the tokens shown on it.
pub struct Animation {
    /// The card, with the texts that are equal for all tokens.
    pub card: PictureCard,
    /// The tokens, oldest first. At least one.
    pub tokens: Vec<TokenTrace>,
    /// The ids of these tokens and of some tokens before them.
    pub ids: Vec<u32>,
    /// Converts token ids to text.
    pub text: TokenText,
}

impl Animation {
    /// Encodes the animation in at most `most` bytes. The dots grow until it fits.
    ///
    /// # Errors
    /// A sentence if it does not fit with the largest dots, or if the encoder fails.
    pub fn encode(&mut self, fonts: &FontDefinitions, most: usize) -> Result<Vec<u8>, String> {
        for dot in DOTS {
            self.card.dot = dot;
            match self.encode_dots(fonts, most) {
                Ok(bytes) => return Ok(bytes),
                // The file exceeds `most` bytes.
                Err(EncodingError::IoError(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("the animation would have more than {most} bytes"))
    }

    fn encode_dots(&mut self, fonts: &FontDefinitions, most: usize) -> Result<Vec<u8>, EncodingError> {
        self.card.map.show_tokens();
        let mut canvas = self.card.canvas(SCALE, fonts.clone());
        self.card.draw_frame(&mut canvas);
        let mut bytes = vec![0; most];
        let mut file = Cursor::new(&mut bytes[..]);
        let [width, height] = canvas.image.size;
        let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_animated(self.tokens.len().min(MOST_FRAMES) as u32, 0)?;
        encoder.set_frame_delay(1, PACE)?;
        let mut writer = encoder.write_header()?;
        let mut before: Option<ColorImage> = None;
        let first = self.tokens.len().saturating_sub(MOST_FRAMES);
        for at in first..self.tokens.len() {
            let (placed, token) = (self.card.map.options.placed, &self.tokens[at]);
            self.card.words.summary = facts::summary(&self.card.map.atlas.shape, Some(token), placed);
            let among = self.ids.len().saturating_sub(self.tokens.len() - at);
            self.card.words.sentence = Sentence::of(&self.ids, among, &self.text);
            self.card.map.draw_token(token);
            self.card.draw_token(&mut canvas);
            let area = before.as_ref().map_or(Area { x: 0, y: 0, width, height }, |it| Area::of(it, &canvas.image));
            if before.is_some() {
                writer.reset_frame_position()?;
                writer.set_frame_dimension(area.width as u32, area.height as u32)?;
                writer.set_frame_position(area.x as u32, area.y as u32)?;
            }
            writer.write_image_data(&area.pixels(&canvas.image))?;
            before = Some(canvas.image.clone());
        }
        writer.finish()?;
        let end = file.position() as usize;
        bytes.truncate(end);
        Ok(bytes)
    }
}

/// A rectangle of a picture, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl Area {
    /// The area in which two pictures of equal size differ. One pixel if they are equal.
    fn of(before: &ColorImage, now: &ColorImage) -> Self {
        let columns = now.size[0].max(1);
        let (mut left, mut right, mut top, mut bottom) = (usize::MAX, 0, usize::MAX, 0);
        for (at, _) in before.pixels.iter().zip(&now.pixels).enumerate().filter(|(_, (a, b))| a != b) {
            let (x, y) = (at % columns, at / columns);
            (left, right, top, bottom) = (left.min(x), right.max(x), top.min(y), bottom.max(y));
        }
        match left {
            usize::MAX => Area { x: 0, y: 0, width: 1, height: 1 },
            _ => Area { x: left, y: top, width: right - left + 1, height: bottom - top + 1 },
        }
    }

    /// The pixels of this area: red, green, blue.
    fn pixels(self, image: &ColorImage) -> Vec<u8> {
        let row = |y: usize| &image.pixels[y * image.size[0] + self.x..][..self.width];
        let rows = (self.y..self.y + self.height).flat_map(row);
        rows.flat_map(|pixel| [pixel.r(), pixel.g(), pixel.b()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use egui::Color32;

    use super::*;
    use crate::neurons::{
        mode::Mode,
        picture_card::tests::{card, tokens},
    };
    use thermocline_rich_text::fonts;

    fn animation(neurons: usize, count: usize) -> Animation {
        let text = |ids: &[u32]| ids.iter().map(|id| format!(" word{id}")).collect();
        Animation {
            card: card(Mode::Frequency, neurons),
            tokens: tokens(neurons, count),
            ids: (0..count as u32).collect(),
            text: Box::new(text),
        }
    }

    /// Decodes a file into its frames: the area and the pixels of each.
    fn frames(bytes: &[u8]) -> Vec<(Area, Vec<u8>)> {
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().unwrap();
        let count = reader.info().animation_control().unwrap().num_frames;
        let frame = |_| {
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let shown = reader.next_frame(&mut pixels).unwrap();
            pixels.truncate(shown.buffer_size());
            let at = reader.info().frame_control().unwrap();
            let [x, y, width, height] = [at.x_offset, at.y_offset, shown.width, shown.height].map(|side| side as usize);
            (Area { x, y, width, height }, pixels)
        };
        (0..count).map(frame).collect()
    }

    #[test]
    fn animation_has_a_frame_per_token_and_writes_what_changes() {
        let mut animation = animation(64, 5);
        let bytes = animation.encode(&fonts::definitions(), MOST_BYTES).unwrap();
        let frames = frames(&bytes);
        assert_eq!(frames.len(), 5);
        assert_eq!(animation.card.map.options.mode, Mode::Fired, "frequencies are not one token's");
        let whole = frames[0].0;
        assert_eq!((whole.x, whole.y, whole.width), (0, 0, 800));
        for (area, pixels) in &frames[1..] {
            assert!(area.width * area.height < whole.width * whole.height && area.height > 100, "{area:?}");
            assert_eq!(pixels.len(), 3 * area.width * area.height);
        }
        assert!(frames[1..].windows(2).all(|two| two[0].1 != two[1].1), "each shows another token");
    }

    #[test]
    fn animation_is_no_larger_than_allowed_with_all_its_frames() {
        let mut few = animation(1 << 15, 8);
        let fonts = fonts::definitions();
        let fine = few.encode(&fonts, MOST_BYTES).unwrap();
        assert_eq!((few.card.dot, frames(&fine).len()), (1, 8));
        let most = fine.len() - 1;
        let coarse = few.encode(&fonts, most).unwrap();
        assert!(coarse.len() <= most && few.card.dot > 1, "{} of {most}, dots of {}", coarse.len(), few.card.dot);
        assert_eq!(frames(&coarse).len(), 8);
        let error = few.encode(&fonts, 1000).unwrap_err();
        assert!(error.contains("more than 1000 bytes"), "{error}");
    }

    #[test]
    fn area_is_where_pictures_differ() {
        let image = ColorImage::filled([5, 4], Color32::BLACK);
        let mut other = image.clone();
        assert_eq!(Area::of(&image, &other), Area { x: 0, y: 0, width: 1, height: 1 });
        other.pixels[5 + 2] = Color32::RED;
        other.pixels[2 * 5 + 1] = Color32::RED;
        let area = Area::of(&image, &other);
        assert_eq!(area, Area { x: 1, y: 1, width: 2, height: 2 });
        assert_eq!(area.pixels(&other), [0, 0, 0, 255, 0, 0, 255, 0, 0, 0, 0, 0]);
    }
}

//! Thumbnails of attached pictures, decoded on a background thread.

use std::{collections::HashMap, fmt, sync::Arc};

use egui::{
    Color32, ColorImage, Context, Image, Response, Role, Sense, TextureHandle, TextureOptions, Ui, Vec2, WidgetInfo,
};

use super::patches::TintedPatches;
use crate::neurons::Tint;

use thermocline_chats::store::{Attachment, AttachmentId, Store};
use thermocline_engine::{
    Result,
    pictures::{Picture, PictureHash, ResizeFilter},
};
use thermocline_rich_text::{background::Background, theme::Palette, widgets::muted};

/// Longest side of a thumbnail's pixels, which are shown while the pointer is over it.
const MOST_SIDE: usize = 512;

/// The space of a thumbnail, which does not depend on the picture, so that no row changes its
/// height when a picture has been decoded.
const SPACE: Vec2 = Vec2::new(96.0, 72.0);

/// What identifies a picture, because the store may use a row id again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PictureKey {
    id: AttachmentId,
    name: String,
    size: usize,
}

impl PictureKey {
    fn of(file: &Attachment) -> Self {
        PictureKey { id: file.id, name: file.name.clone(), size: file.picture_size }
    }
}

/// A decoded picture.
pub struct DecodedPicture {
    /// Its pixels, or fewer of a large picture.
    pub texture: TextureHandle,
    /// Identity of the whole picture.
    pub hash: PictureHash,
    /// Width and height of the whole picture.
    pub size: [usize; 2],
}

/// The pixels of a thumbnail, and its picture.
struct SmallPicture {
    image: ColorImage,
    hash: PictureHash,
    size: [usize; 2],
}

/// The thumbnails of the shown chat's pictures.
#[derive(Default)]
pub struct Thumbnails {
    /// `None`: the file is damaged.
    decoded: HashMap<PictureKey, Option<DecodedPicture>>,
    decoding: Background<(PictureKey, Option<SmallPicture>)>,
}

// Textures have no form for debugging.
impl fmt::Debug for Thumbnails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thumbnails").field("pictures", &self.decoded.len()).finish_non_exhaustive()
    }
}

impl Thumbnails {
    /// Takes a decoded picture, and decodes the next of `files`. Releases all other pictures.
    pub fn tick<'f>(&mut self, ctx: &Context, store: &Store, files: impl Iterator<Item = &'f Attachment>) {
        if let Some((key, small)) = self.decoding.take() {
            let decoded = small.map(|SmallPicture { image, hash, size }| DecodedPicture {
                texture: ctx.load_texture(&key.name, image, TextureOptions::LINEAR),
                hash,
                size,
            });
            self.decoded.insert(key, decoded);
        }
        let pictures: Vec<PictureKey> = files.filter(|file| file.has_pictures()).map(PictureKey::of).collect();
        self.decoded.retain(|key, _| pictures.contains(key));
        if self.decoding.is_busy() {
            return;
        }
        let Some(key) = pictures.into_iter().find(|key| !self.decoded.contains_key(key)) else { return };
        // A PDF shows its first page.
        let first = store.picture_files(key.id).ok().and_then(|files| files.into_iter().next());
        let Some(file) = first else {
            self.decoded.insert(key, None);
            return;
        };
        // If no thread can start, the picture has no thumbnail.
        let _ = self.decoding.start(ctx, move || {
            let image = Picture::decode(&file).and_then(|picture| thumbnail(&picture));
            (key, image.ok())
        });
    }

    /// The decoded picture of a file. A PDF has its first page.
    pub fn decoded(&self, file: &Attachment) -> Option<&DecodedPicture> {
        self.decoded.get(&PictureKey::of(file))?.as_ref()
    }

    /// True if the file of a picture is damaged, so that it will never be decoded.
    pub fn is_damaged(&self, file: &Attachment) -> bool {
        matches!(self.decoded.get(&PictureKey::of(file)), Some(None))
    }

    /// The patches of a picture in the colours of one of `tints`.
    pub fn tinted<'t>(
        &self,
        file: &Attachment,
        tints: impl Iterator<Item = &'t Tint> + Clone,
    ) -> Option<TintedPatches<'t>> {
        TintedPatches::of(self.decoded(file)?.hash, tints)
    }

    /// Shows the thumbnail of a picture, or an empty space until it is decoded.
    pub fn show(&self, ui: &mut Ui, file: &Attachment) {
        self.paint(ui, file, Sense::hover(), None);
    }

    /// Shows a thumbnail that can be clicked, with the patches of a tint.
    pub fn show_tinted(&self, ui: &mut Ui, file: &Attachment, tint: Option<TintedPatches<'_>>) -> Response {
        self.paint(ui, file, Sense::click(), tint)
    }

    fn paint(&self, ui: &mut Ui, file: &Attachment, sense: Sense, tint: Option<TintedPatches<'_>>) -> Response {
        let palette = Palette::of(ui);
        let decoded = self.decoded(file);
        let sense = if decoded.is_some() { sense } else { Sense::hover() };
        let (rect, response) = ui.allocate_exact_size(SPACE, sense);
        let Some(DecodedPicture { texture, .. }) = decoded else {
            ui.painter().rect_filled(rect, 4.0, palette.panel);
            return response;
        };
        let shown = texture.size_vec2() * (SPACE / texture.size_vec2()).min_elem().min(1.0);
        let place = egui::Align2::CENTER_CENTER.align_size_within_rect(shown, rect);
        Image::new(texture).corner_radius(4.0).paint_at(ui, place);
        let mut name = format!("The picture {}", file.name);
        if let Some(tint) = tint {
            tint.paint(ui.painter(), place, &palette);
            name = format!("{name}, {}", tint.count());
        }
        let role = if sense.senses_click() { Role::Button } else { Role::Image };
        response.widget_info(|| WidgetInfo::labeled(role, true, &name));
        response.on_hover_ui(|ui| {
            ui.image(texture);
            if sense.senses_click() {
                muted(ui, "Click to see which neurons fire at its patches.");
            }
        })
    }
}

/// A copy of `picture` with at most [`MOST_SIDE`] pixels on a side.
fn thumbnail(picture: &Picture) -> Result<SmallPicture> {
    let [width, height] = [picture.width(), picture.height()];
    let longest = width.max(height);
    let side = |side: usize| if longest > MOST_SIDE { (side * MOST_SIDE / longest).max(1) } else { side };
    let small = picture.resized(side(width), side(height), ResizeFilter::Bilinear)?;
    let image = ColorImage::from_rgb([small.width(), small.height()], &small.rgb()?);
    Ok(SmallPicture { image, hash: picture.hash()?, size: [width, height] })
}

/// A pasted picture, over white where it is transparent.
pub fn pasted(image: &Arc<ColorImage>) -> Result<Picture> {
    let over_white = |pixel: &Color32| {
        let [r, g, b, a] = pixel.to_array();
        [r, g, b].map(|premultiplied| premultiplied.saturating_add(255 - a))
    };
    let rgb = image.pixels.iter().flat_map(over_white).collect();
    let picture = Picture::from_rgb(image.width(), image.height(), rgb)?;
    // The store keeps the encoded file.
    Picture::decode(&picture.file()?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_chats::attachment::Document;

    #[test]
    fn pictures_that_are_no_longer_shown_are_released() {
        let (mut store, chat) = Store::with_chat();
        let picture = Picture::from_rgb(4, 2, vec![9; 24]).unwrap();
        store.attach(chat, &Document::of_picture("a.png".to_owned(), picture)).unwrap();
        let file = store.attachments(chat).unwrap().remove(0);
        let (ctx, mut thumbnails) = (Context::default(), Thumbnails::default());
        assert!(!thumbnails.is_damaged(&file), "not decoded yet");
        // Without its file, no thread has to decode the picture.
        store.detach(file.id).unwrap();
        thumbnails.tick(&ctx, &store, [&file].into_iter());
        assert!(thumbnails.is_damaged(&file) && thumbnails.decoded(&file).is_none());
        thumbnails.tick(&ctx, &store, [&file].into_iter());
        assert_eq!(thumbnails.decoded.len(), 1);
        thumbnails.tick(&ctx, &store, std::iter::empty());
        assert!(thumbnails.decoded.is_empty());
    }
}

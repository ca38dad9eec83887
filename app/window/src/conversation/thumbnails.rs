//! Thumbnails of attached pictures, decoded on a background thread.

use std::{collections::HashMap, fmt, sync::Arc};

use egui::{
    Color32, ColorImage, Context, Image, Response, Role, Sense, TextureHandle, TextureOptions, Ui, Vec2, WidgetInfo,
};

use thermocline_chats::store::{Attachment, AttachmentId, Store};
use thermocline_engine::{
    Result,
    pictures::{Picture, ResizeFilter},
};
use thermocline_rich_text::{background::Background, theme::Palette};

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

/// The thumbnails of the shown chat's pictures.
#[derive(Default)]
pub struct Thumbnails {
    /// `None`: the file is damaged.
    decoded: HashMap<PictureKey, Option<TextureHandle>>,
    decoding: Background<(PictureKey, Option<ColorImage>)>,
}

// Textures have no form for debugging.
impl fmt::Debug for Thumbnails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thumbnails").field("pictures", &self.decoded.len()).finish_non_exhaustive()
    }
}

impl Thumbnails {
    /// Takes a decoded picture, and decodes the next of `files`.
    pub fn tick<'f>(&mut self, ctx: &Context, store: &Store, files: impl Iterator<Item = &'f Attachment>) {
        if let Some((key, image)) = self.decoding.take() {
            let texture = image.map(|image| ctx.load_texture(&key.name, image, TextureOptions::LINEAR));
            self.decoded.insert(key, texture);
        }
        if self.decoding.is_busy() {
            return;
        }
        let mut pictures = files.filter(|file| file.has_pictures()).map(PictureKey::of);
        let Some(key) = pictures.find(|key| !self.decoded.contains_key(key)) else { return };
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

    /// Shows the thumbnail of a picture, or an empty space until it is decoded.
    pub fn show(&self, ui: &mut Ui, file: &Attachment) -> Response {
        let (rect, response) = ui.allocate_exact_size(SPACE, Sense::hover());
        let Some(Some(texture)) = self.decoded.get(&PictureKey::of(file)) else {
            ui.painter().rect_filled(rect, 4.0, Palette::of(ui).panel);
            return response;
        };
        let shown = texture.size_vec2() * (SPACE / texture.size_vec2()).min_elem().min(1.0);
        let place = egui::Align2::CENTER_CENTER.align_size_within_rect(shown, rect);
        Image::new(texture).corner_radius(4.0).paint_at(ui, place);
        let name = format!("The picture {}", file.name);
        response.widget_info(|| WidgetInfo::labeled(Role::Image, true, &name));
        response.on_hover_ui(|ui| _ = ui.image(texture))
    }
}

/// A copy of `picture` with at most [`MOST_SIDE`] pixels on a side.
fn thumbnail(picture: &Picture) -> Result<ColorImage> {
    let [width, height] = [picture.width(), picture.height()];
    let longest = width.max(height);
    let side = |side: usize| if longest > MOST_SIDE { (side * MOST_SIDE / longest).max(1) } else { side };
    let small = picture.resized(side(width), side(height), ResizeFilter::Bilinear)?;
    Ok(ColorImage::from_rgb([small.width(), small.height()], small.rgb()))
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

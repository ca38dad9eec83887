//! The program's icon, for title bars, docks and task lists. `assets/icon` has the drawing and the
//! images made from it.

use egui::IconData;

/// macOS draws the icon without adding a margin, so this image contains the margin. X11 cannot show
/// images above 128 pixels, because they do not fit into one request.
const PNG: &[u8] = if cfg!(target_os = "macos") {
    include_bytes!("../../../assets/icon/png/mac-512.png")
} else {
    include_bytes!("../../../assets/icon/png/128.png")
};

/// The icon as pixels. Empty if the image is damaged, so that the system chooses its own icon.
pub fn icon() -> IconData {
    eframe::icon_data::from_png_bytes(PNG).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icon_has_round_corners_and_a_warm_layer_over_a_cold_one() {
        let icon = icon();
        let pixel = |x: f32, y: f32| {
            let at = |fraction: f32, size: u32| (fraction * size as f32) as usize;
            let first = 4 * (at(y, icon.height) * icon.width as usize + at(x, icon.width));
            <[u8; 4]>::try_from(&icon.rgba[first..first + 4]).unwrap()
        };
        assert_eq!(icon.width, icon.height);
        assert_eq!(pixel(0.0, 0.0)[3], 0);
        let ([r, _, b, 255], [cold_r, _, cold_b, 255]) = (pixel(0.5, 0.45), pixel(0.5, 0.65)) else {
            panic!("the middle can be seen through")
        };
        assert!(r > 2 * b && cold_b > 2 * cold_r, "{r} {b}, {cold_r} {cold_b}");
    }
}

//! Notices below the top bar, for eyes and for screen readers. They go by themselves, what went wrong when there was time to read it,
//! and stay while the pointer is on them; the log keeps what went wrong.

use std::time::{Duration, Instant};

use egui::{
    Align, Align2, Area, Color32, Context, Frame, Id, Label, Layout, Margin, Order, Rect, Stroke, Ui, Vec2,
    accesskit::{Live, Role},
};
use egui_material_icons::icons::ICON_CLOSE;

use super::{
    theme::{Palette, RADIUS},
    widgets::{icon_button, small},
};

/// Good news is shown for so long, what is not as it was left for longer, and what went wrong longest.
const LONG: Duration = Duration::from_secs(5);
const LONGER: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(40);

/// And so much longer for each letter.
const LETTER: Duration = Duration::from_millis(50);

/// Notices shown at once; later ones wait for room.
const MOST: usize = 4;

/// Greatest width of their words, in points.
const WIDTH: f32 = 400.0;

/// Room of the button that closes one, in points.
const BUTTON: f32 = 40.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Success,
    Info,
    Warning,
    Error,
}

/// Of the area of the toast with this text.
fn area_id(text: &str) -> Id {
    Id::unique("toasts").with(text)
}

#[derive(Debug)]
struct Toast {
    kind: Kind,
    text: String,
    /// Since when it is seen.
    shown: Option<Instant>,
}

/// A short message.
#[derive(Debug, Default)]
pub struct Toasts(Vec<Toast>);

impl Toasts {
    /// Something worked.
    pub fn success(&mut self, text: impl Into<String>) {
        self.add(Kind::Success, text.into());
    }

    /// Something is worth knowing.
    pub fn info(&mut self, text: impl Into<String>) {
        self.add(Kind::Info, text.into());
    }

    /// Something is not as it was left.
    pub fn warning(&mut self, text: impl Into<String>) {
        self.add(Kind::Warning, text.into());
    }

    /// Something failed.
    pub fn error(&mut self, text: impl Into<String>) {
        self.add(Kind::Error, text.into());
    }

    /// True if no message is shown or waiting.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, kind: Kind, text: String) {
        if matches!(kind, Kind::Warning | Kind::Error) {
            tracing::warn!("{text}");
        }
        // What is being said need not be said twice.
        self.0.retain(|toast| toast.text != text || toast.kind != kind);
        self.0.push(Toast { kind, text, shown: None });
    }

    /// Shows them in the upper corner of `within`, where there are neither tabs nor buttons.
    pub fn show(&mut self, ctx: &Context, within: Rect) {
        if self.0.is_empty() {
            return;
        }
        let mut closed = None;
        let mut corner = within.right_top() + Vec2::new(-12.0, 8.0);
        let width = WIDTH.min(within.width() - 96.0).max(160.0);
        for (at, toast) in self.0.iter_mut().take(MOST).enumerate() {
            // Each as wide as its words are.
            let area =
                Area::new(area_id(&toast.text)).order(Order::Foreground).pivot(Align2::RIGHT_TOP).fixed_pos(corner);
            let shown = area.show(ctx, |ui| toast.show(ui, width));
            corner.y = shown.response.rect.bottom() + 8.0;
            if shown.inner {
                closed = Some(at);
            }
        }
        if let Some(at) = closed {
            self.0.remove(at);
        }
        let ages = self.0.iter().filter_map(|toast| toast.left());
        if let Some(least) = ages.min() {
            ctx.request_repaint_after(least);
        }
        self.0.retain(|toast| toast.left() != Some(Duration::ZERO));
    }
}

impl Toast {
    /// How long it is still to be seen; `None` if it has not been shown yet.
    fn left(&self) -> Option<Duration> {
        self.shown.map(|since| self.time().saturating_sub(since.elapsed()))
    }

    /// How long it is shown in all.
    fn time(&self) -> Duration {
        let least = match self.kind {
            Kind::Success | Kind::Info => LONG,
            Kind::Warning => LONGER,
            Kind::Error => LONGEST,
        };
        least + LETTER * self.text.len().min(1000) as u32
    }

    fn colour(&self, palette: Palette) -> Color32 {
        match self.kind {
            Kind::Success => palette.good,
            Kind::Info => palette.cold,
            Kind::Warning => palette.amber,
            Kind::Error => palette.bad,
        }
    }

    /// Shows it; whether it was closed.
    fn show(&mut self, ui: &mut Ui, width: f32) -> bool {
        let palette = Palette::of(ui);
        self.shown.get_or_insert_with(Instant::now);
        let frame = Frame::new()
            .fill(palette.raised)
            .stroke(Stroke::new(1.0, self.colour(palette)))
            .corner_radius(RADIUS)
            .inner_margin(Margin::symmetric(12, 8));
        let shown = frame.show(ui, |ui| {
            let font = egui::FontId::proportional(12.0);
            let words = ui.painter().layout(self.text.clone(), font, palette.text, width).size();
            let size = Vec2::new(words.x.ceil() + 1.0 + BUTTON, words.y.max(BUTTON));
            ui.allocate_ui_with_layout(size, Layout::right_to_left(Align::Center), |ui| {
                let closed = icon_button(ui, ICON_CLOSE, "Close this notice").clicked();
                let said = ui.add(Label::new(small(&self.text, palette.text)).wrap());
                let live = if self.kind == Kind::Error { Live::Assertive } else { Live::Polite };
                ui.accesskit_node_builder(said.id, |node| {
                    node.set_role(Role::Alert);
                    node.set_label(self.text.clone());
                    node.set_live(live);
                });
                closed
            })
            .inner
        });
        if shown.response.contains_pointer() {
            // It stays while it is read.
            self.shown = Some(Instant::now());
        }
        shown.inner
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::{Harness, kittest::Queryable};

    use super::*;

    #[test]
    fn toasts_expire_and_can_be_closed_before() {
        let mut toasts = Toasts::default();
        toasts.success("Written");
        for _ in 0..3 {
            toasts.error("The disk is full.");
        }
        (0..6).for_each(|n| toasts.error(format!("{n}")));
        let mut it = Harness::builder().with_size([500.0, 500.0]).build_ui_state(
            |ui, toasts: &mut Toasts| {
                super::super::theme::install(ui);
                toasts.show(ui, ui.max_rect());
            },
            toasts,
        );
        it.run_steps(3);
        assert_eq!(it.get_all_by_label("The disk is full.").count(), 1);
        assert!(it.query_by_label("Written").is_some() && it.query_by_label("4").is_none(), "four at once");
        it.state_mut().0[0].shown = Instant::now().checked_sub(2 * LONG);
        it.run_steps(2);
        assert!(it.query_by_label("Written").is_none());
        it.get_all_by_label("Close this notice").next().unwrap().click();
        it.run_steps(2);
        assert!(it.query_by_label("The disk is full.").is_none() && it.query_by_label("0").is_some());
        let long = LONGEST + LETTER;
        assert!(it.state().0[0].left().is_some_and(|left| left > LONGER && left <= long), "time to read it");
        // Under the pointer it would stay.
        it.remove_cursor();
        it.run_steps(2);
        it.state_mut().0[0].shown = Instant::now().checked_sub(long);
        it.run_steps(2);
        assert!(it.query_by_label("0").is_none() && it.query_by_label("1").is_some(), "what went wrong goes as well");
    }

    #[test]
    fn toast_is_as_wide_as_its_text_and_within_its_place() {
        let mut toasts = Toasts::default();
        toasts.info("Short");
        toasts.error("A very long sentence. ".repeat(12));
        let place = Rect::from_min_size(egui::pos2(100.0, 50.0), Vec2::new(500.0, 400.0));
        let mut it = Harness::builder().with_size([800.0, 600.0]).build_ui_state(
            move |ui, toasts: &mut Toasts| {
                super::super::theme::install(ui);
                toasts.show(ui, place);
            },
            toasts,
        );
        it.run_steps(4);
        let [short, long] = ["Short", "A very long"].map(|text| it.get_by_label_contains(text).rect());
        assert!(short.width() < 60.0 && long.width() > 300.0, "{short} {long}");
        assert!(place.contains_rect(short) && place.contains_rect(long), "{short} {long}");
        it.state_mut().0.pop();
        it.run_steps(4);
        let area = it.ctx.memory(|memory| memory.area_rect(area_id("Short"))).unwrap();
        let short = it.get_by_label("Short").rect();
        assert!(area.width() < short.width() + 90.0 && place.contains_rect(area), "{area} around {short}");
    }
}

//! Notices in a corner, for eyes and for screen readers. Good news goes by itself; what went wrong stays until it is read.

use std::time::{Duration, Instant};

use egui::{
    Align, Align2, Area, Color32, Context, Frame, Id, Label, Layout, Margin, Order, Stroke, Ui, Vec2,
    accesskit::{Live, Role},
};
use egui_material_icons::icons::ICON_CLOSE;

use super::{
    theme::{Palette, RADIUS},
    widgets::{icon_button, small},
};

/// Good news is shown for so long.
const LONG: Duration = Duration::from_secs(5);

/// Notices shown at once; later ones wait for room.
const MOST: usize = 4;

/// Width of their words, in points.
const WIDTH: f32 = 320.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Success,
    Info,
    Warning,
    Error,
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

    /// Something is not as it was left. Stays until it is closed.
    pub fn warning(&mut self, text: impl Into<String>) {
        self.add(Kind::Warning, text.into());
    }

    /// Something failed. Stays until it is closed.
    pub fn error(&mut self, text: impl Into<String>) {
        self.add(Kind::Error, text.into());
    }

    /// True if no message is shown or waiting.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, kind: Kind, text: String) {
        // What is being said need not be said twice.
        self.0.retain(|toast| toast.text != text || toast.kind != kind);
        self.0.push(Toast { kind, text, shown: None });
    }

    /// Shows them.
    pub fn show(&mut self, ctx: &Context) {
        if self.0.is_empty() {
            return;
        }
        let mut closed = None;
        let corner = Vec2::new(-16.0, 56.0);
        Area::new(Id::unique("toasts")).order(Order::Foreground).anchor(Align2::RIGHT_TOP, corner).show(ctx, |ui| {
            ui.spacing_mut().item_spacing.y = 8.0;
            for (at, toast) in self.0.iter_mut().take(MOST).enumerate() {
                if ui.push_id(at, |ui| toast.show(ui)).inner {
                    closed = Some(at);
                }
            }
        });
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
    /// How long it is still to be seen; `None` if until it is closed, or if it has not been shown yet.
    fn left(&self) -> Option<Duration> {
        let goes = matches!(self.kind, Kind::Success | Kind::Info);
        self.shown.filter(|_| goes).map(|since| LONG.saturating_sub(since.elapsed()))
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
    fn show(&mut self, ui: &mut Ui) -> bool {
        let palette = Palette::of(ui);
        self.shown.get_or_insert_with(Instant::now);
        let frame = Frame::new()
            .fill(palette.raised)
            .stroke(Stroke::new(1.0, self.colour(palette)))
            .corner_radius(RADIUS)
            .inner_margin(Margin::symmetric(12, 8));
        let shown = frame.show(ui, |ui| {
            ui.with_layout(Layout::right_to_left(Align::Min), |ui| {
                ui.set_width(WIDTH);
                let closed = icon_button(ui, ICON_CLOSE, "Close this notice").clicked();
                ui.with_layout(Layout::left_to_right(Align::Min), |ui| {
                    let said = ui.add(Label::new(small(&self.text, palette.text)).wrap());
                    let live = if self.kind == Kind::Error { Live::Assertive } else { Live::Polite };
                    ui.accesskit_node_builder(said.id, |node| {
                        node.set_role(Role::Alert);
                        node.set_label(self.text.clone());
                        node.set_live(live);
                    });
                });
                closed
            })
            .inner
        });
        shown.inner
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::{Harness, kittest::Queryable};

    use super::*;

    #[test]
    fn error_toasts_stay_until_closed_and_success_toasts_expire() {
        let mut toasts = Toasts::default();
        toasts.success("Written");
        for _ in 0..3 {
            toasts.error("The disk is full.");
        }
        (0..6).for_each(|n| toasts.error(format!("{n}")));
        let mut it = Harness::builder().with_size([500.0, 500.0]).build_ui_state(
            |ui, toasts: &mut Toasts| {
                super::super::theme::install(ui);
                toasts.show(ui);
            },
            toasts,
        );
        it.run_steps(3);
        assert_eq!(it.get_all_by_label("The disk is full.").count(), 1);
        assert!(it.query_by_label("Written").is_some() && it.query_by_label("4").is_none(), "four at once");
        it.state_mut().0[0].shown = Instant::now().checked_sub(LONG);
        it.run_steps(2);
        assert!(it.query_by_label("Written").is_none());
        it.get_all_by_label("Close this notice").next().unwrap().click();
        it.run_steps(2);
        assert!(it.query_by_label("The disk is full.").is_none() && it.query_by_label("0").is_some());
    }
}

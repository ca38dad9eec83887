//! Notices below the top bar, for sighted users and for screen readers. Successes and infos briefly
//! overlay the page. Warnings and errors have their own place above the page, which they do not
//! cover. Each notice closes by itself after enough time to read it, and stays while the pointer is
//! on it. The log keeps the warnings and errors.

use std::time::{Duration, Instant};

use egui::{
    Align, Align2, Area, Color32, Context, Frame, Id, Label, Layout, Margin, Order, Panel, Rect, Ui, Vec2,
    accesskit::{Live, Role},
};
use egui_material_icons::icons::ICON_CLOSE;

use thermocline_rich_text::{
    theme::Palette,
    widgets::{icon_button, outlined, sentence, small},
};

/// Times for which a success or info, a warning, and an error stay visible.
const LONG: Duration = Duration::from_secs(5);
const LONGER: Duration = Duration::from_secs(12);
const LONGEST: Duration = Duration::from_secs(20);

/// Extra time per byte of the text.
const LETTER: Duration = Duration::from_millis(50);

/// Maximum number of visible notices. Later ones wait.
const MOST: usize = 4;

/// Maximum width of the text, in points.
const WIDTH: f32 = 400.0;

/// Width of the close button, in points.
const BUTTON: f32 = 40.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToastKind {
    Success,
    Info,
    Warning,
    Error,
}

impl ToastKind {
    /// True for a warning or an error.
    fn is_trouble(self) -> bool {
        matches!(self, ToastKind::Warning | ToastKind::Error)
    }
}

/// The id of the area of the toast with this text.
fn area_id(text: &str) -> Id {
    Id::unique("toasts").with(text)
}

#[derive(Debug)]
struct Toast {
    kind: ToastKind,
    text: String,
    /// When the toast was first shown or last under the pointer.
    shown: Option<Instant>,
}

/// The short messages, oldest first.
#[derive(Debug, Default)]
pub struct Toasts(Vec<Toast>);

impl Toasts {
    /// Reports a success.
    pub fn success(&mut self, text: impl Into<String>) {
        self.add(ToastKind::Success, text.into());
    }

    /// Reports something worth knowing.
    pub fn info(&mut self, text: impl Into<String>) {
        self.add(ToastKind::Info, text.into());
    }

    /// Warns that the state differs from the state that the user left.
    pub fn warning(&mut self, text: impl Into<String>) {
        self.add(ToastKind::Warning, text.into());
    }

    /// Reports a failure.
    pub fn error(&mut self, text: impl Into<String>) {
        self.add(ToastKind::Error, text.into());
    }

    /// Returns the value of `result`. Shows an error to the user as a sentence.
    pub fn check<T>(&mut self, result: Result<T, impl std::fmt::Display>) -> Option<T> {
        result.map_err(|error| self.error(sentence(error))).ok()
    }

    /// True if no message is shown or waiting.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, kind: ToastKind, text: String) {
        if kind.is_trouble() {
            tracing::warn!("{text}");
        }
        // Repeating a visible message replaces it.
        self.0.retain(|toast| toast.text != text || toast.kind != kind);
        self.0.push(Toast { kind, text, shown: None });
    }

    /// Shows warnings and errors at the top of `ui`, which shrinks by their height.
    pub fn show_trouble(&mut self, ui: &mut Ui) {
        if self.0.iter().any(|toast| toast.kind.is_trouble()) {
            let panel = Panel::top("trouble").resizable(false).show_separator_line(false).frame(Frame::NONE);
            panel.show(ui, |ui| {
                let width = ui.available_width();
                self.each(true, |toast| toast.show(ui, width - BUTTON - 48.0));
                ui.add_space(4.0);
            });
        }
        self.expire(ui);
    }

    /// Shows the other toasts in the upper right corner of `within`, which has neither tabs nor
    /// buttons.
    pub fn show(&mut self, ctx: &Context, within: Rect) {
        let mut corner = within.right_top() + Vec2::new(-12.0, 8.0);
        let width = WIDTH.min(within.width() - 96.0).max(160.0);
        self.each(false, |toast| {
            // Each toast is as wide as its text.
            let area =
                Area::new(area_id(&toast.text)).order(Order::Foreground).pivot(Align2::RIGHT_TOP).fixed_pos(corner);
            let shown = area.show(ctx, |ui| toast.show(ui, width));
            corner.y = shown.response.rect.bottom() + 8.0;
            shown.inner
        });
        self.expire(ctx);
    }

    /// Shows the first toasts of a kind with `show`, which returns true if a toast was closed.
    fn each(&mut self, trouble: bool, mut show: impl FnMut(&mut Toast) -> bool) {
        let mut left = MOST;
        self.0.retain_mut(|toast| {
            let shown = toast.kind.is_trouble() == trouble && left > 0;
            left -= usize::from(shown);
            !(shown && show(toast))
        });
    }

    /// Removes the expired toasts.
    fn expire(&mut self, ctx: &Context) {
        if let Some(least) = self.0.iter().filter_map(Toast::left).min() {
            ctx.request_repaint_after(least);
        }
        self.0.retain(|toast| toast.left() != Some(Duration::ZERO));
    }
}

impl Toast {
    /// The remaining time of the toast. `None` if it has not been shown yet.
    fn left(&self) -> Option<Duration> {
        self.shown.map(|since| self.time().saturating_sub(since.elapsed()))
    }

    /// The total time of the toast.
    fn time(&self) -> Duration {
        let least = match self.kind {
            ToastKind::Success | ToastKind::Info => LONG,
            ToastKind::Warning => LONGER,
            ToastKind::Error => LONGEST,
        };
        least + LETTER * self.text.len().min(1000) as u32
    }

    fn colour(&self, palette: Palette) -> Color32 {
        match self.kind {
            ToastKind::Success => palette.good,
            ToastKind::Info => palette.cold,
            ToastKind::Warning => palette.amber,
            ToastKind::Error => palette.bad,
        }
    }

    /// Shows the toast. Returns true if the user closed it.
    fn show(&mut self, ui: &mut Ui, width: f32) -> bool {
        let palette = Palette::of(ui);
        self.shown.get_or_insert_with(Instant::now);
        let shown = outlined(palette.raised, self.colour(palette), Margin::symmetric(12, 8)).show(ui, |ui| {
            let font = egui::FontId::proportional(12.0);
            let words = ui.painter().layout(self.text.clone(), font, palette.text, width).size();
            ui.horizontal(|ui| {
                let lines = Layout::top_down(Align::Min);
                let size = Vec2::new(words.x.ceil() + 1.0, words.y);
                let said = ui.allocate_ui_with_layout(size, lines, |ui| {
                    ui.add(Label::new(small(&self.text, palette.text)).wrap())
                });
                let live = if self.kind == ToastKind::Error { Live::Assertive } else { Live::Polite };
                ui.accesskit_node_builder(said.inner.id, |node| {
                    node.set_role(Role::Alert);
                    node.set_label(self.text.clone());
                    node.set_live(live);
                });
                icon_button(ui, ICON_CLOSE, "Close this notice").clicked()
            })
            .inner
        });
        if shown.response.contains_pointer() {
            // The toast stays while the pointer is on it.
            self.shown = Some(Instant::now());
        }
        shown.inner
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::{Harness, kittest::Queryable};

    use super::*;

    fn shown(toasts: Toasts, size: Vec2, place: Rect) -> Harness<'static, Toasts> {
        let show = move |ui: &mut Ui, toasts: &mut Toasts| {
            thermocline_rich_text::theme::install(ui);
            ui.scope_builder(egui::UiBuilder::new().max_rect(place), |ui| {
                toasts.show_trouble(ui);
                ui.label("The page");
                toasts.show(ui, ui.max_rect());
            });
        };
        let mut it = Harness::builder().with_size(size).build_ui_state(show, toasts);
        it.run_steps(4);
        it
    }

    #[test]
    fn toasts_expire_and_can_be_closed_before() {
        let mut toasts = Toasts::default();
        toasts.success("Written");
        for _ in 0..3 {
            toasts.error("The disk is full.");
        }
        (0..6).for_each(|n| toasts.error(format!("{n}")));
        let size = Vec2::splat(500.0);
        let mut it = shown(toasts, size, Rect::from_min_size(egui::Pos2::ZERO, size));
        assert_eq!(it.get_all_by_label("The disk is full.").count(), 1);
        assert!(it.query_by_label("2").is_some() && it.query_by_label("3").is_none(), "four at once");
        it.state_mut().0[0].shown = Instant::now().checked_sub(3 * LONG);
        it.run_steps(2);
        assert!(it.query_by_label("Written").is_none());
        it.get_all_by_label("Close this notice").next().unwrap().click();
        it.run_steps(2);
        assert!(it.query_by_label("The disk is full.").is_none() && it.query_by_label("3").is_some());
        let long = LONGEST + LETTER;
        assert!(it.state().0[0].left().is_some_and(|left| left > LONGER && left <= long), "time to read it");
        // A toast under the pointer would stay.
        it.remove_cursor();
        it.run_steps(2);
        it.state_mut().0[0].shown = Instant::now().checked_sub(long);
        it.run_steps(2);
        assert!(it.query_by_label("0").is_none() && it.query_by_label("1").is_some(), "what went wrong goes as well");
    }

    #[test]
    fn trouble_covers_nothing_and_good_news_is_as_wide_as_its_words() {
        let mut toasts = Toasts::default();
        toasts.info("Short");
        toasts.error("A very long sentence. ".repeat(12));
        toasts.warning("Another one.");
        let place = Rect::from_min_size(egui::pos2(100.0, 50.0), Vec2::new(500.0, 400.0));
        let mut it = shown(toasts, Vec2::new(800.0, 600.0), place);
        let at = |text: &str| it.get_by_label_contains(text).rect();
        let (short, long, other, page) = (at("Short"), at("A very long"), at("Another one."), at("The page"));
        assert!(short.width() < 60.0 && long.width() > 300.0, "{short} {long}");
        assert!(place.contains_rect(short) && place.contains_rect(long), "{short} {long}");
        assert!(long.bottom() < other.top() && other.bottom() < page.top(), "{long} {other} {page}");
        // All its lines begin at the same x.
        let is_long = |shape: &egui::Shape| match shape {
            egui::Shape::Text(text) if text.galley.text().starts_with("A very") => Some(text.galley.clone()),
            _ => None,
        };
        let galley = it.output().shapes.iter().find_map(|clipped| is_long(&clipped.shape)).unwrap();
        assert!(galley.rows.len() > 1 && galley.rows.iter().all(|row| row.pos.x.abs() < 0.5), "{galley:?}");
        it.state_mut().0.truncate(1);
        it.run_steps(4);
        let area = it.ctx.memory(|memory| memory.area_rect(area_id("Short"))).unwrap();
        let short = it.get_by_label("Short").rect();
        assert!(area.width() < short.width() + 90.0 && place.contains_rect(area), "{area} around {short}");
    }
}

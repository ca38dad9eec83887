//! The settings as the window uses them, and the file that keeps them.

use std::{
    ops::{Deref, DerefMut},
    path::Path,
    time::{Duration, Instant},
};

use egui::{Context, ThemePreference};
use thermocline_chats::settings::{Settings, Theme};
use thermocline_rich_text::{frame_pace::still, theme};

/// The file is written this long after the last change of a setting.
const SETTLED: Duration = Duration::from_secs(1);

/// The user's settings. A change is written to the file soon afterwards.
#[derive(Debug)]
pub struct SettingsFile {
    settings: Settings,
    /// The settings that the file has.
    written: Settings,
    /// When a setting was first changed since the file was written.
    changed: Option<Instant>,
    /// False if the file exists and cannot be read: it belongs to another program or version.
    is_writable: bool,
}

impl Deref for SettingsFile {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl DerefMut for SettingsFile {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl SettingsFile {
    /// Reads the file at `path`. The second value says what is wrong with it.
    pub fn read(path: &Path) -> (Self, Option<String>) {
        let read = Settings::load(path);
        let is_writable = read.is_ok();
        let (settings, trouble) = read.unwrap_or_else(|error| {
            let trouble = format!("{} cannot be read ({error}). Settings will not be saved to it.", path.display());
            (Settings::default(), Some(trouble))
        });
        (SettingsFile { written: settings.clone(), settings, changed: None, is_writable }, trouble)
    }

    /// Writes changed settings to the file at `path`, either `now` or once no setting has changed
    /// for a while. The shown chat is always written at once, so that the next start shows it even
    /// if the window is killed.
    pub fn keep(&mut self, path: &Path, ctx: &Context, now: bool) -> thermocline_engine::Result<()> {
        let now = now || self.settings.last_chat != self.written.last_chat;
        if self.settings == self.written || !self.is_writable {
            self.changed = None;
            return Ok(());
        }
        let since = *self.changed.get_or_insert_with(Instant::now);
        if !now && since.elapsed() < SETTLED {
            ctx.request_repaint_after(SETTLED);
            return Ok(());
        }
        self.changed = None;
        // Another window may have written its user's changes.
        if let Ok((theirs, None)) = Settings::load(path)
            && theirs != self.written
            && path.exists()
        {
            self.settings = self.settings.merged(&self.written, &theirs);
            choose_theme(ctx, self.settings.theme);
            ctx.set_zoom_factor(self.settings.zoom.into());
        }
        self.written = self.settings.clone();
        self.settings.save(path)
    }

    /// Applies the theme, the size and the motion of the settings to the window that `ctx` draws.
    pub fn apply(&self, ctx: &Context) {
        choose_theme(ctx, self.settings.theme);
        theme::move_less(ctx, still(ctx, self.settings.reduced_motion));
        ctx.set_zoom_factor(self.settings.zoom.into());
    }
}

/// Applies the theme that the user chose.
pub fn choose_theme(ctx: &Context, theme: Theme) {
    ctx.set_theme(match theme {
        Theme::System => ThemePreference::System,
        Theme::Light => ThemePreference::Light,
        Theme::Dark => ThemePreference::Dark,
    });
}

//! *Why this speed?*: the parts of a token's time, planned and measured, and the effect of more
//! VRAM.

use egui::{Color32, RichText, Ui};
use thermocline_engine::{
    placement::TokenPart,
    session::{Breakdown, DeviceStatus, Engine},
};

use super::{
    bar::{self, BarScale, BarSegment},
    reasons::ReasonsQuestion,
    room::BudgetRoom,
    speed::speed_under,
    why_cpu,
};
use crate::shell::Shell;
use thermocline_chats::settings::VramBudget;
use thermocline_host::{
    library::ModelId,
    units::{bytes, milliseconds},
};
use thermocline_rich_text::{
    theme::{self, Palette},
    widgets,
};

/// Width of the popup, in points.
const WIDTH: f32 = 400.0;

/// A note about timed tokens appears if they take this many times as long as other tokens.
const SLOWED: f64 = 1.05;

/// A budget larger than the one in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MoreVram {
    name: &'static str,
    budget: u64,
}

impl MoreVram {
    /// Budgets of 25 % more, 50 % more, and all available VRAM, as far as they exceed the one in
    /// force.
    fn of(room: &BudgetRoom) -> Vec<MoreVram> {
        let now = room.budget(None);
        if now >= room.most {
            return Vec::new();
        }
        let more = |name, percent: u64| MoreVram { name, budget: now.saturating_add(now / 100 * percent) };
        let fits = |it: &MoreVram| it.budget > now && it.budget < room.can_have;
        let all = MoreVram { name: "All VRAM", budget: room.can_have };
        let some = [more("25 % more", 25), more("50 % more", 50)].into_iter().filter(fits);
        some.chain(Some(all).filter(|all| all.budget > now)).collect()
    }
}

/// Explains the speed of the open model.
pub fn show(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    ui.set_width(WIDTH);
    ui.label(RichText::new("Why this speed?").font(theme::strong(15.0)));
    let (room, status) = (BudgetRoom::of(shell, model, engine), engine.device());
    let device = match &status {
        DeviceStatus::Gpu(memory) => memory.adapter.as_str(),
        _ => "",
    };
    let more = room.as_ref().map_or_else(Vec::new, MoreVram::of);
    let terms = format!("{} {} {device} {:?}", model.key(), engine.sparsity().mode.name(), engine.vram_budget());
    let question = ReasonsQuestion { budgets: more.iter().map(|it| it.budget).collect(), terms };
    let Some(reasons) = shell.vram.reasons.about(ui, engine, question) else {
        widgets::muted(ui, "Estimating …");
        return;
    };
    if let DeviceStatus::Cpu { reason } = &status {
        widgets::muted(ui, why_cpu(shell, reason.as_deref()));
    }
    times(ui, &reasons.breakdown);
    widgets::words(ui, sentence(&reasons.breakdown));
    for note in notes(&reasons.breakdown) {
        widgets::muted(ui, note);
    }
    let Some(room) = room else { return };
    ui.separator();
    if more.is_empty() {
        let text = match room.budget(None) >= room.most {
            true => format!("{} {}. More VRAM would not make it faster.", bytes(room.most), room.end()),
            false => "The model already uses all available VRAM.".to_owned(),
        };
        widgets::muted(ui, text);
    }
    for MoreVram { name, budget } in more {
        let Some(forecast) = reasons.more.iter().find(|forecast| forecast.budget == budget) else { continue };
        let speed = speed_under(shell, model, engine, forecast, VramBudget::AtMost(budget));
        widgets::muted(ui, format!("{name}, {}: {}.", bytes(budget), speed.words()));
    }
}

/// Shows both bars with the same scale.
fn times(ui: &mut Ui, breakdown: &Breakdown) {
    let palette = Palette::of(ui);
    let measured = breakdown.measured.map(|measured| measured.time);
    let longest = [breakdown.planned, measured].into_iter().flatten().map(|time| time.total()).fold(0.0, f64::max);
    let scale = BarScale { total: nanoseconds(longest), end: None, format: milliseconds };
    for (name, time) in [("Estimated", breakdown.planned), ("Measured", measured)] {
        let Some(time) = time else { continue };
        ui.label(widgets::small(
            format!("{name}: {} per token", milliseconds(nanoseconds(time.total()))),
            palette.text,
        ));
        let parts: Vec<BarSegment> = TokenPart::ALL
            .into_iter()
            .map(|part| BarSegment {
                name: part_name(part, breakdown.on_device).to_owned(),
                amount: nanoseconds(time.seconds(part)),
                colour: part_colour(part, &palette),
            })
            .filter(|part| part.amount > 0)
            .collect();
        bar::show(ui, name, &parts, scale, None);
    }
}

/// A sentence about the largest part.
fn sentence(breakdown: &Breakdown) -> String {
    let measured = breakdown.measured.map(|measured| measured.time);
    let Some(time) = measured.or(breakdown.planned) else {
        return "Not measured yet. The first answer measures it.".to_owned();
    };
    let largest = time.largest();
    let [part, all] = [time.seconds(largest), time.total()].map(|seconds| milliseconds(nanoseconds(seconds)));
    let what = part_name(largest, breakdown.on_device);
    let how = if measured.is_some() { "" } else { " (estimated)" };
    format!("Most of a token's time goes to {what}: {part} of {all}{how}.")
}

/// Notes about the figures.
fn notes(breakdown: &Breakdown) -> Vec<String> {
    let mut notes = Vec::new();
    if breakdown.assumed && breakdown.planned.is_some() {
        notes.push("Estimated with typical speeds. This computer has not been measured yet.".to_owned());
    }
    match breakdown.measured {
        None => notes.push("Times are measured with the first answer.".to_owned()),
        Some(measured) if !measured.has_device_times => {
            notes.push("The GPU does not report its times, so waiting includes its work.".to_owned());
        }
        Some(measured) => notes.push(format!("Measured times are the mean of {} of the last tokens.", measured.tokens)),
    }
    if let Some(measured) = breakdown.measured.filter(|it| it.timed_seconds > SLOWED * it.time.total()) {
        let timed = milliseconds(nanoseconds(measured.timed_seconds));
        notes.push(format!(
            "Measuring the parts slows a token down to {timed}. The parts are scaled to the time of unmeasured tokens."
        ));
    }
    notes
}

/// Name of a part. With a device, FFNs run on both sides.
pub(super) fn part_name(part: TokenPart, on_device: bool) -> &'static str {
    match (part, on_device) {
        (TokenPart::Attention, _) => "attention",
        (TokenPart::Hot, _) => "neurons on the GPU",
        (TokenPart::Cold, _) => "neurons on the CPU",
        (TokenPart::Head, _) => "the head",
        (TokenPart::Waiting, true) => "waiting and transfers",
        (TokenPart::Waiting, false) => "the rest",
    }
}

fn part_colour(part: TokenPart, palette: &Palette) -> Color32 {
    match part {
        TokenPart::Attention => palette.deep,
        TokenPart::Hot => palette.hot,
        TokenPart::Cold => palette.cold,
        TokenPart::Head => palette.amber,
        TokenPart::Waiting => palette.muted,
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{placement::TokenTime, session::MeasuredTime};

    use super::*;

    #[test]
    fn sentence_names_the_largest_part_of_what_is_known() {
        let planned = TokenTime { attention: 0.002, hot: 0.001, cold: 0.012, head: 0.003, waiting: 0.0021 };
        let plan = Breakdown { planned: Some(planned), assumed: true, measured: None, on_device: true };
        assert_eq!(
            sentence(&plan),
            "Most of a token's time goes to neurons on the CPU: 12.0 ms of 20.1 ms (estimated)."
        );
        assert_eq!(notes(&plan).len(), 2);
        let time = TokenTime { waiting: 0.02, ..planned };
        let measured = MeasuredTime { time, tokens: 3, timed_seconds: time.total(), has_device_times: true };
        let both = Breakdown { measured: Some(measured), assumed: false, ..plan.clone() };
        assert_eq!(sentence(&both), "Most of a token's time goes to waiting and transfers: 20.0 ms of 38.0 ms.");
        assert_eq!(notes(&both), ["Measured times are the mean of 3 of the last tokens."]);
        let slowed = MeasuredTime { timed_seconds: 2.0 * time.total(), ..measured };
        let told = notes(&Breakdown { measured: Some(slowed), ..both.clone() });
        assert!(told[1].contains("down to 76.0 ms"), "{told:?}");
        let on_cpu = Breakdown { on_device: false, ..plan };
        assert!(sentence(&on_cpu).contains("neurons on the CPU"));
        let nothing = Breakdown { planned: None, ..on_cpu };
        assert!(sentence(&nothing).starts_with("Not measured yet"));
    }

    #[test]
    fn larger_budgets_are_those_that_can_be_had() {
        const GIB: u64 = 1 << 30;
        let room = BudgetRoom { most: 20 * GIB, can_have: 10 * GIB, whole: false, now: 4 * GIB };
        let budgets = |room: BudgetRoom| MoreVram::of(&room).iter().map(|it| it.budget).collect::<Vec<_>>();
        let steps = budgets(room);
        assert!(steps.len() == 3 && steps[0] > 4 * GIB && steps[1] > steps[0] && steps[2] == 10 * GIB, "{steps:?}");
        assert_eq!(budgets(BudgetRoom { now: 9 * GIB, ..room }), [10 * GIB]);
        assert!(budgets(BudgetRoom { now: 10 * GIB, ..room }).is_empty(), "all is its already");
        assert!(budgets(BudgetRoom { most: 3 * GIB, ..room }).is_empty(), "it can use no more");
    }
}

//! Tests of the panel on a GPU that is chosen by name. Here that may be a software driver on the
//! CPU.

use egui::{Key, accesskit::Role, vec2};
use egui_kittest::kittest::{NodeT, Queryable};
use thermocline_engine::{
    ScarceMemory,
    placement::Machine,
    session::{AdapterId, Fallback, FallbackPart, Fallbacks, adapters},
};

use super::*;
use crate::{
    Window,
    testing::{TestWindow, button},
    top_bar,
};
use thermocline_chats::settings::ModelSettings;
use thermocline_host::{testing::until, units};

const MOST: &str = "VRAM to use at most";
const FREE: &str = "VRAM to leave free";

/// The adapter of the tests' driver, which every test machine has.
fn adapter() -> String {
    let all = adapters(&Fallbacks::default());
    let software = all.iter().find(|it| it.kind == AdapterKind::Software);
    software.or(all.first()).expect("the tests need a Vulkan driver (tests/run.sh installs one)").name.clone()
}

fn memory(stage: &mut TestWindow) -> Option<DeviceMemory> {
    memory_of(stage.shell())
}

fn memory_of(shell: &Shell) -> Option<DeviceMemory> {
    match shell.engine_handle.engine()?.device() {
        DeviceStatus::Gpu(memory) => Some(memory),
        _ => None,
    }
}

/// Opens a window whose whole model is in VRAM. Returns the window and the engine.
pub(crate) fn on_gpu() -> (TestWindow, Engine) {
    let mut stage = TestWindow::opened_with([1440.0, 1600.0], |_, settings| {
        let chosen = ModelSettings { device: Some(adapter()), ..ModelSettings::default() };
        settings.models.insert(ModelId::Builtin.key(), chosen);
    });
    settled(&mut stage);
    stage.until("the list of adapters", |window| window.shell().adapters.list().is_some());
    let engine = stage.shell().engine_handle.engine().unwrap();
    (stage, engine)
}

fn settled(stage: &mut TestWindow) {
    let done = |window: &mut Window| memory_of(window.shell()).is_some_and(|memory| !memory.moving);
    stage.until("the model in VRAM", done);
}

/// Drags the slider's handle to a fraction of its way, and holds it there.
fn drag(stage: &mut TestWindow, slider: &str, fraction: f32) {
    let rect = stage.role(Role::Slider, slider).rect();
    let to = rect.left_center() + vec2(rect.width() * fraction, 0.0);
    stage.it.hover_at(rect.center());
    stage.it.event(button(rect.center(), true));
    stage.it.hover_at(to);
    stage.step();
}

fn release(stage: &mut TestWindow, slider: &str, fraction: f32) {
    let rect = stage.role(Role::Slider, slider).rect();
    stage.it.drop_at(rect.left_center() + vec2(rect.width() * fraction, 0.0));
    stage.step();
}

fn set(stage: &mut TestWindow, slider: &str, bytes: f64) {
    stage.role(Role::Slider, slider).set_value_accesskit(bytes);
    stage.step();
}

/// Gives the engine the speeds of `machine`, and waits until forecasts use them.
fn know_speeds(stage: &mut TestWindow, engine: &Engine, machine: Machine) {
    engine.set_machine(Machine::new(machine.cpu, machine.gpu)).unwrap();
    stage.until("the speeds", |window| {
        window.shell.vram.forecasts.grow_old();
        engine.forecast(1 << 30).unwrap().tokens_per_second.is_some()
    });
}

/// Disables the tests' adapter. Returns its name.
fn give_up(stage: &mut TestWindow) -> String {
    let (name, here) = (adapter(), stage.shell().adapters.list().unwrap());
    let lost = AdapterId::of(here.iter().find(|it| it.name == name).unwrap());
    stage.folders.fallbacks().add(Fallback::new(lost, FallbackPart::Adapter, "it was lost"));
    name
}

fn budget(stage: &mut TestWindow) -> Option<VramBudget> {
    stage.shell().settings.models[&ModelId::Builtin.key()].budget
}

#[test]
fn budget_slider_forecast_follows_the_drag_and_applies_on_release() {
    let (mut stage, engine) = on_gpu();
    let whole = memory(&mut stage).unwrap().accounted;
    assert!(stage.it.query_by_label_contains("Used by the model: ").is_some(), "the bar has words");
    let before = engine.vram_budget();
    drag(&mut stage, MOST, 0.7);
    let dragged = stage.role(Role::Slider, MOST).accesskit_node().numeric_value().unwrap();
    stage.appears(&format!("At {}:", bytes(dragged as u64)));
    assert_eq!((engine.vram_budget(), budget(&mut stage)), (before, None), "nothing has happened yet");
    release(&mut stage, MOST, 0.7);
    let Some(VramBudget::AtMost(limit)) = budget(&mut stage) else { panic!("{:?}", budget(&mut stage)) };
    assert_eq!((engine.vram_budget(), limit), (Some(limit), dragged as u64));
    assert!(limit < whole, "{limit} of {whole}");
    let kept = |window: &mut Window| {
        memory_of(window.shell()).is_some_and(|it| it.accounted <= limit && it.budget == Some(limit) && !it.moving)
    };
    stage.until("the budget to be kept", kept);
    assert!(!stage.shows("more than the budget allows"));
}

/// The text below the slider, once it shows a forecast.
fn foretold(stage: &mut TestWindow) -> String {
    until("a forecast", || {
        stage.it.step();
        stage.texts().into_iter().find(|text| text.starts_with("At ") && !text.contains("estimating"))
    })
}

#[test]
fn budget_slider_forecast_is_of_its_value_and_the_current_device() {
    let (mut stage, engine) = on_gpu();
    assert_eq!(engine.vram_budget(), None, "all that is free, which is more than the model can use");
    let stands = |stage: &TestWindow| stage.role(Role::Slider, MOST).accesskit_node().numeric_value().unwrap() as u64;
    // The first forecast counts what the model can use, and the slider's end follows it.
    until("the forecast of where the slider stands", || {
        stage.it.step();
        let said = format!("At {}: speed is measured with the first answer", bytes(stands(&stage)));
        stage.texts().iter().any(|text| text.starts_with(&said)).then_some(())
    });

    // With speeds of the CPU alone there is nothing to predict for a device. The speeds of both
    // arrive later.
    let typical = Machine::typical();
    engine.set_machine(Machine::new(typical.cpu.clone(), None)).unwrap();
    stage.until("the speeds", |_| engine.forecast(0).unwrap().cpu_tokens_per_second.is_some());
    stage.role(Role::Slider, MOST).set_value_accesskit(stands(&stage) as f64 * 0.8);
    settled(&mut stage);
    let at = format!("At {}: ", bytes(stands(&stage)));
    stage.appears(&format!("{at}speed is measured with the first answer"));
    know_speeds(&mut stage, &engine, typical);
    stage.appears(&format!("{at}about "));
}

#[test]
fn card_slider_and_bar_tell_the_same_while_dragging() {
    let (mut stage, engine) = on_gpu();
    know_speeds(&mut stage, &engine, Machine::typical());
    stage.click("Models");
    stage.appears("Close Thermocline Storyteller");
    let mut told = Vec::new();
    for fraction in [0.8, 0.6, 0.35] {
        drag(&mut stage, MOST, fraction);
        let said = until("a speed", || Some(foretold(&mut stage)).filter(|said| said.contains(": about ")));
        let (at, words) = said.strip_prefix("At ").and_then(|said| said.split_once(": ")).unwrap();
        let speed = words.split(", ").next().unwrap();
        let texts = stage.texts();
        let card = texts.iter().find(|text| text.contains(&format!("the VRAM budget of {at}")));
        let card = card.unwrap_or_else(|| panic!("{said} beside {texts:#?}"));
        assert!(card.ends_with(&format!(", {speed}.")), "{card} beside {said}");
        let bar = texts.iter().find(|text| text.starts_with("Used by the model: ")).unwrap();
        assert!(bar.ends_with(&format!(", budget {at}")), "{bar} beside {said}");
        let is_end =
            |text: &&String| ["is the maximum for this model", "is all of the VRAM"].iter().any(|it| text.contains(it));
        let mut ends: Vec<_> = texts.iter().filter(is_end).map(|end| end.split(" is ").next()).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), 1, "one total");
        told.push(at.to_owned());
        release(&mut stage, MOST, fraction);
    }
    told.dedup();
    assert_eq!(told.len(), 3, "{told:?}");
}

#[test]
fn popup_of_the_speed_names_the_largest_part_before_and_after_an_answer() {
    let mut stage = TestWindow::opened([1440.0, 1000.0]);
    stage.click("Speed");
    stage.appears("Estimated: ");
    assert!(stage.shows("Most of a token's time goes to ") && stage.shows(" (estimated)."), "{:?}", stage.texts());
    assert!(stage.shows("Times are measured with the first answer.") && !stage.shows("Measured: "));
    assert!(stage.shows("The model runs on the CPU alone") && !stage.shows("More VRAM"), "{:?}", stage.texts());
    stage.press(Key::Escape);
    assert!(!stage.shows("Estimated: "));

    stage.ask("Tell me a story about a frog.");
    stage.step();
    // By keyboard.
    let engine = stage.shell().engine_handle.engine().unwrap();
    stage.until("rest", |_| engine.telemetry().decode_rate == 0.0);
    let rate = units::rate(engine.observed_rate().unwrap());
    stage.focus(&rate);
    stage.press(Key::Enter);
    stage.appears("Measured: ");
    let time = engine.breakdown().unwrap().measured.unwrap().time;
    let bar = stage.texts().into_iter().find(|text| text.starts_with("Measured: ") && text.contains(" of ")).unwrap();
    assert!(bar.contains("neurons on the CPU ") && bar.contains("the head ") && bar.contains("attention "), "{bar}");
    let largest = why::part_name(time.largest(), false);
    assert!(stage.shows(&format!("Most of a token's time goes to {largest}: ")), "{largest} in {:?}", stage.texts());
    assert!(!stage.shows(" (estimated)."));
}

#[test]
fn popup_of_the_speed_tells_the_engines_forecasts_for_more_vram() {
    let (mut stage, engine) = on_gpu();
    let whole = memory(&mut stage).unwrap().accounted;
    know_speeds(&mut stage, &engine, Machine::typical());
    stage.role(Role::Slider, MOST).set_value_accesskit((whole / 2) as f64);
    let limit = |stage: &mut TestWindow| {
        memory(stage).is_some_and(|it| it.budget.is_some_and(|most| most < whole) && !it.moving)
    };
    until("the budget", || {
        stage.it.step();
        limit(&mut stage).then_some(())
    });
    stage.click("Speed");
    stage.appears("Estimated: ");
    let room = BudgetRoom::of(stage.shell(), &ModelId::Builtin, &engine).unwrap();
    let now = room.budget(None);
    let line = |name: &str, budget| {
        let rate = engine.forecast(budget).unwrap().tokens_per_second.unwrap();
        format!("{name}, {}: {}.", bytes(budget), Speed::Expected(rate).words())
    };
    stage.appears(&line("25 % more", now + now / 100 * 25));
    stage.appears(&line("50 % more", now + now / 100 * 50));
    // The amount of free memory changes meanwhile.
    until("all VRAM", || {
        stage.it.step();
        let room = BudgetRoom::of(stage.shell(), &ModelId::Builtin, &engine)?;
        stage.shows(&line("All VRAM", room.can_have)).then_some(())
    });
}

#[test]
fn chip_and_panel_tell_the_same_shortage() {
    let (mut stage, engine) = on_gpu();
    set(&mut stage, MOST, 0.0);
    let too_small = |engine: &Engine| match engine.device() {
        DeviceStatus::Cpu { reason: Some(reason) } => is_small_budget(&reason),
        _ => false,
    };
    stage.until("a budget that is too small", |_| too_small(&engine));
    let ctx = stage.it.ctx.clone();
    let shortage = until("a shortage", || {
        stage.it.step();
        shortage_now(&ctx, stage.shell(), &ModelId::Builtin, &engine)
    });
    let why = why_cpu(stage.shell(), Some(&Error::memory(ScarceMemory::Gpu, "", 1, 0)));
    let chip = top_bar::why_cpu(&ctx, stage.shell(), &ModelId::Builtin, &engine);
    assert_eq!(chip, Some(format!("{why} {shortage}")));
    stage.step();
    assert!(stage.shows(&why) && stage.shows(&shortage), "{:?}", stage.texts());
}

#[test]
fn budget_slider_applies_during_an_answer() {
    let (mut stage, _) = on_gpu();
    let whole = memory(&mut stage).unwrap().accounted;
    stage.write("Message", "Tell me a story about a frog.");
    stage.press(Key::Enter);
    let words = |window: &mut Window| {
        window.shell().engine_handle.engine().is_some_and(|it| it.telemetry().generated_tokens > 0)
    };
    stage.until("the first words", words);
    // The slider moves as by a screen reader.
    set(&mut stage, MOST, (whole / 2) as f64);
    let Some(VramBudget::AtMost(limit)) = budget(&mut stage) else { panic!("{:?}", budget(&mut stage)) };
    stage.answered();
    let kept = |window: &mut Window| memory_of(window.shell()).is_some_and(|it| it.accounted <= limit);
    stage.until("the budget to be kept", kept);
    assert!(limit < whole && stage.shows("Copy answer"), "{limit} of {whole}");
}

#[test]
fn use_at_most_and_leave_free_set_the_same_limit() {
    let (mut stage, _) = on_gpu();
    let whole = memory(&mut stage).unwrap().accounted;
    set(&mut stage, MOST, (whole / 2) as f64);
    let engine = stage.shell().engine_handle.engine().unwrap();
    let limit = engine.vram_budget().unwrap();
    let kept = |window: &mut Window| memory_of(window.shell()).is_some_and(|it| it.accounted <= limit);
    stage.until("the budget to be kept", kept);
    stage.click("Leave free");
    let Some(VramBudget::LeaveFree(left)) = budget(&mut stage) else { panic!("{:?}", budget(&mut stage)) };
    let now = engine.vram_budget().unwrap();
    assert!(now.abs_diff(limit) <= limit / 16, "{limit} became {now}, {left} are left free");
    assert!(stage.has(Role::Slider, FREE) && !stage.has(Role::Slider, MOST));
    // Leaving less free means using more.
    let less = left.saturating_sub(whole);
    set(&mut stage, FREE, less as f64);
    assert!(engine.vram_budget().unwrap() > now);
    // New weights in VRAM add a line to the panel, and the buttons below move under the pointer.
    let all = |window: &mut Window| memory_of(window.shell()).is_some_and(|it| it.accounted > limit && !it.moving);
    stage.until("more in VRAM", all);
    stage.click("Use at most");
    assert!(matches!(budget(&mut stage), Some(VramBudget::AtMost(_))));
}

#[test]
fn budget_of_zero_frees_vram_and_can_be_raised_again() {
    let (mut stage, engine) = on_gpu();
    set(&mut stage, MOST, 0.0);
    assert_eq!(engine.vram_budget(), Some(0));
    let none = |window: &mut Window| memory_of(window.shell()).is_none_or(|it| it.accounted == 0);
    stage.until("nothing in VRAM", none);
    set(&mut stage, MOST, 1e12);
    stage.until("something in VRAM", |window| memory_of(window.shell()).is_some_and(|it| it.accounted > 0));
}

#[test]
fn processor_picker_offers_the_cpu_and_every_adapter() {
    let (mut stage, _) = on_gpu();
    let (name, key) = (adapter(), ModelId::Builtin.key());
    let choose = |stage: &mut TestWindow, line: &str| {
        let combo =
            stage.role(Role::ComboBox, "The processor that runs the model. Answers continue while you change it.");
        stage.tap(combo.rect().center());
        let line = line.to_owned();
        let entry =
            stage.it.get_by(|node| node.role() == Role::Button && node.label().is_some_and(|it| it.starts_with(&line)));
        stage.tap(entry.rect().center());
    };
    choose(&mut stage, picker::CPU);
    assert_eq!(stage.shell().settings.models[&key].device.as_deref(), Some(""));
    let on_cpu = |window: &mut Window| {
        matches!(window.shell().engine_handle.engine().map(|it| it.device()), Some(DeviceStatus::Cpu { reason: None }))
    };
    stage.until("the CPU", on_cpu);
    assert!(stage.shows("The model runs on the CPU alone. Neurons that do not fire are skipped"));
    let software = adapters(&Fallbacks::default()).iter().all(|it| it.kind == AdapterKind::Software);
    assert_eq!(stage.shows("only a software driver"), software);
    assert!(!stage.shows("VRAM budget"), "nothing of VRAM where none is taken");
    choose(&mut stage, &format!("{name} ("));
    assert_eq!(stage.shell().settings.models[&key].device.as_ref(), Some(&name));
    settled(&mut stage);
    choose(&mut stage, "Automatic");
    assert_eq!(stage.shell().settings.models[&key].device, None);
    let shown = stage.role(Role::ComboBox, "The processor that runs the model. Answers continue while you change it.");
    assert!(shown.accesskit_node().value().unwrap_or_default().starts_with("Automatic"));
}

#[test]
fn failures_of_a_driver_are_said_until_they_are_to_be_tried_again() {
    let (mut stage, _) = on_gpu();
    let (name, kept) = (give_up(&mut stage), stage.folders.fallbacks());
    let here = stage.shell().adapters.list().unwrap();
    let gone = AdapterId { name: "another card".to_owned(), ..AdapterId::of(&here[0]) };
    kept.add(Fallback::new(gone.clone(), FallbackPart::Adapter, "it was lost"));
    let sentence = format!("{name} is not used over vulkan: it was lost.");
    stage.appears(&sentence);
    stage.click(given_up::TRY_AGAIN);
    assert_eq!(kept.all().iter().map(|it| &it.adapter).collect::<Vec<_>>(), [&gone], "the others stay given up");
    stage.step();
    assert!(!stage.shows(&sentence));
    settled(&mut stage);
}

#[test]
fn chat_goes_on_with_the_cpu_where_the_chosen_adapter_is_given_up() {
    let (mut stage, _) = on_gpu();
    let (name, kept) = (give_up(&mut stage), stage.folders.fallbacks());
    stage.shell().choose_device(Some(name.clone()));
    let sentence = format!("{name} is not used over vulkan: it was lost");
    stage.until("the CPU", |window| match window.shell().engine_handle.engine().map(|it| it.device()) {
        Some(DeviceStatus::Cpu { reason: Some(reason) }) => reason.to_string().contains(&sentence),
        _ => false,
    });
    stage.appears(&format!("{sentence}."));
    stage.ask("Tell me a story about a ball.");
    let answer = stage.branch();
    assert!(answer.len() == 2 && !answer[1].content.is_empty(), "{answer:?}");
    kept.clear();
    stage.shell().choose_device(Some(name));
    settled(&mut stage);
}

#[test]
fn memory_bar_matches_its_snapshots() {
    let mut looks = egui_kittest::SnapshotResults::new();
    for (theme, colours) in [(egui::Theme::Dark, "dark"), (egui::Theme::Light, "light")] {
        let builder = egui_kittest::Harness::builder().with_size([448.0, 280.0]).with_theme(theme);
        let mut it = builder.with_context_setup(theme::install).build_ui(|ui| {
            let mut memory = DeviceMemory {
                adapter: "card".to_owned(),
                budget: Some(6 << 30),
                card: None,
                shares_ram: false,
                accounted: 0,
                by_purpose: Purpose::ALL.map(|purpose| (purpose, 0)),
                moving: false,
                fallbacks: Vec::new(),
            };
            for (n, (_, bytes)) in memory.by_purpose.iter_mut().enumerate() {
                *bytes = (n as u64 + 1) * (150 << 20);
            }
            memory.accounted = memory.by_purpose.iter().map(|(_, bytes)| bytes).sum();
            let parts = parts_of(&memory, &Palette::of(ui));
            let scale = BarScale { total: 8 << 30, end: Some("is all of the VRAM"), format: bytes };
            bar::show(ui, "Used by the model", &parts, scale, Some(BudgetMark { at: 6 << 30, breached: false }));
            ui.add_space(8.0);
            memory.budget = Some(4 << 30);
            bar::show(ui, "Used by the model", &parts, scale, Some(BudgetMark { at: 4 << 30, breached: true }));
            widgets::trouble(ui, check::disagreement(&memory, None).unwrap());
        });
        it.run_steps(4);
        it.snapshot(format!("vram-{colours}"));
        looks.extend_harness(&mut it);
    }
}

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use super::*;
use crate::{
    cpu::CpuOptions,
    gpu::AdapterChoice,
    session::{ContextPolicy, EngineOptions, Prompt, Request, SessionOptions},
    sparsity::measure::GpuEffort,
};

const SHORT: SurveyOptions = SurveyOptions {
    idle: Duration::from_millis(20),
    poll: Duration::from_millis(2),
    longest: Duration::from_secs(60),
    effort: MeasureEffort {
        cpu_bytes: 1 << 20,
        gpu: GpuEffort { bytes: 1 << 20, seconds: 0.001, hand_overs: 5 },
        rounds: 1,
    },
};

fn open(folder: &Path, device: DeviceChoice) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let speeds = Some(folder.to_owned());
    let engine = Engine::open(&path, EngineOptions { cpu, device, speeds, ..EngineOptions::default() }).unwrap();
    engine.wait_for_device(Duration::from_secs(60));
    engine
}

#[track_caller]
fn wait(engine: &Engine, what: &str, done: impl Fn(&Engine) -> bool) {
    let began = Instant::now();
    while !done(engine) {
        assert!(began.elapsed() < Duration::from_secs(120), "not within 120 s: {what}: {:?}", engine.device());
        thread::sleep(Duration::from_millis(2));
    }
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn it_begins_after_a_pause_and_not_for_ever() {
    let (idle, start) = (Duration::from_secs(4), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut patience = Patience::default();
    assert!(!patience.due(at(0), false, idle) && !patience.due(at(3), false, idle));
    assert!(!patience.due(at(4), true, idle), "an answer is under way");
    assert!(!patience.due(at(5), false, idle) && !patience.due(at(8), false, idle));
    assert!(patience.due(at(9), false, idle));
    patience.again(true);
    assert!(!patience.due(at(20), false, idle) && patience.due(at(24), false, idle), "an answer came between");
    patience.again(false);
    assert!(!patience.due(at(30), false, idle) && !patience.due(at(40), false, idle), "it failed");
    assert!(patience.due(at(46), false, idle));
    (0..ATTEMPTS).for_each(|_| patience.again(false));
    assert!(!patience.due(at(50), false, idle) && !patience.due(at(5000), false, idle));
}

#[test]
fn the_cpu_is_measured_once_and_planned_with() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    assert!(!engine.knows_speeds() && engine.forecast(0).unwrap().tokens_per_second.is_none());
    engine.measure_when_idle(SHORT, || false).unwrap();
    wait(&engine, "speeds", Engine::knows_speeds);
    assert!(engine.forecast(0).unwrap().tokens_per_second.is_some());
    assert_eq!(files(folder.path()), 1);
    let again = open(folder.path(), DeviceChoice::Cpu);
    assert!(again.knows_speeds() && again.forecast(0).unwrap().tokens_per_second.is_some());
}

#[test]
fn speeds_of_the_cpu_alone_are_not_those_of_a_device_that_was_chosen_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let (here, asked, wrong) = (engine.downgrade(), AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&wrong);
    let busy = move || {
        let Some(engine) = here.upgrade() else { return false };
        // The first question comes before the measurement, the second as it begins.
        if asked.fetch_add(1, SeqCst) == 1 {
            let gpu = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
            engine.set_device(&DeviceChoice::Gpu(gpu)).unwrap();
            wait(&engine, "the device", |engine| matches!(engine.device(), DeviceStatus::Gpu(_)));
        }
        let prospect = engine.shared().terms.prospect(&engine.shared().model).unwrap();
        let machine = &prospect.basis().machine;
        let on_device = matches!(engine.device(), DeviceStatus::Gpu(_));
        seen.fetch_or(on_device && !machine.assumed && machine.gpu.is_none(), SeqCst);
        false
    };
    engine.measure_when_idle(SurveyOptions { idle: Duration::ZERO, ..SHORT }, busy).unwrap();
    let known = |engine: &Engine| matches!(engine.device(), DeviceStatus::Gpu(_)) && engine.knows_speeds();
    wait(&engine, "the device's speeds", known);
    assert!(!wrong.load(SeqCst) && files(folder.path()) == 2, "{} files", files(folder.path()));
}

#[test]
fn nothing_is_measured_while_an_answer_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let session = engine.session(SessionOptions::default()).unwrap();
    let on_full = ContextPolicy::Shift { keep: 0 };
    let endless = Request { ignore_eos: true, on_full, ..Request::new(Prompt::Tokens(vec![5, 6, 7])) };
    let events = session.generate(endless);
    wait(&engine, "the answer", |engine| engine.telemetry().generations == 1);
    engine.measure_when_idle(SHORT, || false).unwrap();
    thread::sleep(SHORT.idle * 20);
    assert!(!engine.knows_speeds() && files(folder.path()) == 0);
    session.cancel();
    drop(events);
    wait(&engine, "speeds", Engine::knows_speeds);
}

#[test]
fn nothing_is_measured_while_the_caller_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let busy = Arc::new(AtomicBool::new(true));
    let is = Arc::clone(&busy);
    engine.measure_when_idle(SHORT, move || is.load(SeqCst)).unwrap();
    thread::sleep(SHORT.idle * 20);
    assert!(!engine.knows_speeds() && files(folder.path()) == 0);
    busy.store(false, SeqCst);
    wait(&engine, "speeds", Engine::knows_speeds);
}

#[test]
fn a_device_is_measured_within_its_budget_and_gets_everything_back() {
    let folder = tempfile::tempdir().unwrap();
    let budget = 2 * (MATRICES + 3 * SHORT.effort.gpu.bytes);
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() };
    let engine = open(folder.path(), DeviceChoice::Gpu(gpu.clone()));
    let all = |engine: &Engine| matches!(engine.device(), DeviceStatus::Gpu(memory) if !memory.moving);
    wait(&engine, "all of it", all);
    let before = engine.placement();
    engine.measure_when_idle(SHORT, || false).unwrap();
    wait(&engine, "speeds", Engine::knows_speeds);
    wait(&engine, "all of it again", |engine| all(engine) && engine.placement() == before);
    let shared = engine.shared();
    let prospect = shared.terms.prospect(&shared.model).unwrap();
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    assert_eq!(prospect.basis().machine.gpu.as_ref().map(|gpu| &gpu.adapter), Some(&memory.adapter));

    let narrow = GpuOptions { budget: Some(MATRICES), ..gpu };
    let engine = open(&folder.path().join("other"), DeviceChoice::Gpu(narrow));
    let error = make_room(&engine, MATRICES, &mut || ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::Memory { wanted: MATRICES, .. }), "{error}");
}

#[test]
fn weights_make_room_for_a_while() {
    const MIB: u64 = 1 << 20;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf");
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(12 * MIB), ..GpuOptions::default() };
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let options = EngineOptions { cpu, device: DeviceChoice::Gpu(gpu), context: Some(128), ..EngineOptions::default() };
    let engine = Engine::open(&path, EngineOptions { chunk: 16, ..options }).unwrap();
    engine.wait_for_device(Duration::from_secs(60));
    let held = |engine: &Engine| match engine.device() {
        DeviceStatus::Gpu(memory) if !memory.moving => Some(memory.accounted),
        _ => None,
    };
    wait(&engine, "all of it", |engine| held(engine).is_some());
    let (before, placement) = (held(&engine).unwrap(), engine.placement());
    engine.command(Command::Spare { bytes: 3 * MIB }).unwrap();
    wait(&engine, "room", |engine| held(engine).is_some_and(|held| held + 3 * MIB <= 12 * MIB));
    assert!(held(&engine).unwrap() < before);
    engine.command(Command::Machine { machine: None }).unwrap();
    wait(&engine, "all of it again", |engine| held(engine).is_some() && engine.placement() == placement);
}

#[test]
fn what_takes_too_long_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let stop = measure(engine, &Target::Cpu, &SHORT.effort, &mut || ControlFlow::Break(()));
    assert!(matches!(stop, Err(Error::Cancelled)) && files(folder.path()) == 0);
}

#[test]
fn speeds_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let mut machine = Machine::typical();
    machine.assumed = false;
    engine.set_machine(machine).unwrap();
    wait(&engine, "the plan", |engine| engine.forecast(0).is_ok_and(|it| it.tokens_per_second.is_some()));
}

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use super::*;
use crate::session::{ContextPolicy, EngineOptions, Prompt, Request, SessionOptions};
use thermocline_cpu::CpuOptions;
use thermocline_gpu::AdapterChoice;
use thermocline_lab::calibration::GpuEffort;

const SHORT: CalibrationOptions = CalibrationOptions {
    idle: Duration::from_millis(20),
    poll: Duration::from_millis(2),
    longest: Duration::from_secs(120),
    effort: MeasureEffort {
        cpu_bytes: 1 << 20,
        gpu: GpuEffort { bytes: 1 << 20, seconds: 0.001, hand_overs: 5 },
        rounds: 1,
    },
};

/// Number of checks of the engine that together take far longer than the required idle time.
const LOOKS: usize = 100;

/// Longest time that a test waits for anything.
const LONGEST: Duration = Duration::from_secs(120);

fn open(folder: &Path, device: DeviceChoice) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let speeds = Some(folder.to_owned());
    let engine = Engine::open(&path, EngineOptions { cpu, device, speeds, ..EngineOptions::default() }).unwrap();
    engine.wait_for_device(LONGEST);
    engine
}

#[track_caller]
fn wait(engine: &Engine, what: &str, done: impl Fn(&Engine) -> bool) {
    let began = Instant::now();
    while !done(engine) {
        assert!(began.elapsed() < LONGEST, "not within {LONGEST:?}: {what}: {:?}", engine.device());
        thread::sleep(Duration::from_millis(2));
    }
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn calibration_begins_after_idle_time_and_gives_up_after_failures() {
    let (idle, start) = (Duration::from_secs(4), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut timer = IdleTimer::default();
    assert!(!timer.due(at(0), false, idle) && !timer.due(at(3), false, idle));
    assert!(!timer.due(at(4), true, idle), "an answer is under way");
    assert!(!timer.due(at(5), false, idle) && !timer.due(at(8), false, idle));
    assert!(timer.due(at(9), false, idle));
    timer.attempt_failed(true);
    assert!(!timer.due(at(20), false, idle) && timer.due(at(24), false, idle), "an answer came between");
    timer.attempt_failed(false);
    assert!(!timer.due(at(30), false, idle) && !timer.due(at(40), false, idle), "it failed");
    assert!(timer.due(at(46), false, idle));
    (0..ATTEMPTS).for_each(|_| timer.attempt_failed(false));
    assert!(!timer.due(at(50), false, idle) && !timer.due(at(5000), false, idle));
}

#[test]
fn cpu_is_calibrated_once_and_planned_with() {
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
fn cpu_calibration_is_not_used_for_a_device_chosen_during_it() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let (here, asked, wrong) = (engine.downgrade(), AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&wrong);
    let busy = move || {
        let Some(engine) = here.upgrade() else { return false };
        // The first check precedes the measurement, the second happens as it begins.
        if asked.fetch_add(1, SeqCst) == 1 {
            let gpu = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
            engine.set_device(&DeviceChoice::Gpu(gpu)).unwrap();
            wait(&engine, "the device", |engine| matches!(engine.device(), DeviceStatus::Gpu(_)));
        }
        let planner = engine.state().planner.planner(&engine.state().model).unwrap();
        let machine = &planner.inputs().machine;
        let on_device = matches!(engine.device(), DeviceStatus::Gpu(_));
        seen.fetch_or(on_device && !machine.assumed && machine.gpu.is_none(), SeqCst);
        false
    };
    engine.measure_when_idle(CalibrationOptions { idle: Duration::ZERO, ..SHORT }, busy).unwrap();
    let known = |engine: &Engine| matches!(engine.device(), DeviceStatus::Gpu(_)) && engine.knows_speeds();
    wait(&engine, "the device's speeds", known);
    assert!(!wrong.load(SeqCst) && files(folder.path()) == 2, "{} files", files(folder.path()));
}

#[test]
fn calibration_waits_for_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let session = engine.session(SessionOptions::default()).unwrap();
    let on_full = ContextPolicy::Shift { keep: 0 };
    let endless = Request { ignore_eos: true, on_full, ..Request::new(Prompt::Tokens(vec![5, 6, 7])) };
    let events = session.generate(endless);
    wait(&engine, "the answer", |engine| engine.telemetry().generations == 1);
    let looks = Arc::new(AtomicUsize::new(0));
    let looked = Arc::clone(&looks);
    let busy = move || {
        looked.fetch_add(1, SeqCst);
        false
    };
    engine.measure_when_idle(SHORT, busy).unwrap();
    wait(&engine, "many looks", |_| looks.load(SeqCst) > LOOKS);
    assert!(!engine.knows_speeds() && files(folder.path()) == 0);
    session.cancel();
    drop(events);
    wait(&engine, "speeds", Engine::knows_speeds);
}

#[test]
fn calibration_waits_while_the_caller_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let busy = Arc::new(AtomicBool::new(true));
    let looks = Arc::new(AtomicUsize::new(0));
    let (is, looked) = (Arc::clone(&busy), Arc::clone(&looks));
    let look = move || {
        looked.fetch_add(1, SeqCst);
        is.load(SeqCst)
    };
    engine.measure_when_idle(SHORT, look).unwrap();
    wait(&engine, "many looks", |_| looks.load(SeqCst) > LOOKS);
    assert!(!engine.knows_speeds() && files(folder.path()) == 0);
    busy.store(false, SeqCst);
    wait(&engine, "speeds", Engine::knows_speeds);
}

#[test]
fn device_is_calibrated_within_its_budget_and_filled_again() {
    let folder = tempfile::tempdir().unwrap();
    let budget = 2 * (MATRIX_BYTES + 3 * SHORT.effort.gpu.bytes);
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() };
    let engine = open(folder.path(), DeviceChoice::Gpu(gpu.clone()));
    let all = |engine: &Engine| matches!(engine.device(), DeviceStatus::Gpu(memory) if !memory.moving);
    wait(&engine, "all of it", all);
    let before = engine.resident();
    engine.measure_when_idle(SHORT, || false).unwrap();
    wait(&engine, "speeds", Engine::knows_speeds);
    wait(&engine, "all of it again", |engine| all(engine) && engine.resident() == before);
    let state = engine.state();
    let planner = state.planner.planner(&state.model).unwrap();
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    assert_eq!(planner.inputs().machine.gpu.as_ref().map(|gpu| &gpu.adapter), Some(&memory.adapter));

    let narrow = GpuOptions { budget: Some(MATRIX_BYTES), ..gpu };
    let engine = open(&folder.path().join("other"), DeviceChoice::Gpu(narrow));
    let error = reserve_memory(&engine, MATRIX_BYTES, &mut || ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::Memory { wanted: MATRIX_BYTES, .. }), "{error}");
}

#[test]
fn reservation_releases_weights_until_it_ends() {
    const MIB: u64 = 1 << 20;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf");
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(12 * MIB), ..GpuOptions::default() };
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let options = EngineOptions { cpu, device: DeviceChoice::Gpu(gpu), context: Some(128), ..EngineOptions::default() };
    let engine = Engine::open(&path, EngineOptions { chunk: 16, ..options }).unwrap();
    engine.wait_for_device(LONGEST);
    let held = |engine: &Engine| match engine.device() {
        DeviceStatus::Gpu(memory) if !memory.moving => Some(memory.accounted),
        _ => None,
    };
    wait(&engine, "all of it", |engine| held(engine).is_some());
    let (before, placement) = (held(&engine).unwrap(), engine.resident());
    engine.command(EngineCommand::Reserve { bytes: 3 * MIB }).unwrap();
    wait(&engine, "room", |engine| held(engine).is_some_and(|held| held + 3 * MIB <= 12 * MIB));
    assert!(held(&engine).unwrap() < before);
    engine.command(EngineCommand::SetMachine { machine: None }).unwrap();
    wait(&engine, "all of it again", |engine| held(engine).is_some() && engine.resident() == placement);
}

#[test]
fn cancelled_calibration_writes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let stop = measure(engine, &CalibrationTarget::Cpu, &SHORT.effort, &mut || ControlFlow::Break(()));
    assert!(matches!(stop, Err(Error::Cancelled)) && files(folder.path()) == 0);
}

#[test]
fn forecasts_use_the_given_machine() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path(), DeviceChoice::Cpu);
    let mut machine = Machine::typical();
    machine.assumed = false;
    engine.set_machine(machine).unwrap();
    wait(&engine, "the plan", |engine| engine.forecast(0).is_ok_and(|it| it.tokens_per_second.is_some()));
}

//! Measured speeds: stored by setting, and shown when the setting is chosen again.

use egui::Key;
use thermocline_engine::{runtime::Sparsity, session::SparsityChoice};

use crate::testing::TestWindow;
use thermocline_host::{library::ModelId, units};

/// The stored tokens per second, by setting.
fn rates(stage: &mut TestWindow) -> Vec<(String, f64)> {
    let speeds = &stage.shell().model_settings(&ModelId::Builtin).speeds;
    speeds.iter().map(|(setting, speed)| (setting.to_owned(), speed.rate)).collect()
}

fn ask(stage: &mut TestWindow) {
    stage.ctrl(Key::N);
    stage.ask("Tell me a story about a frog and a pond.");
    stage.step();
}

#[test]
fn speed_of_another_mode_is_kept_beside_the_first_and_told_on_the_card() {
    let mut stage = TestWindow::opened([1440.0, 1000.0]);
    ask(&mut stage);
    let first = rates(&mut stage);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].0.contains(", CPU, "), "{first:?}");

    let dense = SparsityChoice::Mode(Sparsity::Dense);
    stage.shell().model_settings(&ModelId::Builtin).sparsity = Some(dense.name().to_owned());
    let engine = stage.shell().engine_handle.engine().unwrap();
    engine.set_sparsity(dense).unwrap();
    stage.until("the mode", |_| engine.sparsity().mode == Sparsity::Dense);
    ask(&mut stage);
    let both = rates(&mut stage);
    assert!(both.len() == 2 && both.contains(&first[0]), "{first:?} became {both:?}");
    let (_, rate) = both.iter().find(|(setting, _)| setting.starts_with("dense, ")).unwrap();
    let told = format!("Fits in RAM, measured at {}.", units::rate(*rate));
    drop(engine);

    // The next run shows it, whether the model is open or not.
    let mut stage = stage.again();
    stage.ready();
    stage.click("Models");
    stage.appears(&told);
    stage.click("Close Thermocline Storyteller");
    stage.appears("Open Thermocline Storyteller");
    stage.appears(&told);
}

//! The time of a token on the window's thread.

use std::time::Duration;

use cpu_time::ThreadTime;

use super::{
    tests::{board, frequencies_of, harness},
    *,
};
use crate::neurons::{grid::Grid, mode::Mode};

/// Time on the window's thread for a new token of a model with 80 layers of 28672 neurons, if the
/// shader draws: one byte per neuron is written and handed to the driver. `--nocapture` prints the
/// time. The bound is generous for a release build, and twenty times larger for a build with debug
/// assertions.
#[test]
fn upload_of_a_large_models_bytes_takes_two_milliseconds() {
    let shape = NeuronShape::new([28_672; 80]);
    let (board, mut harness) = (board(&NeuronShape::new([28_672; 80])), harness(&shape));
    let (token, both) = (board.latest().unwrap(), harness.state_mut());
    let layout = MapLayout { grid: Grid { columns: 400, lines: 4 }, by_frequency: true, ..MapLayout::default() };
    both.atlas.lay_out(layout);
    both.atlas.sort(Duration::from_secs(60), |layer| Some(frequencies_of(&board, layer)));
    let mut textures = MapTextures::new(&both.state.device, both.state.target_format);
    let mut times = Vec::new();
    for round in 0..10 {
        let began = ThreadTime::now();
        both.atlas.draw_token(&shape, Mode::Fired, &token, None);
        let drawn = began.elapsed();
        let frame = frame(Rect::EVERYTHING, &both.atlas, Fold::Fraction, &both.table).unwrap();
        textures.bring(&both.state.device, &both.state.queue, 1.0, &frame);
        times.push((began.elapsed(), drawn));
        assert_eq!(textures.version(), Some(frame.version), "round {round}");
        both.state.queue.submit([]);
        let _ = both.state.device.poll(wgpu::PollType::wait_indefinitely());
    }
    let (best, drawn) = times.into_iter().min().unwrap_or_default();
    println!("80 x 28672: {best:?} a token, {drawn:?} of it writing bytes");
    let bound = if cfg!(debug_assertions) { 40.0 } else { 2.0 };
    assert!(best.as_secs_f64() * 1000.0 < bound, "{best:?}");
    assert!(both.shader.is_some_and(|shader| shader.pays(&shape) != shader.software));
}

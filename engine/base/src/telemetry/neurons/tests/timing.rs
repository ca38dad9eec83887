//! The cost of recording, in time.

use cpu_time::ThreadTime;

use super::*;

/// Cost of recording `chunk` tokens with a tenth of the neurons firing, or all of the first eight experts, per
/// token; the least of a few rounds.
fn cost(shape: &NeuronShape, chunk: usize) -> Duration {
    let (board, mut recorder) = NeuronBoard::new(shape.clone());
    let (words, mut seed) = (shape.words(0).len(), 1);
    let mut tenth = || (0..32).fold(0, |mask, bit| mask | u32::from(noise(&mut seed).is_multiple_of(10)) << bit);
    let moe = shape.experts(0) > 0;
    let fires = shape.group(0, 0).len() * 8 / 32;
    let of_token = |word: usize| if word < fires { u32::MAX } else { 0 };
    let fired: Vec<u32> = (0..words * chunk).map(|at| if moe { of_token(at % words) } else { tenth() }).collect();
    let hot: Vec<u32> = fired[..words].to_vec();
    let expert_words = shape.expert_words(0).len();
    let chosen: Vec<u32> = (0..expert_words * chunk).map(|at| if at % expert_words == 0 { 0xff } else { 0 }).collect();
    let ids = vec![1; chunk];
    // Single tokens are counted a block at a time.
    let chunks = if chunk == 1 { pending::block(words) } else { 1 };
    // The least of many: page faults and a shared core are this thread's time, too.
    let rounds = (0..96).map(|_| {
        let started = ThreadTime::now();
        for _ in 0..chunks {
            recorder.begin(0, 0, &ids, chunk == 1);
            for layer in 0..shape.layers() {
                let chosen = moe.then_some(&chosen[..]);
                let of = LayerFiring { layer, tokens: chunk, fired: &fired, chosen, ..LayerFiring::default() };
                recorder.layer(&LayerFiring { hot: Some(&hot), ..of });
            }
            recorder.end();
        }
        started.elapsed() / (chunk * chunks) as u32
    });
    let least = rounds.min().unwrap();
    assert_eq!(board.latest().unwrap().layers.len(), shape.layers());
    least
}

/// Bytes a second that this thread reads from memory.
fn reading_rate() -> f64 {
    let memory = vec![1u64; 8 << 20];
    let rounds = (0..5).map(|_| {
        let started = ThreadTime::now();
        let sum = std::hint::black_box(&memory).iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        assert_eq!(sum, memory.len() as u64);
        started.elapsed()
    });
    (memory.len() * 8) as f64 / rounds.min().unwrap().as_secs_f64()
}

/// Bytes a second that the reference machine reads from memory.
const REFERENCE_RATE: f64 = 21e9;

/// A hundredth of the time the reference machine's memory needs for a token's weights, or this machine's if that is slower, is the
/// limit. `--nocapture` prints the figures.
#[test]
fn recording_costs_less_than_a_hundredth_of_a_token() {
    // The built-in model: 13 MB. An 80-layer model of 28672 neurons each, a tenth of its FFN read: 6 GB of Q4_0. 48 layers of 128
    // experts of 768 neurons, 8 of them read: 1.9 GB.
    let moe = LayerNeurons::Experts { experts: 128, width: 768, shared: 0 };
    let rate = reading_rate().min(REFERENCE_RATE);
    println!("{:.1} GB/s", rate / 1e9);
    for (name, shape, bytes) in [
        ("storyteller", NeuronShape::new([1024; 6]), 13e6),
        ("80 x 28672", NeuronShape::new([28672; 80]), 6e9),
        ("48 x 128 x 768", NeuronShape::of([moe; 48]), 1.9e9),
    ] {
        let token = bytes / rate;
        for chunk in [1, 64] {
            let cost = cost(&shape, chunk);
            println!("{name}, chunks of {chunk}: {cost:?} of {:.1} us per token", token * 1e6);
            assert!(cost.as_secs_f64() < 0.01 * token, "{name}, chunks of {chunk}: {cost:?} of {token} s");
        }
    }
}

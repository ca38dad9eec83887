//! The cost of recording, in time.

use cpu_time::ThreadTime;

use super::*;

/// Time per token to record chunks of `chunk` tokens, the least of several rounds. A tenth of the
/// neurons fire, or all neurons of the first eight experts.
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
    // The least of many rounds, because page faults and a shared core count as this thread's time
    // too.
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

/// Bytes per second that this thread reads from memory.
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

/// Bytes per second that the reference machine reads from memory.
const REFERENCE_RATE: f64 = 21e9;

/// The limit is a hundredth of the time that memory needs to deliver a token's weights. It uses the
/// reference machine's memory, or this machine's if it is slower. `--nocapture` prints the figures.
#[test]
fn recording_costs_less_than_a_hundredth_of_a_token() {
    // Bytes of weights read per token. The built-in model: 13 MB. An 80-layer model with 28672
    // neurons per layer, of which a tenth is read: 6 GB of Q4_0. 48 layers of 128 experts of 768
    // neurons, of which 8 experts are read: 1.9 GB.
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

//! Recorder and board together.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use super::*;

mod timing;

/// The next random number from `seed`.
pub(super) fn noise(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 32) as u32
}

/// Records one token at `position` whose neurons fire by `mask` in every layer.
fn token(recorder: &mut NeuronRecorder, position: usize, mask: u32, hot: Option<u32>) {
    let shape = recorder.board().shape().clone();
    recorder.begin(7, position, &[position as u32], true);
    for layer in (0..shape.layers()).filter(|layer| shape.neurons(*layer) > 0) {
        let words = shape.words(layer).len();
        let (fired, hot) = (vec![mask; words], hot.map(|hot| vec![hot; words]));
        recorder.layer(&LayerFiring { layer, tokens: 1, fired: &fired, hot: hot.as_deref(), ..LayerFiring::default() });
    }
    recorder.end();
}

#[test]
fn ring_limits_masks_by_bytes_and_figures_by_tokens() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32, 0, 64]));
    assert!(board.latest().is_none() && board.token(0).is_none() && board.tokens(0..9).is_empty());
    // Room for ten tokens of three words.
    board.set_budget(125);
    for position in 0..1500 {
        token(&mut recorder, position, position as u32 + 1, None);
        let kept = board.kept();
        let (end, count) = (position as u64 + 1, (position as u64 + 1).min(1000));
        assert_eq!(kept.tokens, end - count..end);
        assert_eq!(kept.masks, end - count.min(10)..end);
        assert_eq!((kept.bytes, kept.budget), (12 * count.min(10), 125));
    }
    assert!(board.token(499).is_none() && board.token(1500).is_none());
    let (old, new) = (board.token(500).unwrap(), board.token(1495).unwrap());
    assert_eq!((old.index, old.position, old.session, old.decoded, old.masks.is_none()), (500, 500, 7, true, true));
    assert_eq!(old.layers[2].fired, 2 * 501u32.count_ones());
    assert_eq!(new.fired(board.shape(), 2), Some(&[1496, 1496][..]));
    assert_eq!(board.latest().unwrap().index, 1499);
    let some: Vec<u64> = board.tokens(0..503).iter().map(|token| token.index).collect();
    assert_eq!(some, [500, 501, 502]);
    assert!(board.tokens(800..800).is_empty() && board.tokens(1500..9999).is_empty());
    // A smaller budget takes effect at the next token. A budget of 0 keeps only figures.
    board.set_budget(24);
    token(&mut recorder, 1500, 1, None);
    assert_eq!((board.kept().masks, board.kept().bytes), (1499..1501, 24));
    board.set_budget(0);
    token(&mut recorder, 1501, 1, None);
    assert_eq!((board.kept().masks, board.kept().bytes, board.kept().tokens), (1502..1502, 0, 502..1502));
}

#[test]
fn recorder_publishes_whole_chunks_only() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([64, 32]));
    let layer = |layer, tokens, fired| LayerFiring { layer, tokens, fired, cpu_bytes: 12, ..LayerFiring::default() };
    recorder.begin(1, 20, &[10, 11, 12, 13, 14], false);
    let (a, b) = ([1, 2, 3, 4, 5, 6], [7, 0, 1]);
    recorder.layer(&layer(0, 3, &a));
    recorder.layer(&layer(1, 3, &b));
    assert!(board.latest().is_none(), "it is not over before the next begins");
    recorder.layer(&layer(0, 2, &a[..4]));
    assert_eq!(board.kept().tokens, 0..3);
    recorder.end();
    assert_eq!(board.kept().tokens, 0..3, "its second layer never came");
    let all = board.tokens(0..3);
    assert_eq!(
        all.iter().map(|token| (token.token, token.position)).collect::<Vec<_>>(),
        [(10, 20), (11, 21), (12, 22)]
    );
    assert_eq!(all[1].fired(board.shape(), 0), Some(&[3, 4][..]));
    assert_eq!(all[1].fired(board.shape(), 1), Some(&[0][..]));
    assert_eq!((all[2].layers[0].fired, all[2].layers[0].cpu_bytes, all[0].decoded), (4, 4, false));
    // Counts include all computed tokens.
    assert_eq!((board.tally(0).tokens, board.tally(1).tokens), (5, 3));
    recorder.begin(1, 23, &[13], true);
    recorder.layer(&layer(0, 1, &a[..2]));
    recorder.layer(&layer(1, 1, &b[..1]));
    recorder.end();
    assert_eq!(board.latest().unwrap().index, 3);
    assert_eq!(board.tally(0).age[0], Some(0));
}

/// Drafts that are not drawn leave no trace. Drawn drafts count as if each had been computed alone.
#[test]
fn drafts_are_recorded_only_when_they_are_drawn() {
    let shape = NeuronShape::new([64, 0, 32]);
    let ((alone, mut single), (drafted, mut several)) = (NeuronBoard::new(shape.clone()), NeuronBoard::new(shape));
    let mut seed = 3;
    let masks: Vec<u32> = (0..40 * 3).map(|_| noise(&mut seed) & noise(&mut seed)).collect();
    let layers = |recorder: &mut NeuronRecorder, tokens: usize, at: usize| {
        let of = &masks[3 * at..][..3 * tokens];
        let (first, last): (Vec<&[u32]>, Vec<u32>) = of.chunks(3).map(|it| (&it[..2], it[2])).unzip();
        recorder.layer(&LayerFiring { tokens, fired: &first.concat(), ..LayerFiring::default() });
        recorder.layer(&LayerFiring { layer: 2, tokens, fired: &last, ..LayerFiring::default() });
    };
    let ids: Vec<u32> = (100..140).collect();
    let mut at = 0;
    for (tokens, drawn) in [(1, 1), (4, 2), (3, 3), (6, 1), (1, 1), (5, 4)] {
        several.begin_draft(7, at, &ids[at..at + tokens]);
        layers(&mut several, tokens, at);
        assert_eq!(drafted.tally(0).tokens, at as u64, "nothing counts before the draw");
        several.end_draft(drawn);
        for position in at..at + drawn {
            single.begin(7, position, &ids[position..=position], true);
            layers(&mut single, 1, position);
            single.end();
        }
        at += drawn;
    }
    // An abandoned pass.
    several.begin_draft(7, at, &ids[at..at + 3]);
    layers(&mut several, 3, at);
    several.end();
    assert_eq!(drafted.kept(), alone.kept());
    for layer in 0..3 {
        assert_eq!(drafted.tally(layer), alone.tally(layer));
    }
    let told = |board: &NeuronBoard| {
        let tokens = board.tokens(0..99).into_iter();
        tokens.map(|it| (it.index, it.token, it.position, it.decoded, it.masks)).collect::<Vec<_>>()
    };
    assert_eq!(told(&drafted), told(&alone));
    assert_eq!(told(&drafted).len(), 12);
}

#[test]
fn token_figures_count_hits_misses_and_strengths() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([40]));
    board.set_watch(Watch::Strength);
    let (fired, predicted, hot) = ([0b1111, 1], [0b0111, 2], [0b0011, 0]);
    let mut strength = [0.0; 40];
    strength[..4].copy_from_slice(&[1.0, 0.5, 0.001, f32::NAN]);
    strength[32] = 2.0;
    let firing = LayerFiring {
        tokens: 1,
        fired: &fired,
        predicted: Some(&predicted),
        hot: Some(&hot),
        strength: Some(Strength::All(&strength)),
        gpu_ns: 7,
        cpu_ns: 5,
        wait_ns: 4,
        bus_bytes: 6,
        ..LayerFiring::default()
    };
    for complete in [false, true] {
        recorder.begin(0, 0, &[3], true);
        recorder.layer(&LayerFiring { complete, ..firing });
        recorder.end();
        let token = board.latest().unwrap();
        let layer = token.layers[0];
        assert_eq!((layer.fired, layer.hot, layer.cold(), layer.predicted), (5, 2, 3, Some(4)));
        let times = (layer.gpu_ns, layer.cpu_ns, layer.wait_ns);
        assert_eq!((layer.missed, layer.bus_bytes, times), (complete.then_some(2), 6, (7, 5, 4)));
        let masks = token.masks.unwrap();
        assert_eq!(
            (&masks.strength[..4], masks.strength[32], &masks.greatest[..]),
            (&[128, 64, 1, 0][..], 255, &[2.0][..])
        );
        assert_eq!(masks.predicted, predicted);
    }
    // Tokens share the hot mask until it changes.
    let before = board.latest().unwrap().hot.unwrap();
    let again = |recorder: &mut NeuronRecorder, hot: Option<&[u32]>| {
        recorder.begin(0, 0, &[3], true);
        recorder.layer(&LayerFiring { hot, strength: None, ..firing });
        recorder.end();
        board.latest().unwrap().hot
    };
    assert!(std::sync::Arc::ptr_eq(&before, &again(&mut recorder, Some(&hot)).unwrap()));
    assert_eq!(&*again(&mut recorder, Some(&[1, 0])).unwrap(), [1, 0]);
    assert!(again(&mut recorder, None).is_none());
}

/// An MoE layer between two FFNs: the experts of every token, and how often each is chosen, in
/// single tokens and in chunks.
#[test]
fn chosen_experts_are_counted_beside_their_neurons() {
    const EXPERTS: usize = 40;
    let moe = LayerNeurons::Experts { experts: EXPERTS, width: 3, shared: 5 };
    let shape = NeuronShape::of([LayerNeurons::Dense(8), moe, LayerNeurons::Dense(8)]);
    let (board, mut recorder) = NeuronBoard::new(shape.clone());
    let (words, mut seed, mut position) = (shape.words(1).len(), 9, 0);
    let (mut times, mut fired_times) = ([0u32; EXPERTS], vec![0u32; shape.neurons(1)]);
    for tokens in [1, 20, 3, 1] {
        let (mut fired, mut chosen) = (vec![0u32; words * tokens], vec![0u32; 2 * tokens]);
        for t in 0..tokens {
            for _ in 0..2 {
                let expert = noise(&mut seed) as usize % EXPERTS;
                chosen[2 * t + expert / 32] |= 1 << (expert % 32);
                let neuron = 3 * expert + noise(&mut seed) as usize % 3;
                fired[words * t + neuron / 32] |= 1 << (neuron % 32);
            }
            neurons_of(&chosen[2 * t..][..2]).for_each(|expert| times[expert] += 1);
            neurons_of(&fired[words * t..][..words]).for_each(|neuron| fired_times[neuron] += 1);
        }
        recorder.begin(1, position, &vec![1; tokens], tokens == 1);
        let ffn = |layer, fired| LayerFiring { layer, tokens, fired, ..LayerFiring::default() };
        let plain = vec![1; tokens];
        recorder.layer(&ffn(0, &plain));
        recorder.layer(&LayerFiring { chosen: Some(&chosen), ..ffn(1, &fired) });
        recorder.layer(&ffn(2, &plain));
        recorder.end();
        for (t, token) in board.tokens(position as u64..u64::MAX).iter().enumerate() {
            let of = &chosen[2 * t..][..2];
            assert_eq!((token.chosen(&shape, 1), token.chosen(&shape, 0)), (Some(of), None));
            assert_eq!(token.fired(&shape, 1), Some(&fired[words * t..][..words]));
            let count = of.iter().map(|word| word.count_ones()).sum();
            assert_eq!([0, 1, 2].map(|layer| token.layers[layer].experts), [None, Some(count), None]);
            assert_eq!(token.total().experts, Some(count));
        }
        position += tokens;
    }
    let tally = board.tally(1);
    assert_eq!((tally.tokens, &tally.chosen[..], &tally.counts), (position as u64, &times[..], &fired_times));
    let seen = tally.chosen_recent.iter().zip(&times).all(|(recent, times)| (*recent > 0.0) == (*times > 0));
    assert!(seen && tally.chosen_recent.len() == EXPERTS);
    let sum: f32 = tally.chosen_recent.iter().sum();
    assert!((1.0..=2.0001).contains(&sum), "{sum}");
    assert!(board.tally(0).chosen.is_empty() && board.tally(2).chosen_recent.is_empty());
}

#[test]
fn firings_of_other_shapes_are_ignored() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([64]));
    recorder.begin(0, 0, &[1], true);
    recorder.layer(&LayerFiring { tokens: 2, fired: &[1; 4], ..LayerFiring::default() });
    recorder.end();
    recorder.end();
    assert!(board.latest().is_none());
}

/// Activity of one token in the layers, and the expected figures, computed bit by bit.
struct RandomActivity {
    fired: Vec<Vec<u32>>,
    chosen: Vec<Vec<u32>>,
    predicted: Vec<Option<Vec<u32>>>,
    hot: Option<Vec<u32>>,
    complete: bool,
}

impl RandomActivity {
    fn random(shape: &NeuronShape, seed: &mut u64, hot: Option<&[u32]>) -> Self {
        let mut mask = |bits: usize| -> Vec<u32> {
            let mut words = vec![0; bits.div_ceil(32)];
            (0..bits).filter(|_| noise(seed).is_multiple_of(3)).for_each(|bit| words[bit / 32] |= 1 << (bit % 32));
            words
        };
        let layers = 0..shape.layers();
        let fired = layers.clone().map(|layer| mask(shape.neurons(layer))).collect();
        let chosen = layers.clone().map(|layer| mask(shape.experts(layer))).collect();
        let bits = mask(4)[0];
        // Some layers have a predictor. For some tokens every neuron is computed.
        let predicted =
            layers.map(|layer| (bits >> (layer % 2) & 1 == 1).then(|| mask(shape.neurons(layer)))).collect();
        RandomActivity { fired, chosen, predicted, hot: hot.map(<[u32]>::to_vec), complete: bits >> 2 & 1 == 1 }
    }

    fn figures(&self, shape: &NeuronShape, layer: usize) -> LayerTrace {
        if shape.neurons(layer) == 0 {
            return LayerTrace::default();
        }
        let count = |of: &dyn Fn(usize) -> bool| (0..shape.neurons(layer)).filter(|n| of(*n)).count() as u32;
        let has = |mask: &[u32], n: usize| mask[n / 32] >> (n % 32) & 1 == 1;
        let (fired, predicted) = (&self.fired[layer], self.predicted[layer].as_ref());
        let hot = self.hot.as_ref().map(|hot| &hot[shape.words(layer)]);
        let missed = |mask: &Vec<u32>| count(&|n| has(fired, n) && !has(mask, n));
        LayerTrace {
            fired: count(&|n| has(fired, n)),
            hot: hot.map_or(0, |hot| count(&|n| has(fired, n) && has(hot, n))),
            experts: (shape.experts(layer) > 0).then(|| neurons_of(&self.chosen[layer]).count() as u32),
            predicted: predicted.map(|mask| count(&|n| has(mask, n))),
            missed: predicted.filter(|_| self.complete).map(missed),
            cpu_bytes: 7 * layer as u64,
            ..LayerTrace::default()
        }
    }

    fn record_layer(&self, recorder: &mut NeuronRecorder, layer: usize) {
        let shape = recorder.board().shape().clone();
        recorder.layer(&LayerFiring {
            layer,
            tokens: 1,
            fired: &self.fired[layer],
            chosen: (shape.experts(layer) > 0).then_some(&self.chosen[layer][..]),
            predicted: self.predicted[layer].as_deref(),
            hot: self.hot.as_ref().map(|hot| &hot[shape.words(layer)]),
            complete: self.complete,
            cpu_bytes: 7 * layer as u64,
            ..LayerFiring::default()
        });
    }

    fn compare(&self, shape: &NeuronShape, trace: &TokenTrace) {
        let figures: Vec<_> = (0..shape.layers()).map(|layer| self.figures(shape, layer)).collect();
        assert_eq!(*trace.layers, figures, "token {}", trace.index);
        let Some(masks) = &trace.masks else { return assert!(trace.hot.is_none()) };
        assert_eq!((&masks.fired, &masks.chosen), (&self.fired.concat(), &self.chosen.concat()));
        let kept = !masks.predicted.is_empty();
        assert_eq!(kept, self.predicted[0].is_some());
        for (layer, predicted) in self.predicted.iter().enumerate().filter(|_| kept) {
            let nothing = vec![0; shape.words(layer).len()];
            assert_eq!(masks.predicted[shape.words(layer)], predicted.clone().unwrap_or(nothing));
        }
        let hot = self.hot.clone().filter(|hot| hot.iter().any(|word| *word != 0));
        assert_eq!(trace.hot.as_deref(), hot.as_deref());
    }
}

/// Two boards receive the same tokens. One is read after every token, the other only sometimes.
/// Both return what was recorded.
#[test]
fn tokens_read_late_equal_those_read_after_every_token() {
    let moe = LayerNeurons::Experts { experts: 35, width: 2, shared: 3 };
    let shape = NeuronShape::of([LayerNeurons::Dense(70), LayerNeurons::Dense(0), moe, LayerNeurons::Dense(32)]);
    for (budget, tokens) in [(u64::MAX, 2300), (6000, 1300), (60, 50), (0, 1100)] {
        let boards = [0, 1].map(|_| NeuronBoard::new(shape.clone()));
        let [(often, mut first), (seldom, mut second)] = boards;
        [&often, &seldom].into_iter().for_each(|board| board.set_budget(budget));
        let (mut seed, mut activity, mut hot) = (budget ^ 5, Vec::<RandomActivity>::new(), None);
        for index in 0..tokens {
            if noise(&mut seed).is_multiple_of(9) {
                let words = shape.total_words();
                hot = noise(&mut seed)
                    .is_multiple_of(3)
                    .then(|| (0..words).map(|_| noise(&mut seed)).collect::<Vec<_>>());
            }
            let token = RandomActivity::random(&shape, &mut seed, hot.as_deref());
            for recorder in [&mut first, &mut second] {
                recorder.begin(3, index, &[index as u32 + 9], true);
                for layer in (0..shape.layers()).filter(|layer| shape.neurons(*layer) > 0) {
                    // During a token the board has only the tokens before it.
                    assert_eq!(recorder.board().kept().tokens.end, index as u64);
                    token.record_layer(recorder, layer);
                }
                recorder.end();
            }
            activity.push(token);
            let latest = often.latest().unwrap();
            assert_eq!((latest.index, latest.token, latest.position), (index as u64, index as u32 + 9, index));
            assert_eq!((latest.session, latest.decoded), (3, true));
            activity[index].compare(&shape, &latest);
            assert_eq!(often.kept(), seldom.kept());
            let kept = seldom.kept();
            assert!(kept.bytes <= budget && kept.tokens.end == index as u64 + 1 && kept.masks.end == kept.tokens.end);
            if !noise(&mut seed).is_multiple_of(97) && index + 1 < tokens {
                continue;
            }
            let from =
                if noise(&mut seed).is_multiple_of(2) { 0 } else { u64::from(noise(&mut seed)) % kept.tokens.end };
            for board in [&seldom, &often] {
                let all = board.tokens(from..u64::MAX);
                assert_eq!(all.first().map(|trace| trace.index), Some(from.max(kept.tokens.start)));
                for trace in &all {
                    activity[trace.index as usize].compare(&shape, trace);
                    assert_eq!(trace.masks.is_some(), kept.masks.contains(&trace.index));
                    let again = board.token(trace.index).unwrap();
                    assert!(std::sync::Arc::ptr_eq(&trace.layers, &again.layers), "it is made once");
                }
            }
        }
        let recycled = seldom.kept();
        assert_eq!(recycled.tokens, (tokens as u64).saturating_sub(1000)..tokens as u64);
    }
}

#[test]
fn layer_times_are_recorded_while_a_reader_polls() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
    let mut timed = |tokens: usize| {
        let one = |position| {
            token(&mut recorder, position, 1, None);
            recorder.begin(0, 0, &[0], true);
            usize::from(recorder.wants_times())
        };
        (0..tokens).map(one).sum::<usize>()
    };
    assert_eq!(timed(900), 900, "the first reader finds times");
    timed(100);
    let seldom = timed(700);
    assert!((90..=110).contains(&seldom), "what recording costs is measured all the same: {seldom} of 700");
    board.latest().unwrap();
    assert_eq!(timed(900), 900);
    board.set_watch(Watch::Off);
    assert_eq!(timed(1), 0);
}

#[test]
fn readers_holding_the_ring_neither_block_nor_lose_tokens() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([64]));
    token(&mut recorder, 0, 1, None);
    let held = board.ring(true).unwrap();
    std::thread::scope(|scope| {
        // Would never end if the writer waited for the reader.
        scope.spawn(|| {
            for position in 1..6 {
                token(&mut recorder, position, 1, None);
            }
        });
    });
    drop(held);
    assert_eq!(board.kept().tokens, 0..1);
    recorder.idle();
    assert_eq!(board.kept().tokens, 0..6);
    let held = board.ring(true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (6..1206).for_each(|position| token(&mut recorder, position, 1, None)));
    });
    drop(held);
    recorder.idle();
    assert_eq!(board.kept().tokens, 206..1206, "what waits is no more than what is kept");
}

#[test]
fn readers_at_any_rate_see_whole_tokens() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([96, 96]));
    board.set_budget(50 * 24);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !done.load(SeqCst) {
                        let Some(latest) = board.latest() else { continue };
                        assert!(latest.index >= seen);
                        seen = latest.index;
                        let all = board.tokens(seen.saturating_sub(20)..u64::MAX);
                        assert!(all.windows(2).all(|two| two[0].index + 1 == two[1].index));
                        assert!(all[all.len() - 1].masks.is_some());
                        // Earlier tokens may have lost their masks since they were read.
                        for token in &all {
                            let Some(masks) = token.masks.as_ref() else { continue };
                            assert!(masks.fired.iter().all(|word| *word == token.position as u32), "{token:?}");
                        }
                        let kept = board.kept();
                        assert!(kept.bytes <= kept.budget && kept.masks.end == kept.tokens.end);
                    }
                    seen
                })
            })
            .collect();
        (0..20_000).for_each(|position| token(&mut recorder, position, position as u32, None));
        recorder.idle();
        done.store(true, SeqCst);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() < 20_000));
    });
    assert_eq!(board.latest().unwrap().index, 19_999);
}

#[test]
fn recording_cost_is_measured_per_watch_mode() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([64]));
    let mut decode = |board: &NeuronBoard, watch, millis| {
        board.set_watch(watch);
        for position in 0..10 {
            recorder.begin(1, position, &[1], true);
            // Takes effect with the next token.
            board.set_watch(Watch::Strength);
            let reporting = Instant::now().checked_sub(Duration::from_micros(500));
            let firing = LayerFiring { tokens: 1, fired: &[1, 2], reporting, ..LayerFiring::default() };
            if recorder.watch() != Watch::Off {
                recorder.layer(&firing);
            }
            recorder.end();
            recorder.decoded(Duration::from_millis(millis));
            board.set_watch(watch);
        }
    };
    assert_eq!(board.pace(Watch::Firing), None);
    decode(&board, Watch::Firing, 10);
    decode(&board, Watch::Off, 8);
    let (with, without) = (board.pace(Watch::Firing).unwrap(), board.pace(Watch::Off).unwrap());
    assert_eq!((with.tokens, without.tokens, board.pace(Watch::Strength)), (10, 10, None));
    assert!((with.rate - 100.0).abs() < 1e-6 && (without.rate - 125.0).abs() < 1e-6, "{with:?} {without:?}");
    assert!(with.recording >= 0.5e-3 && with.recording < 8e-3 && without.recording < 0.5e-3, "{with:?} {without:?}");
    decode(&board, Watch::Firing, 10_000);
    let slow = board.pace(Watch::Firing).unwrap();
    assert!(slow.rate < 0.2 && slow.tokens == 20, "old tokens fade: {slow:?}");
    recorder.forget_paces();
    assert_eq!((board.pace(Watch::Firing), board.pace(Watch::Off)), (None, None));
}

#[test]
fn device_strengths_are_wanted_only_while_a_reader_asks() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
    board.set_mass(Some(0.9));
    let mut wanted = |position| {
        recorder.begin(0, position, &[1], true);
        let wanted = recorder.wants_device_strength();
        recorder.layer(&LayerFiring { tokens: 1, fired: &[1], ..LayerFiring::default() });
        recorder.end();
        wanted
    };
    assert!(!wanted(0) && !wanted(1), "there is no reader");
    assert!(board.latest().is_some() && wanted(2) && wanted(3));
    let left = (4..200).filter(|position| wanted(*position)).count();
    assert!(left > 0 && left < 100, "{left}");
    board.set_mass(None);
    assert!(board.latest().is_some() && !wanted(200));
}

/// Neurons that are never zero count by their strengths. Without strengths they do not count.
#[test]
fn smooth_neurons_without_strengths_are_not_counted() {
    let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
    board.set_mass(Some(0.5));
    let values: Vec<f32> = (0..32).map(|neuron| if neuron == 3 { 100.0 } else { 1.0 }).collect();
    for (position, strength) in [None, Some(Strength::All(&values)), None].into_iter().enumerate() {
        recorder.begin(0, position, &[1], true);
        recorder.layer(&LayerFiring { tokens: 1, fired: &[u32::MAX], strength, ..LayerFiring::default() });
        recorder.end();
    }
    let tally = board.tally(0);
    assert_eq!((tally.tokens, tally.counts.iter().sum::<u32>(), tally.counts[3]), (1, 1, 1));
    let fired = |index| board.token(index).unwrap().fired(board.shape(), 0).unwrap().to_vec();
    assert_eq!((fired(0), fired(1)), (vec![u32::MAX], vec![1 << 3]));
}

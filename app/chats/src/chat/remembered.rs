//! The last tokens of a chat as bytes, so that its neuron map is there after a restart. The bytes
//! are saved in the file of chats. They are read back while the model has not generated anything
//! yet.

use std::sync::Arc;

use thermocline_engine::telemetry::neurons::{LayerTrace, NeuronBoard, NeuronShape, TokenMasks, TokenTrace};

/// Largest number of tokens saved per chat, and the largest size in bytes.
const MOST_TOKENS: usize = 64;
const MOST_BYTES: usize = 1 << 20;

/// Largest size in bytes of the strengths saved with the last tokens.
const MOST_STRENGTHS: usize = 1 << 20;

/// First bytes of the format below. The last byte is the version. Version 1 had no strengths.
const MAGIC: &[u8; 8] = b"tc-map\0\x02";
const WITHOUT_STRENGTHS: &[u8; 8] = b"tc-map\0\x01";

/// The latest tokens of `session` on the board, oldest first; empty if there are none.
///
/// The format is little-endian u32s after [`MAGIC`]:
/// - words of a token's mask of neurons, words of its mask of experts, number of layers, number of
///   tokens
/// - per token: id, position, 1 if it was decoded, mask of fired neurons, mask of chosen experts
/// - number of last tokens with strengths
/// - per such token: greatest strength of each layer as f32, and a byte per neuron, padded to whole
///   words
pub fn write(board: &NeuronBoard, session: u64) -> Vec<u8> {
    let shape = board.shape();
    let (words, experts) = (shape.total_words(), shape.total_expert_words());
    let each = 4 * (3 + words + experts);
    let most = MOST_TOKENS.min(MOST_BYTES / each.max(1)) as u64;
    let end = board.kept().masks.end;
    let tokens = board.tokens(end.saturating_sub(most)..end);
    let own = |token: &&TokenTrace| token.session == session && token.masks.is_some();
    let tokens: Vec<&TokenTrace> = tokens.iter().filter(own).collect();
    if tokens.is_empty() {
        return Vec::new();
    }
    let mut bytes = Vec::with_capacity(24 + tokens.len() * each);
    bytes.extend(MAGIC);
    let mut push = |value: u32| bytes.extend(value.to_le_bytes());
    [words, experts, shape.layers(), tokens.len()].into_iter().for_each(|count| push(count as u32));
    for token in &tokens {
        [token.token, token.position as u32, u32::from(token.decoded)].into_iter().for_each(&mut push);
        let Some(masks) = &token.masks else { continue };
        let mask = |mask: &[u32], words| (0..words).map(|at| mask.get(at).copied().unwrap_or(0)).collect::<Vec<u32>>();
        mask(&masks.fired, words).into_iter().for_each(&mut push);
        mask(&masks.chosen, experts).into_iter().for_each(&mut push);
    }
    let most = MOST_STRENGTHS / (4 * strength_words(shape)).max(1);
    let strong: Vec<&TokenMasks> = tokens.iter().rev().map_while(|token| strengths(token, shape)).take(most).collect();
    push(strong.len() as u32);
    for masks in strong.into_iter().rev() {
        masks.greatest.iter().for_each(|greatest| push(greatest.to_bits()));
        masks.strength.chunks(4).for_each(|four| {
            push(u32::from_le_bytes(std::array::from_fn(|at| four.get(at).copied().unwrap_or(0))));
        });
    }
    bytes
}

/// Words of the strengths of one token.
fn strength_words(shape: &NeuronShape) -> usize {
    shape.layers() + shape.total().div_ceil(4)
}

/// The masks of a token, if they hold the strengths of all neurons.
fn strengths<'a>(token: &'a TokenTrace, shape: &NeuronShape) -> Option<&'a TokenMasks> {
    let whole = |masks: &&TokenMasks| masks.strength.len() == shape.total() && masks.greatest.len() == shape.layers();
    token.masks.as_deref().filter(whole)
}

/// Reads the tokens in `bytes`, for a model of this shape with a vocabulary of `n_vocab` tokens.
/// Returns none if the bytes are damaged or belong to another model.
pub fn read(bytes: &[u8], shape: &NeuronShape, n_vocab: usize) -> Vec<TokenTrace> {
    let with_strengths = bytes.strip_prefix(MAGIC);
    let Some(rest) = with_strengths.or_else(|| bytes.strip_prefix(WITHOUT_STRENGTHS)) else { return Vec::new() };
    let (values, left) = rest.as_chunks::<4>();
    let values: Vec<u32> = values.iter().map(|value| u32::from_le_bytes(*value)).collect();
    let [words, experts, layers, count, rest @ ..] = &values[..] else { return Vec::new() };
    let (words, experts, count) = (*words as usize, *experts as usize, *count as usize);
    let each = 3 + words + experts;
    let fits = (words, experts, *layers as usize) == (shape.total_words(), shape.total_expert_words(), shape.layers());
    if !fits || !left.is_empty() || count > MOST_TOKENS {
        return Vec::new();
    }
    let Some((masks, rest)) = rest.split_at_checked(count * each) else { return Vec::new() };
    let strong: &[u32] = match (with_strengths, rest) {
        (None, []) => &[],
        (Some(_), [strong, rest @ ..])
            if *strong as usize <= count && rest.len() == *strong as usize * strength_words(shape) =>
        {
            rest
        }
        _ => return Vec::new(),
    };
    let strong: Vec<&[u32]> = strong.chunks_exact(strength_words(shape).max(1)).collect();
    let first_strong = count - strong.len();
    let token = |(index, values): (usize, &[u32])| {
        let fired = values[3..3 + words].to_vec();
        let chosen = values[3 + words..].to_vec();
        let ones = |mask: &[u32]| mask.iter().map(|word| word.count_ones()).sum();
        let layer = |layer| LayerTrace {
            fired: ones(&fired[shape.words(layer)]),
            experts: (shape.experts(layer) > 0).then(|| ones(&chosen[shape.expert_words(layer)])),
            ..LayerTrace::default()
        };
        let layers = (0..shape.layers()).map(layer).collect();
        let mut masks = TokenMasks { fired, chosen, ..TokenMasks::default() };
        if let Some(strong) = index.checked_sub(first_strong).and_then(|at| strong.get(at)) {
            let (greatest, four) = strong.split_at(shape.layers());
            masks.greatest = greatest.iter().map(|bits| f32::from_bits(*bits)).collect();
            masks.strength = four.iter().flat_map(|four| four.to_le_bytes()).take(shape.total()).collect();
        }
        TokenTrace {
            index: index as u64,
            token: values[0],
            patch: None,
            session: u64::MAX,
            position: values[1] as usize,
            decoded: values[2] == 1,
            layers,
            masks: Some(Arc::new(masks)),
            hot: None,
        }
    };
    let tokens: Vec<TokenTrace> = masks.chunks_exact(each).enumerate().map(token).collect();
    if tokens.iter().all(|token| (token.token as usize) < n_vocab) { tokens } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, LayerNeurons, Strength, Watch};

    use super::*;

    #[test]
    fn remembered_tokens_are_those_of_the_session() {
        let moe = LayerNeurons::Experts { experts: 3, width: 16, shared: 0 };
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::of([LayerNeurons::Dense(40), moe]));
        assert!(write(&board, 0).is_empty());
        for position in 0..100u32 {
            recorder.begin(u64::from(position % 2), position as usize, &[position], position > 3);
            recorder.layer(&LayerFiring { tokens: 1, fired: &[position, 1], ..LayerFiring::default() });
            let (fired, chosen) = ([position << 3, 0], [0b101]);
            recorder.layer(&LayerFiring {
                layer: 1,
                tokens: 1,
                fired: &fired,
                chosen: Some(&chosen),
                ..LayerFiring::default()
            });
            recorder.end();
        }
        let (bytes, shape) = (write(&board, 1), board.shape());
        let tokens = read(&bytes, shape, 100);
        assert_eq!((tokens.len(), tokens[0].token, tokens[31].token), (32, 37, 99), "of the last 64, every second");
        let (last, was) = (&tokens[31], board.token(99).unwrap());
        assert_eq!((last.fired(shape, 0), last.fired(shape, 1)), (was.fired(shape, 0), was.fired(shape, 1)));
        assert_eq!((last.chosen(shape, 1), last.total().fired), (was.chosen(shape, 1), was.total().fired));
        assert_eq!((last.total().experts, last.decoded, last.index), (Some(2), true, 31));

        let other = NeuronShape::new([40, 47]);
        assert!(read(&bytes, &other, 100).is_empty(), "another model's");
        assert!(read(&bytes, shape, 50).is_empty(), "ids beyond the vocabulary");
        for length in [0, 7, 8, 23, bytes.len() - 1, bytes.len() - 4] {
            assert!(read(&bytes[..length], shape, 100).is_empty(), "{length} bytes");
        }
    }

    #[test]
    fn strengths_of_the_last_tokens_are_kept_with_them() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([6, 3]));
        board.set_watch(Watch::Strength);
        for position in 0..3u32 {
            recorder.begin(0, position as usize, &[position], true);
            for (layer, values) in [&[0.5, 0.0, 2.0, 1.0, 0.0, 0.25][..], &[0.0, 3.0, 1.5]].into_iter().enumerate() {
                // The first token has no strengths.
                let strength = (position > 0).then_some(Strength::All(values));
                recorder.layer(&LayerFiring { layer, tokens: 1, fired: &[0b101], strength, ..LayerFiring::default() });
            }
            recorder.end();
        }
        let (bytes, shape) = (write(&board, 0), board.shape());
        let tokens = read(&bytes, shape, 3);
        assert_eq!(tokens.len(), 3);
        for (token, index) in tokens.iter().zip(0..) {
            let (kept, was) = (token.masks.as_ref().unwrap(), board.token(index).unwrap());
            let was = was.masks.as_ref().unwrap();
            assert_eq!((&kept.strength, &kept.greatest), (&was.strength, &was.greatest), "token {index}");
            assert_eq!(kept.strength.is_empty(), index == 0);
        }
        for length in [bytes.len() - 4, bytes.len() - 8] {
            assert!(read(&bytes[..length], shape, 3).is_empty(), "{length} bytes");
        }
        // Version 1, without strengths.
        let count = 24 + 3 * 4 * (3 + 2);
        let old = [&WITHOUT_STRENGTHS[..], &bytes[8..count]].concat();
        let before = read(&old, shape, 3);
        assert_eq!((before.len(), before[2].fired(shape, 1)), (3, tokens[2].fired(shape, 1)));
    }
}

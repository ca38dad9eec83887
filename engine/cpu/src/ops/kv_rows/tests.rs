use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn kv_rows_return_the_rows_pushed(rows in prop::collection::vec(prop::collection::vec(-9f32..9.0, 24), 1..9), keep in 0usize..9) {
        for (ty, tolerance) in [(KvType::F32, 0.0), (KvType::F16, 9.0 / 2048.0), (KvType::Q8_0, 9.0 / 200.0)] {
            let mut cache = KvRows::new(ty, 24, 9).unwrap();
            let mut out = vec![0.0; 24];
            for row in &rows {
                cache.push(row);
            }
            let keep = keep.min(rows.len());
            cache.truncate(keep);
            cache.push(&rows[0]);
            for i in 0..=keep {
                cache.get(i, &mut out);
                let wanted = if i == keep { &rows[0] } else { &rows[i] };
                for (a, b) in out.iter().zip(wanted) {
                    prop_assert!((a - b).abs() <= tolerance, "{ty}: {a} {b}");
                }
            }
        }
    }
}

#[test]
fn kv_rows_beyond_memory_are_a_memory_error() {
    for ty in [KvType::F16, KvType::F32, KvType::Q8_0] {
        assert!(matches!(KvRows::new(ty, 128, usize::MAX / 512), Err(Error::Memory { .. })));
        assert!(matches!(KvRows::new(ty, 128, usize::MAX / 2), Err(Error::Memory { .. })));
    }
}

/// Rows of two elements, both equal to the row's index.
fn numbered(ty: KvType, room: usize, rows: Range<usize>) -> KvRows {
    let mut cache = KvRows::new(ty, 2, room).unwrap();
    rows.for_each(|i| cache.push(&[i as f32; 2]));
    cache
}

fn number(cache: &KvRows, i: usize) -> usize {
    let mut row = [0.0; 2];
    cache.get(i, &mut row);
    row[1].round() as usize
}

/// Rows are correct at every offset of the ring, before and after the wrap, also after some were
/// dropped and pushed again.
#[test]
fn rows_of_a_ring_are_the_newest_at_every_offset() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for n in 0..40 {
            let mut cache = numbered(ty, 8, 0..n);
            assert_eq!((cache.len(), cache.bytes()), (n, numbered(ty, 8, 0..0).bytes()));
            (n.saturating_sub(8)..n).for_each(|i| assert_eq!(number(&cache, i), i, "{ty}: {n} rows"));
            for dropped in 0..n.min(5) {
                let mut cache = cache.clone();
                cache.truncate(n - dropped);
                (0..dropped).for_each(|_| cache.push(&[99.0; 2]));
                (n.saturating_sub(8)..n - dropped).for_each(|i| assert_eq!(number(&cache, i), i, "{ty}: {n}"));
                (n - dropped..n).for_each(|i| assert_eq!(number(&cache, i), 99, "{ty}: {n} rows"));
            }
            cache.truncate(0);
            cache.push(&[5.0; 2]);
            assert_eq!((cache.len(), number(&cache, 0)), (1, 5));
        }
    }
}

#[test]
fn rows_of_a_ring_move_down_where_some_are_removed() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for n in 1..40usize {
            for (start, count) in (0..n).flat_map(|start| (0..=n - start).map(move |count| (start, count))) {
                let mut cache = numbered(ty, 8, 0..n);
                cache.remove(start, count);
                assert_eq!(cache.len(), n - count);
                // Rows that were held and moved, and rows before the gap that no moved row
                // replaces.
                let moved = (n.saturating_sub(8).max(start + count)..n).map(|i| (i - count, i));
                let stay = (n.saturating_sub(8)..start).map(|i| (i, i));
                for (at, number_of) in moved.chain(stay) {
                    assert_eq!(number(&cache, at), number_of, "{ty}: {n} rows, {count} removed from {start}");
                }
            }
        }
    }
}

#[test]
fn rows_are_appended_from_a_ring_of_another_size() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (from, n, held) in (0..30usize).flat_map(|from| (0..=from).map(move |n| (from, n, n.min(3)))) {
            for [room, other] in [[8, 8], [8, 11], [11, 8], [40, 8], [8, 40], [40, 50]] {
                let (mut to, from) = (numbered(ty, room, 0..held), numbered(ty, other, 0..from));
                to.extend_to(&from, n);
                assert_eq!(to.len(), n);
                let kept = n.saturating_sub(room).max(from.len().saturating_sub(other)).max(held)..n;
                kept.for_each(|i| assert_eq!(number(&to, i), i, "{ty}: {n} of {} rows", from.len()));
            }
        }
    }
}

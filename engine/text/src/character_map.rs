//! SentencePiece's map of characters to the characters that replace them (`precompiled_charsmap`):
//! a double array (Aoe 1989) of texts, and the replacements, each ended by a zero byte.
//!
//! The library that reads the map trusts it, and indexes out of bounds for a damaged one. This
//! module walks the whole array first.

/// Checks that no text leads out of the map, and that every replacement is text.
pub fn check(map: &[u8]) -> Result<(), String> {
    let (size, rest) = map.split_first_chunk::<4>().ok_or("a map that is shorter than its size")?;
    let size = u32::from_le_bytes(*size) as usize / 4 * 4;
    let (array, replacements) = rest.split_at_checked(size).ok_or("an array that is longer than the map")?;
    let replacements = std::str::from_utf8(replacements).map_err(|error| error.to_string())?;
    let units: Vec<u32> =
        array.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
    if units.is_empty() {
        return Err("an array without units".to_owned());
    }
    let mut seen = vec![false; units.len()];
    let mut open = vec![0usize];
    while let Some(at) = open.pop() {
        let unit = units[at];
        let base = at ^ offset(unit);
        // The next byte of a text is XORed to the base, whatever the text is.
        if base | 0xff >= units.len() {
            return Err(format!("unit {at} of the array leads out of its {} units", units.len()));
        }
        if has_leaf(unit) {
            let value = (units[base] & 0x7fff_ffff) as usize;
            if !replacements.is_char_boundary(value) {
                return Err(format!("unit {at} of the array names byte {value} of the replacements"));
            }
        }
        for byte in 1..=0xff {
            let child = base ^ byte;
            let is_child = (units[child] & 0x8000_00ff) as usize == byte;
            if is_child && !std::mem::replace(&mut seen[child], true) {
                open.push(child);
            }
        }
    }
    Ok(())
}

fn has_leaf(unit: u32) -> bool {
    (unit >> 8) & 1 == 1
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << ((unit & (1 << 9)) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::normalizers::Precompiled;

    /// A map of `a` to `bc`: a root, whose base is 256, its child, and the child's value.
    fn map() -> Vec<u8> {
        let mut units = vec![0u32; 768];
        units[0] = 256 << 10;
        let child = 256 ^ 0x61;
        let base: usize = 512 | 0x61;
        units[child] = (((child ^ base) as u32) << 10) | (1 << 8) | 0x61;
        units[base] = 1 << 31;
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(array.len() as u32).to_le_bytes(), &array[..], b"bc\0"].concat()
    }

    #[test]
    fn a_whole_map_passes_and_replaces() {
        let map = map();
        assert_eq!(check(&map), Ok(()));
        assert_eq!(Precompiled::from(&map).unwrap().normalize_string("xa"), "xbc");
    }

    #[test]
    fn damaged_maps_are_refused_and_others_never_panic() {
        let map = map();
        for len in [0, 3, 100, 4 + 768 * 4 - 1] {
            assert!(check(&map[..len]).is_err(), "{len} bytes");
        }
        // Every change of one byte is refused, or the library reads the map.
        for at in (0..map.len()).filter(|at| map[*at] != 0 || at % 97 == 0) {
            for value in [0, 1, 0x61, 0x80, 0xff] {
                let mut map = map.clone();
                map[at] = value;
                if check(&map).is_ok()
                    && let Ok(read) = Precompiled::from(&map)
                {
                    (1u8..=255).for_each(|byte| drop(read.normalize_string(&format!("{0}{0}a", char::from(byte)))));
                }
            }
        }
    }
}

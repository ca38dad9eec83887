//! GGUF files that are put together field by field, so that any field can be wrong.
//!
//! [`RawGguf::tiny`] is a valid file to break by hand. [`arbitrary_file`] makes files of random
//! structure and damages them. Most of their bytes still have a meaning, so that a parser reads far
//! into them. The fuzz targets also use it.

use arbitrary::{Result, Unstructured};

/// A key-value pair as it is written to the file.
#[derive(Debug, Clone)]
pub struct RawPair {
    /// Key.
    pub key: Vec<u8>,
    /// Length written before the key, if it is not the real length.
    pub key_len: Option<u64>,
    /// Value type id.
    pub ty: u32,
    /// Encoded value.
    pub value: Vec<u8>,
}

/// A tensor description as it is written to the file.
#[derive(Debug, Clone)]
pub struct RawTensor {
    /// Name.
    pub name: Vec<u8>,
    /// Length written before the name, if it is not the real length.
    pub name_len: Option<u64>,
    /// Number of dimensions written, if it is not the real number.
    pub dim_count: Option<u32>,
    /// Dimensions, innermost first, as in GGUF.
    pub ne: Vec<u64>,
    /// Type id.
    pub ty: u32,
    /// Offset into the data section.
    pub offset: u64,
}

/// A whole file.
#[derive(Debug, Clone)]
pub struct RawGguf {
    /// First four bytes.
    pub magic: [u8; 4],
    /// Format version.
    pub version: u32,
    /// Number of tensors written, if it is not the real number.
    pub tensor_count: Option<u64>,
    /// Number of pairs written, if it is not the real number.
    pub pair_count: Option<u64>,
    /// Key-value pairs.
    pub pairs: Vec<RawPair>,
    /// Tensor descriptions.
    pub tensors: Vec<RawTensor>,
    /// Alignment of the data section.
    pub alignment: usize,
    /// Bytes of the data section.
    pub data: usize,
}

/// Makes a pair with a scalar, or with any value that is already encoded.
pub fn pair(key: &str, ty: u32, value: &[u8]) -> RawPair {
    RawPair { key: key.as_bytes().to_vec(), key_len: None, ty, value: value.to_vec() }
}

/// Makes a pair with a string.
pub fn text(key: &str, text: &str) -> RawPair {
    pair(key, 8, &[&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
}

/// Makes a pair with an array of `count` items of type `ty`, encoded in `items`.
pub fn array(key: &str, ty: u32, count: u64, items: &[u8]) -> RawPair {
    pair(key, 9, &[&ty.to_le_bytes(), &count.to_le_bytes()[..], items].concat())
}

/// Makes a tensor description.
pub fn tensor(name: &str, ne: &[u64], ty: u32, offset: u64) -> RawTensor {
    RawTensor { name: name.as_bytes().to_vec(), name_len: None, dim_count: None, ne: ne.to_vec(), ty, offset }
}

impl RawGguf {
    /// Makes a valid file without pairs and tensors.
    pub fn empty() -> Self {
        RawGguf {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            pair_count: None,
            pairs: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: 0,
        }
    }

    /// Makes a valid file with a pair of every kind and three tensors: F32 `[2, 3]`, Q4_0 `[2, 32]`
    /// and I8 `[5]`.
    pub fn tiny() -> Self {
        let mut pairs = vec![
            text("general.architecture", "test"),
            pair("t.f32", 6, &1.5f32.to_le_bytes()),
            pair("t.bool", 7, &[1]),
            array("t.tokens", 8, 2, b"\x01\0\0\0\0\0\0\0a\x02\0\0\0\0\0\0\0bc"),
            array("t.nested", 9, 1, b"\x00\0\0\0\x02\0\0\0\0\0\0\0\x01\x02"),
        ];
        for (ty, bytes) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (10, 8), (11, 8), (12, 8)] {
            pairs.push(pair(&format!("t.scalar.{ty}"), ty, &vec![1; bytes]));
            pairs.push(array(&format!("t.array.{ty}"), ty, 2, &vec![2; 2 * bytes]));
        }
        let tensors = vec![
            tensor("a.weight", &[3, 2], 0, 0),
            tensor("b.weight", &[32, 2], 2, 32),
            tensor("c.weight", &[5], 24, 96),
        ];
        RawGguf { pairs, tensors, data: 96 + 5, ..Self::empty() }
    }

    /// Encodes the file up to the padding before the data.
    pub fn head(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for pair in &self.pairs {
            out.extend(pair.key_len.unwrap_or(pair.key.len() as u64).to_le_bytes());
            out.extend(&pair.key);
            out.extend(pair.ty.to_le_bytes());
            out.extend(&pair.value);
        }
        for tensor in &self.tensors {
            out.extend(tensor.name_len.unwrap_or(tensor.name.len() as u64).to_le_bytes());
            out.extend(&tensor.name);
            out.extend(tensor.dim_count.unwrap_or(tensor.ne.len() as u32).to_le_bytes());
            out.extend(tensor.ne.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    /// Encodes the whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend((0..self.data).map(|at| at as u8));
        out
    }
}

/// Numbers that break arithmetic without overflow checks.
const HOSTILE: [u64; 12] =
    [0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 60, (1 << 63) - 1, 1 << 63, u64::MAX - 31, u64::MAX];

/// Id, elements per block and bytes per block of each type that readers know.
const TYPES: [(u32, u64, u64); 21] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (20, 32, 18),
    (23, 256, 136),
    (24, 1, 1),
    (25, 1, 2),
    (26, 1, 4),
    (27, 1, 8),
    (28, 1, 8),
    (30, 1, 2),
    (39, 32, 17),
];

/// Makes a file of random structure: valid, with wrong fields, or with damaged bytes.
pub fn arbitrary_file(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut file = RawGguf::empty();
    if u.ratio(1, 8)? {
        file.magic = *b"PWRI";
    }
    file.version = if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(2..=3)? };
    if u.ratio(1, 4)? {
        let alignment = 1u32 << u.int_in_range(0..=8)?;
        file.alignment = alignment as usize;
        file.pairs.push(pair("general.alignment", 4, &alignment.to_le_bytes()));
    }
    if u.ratio(1, 8)? {
        let architecture = *u.choose(&["llama", "generic.gpu_index", ""])?;
        file.pairs.push(text("general.architecture", architecture));
    }
    for at in 0..u.int_in_range(0..=6)? {
        let ty = u.int_in_range(0..=12)?;
        let value = arbitrary_value(u, ty, 0)?;
        let key = if u.ratio(1, 32)? { "split.count".to_owned() } else { format!("key.{at}") };
        file.pairs.push(pair(&key, ty, &value));
    }
    let mut end = 0u64;
    for at in 0..u.int_in_range(0..=5)? {
        let (ty, block, block_bytes) = *u.choose(&TYPES)?;
        let blocks = u.int_in_range(1..=3)?;
        let outer = (0..u.int_in_range(0..=3)?).map(|_| u.int_in_range(1..=3)).collect::<Result<Vec<u64>>>()?;
        let offset = end.next_multiple_of(file.alignment as u64);
        end = offset + blocks * block_bytes * outer.iter().product::<u64>();
        let ne = [&[blocks * block], outer.as_slice()].concat();
        file.tensors.push(tensor(&format!("t.{at}"), &ne, ty, offset));
    }
    file.data = end as usize;
    for _ in 0..u.int_in_range(0..=2)? {
        spoil_a_field(u, &mut file)?;
    }
    let mut bytes = file.to_bytes();
    for _ in 0..u.int_in_range(0..=3)? {
        damage(u, &mut bytes)?;
    }
    Ok(bytes)
}

fn arbitrary_value(u: &mut Unstructured<'_>, ty: u32, depth: usize) -> Result<Vec<u8>> {
    let len = match ty {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        7 => return Ok(vec![u.int_in_range(0..=1)?]),
        8 => {
            let text: &str = u.arbitrary()?;
            return Ok([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat());
        }
        9 => {
            let of: u32 = if depth < 5 { u.int_in_range(0..=12)? } else { 0 };
            let count = u.int_in_range(0..=4u64)?;
            let mut out = [&of.to_le_bytes(), &count.to_le_bytes()[..]].concat();
            for _ in 0..count {
                out.extend(arbitrary_value(u, of, depth + 1)?);
            }
            return Ok(out);
        }
        _ => 8,
    };
    Ok(u.bytes(len)?.to_vec())
}

fn spoil_a_field(u: &mut Unstructured<'_>, file: &mut RawGguf) -> Result<()> {
    let hostile = if u.ratio(1, 2)? { *u.choose(&HOSTILE)? } else { u.arbitrary()? };
    let pairs = file.pairs.len();
    let tensors = file.tensors.len();
    match u.int_in_range(0..=11)? {
        0 => file.tensor_count = Some(hostile),
        1 => file.pair_count = Some(hostile),
        2 if pairs > 0 => file.pairs[u.choose_index(pairs)?].key_len = Some(hostile),
        3 if pairs > 0 => file.pairs[u.choose_index(pairs)?].ty = hostile as u32,
        4 if pairs > 0 => file.pairs[u.choose_index(pairs)?].key = u.arbitrary()?,
        5 if tensors > 0 => file.tensors[u.choose_index(tensors)?].name_len = Some(hostile),
        6 if tensors > 0 => file.tensors[u.choose_index(tensors)?].dim_count = Some(hostile as u32),
        7 if tensors > 0 => file.tensors[u.choose_index(tensors)?].ty = u.int_in_range(0..=42)?,
        8 if tensors > 0 => file.tensors[u.choose_index(tensors)?].offset = hostile,
        9 if tensors > 0 => {
            let tensor = u.choose_index(tensors)?;
            let dim = u.choose_index(file.tensors[tensor].ne.len())?;
            file.tensors[tensor].ne[dim] = hostile;
        }
        10 if pairs > 0 => file.pairs.push(file.pairs[u.choose_index(pairs)?].clone()),
        11 if tensors > 0 => file.tensors.push(file.tensors[u.choose_index(tensors)?].clone()),
        _ => {}
    }
    Ok(())
}

fn damage(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let at = u.choose_index(bytes.len())?;
    match u.int_in_range(0..=4)? {
        0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
        1 => bytes.truncate(at),
        2 => bytes.insert(at, u.arbitrary()?),
        3 => drop(bytes.remove(at)),
        _ => {
            let number = u.choose(&HOSTILE)?.to_le_bytes();
            let end = bytes.len().min(at + number.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
    Ok(())
}

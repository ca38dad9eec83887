//! Values of weights of each [`WeightType`], decoded in plain Rust. Tests compare kernels and
//! repacked weights with them.

use half::{bf16, f16};

use crate::{WeightType, code_books};

/// A row in device memory.
#[derive(Debug, Clone, Copy)]
pub struct WeightRow<'a> {
    /// Weight type.
    pub ty: WeightType,
    /// Words of `main`.
    pub main: &'a [u32],
    /// Words of `aux`.
    pub aux: &'a [u32],
}

/// The two f16 halves of a word.
fn f16s(word: u32) -> [f64; 2] {
    [word as u16, (word >> 16) as u16].map(|bits| f16::from_bits(bits).to_f64())
}

/// Byte `at` of a slice of words.
fn byte(words: &[u32], at: usize) -> u32 {
    words[at / 4] >> (at % 4 * 8) & 255
}

/// `bits` bits of a word, starting at bit `at`.
fn field(word: u32, at: usize, bits: u32) -> u32 {
    word >> at & ((1 << bits) - 1)
}

/// Half of the value of an E4M3 number.
fn half_e4m3(bits: u32) -> f64 {
    let fraction = f64::from(bits & 7);
    match field(bits, 3, 4) {
        0 => fraction / 1024.0,
        exponent => (1.0 + fraction / 8.0) * 2.0_f64.powi(exponent as i32 - 8),
    }
}

/// scale * code - minimum of chunk `c` in a super-block of Q4_K or Q5_K.
fn affine(header: &[u32], c: usize, code: u32) -> f64 {
    let [d, dmin] = f16s(header[0]);
    let scale = field(header[1], 4 * c, 4) | field(header[3], 2 * c, 2) << 4;
    let min = field(header[2], 4 * c, 4) | field(header[3], 2 * c + 16, 2) << 4;
    d * f64::from(scale) * f64::from(code) - dmin * f64::from(min)
}

fn negated(value: f64, negative: u32) -> f64 {
    if negative & 1 == 1 { -value } else { value }
}

impl WeightRow<'_> {
    /// The value of column `col`.
    ///
    /// # Panics
    /// If the row is too short.
    pub fn value(&self, col: usize) -> f64 {
        let (chunk, j) = (col / 32, col % 32);
        let at = Column { row: *self, chunk, j, c: chunk % 8 };
        let (main, aux) = (self.main, self.aux);
        match self.ty {
            WeightType::F32 => f64::from(f32::from_bits(main[col])),
            WeightType::F16 => f16s(main[col / 2])[j % 2],
            WeightType::BF16 => bf16::from_bits((main[col / 2] >> (j % 2 * 16)) as u16).to_f64(),
            WeightType::Q8_0 => f64::from(byte(main, col) as u8 as i8) * at.scale(0, chunk),
            WeightType::Q4_0 => (f64::from(at.nibble()) - 8.0) * at.scale(0, chunk),
            WeightType::Q4_1 => {
                let [d, min] = f16s(aux[chunk]);
                d * f64::from(at.nibble()) + min
            }
            WeightType::Q5_0 => {
                let code = at.nibble() | field(aux[chunk], j, 1) << 4;
                (f64::from(code) - 16.0) * at.scale(main.len() / 4, chunk)
            }
            WeightType::Q5_1 => {
                let [d, min] = f16s(aux[2 * chunk + 1]);
                d * f64::from(at.nibble() | field(aux[2 * chunk], j, 1) << 4) + min
            }
            WeightType::MXFP4 => match byte(aux, chunk) {
                0 | 1 => 0.0,
                e => e2m1(at.nibble()) * 2.0_f64.powi(e as i32 - 128),
            },
            WeightType::NVFP4 => {
                let factor = f64::from(f32::from_bits(aux[0]));
                e2m1(at.nibble()) * half_e4m3(byte(&aux[1..], 2 * chunk + j / 16)) * factor
            }
            WeightType::Q2_K => at.q2_k(),
            WeightType::Q3_K => at.q3_k(),
            WeightType::Q4_K => affine(&aux[chunk / 8 * 4..], at.c, at.nibble()),
            WeightType::Q5_K => {
                let aux = &aux[chunk / 8 * 12..];
                affine(aux, at.c, at.nibble() | field(aux[4 + at.c], j, 1) << 4)
            }
            WeightType::Q6_K => at.q6_k(),
            WeightType::Q1_0 => negated(at.scale(0, chunk / 4), !main[chunk] >> j),
            WeightType::Q2_0 => at.ternary() * at.scale(0, chunk / 2),
            WeightType::TQ1_0 => at.tq1_0(),
            WeightType::TQ2_0 => at.ternary() * at.super_block(0).1,
            WeightType::I2_S => at.ternary() * f64::from(f32::from_bits(aux[0])),
            WeightType::IQ1_S => at.iq1_s(),
            WeightType::IQ1_M => at.iq1_m(),
            WeightType::IQ2_XXS => at.iq2_xxs(),
            WeightType::IQ2_XS => at.iq2_xs(),
            WeightType::IQ2_S => at.iq2_s(),
            WeightType::IQ3_XXS => at.iq3_xxs(),
            WeightType::IQ3_S => at.iq3_s(),
            WeightType::IQ4_NL => iq4(at.nibble()) * at.scale(0, chunk),
            WeightType::IQ4_XS => {
                let aux = &aux[chunk / 8 * 2..];
                let scale = field(aux[1], 4 * at.c, 4) | field(aux[0], 16 + 2 * at.c, 2) << 4;
                f16s(aux[0])[0] * (f64::from(scale) - 32.0) * iq4(at.nibble())
            }
        }
    }
}

/// A column of a row, with the index calculations that most block types share.
#[derive(Clone, Copy)]
struct Column<'a> {
    row: WeightRow<'a>,
    /// Index of its 32-column chunk, and index of the column in the chunk.
    chunk: usize,
    j: usize,
    /// Index of the chunk in its super-block.
    c: usize,
}

impl<'a> Column<'a> {
    fn nibble(&self) -> u32 {
        byte(self.row.main, 16 * self.chunk + self.j % 16) >> (self.j / 16 * 4) & 15
    }

    fn pair(&self) -> u32 {
        field(self.row.main[2 * self.chunk + self.j / 16], self.j % 16 * 2, 2)
    }

    /// A 2-bit code as -1, 0 or 1.
    fn ternary(&self) -> f64 {
        f64::from(field(self.row.main[2 * self.chunk + self.j / 16], self.j % 16 * 2, 2)) - 1.0
    }

    /// The 16-bit scale of block `at`, stored after `words` words.
    fn scale(&self, words: usize, at: usize) -> f64 {
        f16s(self.row.aux[words + at / 2])[at % 2]
    }

    /// The words of the super-block from its first on, and its scale, which follows the words of
    /// all super-blocks.
    fn super_block(&self, words: usize) -> (&'a [u32], f64) {
        let blocks = self.row.main.len() / self.row.ty.chunk_words() / 8;
        (&self.row.aux[self.chunk / 8 * words..], self.scale(blocks * words, self.chunk / 8))
    }

    fn q2_k(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let aux = &row.aux[chunk / 8 * 5..];
        let ([d, dmin], both) = (f16s(aux[0]), byte(&aux[1..], 2 * c + j / 16));
        d * f64::from(both & 15) * f64::from(self.pair()) - dmin * f64::from(both >> 4)
    }

    fn q3_k(self) -> f64 {
        let Column { j, c, .. } = self;
        let ((aux, d), sub) = (self.super_block(11), 2 * c + j / 16);
        let code = self.pair() | field(aux[c], j, 1) << 2;
        let scale = field(aux[8 + sub / 8], sub % 8 * 4, 4) | field(aux[10], 2 * sub, 2) << 4;
        d * (f64::from(scale) - 32.0) * (f64::from(code) - 4.0)
    }

    fn q6_k(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let aux = &row.aux[chunk / 8 * 21..];
        let code = self.nibble() | field(aux[2 * c + j / 16], j % 16 * 2, 2) << 4;
        let scale = byte(&aux[16..], 2 * c + j / 16) as u8 as i8;
        f16s(aux[20])[0] * f64::from(scale) * (f64::from(code) - 32.0)
    }

    fn tq1_0(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let ((aux, d), group) = (self.super_block(5), j / 4);
        // Groups of four columns: five from the chunk's own word, three from the words of the
        // super-block.
        let (word, n) = match group {
            0..5 => (row.main[chunk], group),
            _ => (aux[(3 * c + group - 5) / 5], (3 * c + group - 5) % 5),
        };
        let digit = (byte(&[word], j % 4) * 3u32.pow(n as u32) % 256) * 3 / 256;
        d * (f64::from(digit) - 1.0)
    }

    fn iq1_s(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let ((aux, d), i) = (self.super_block(4), j / 8);
        let both = field(aux[c / 2], c % 2 * 16, 16);
        let point = byte(row.main, 4 * chunk + i) | field(both, 3 * i, 3) << 8;
        let scale = d / 8.0 * f64::from(2 * field(both, 12, 3) + 1);
        scale * (f64::from(code_books::IQ1[point as usize][j % 8]) + negated(1.0, both >> 15))
    }

    fn iq1_m(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let (aux, i) = (&row.aux[chunk / 8 * 6..], j / 8);
        let high = field(aux[c / 2], c % 2 * 16 + 4 * i, 4);
        let point = byte(row.main, 4 * chunk + i) | field(high, 0, 3) << 8;
        let half = |at: usize| field(aux[4 + at / 2], at % 2 * 16, 16);
        let d = (0..4).fold(0, |d, at| d | half(at) >> 12 << (4 * at));
        let scale = field(half(c / 2), 3 * (2 * (c % 2) + i / 2), 3);
        let scale = f16s(d)[0] / 8.0 * f64::from(2 * scale + 1);
        scale * (f64::from(code_books::IQ1[point as usize][j % 8]) + negated(1.0, high >> 3))
    }

    fn iq2_xxs(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let (aux, d) = self.super_block(8);
        let magnitude = code_books::IQ2_XXS[byte(row.main, 4 * chunk + j / 8) as usize][j % 8];
        let scale = d / 8.0 * f64::from(2 * (aux[c] >> 28) + 1);
        scale * negated(magnitude.into(), even_signs(aux[c] >> (j / 8 * 7)) >> (j % 8))
    }

    fn iq2_xs(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let ((aux, d), sub) = (self.super_block(2), 2 * c + j / 16);
        let code = field(row.main[2 * chunk + j / 16], j / 8 % 2 * 16, 16);
        let magnitude = code_books::IQ2_XS[(code & 511) as usize][j % 8];
        let scale = d / 8.0 * f64::from(2 * field(aux[sub / 8], sub % 8 * 4, 4) + 1);
        scale * negated(magnitude.into(), even_signs(code >> 9) >> (j % 8))
    }

    fn iq2_s(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let ((aux, d), sub) = (self.super_block(12), 2 * c + j / 16);
        let high = field(byte(&aux[8..], c), j / 8 * 2, 2);
        let point = byte(row.main, 4 * chunk + j / 8) | high << 8;
        let scale = d / 8.0 * f64::from(2 * field(aux[10 + sub / 8], sub % 8 * 4, 4) + 1);
        scale * negated(code_books::IQ2_S[point as usize][j % 8].into(), aux[c] >> j)
    }

    fn iq3_xxs(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let (aux, d) = self.super_block(8);
        let magnitude = code_books::IQ3_XXS[byte(row.main, 8 * chunk + j / 4) as usize][j % 4];
        let scale = d / 4.0 * f64::from(2 * (aux[c] >> 28) + 1);
        scale * negated(magnitude.into(), even_signs(aux[c] >> (j / 8 * 7)) >> (j % 8))
    }

    fn iq3_s(self) -> f64 {
        let Column { row, chunk, j, c } = self;
        let (aux, d) = self.super_block(11);
        let point = byte(row.main, 8 * chunk + j / 4) | field(byte(aux, c), j / 4, 1) << 8;
        let scale = d * f64::from(2 * field(aux[10], 4 * c, 4) + 1);
        scale * negated(code_books::IQ3_S[point as usize][j % 4].into(), aux[2 + c] >> j)
    }
}

/// Eight signs from seven bits. The eighth sign makes the number of negative signs even.
fn even_signs(seven: u32) -> u32 {
    seven & 127 | ((seven & 127).count_ones() & 1) << 7
}

/// Twice the value of a 4-bit float (E2M1).
fn e2m1(code: u32) -> f64 {
    negated([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][code as usize & 7], code >> 3)
}

fn iq4(code: u32) -> f64 {
    const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f64::from(VALUES[code as usize])
}

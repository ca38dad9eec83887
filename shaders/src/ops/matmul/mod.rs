//! Products of weights and rows of activations: `y[t, r] = W[r] . x[t]` with `W: [rows, cols]` and
//! `x: [tokens, cols]`. A bias, ReLU and the addition to the earlier `y` are options. `gemv` is for
//! few tokens, and `gemm` for many. `gemv_dot` is `gemv` with activations of 8 bits
//! (`quantise_q8`). In both, a token's sums have the same order alone and among other tokens.
//! `gemm_coop` and `gemm_coop_8` are `gemm` with the hardware's products of matrices of 16-bit
//! floats, 16 and 8 elements wide. `half_scale` computes the scales of their activations.

use half::f16;

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CLOSE, CaseRequest, Extent, HALF, KernelCase, SampleWeights, has, noise, sizes, wide},
    ops::{half_scale, quantise_q8},
    params::params,
};

params! {
    /// `gemv`, `gemv_dot` and `gemm`
    Matmul {
        /// Rows of the bound weights.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the input.
        tokens: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one output row to the next.
        y_pitch: u32,
        /// Offset of the first row of weights in an output row.
        y_offset: u32,
        /// Offset of the bias of the first row of weights.
        bias_offset: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
    }
}

/// The kernel `gemv`.
pub(crate) const GEMV: Kernel =
    Kernel::new::<Matmul>("gemv", &[Read, Read, Read, Read, Write], include_str!("gemv.wgsl"), cases)
        .of_weights(&WeightType::ALL);

/// The kernel `gemv_dot`.
pub(crate) const GEMV_DOT: Kernel =
    Kernel::new::<Matmul>("gemv_dot", &[Read, Read, Read, Read, Write], include_str!("gemv_dot.wgsl"), cases)
        .of_weights(&WeightType::PACKED)
        .packed();

/// The kernel `gemm`.
pub(crate) const GEMM: Kernel =
    Kernel::new::<Matmul>("gemm", &[Read, Read, Read, Read, Write], include_str!("gemm.wgsl"), cases)
        .of_weights(&WeightType::ALL);

/// The kernel `gemm_coop`.
pub(crate) const GEMM_COOP: Kernel =
    Kernel::new::<Matmul>("gemm_coop", &[Read, Read, Read, Read, Write, Read], include_str!("gemm_coop.wgsl"), cases)
        .of_weights(&WeightType::ALL)
        .cooperative();

/// The kernel `gemm_coop_8`.
pub(crate) const GEMM_COOP_8: Kernel = Kernel::new::<Matmul>(
    "gemm_coop_8",
    &[Read, Read, Read, Read, Write, Read],
    include_str!("gemm_coop_8.wgsl"),
    cases,
)
.of_weights(&WeightType::ALL)
.cooperative();

/// Elements of an output row besides the results. `OFFSET` of them precede the results.
const MARGIN: usize = 5;
const OFFSET: usize = 3;
/// Numbers before the bias.
const BIAS_OFFSET: usize = 2;
/// Contents of the output before the dispatch.
const BEFORE: f32 = 0.25;

/// How the work is divided, and what happens to the sums.
#[derive(Debug)]
struct MatmulForm {
    workgroup: u32,
    /// Rows of a workgroup.
    rows: usize,
    /// Tokens of a workgroup.
    tokens: usize,
    /// Names of overrides.
    options: &'static str,
}

/// Forms of `gemv` and `gemv_dot`.
const FEW: [MatmulForm; 8] = [
    form(128, [4, 1], ""),
    form(32, [16, 1], "HAS_BIAS ACCUMULATE"),
    form(256, [1, 1], "HAS_BIAS RELU"),
    form(64, [11, 1], "HAS_BIAS"),
    form(96, [4, 4], "HAS_BIAS RELU ACCUMULATE"),
    form(32, [1, 4], "HAS_BIAS"),
    form(256, [2, 2], "HAS_BIAS ACCUMULATE"),
    form(64, [3, 3], "RELU"),
];

/// Forms of `gemm`.
const MANY: [MatmulForm; 4] = [
    form(128, [64, 64], ""),
    form(128, [64, 64], "HAS_BIAS ACCUMULATE"),
    form(32, [16, 64], "HAS_BIAS RELU"),
    form(96, [48, 64], "HAS_BIAS"),
];

/// Kernels of hardware products and their workgroups: as many subgroups of 8 invocations as the
/// kernel needs, and then twice as many, which repeat the work of the last one.
const COOPERATIVE: [(&str, u32); 4] = [("gemm_coop", 32), ("gemm_coop_8", 64), ("gemm_coop", 64), ("gemm_coop_8", 128)];

/// A form of workgroup, its rows and tokens, and options.
const fn form(workgroup: u32, [rows, tokens]: [usize; 2], options: &'static str) -> MatmulForm {
    MatmulForm { workgroup, rows, tokens, options }
}

impl MatmulForm {
    /// The result of a sum.
    fn oracle(&self, sum: f64, bias: f32, before: f64) -> f64 {
        let value = if has(self.options, "HAS_BIAS") { sum + f64::from(bias) } else { sum };
        let value = if has(self.options, "RELU") { value.max(0.0) } else { value };
        if has(self.options, "ACCUMULATE") { before + value } else { value }
    }
}

/// Weights, activations and their sums `[tokens, rows]`.
struct MatmulSample {
    weights: SampleWeights,
    rows: usize,
    tokens: usize,
    x: Vec<f32>,
    bias: Vec<f32>,
    sums: Vec<f64>,
}

/// Products of several sizes. The self-test has none of these cases, because it checks products as
/// the engine computes them (`ProductSample` in engine/gpu).
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    if request.extent == Extent::Hard {
        return Vec::new();
    }
    let mut cases = Vec::new();
    let is_packed = WeightType::PACKED.contains(&request.ty);
    for size in [[70, 1056, 6], [1, 1, 1]] {
        let product = MatmulSample::new(request.ty, size, false);
        for form in request.pick_of_type(&FEW, 0) {
            cases.push(product.case("gemv", form));
            if is_packed {
                cases.push(product.case("gemv_dot", form));
            }
        }
    }
    for size in request.pick_of_type(&[[70, 96, 67], [1, 1, 1], [64, 1, 64], [129, 1, 130]], 0) {
        let product = MatmulSample::new(request.ty, *size, false);
        cases.extend(request.pick_of_type(&MANY, 0).iter().map(|form| product.case("gemm", form)));
    }
    // The test opens a device and compiles a long text per type.
    let kernels = match request.ty {
        WeightType::F16 => 4,
        WeightType::Q4_K => 2,
        _ => return cases,
    };
    let product = MatmulSample::new(request.ty, [70, 96, 67], true);
    let kernels = COOPERATIVE.into_iter().take(kernels);
    let forms = kernels.map(|(kernel, workgroup)| (kernel, form(workgroup, [64, 64], "HAS_BIAS")));
    cases.extend(forms.map(|(kernel, form)| product.case(kernel, &form)));
    cases
}

/// Activations `[tokens, cols]` that 8 bits represent exactly. In each chunk they are zeros, nearly
/// zeros, or integers times a power of two, of which the largest is 127.
fn even(tokens: usize, cols: usize) -> Vec<f32> {
    let mut x: Vec<f32> = noise(tokens * cols, 10).iter().map(|value| (value * 127.0).round()).collect();
    for (at, chunk) in x.chunks_exact_mut(32).enumerate() {
        chunk[at * 7 % 32] = if at % 2 == 0 { 127.0 } else { -127.0 };
        let scale = [1.0, 0.5, 0.25, 0.0, 2.0, 1e-36][at % 6] / 128.0;
        chunk.iter_mut().for_each(|value| *value *= scale);
    }
    x
}

/// Activations that 16-bit floats represent exactly after scaling. Every third token has a value
/// above 65504. Every fifth token has only values below the smallest 16-bit float.
fn uneven(tokens: usize, cols: usize) -> Vec<f32> {
    let mut x = even(tokens, cols);
    for (token, row) in x.chunks_exact_mut(cols).enumerate() {
        if token % 3 == 0 {
            row[token % cols] = 98304.0;
        } else if token % 5 == 0 {
            row.iter_mut().for_each(|value| *value *= 2_f32.powi(-30));
        }
    }
    x
}

impl MatmulSample {
    /// `halves` is true for products of 16-bit floats, to which the kernel rounds the weights.
    fn new(ty: WeightType, [rows, cols, tokens]: [usize; 3], halves: bool) -> Self {
        let mut weights = SampleWeights::new(ty, rows, cols.next_multiple_of(ty.block()), 9);
        if halves {
            weights.values.iter_mut().for_each(|value| *value = f16::from_f64(*value).to_f64());
        }
        let x = if halves { uneven(tokens, weights.cols) } else { even(tokens, weights.cols) };
        let sums_of = |x| (0..rows).map(|row| weights.product(row, x)).collect::<Vec<_>>();
        let sums = x.chunks_exact(weights.cols).flat_map(sums_of).collect();
        MatmulSample { weights, rows, tokens, x, bias: noise(BIAS_OFFSET + rows, 11), sums }
    }

    fn case(&self, kernel: &'static str, form: &MatmulForm) -> KernelCase {
        let MatmulSample { weights, rows, tokens, x, bias, sums } = self;
        let pitch = rows + MARGIN;
        let before = vec![BEFORE; tokens * pitch];
        let mut y = wide(&before);
        for (at, sum) in sums.iter().enumerate() {
            let (token, row) = (at / rows, at % rows);
            let y = &mut y[token * pitch + OFFSET + row];
            *y = form.oracle(*sum, bias[BIAS_OFFSET + row], *y);
        }
        let [row_groups, token_groups] = sizes([rows.div_ceil(form.rows), tokens.div_ceil(form.tokens)]);
        let stride = 2;
        let groups = [token_groups, stride, row_groups.div_ceil(stride)];
        let [rows, chunks, tokens, x_pitch] = sizes([*rows, weights.cols / 32, *tokens, weights.cols]);
        let [y_pitch, y_offset, bias_offset] = sizes([pitch, OFFSET, BIAS_OFFSET]);
        let params = Matmul { rows, chunks, tokens, x_pitch, y_pitch, y_offset, bias_offset, stride };
        let case = KernelCase::new(kernel, form.workgroup, params, groups)
            .named(format!("{rows} rows, {chunks} chunks, {tokens} tokens, {form:?}"))
            .switches(&["HAS_BIAS", "RELU", "ACCUMULATE"], form.options)
            .matrix(weights);
        let [row_group, token_group] = sizes([form.rows, form.tokens]);
        let case = match kernel {
            "gemv" => case.set("ROWS", row_group).set("TOKENS", token_group).input(x),
            "gemv_dot" => case.set("ROWS", row_group).set("TOKENS", token_group).input(&quantise_q8::oracle(x)),
            _ => case.input(x),
        };
        let case = case.input(bias).input(&before);
        if !kernel.starts_with("gemm_coop") {
            return case.becomes(&y, CLOSE);
        }
        // Decoded weights between two 16-bit floats may be rounded to either.
        let tolerance = if weights.ty == WeightType::F16 { CLOSE } else { HALF };
        let scales = x.chunks_exact(weights.cols).flat_map(half_scale::oracle);
        case.becomes(&y, tolerance).input(&scales.map(|scale| scale as f32).collect::<Vec<_>>())
    }
}

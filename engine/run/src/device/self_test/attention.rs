//! Kernels of attention: norms of heads with rotation and the cache, scores of a token and of a
//! prompt, latent queries and keys.

use thermocline_shaders::{DecodeGrid, decode_heads, head_pitch, limits, params};

use super::case::{CLOSE, Case, NEAR, noise};
use thermocline_base::error::Result;
use thermocline_cpu::{
    Cpu,
    ops::{AttentionScratch, AttentionShape, KvRows, KvType, Queries, RopeRows, RopeTable, SeenRows},
};

/// Heads that share keys and values in groups; their width does not fill a tile.
const N_HEAD: usize = 6;
const N_KV_HEAD: usize = 2;
const HEAD_DIM: usize = 80;

pub(super) fn cases(cpu: &Cpu) -> Result<Vec<Case>> {
    let mut cases = vec![rope(cpu, false)?, rope(cpu, true)?, latent(cpu)];
    // A few tokens after many, and a prompt whose tokens see a window.
    cases.extend(ScoreCase::new(cpu, ScoreForm { tokens: 2, position: 331, window: None, kv: KvType::F16 })?.decode());
    cases
        .push(ScoreCase::new(cpu, ScoreForm { tokens: 45, position: 83, window: Some(70), kv: KvType::F16 })?.prompt());
    cases.push(ScoreCase::new(cpu, ScoreForm { tokens: 33, position: 5, window: None, kv: KvType::F32 })?.prompt());
    Ok(cases)
}

/// Rotations of a head, `[tokens, dims / 2, 2]`, for tokens from `position`.
fn rotations(dims: usize, interleaved: bool, position: usize, tokens: usize) -> (RopeTable, Vec<f32>) {
    let frequencies = (0..dims / 2).map(|pair| 10_000_f64.powf(-(pair as f64) / (dims / 2) as f64)).collect();
    let table = RopeTable { frequencies, magnitude: 1.0, interleaved };
    let mut rotations = Vec::new();
    table.extend_rotations(position..position + tokens, &mut rotations);
    (table, rotations)
}

/// Queries and keys, normed and rotated. Keys and values are appended at the end and the beginning
/// of a ring.
fn rope(cpu: &Cpu, interleaved: bool) -> Result<Case> {
    let (tokens, position, dims, capacity, eps) = (4, 5, 64, 7, 1e-5);
    let (q_rows, kv_rows) = (N_HEAD * HEAD_DIM, N_KV_HEAD * HEAD_DIM);
    let qkv_pitch = (q_rows + 2 * kv_rows).next_multiple_of(32) + 32;
    let q_pitch = (N_HEAD * HEAD_DIM).next_multiple_of(32) + 32;
    let qkv: Vec<f32> = noise(tokens * qkv_pitch, 41).iter().map(|value| value * 3.0).collect();
    let (q_norm, k_norm) = (noise(HEAD_DIM, 43), noise(HEAD_DIM, 44));
    let (table, rotations) = rotations(dims, interleaved, position, tokens);
    let mut rows = RopeRows::default();
    rows.fill(&table, position..position + tokens);
    let part = |first: usize, len: usize| -> Vec<f32> {
        qkv.chunks_exact(qkv_pitch).flat_map(|row| &row[first..first + len]).copied().collect()
    };
    let (mut q, mut k, v) = (part(0, q_rows), part(q_rows, kv_rows), part(q_rows + kv_rows, kv_rows));
    cpu.rms_norm(&mut q, None, &q_norm, eps);
    cpu.rms_norm(&mut k, None, &k_norm, eps);
    cpu.rope(&mut q, q_rows, HEAD_DIM, &rows);
    cpu.rope(&mut k, kv_rows, HEAD_DIM, &rows);
    let before = vec![7.0; N_KV_HEAD * capacity * HEAD_DIM];
    let cache = |of: &[f32]| {
        let mut cache = before.clone();
        for (token, head) in (0..tokens).flat_map(|token| (0..N_KV_HEAD).map(move |head| (token, head))) {
            let at = (head * capacity + (position + token) % capacity) * HEAD_DIM;
            cache[at..at + HEAD_DIM].copy_from_slice(&of[(token * N_KV_HEAD + head) * HEAD_DIM..][..HEAD_DIM]);
        }
        cache
    };
    let before_q = vec![7.0; tokens * q_pitch];
    let params = params::RopeAppend {
        n_head: N_HEAD as u32,
        n_kv_head: N_KV_HEAD as u32,
        kv_heads: N_KV_HEAD as u32,
        head_dim: HEAD_DIM as u32,
        value_dim: HEAD_DIM as u32,
        dims: dims as u32,
        qkv_pitch: qkv_pitch as u32,
        q_pitch: q_pitch as u32,
        position: position as u32,
        capacity: capacity as u32,
        eps,
        query_length: 1,
        ..Default::default()
    };
    Ok(Case::new("rope_append", 64, params, [(N_HEAD + 2 * N_KV_HEAD) as u32, tokens as u32, 1])
        .set("NEOX", u8::from(!interleaved))
        .set("QK_NORM", 1)
        .floats(&qkv)
        .floats(&rotations)
        .floats(&q_norm)
        .floats(&k_norm)
        .rows(&before_q, q_pitch, &q, q_rows, CLOSE)
        .changes_halves(&before, &cache(&k))
        .changes_halves(&before, &cache(&v)))
}

/// Queries of latent attention with an unrotated and a rotated part, and the normed latent beside
/// the rotated key.
fn latent(cpu: &Cpu) -> Case {
    let (tokens, heads, nope, dims, rank, position, capacity, eps) = (3, 2, 24_usize, 16, 32, 4, 6, 1e-5);
    let (width, head) = (rank + dims, nope + dims);
    let inputs_pitch = nope.next_multiple_of(32);
    let (queries_pitch, projected_pitch) = (heads * head + 5, width + 3);
    let (queries, projected) = (noise(tokens * queries_pitch, 1), noise(tokens * projected_pitch, 2));
    let norm = noise(rank, 4);
    let (table, rotations) = rotations(dims, true, position, tokens);
    let mut rows = RopeRows::default();
    rows.fill(&table, position..position + tokens);
    let slots = tokens * heads;
    let (mut inputs, mut q) = (vec![0.0; slots * inputs_pitch], vec![7.0; slots * width]);
    let mut keys = vec![7.0; capacity * width];
    let before = (vec![7.0; inputs.len()], q.clone(), keys.clone());
    for token in 0..tokens {
        for slot in 0..heads {
            let query = &queries[token * queries_pitch + slot * head..][..head];
            let slot = token * heads + slot;
            inputs[slot * inputs_pitch..][..nope].copy_from_slice(&query[..nope]);
            let rotated = &mut q[slot * width + rank..][..dims];
            rotated.copy_from_slice(&query[nope..]);
            rows.rotate(cpu.isa(), token, rotated);
        }
        let key = &mut keys[(position + token) % capacity * width..][..width];
        key.copy_from_slice(&projected[token * projected_pitch..][..width]);
        cpu.rms_norm(&mut key[..rank], None, &norm, eps);
        rows.rotate(cpu.isa(), token, &mut key[rank..]);
    }
    let params = params::LatentAppend {
        query_length: 1,
        n_head: heads as u32,
        nope_dim: nope as u32,
        rope_dim: dims as u32,
        rank: rank as u32,
        queries_pitch: queries_pitch as u32,
        projected_pitch: projected_pitch as u32,
        inputs_pitch: inputs_pitch as u32,
        position: position as u32,
        capacity: capacity as u32,
        eps,
        ..Default::default()
    };
    Case::new("latent_append", 64, params, [heads as u32 + 1, tokens as u32, 1])
        .floats(&queries)
        .floats(&projected)
        .floats(&rotations)
        .floats(&norm)
        .changes(&before.0, &inputs, CLOSE)
        .changes(&before.1, &q, CLOSE)
        .changes_halves(&before.2, &keys)
}

/// Tokens, and the keys that they see.
#[derive(Clone, Copy)]
struct ScoreForm {
    tokens: usize,
    position: usize,
    window: Option<usize>,
    kv: KvType,
}

/// Inputs of attention's scores, and its output.
struct ScoreCase {
    form: ScoreForm,
    params: params::Attention,
    /// `[tokens, n_head, head_dim]`
    q: Vec<f32>,
    /// `[n_kv_head, capacity, head_dim]`, rounded as in the cache.
    keys: Vec<f32>,
    values: Vec<f32>,
    sinks: Vec<f32>,
    /// `[tokens, n_head, head_dim]`
    heads: Vec<f32>,
}

impl ScoreCase {
    fn new(cpu: &Cpu, form: ScoreForm) -> Result<Self> {
        let ScoreForm { tokens, position, window, kv } = form;
        let rows = position + tokens;
        let capacity = rows + 70;
        let scale = 6.0 / (HEAD_DIM as f32).sqrt();
        let sinks: Vec<f32> = noise(N_HEAD, 24).iter().map(|value| 6.0 * value).collect();
        let q = noise(tokens * N_HEAD * HEAD_DIM, 23);
        let cache = |seed: u64| -> Result<(Vec<KvRows>, Vec<f32>)> {
            // Rows after the last must not be part of any sum.
            let mut contents = vec![0.0; N_KV_HEAD * capacity * HEAD_DIM];
            let mut heads = Vec::new();
            let noise = noise(N_KV_HEAD * rows * HEAD_DIM, seed);
            for (head, noise) in noise.chunks_exact(rows * HEAD_DIM).enumerate() {
                let mut held = KvRows::new(kv, HEAD_DIM, capacity)?;
                for (row, values) in noise.chunks_exact(HEAD_DIM).enumerate() {
                    held.push(values);
                    held.get(row, &mut contents[(head * capacity + row) * HEAD_DIM..][..HEAD_DIM]);
                }
                heads.push(held);
            }
            Ok((heads, contents))
        };
        let ((key_rows, keys), (value_rows, values)) = (cache(21)?, cache(22)?);
        let shape = AttentionShape {
            n_head: N_HEAD,
            n_kv_head: N_KV_HEAD,
            head_dim: HEAD_DIM,
            value_dim: HEAD_DIM,
            scale,
            softcap: None,
            window,
            chunked: false,
            sinks: Some(&sinks),
            key_bias: None,
        };
        let mut heads = vec![0.0; q.len()];
        let queries = Queries { q: &q, first: position };
        let seen = SeenRows { keys: &key_rows, values: &value_rows };
        cpu.attention(&shape, queries, seen, &mut heads, &mut AttentionScratch::default());
        let params = params::Attention {
            n_head: N_HEAD as u32,
            n_kv_head: N_KV_HEAD as u32,
            kv_heads: N_KV_HEAD as u32,
            q_pitch: (N_HEAD * HEAD_DIM) as u32,
            out_pitch: (N_HEAD * HEAD_DIM) as u32,
            tokens: tokens as u32,
            position: position as u32,
            capacity: capacity as u32,
            window: window.unwrap_or(0) as u32,
            scale,
            ..Default::default()
        };
        Ok(ScoreCase { form, params, q, keys, values, sinks, heads })
    }

    /// Makes a case with everything except the output.
    fn case(&self, kernel: &'static str, workgroup: u32, params: params::Attention, groups: [u32; 3]) -> Case {
        let case = Case::new(kernel, workgroup, params, groups)
            .set("HEAD_DIM", HEAD_DIM as u32)
            .set("SINKS", 1)
            .set("KV_F32", u8::from(self.form.kv == KvType::F32))
            .floats(&self.q);
        let case = match self.form.kv {
            KvType::F32 => case.floats(&self.keys).floats(&self.values),
            _ => case.halves(&self.keys).halves(&self.values),
        };
        case.floats(&self.sinks)
    }

    fn prompt(&self) -> Case {
        let queries = self.params.tokens.div_ceil(limits::ATTENTION_QUERIES);
        let groups = [N_HEAD as u32, queries, (HEAD_DIM as u32).div_ceil(limits::ATTENTION_OUT)];
        let out = vec![0.0; self.heads.len()];
        self.case("attention_prompt", 128, self.params, groups).changes(&out, &self.heads, NEAR)
    }

    /// Heads of a few tokens in one split, and their partial results in several.
    fn decode(&self) -> Vec<Case> {
        let heads = decode_heads(N_HEAD as u32, N_KV_HEAD as u32, HEAD_DIM as u32);
        let grid = DecodeGrid::new(&self.params, heads, 1);
        let params = params::Attention { span: grid.span, splits: grid.splits, ..self.params };
        let (x, y, z) = grid.workgroups();
        let out = vec![0.0; self.heads.len()];
        let one =
            self.case("attention_decode", 128, params, [x, y, z]).set("HEADS", heads).changes(&out, &self.heads, NEAR);
        vec![one, self.merge()]
    }

    /// Three partial results per head, each with its maximum and its sum of weights.
    fn merge(&self) -> Case {
        let splits = 3;
        let parts = N_HEAD * self.form.tokens * splits;
        let row = head_pitch(HEAD_DIM as u32) as usize + 4;
        let mut partials = noise(parts * row, 51);
        let mut merged = vec![0.0_f32; self.heads.len()];
        let all = partials.chunks_exact_mut(splits * row).zip(merged.chunks_exact_mut(HEAD_DIM));
        for (parts, merged) in all {
            let (mut sums, mut weight) = (vec![0.0_f64; HEAD_DIM], 0.0_f64);
            for part in parts.chunks_exact_mut(row) {
                let top = 4.0 * part[row - 4];
                let total = 1.5 + part[row - 3];
                // Maximum, sum of weights, and padding.
                part[row - 4..].copy_from_slice(&[top, total, 0.0, 0.0]);
                let factor = f64::from(top).exp();
                weight += factor * f64::from(total);
                sums.iter_mut().zip(&*part).for_each(|(sum, value)| *sum += factor * f64::from(*value));
            }
            merged.iter_mut().zip(sums).for_each(|(merged, sum)| *merged = (sum / weight) as f32);
        }
        let out = vec![0.0; merged.len()];
        let params = params::AttentionMerge {
            n_head: N_HEAD as u32,
            out_pitch: self.params.out_pitch,
            splits: splits as u32,
            row: 0,
        };
        Case::new("attention_merge", 128, params, [N_HEAD as u32, self.params.tokens, 1])
            .set("HEAD_DIM", HEAD_DIM as u32)
            .floats(&partials)
            .changes(&out, &merged, NEAR)
    }
}

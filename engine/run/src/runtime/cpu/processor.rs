//! The CPU as a [`Processor`]: the registers, and the part that computes each step.

mod shared_layers;

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    LayerInputs, TokenInputs, WHAT,
    altup::AltupStreams,
    attention::{AttentionTask, CpuAttention},
    layer_ffn::{LayerFfn, LayerTask},
    norm::norm_rows,
    paged_reads,
    per_layer::PerLayerInputs,
    recurrent::{MixerTask, RecurrentMixer, RowsState},
    same_bits::same_bits,
    skipped_inputs::InputCalibration,
    state_inputs::StateInputs,
};
use crate::runtime::{
    HeldExperts, KvCache, KvType, LayerPreferences, Pass, Processor, Sequences, Sparsity,
    scratch::{grow, held_bytes},
    shortlist,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, Isa};
use thermocline_model::{
    BoundAttention, BoundFfn, BoundOperation, BoundRecurrent, BoundStep, Ffn, FfnKind, InputSite, Model, ModelConfig,
    NormSlot, Position, Register, SkippedInputs,
};

/// Computes every operation on the CPU, from RAM.
#[derive(Debug)]
pub struct CpuProcessor {
    cpu: Cpu,
    /// The registers by [`Register`], `[tokens, d_model]` each.
    registers: [Vec<f32>; 4],
    attention: CpuAttention,
    recurrent: RecurrentMixer,
    per_layer: PerLayerInputs,
    altup: AltupStreams,
    states: StateInputs,
    ffn: LayerFfn,
    /// Input of the norm before the FFN, `[tokens, d_model]`, if the residual stream changes before
    /// the FFN ([`BoundFfn::keeps_residual`]).
    normed_from: Vec<f32>,
    /// `[n_vocab]`, used if only the largest logits are wanted.
    logits: Vec<f32>,
    calibration: InputCalibration,
    /// Preference of routers for resident experts.
    pub(crate) preferences: LayerPreferences,
}

impl CpuProcessor {
    /// Makes the processor. Nothing is allocated before the first chunk.
    pub fn new(cpu: Cpu) -> Self {
        CpuProcessor {
            cpu,
            registers: Default::default(),
            attention: CpuAttention::default(),
            recurrent: RecurrentMixer::default(),
            per_layer: PerLayerInputs::default(),
            altup: AltupStreams::default(),
            states: StateInputs::default(),
            ffn: LayerFfn::default(),
            normed_from: Vec::new(),
            logits: Vec::new(),
            calibration: InputCalibration::default(),
            preferences: LayerPreferences::default(),
        }
    }

    /// Calibration of input sparsity, off at first.
    pub fn calibration(&mut self) -> &mut InputCalibration {
        &mut self.calibration
    }

    /// The small inputs that a layer skips in this pass.
    fn skipped<'m>(&self, pass: &Pass<'m>, layer: usize) -> Option<&'m SkippedInputs> {
        let now =
            self.calibration.in_chunks || ((pass.is_single() || pass.separate) && pass.sparsity != Sparsity::Dense);
        pass.model.weights.layers[layer].skipped_inputs.as_deref().filter(|_| now)
    }

    /// The CPU.
    pub(crate) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The task of the FFN of a layer that is otherwise computed elsewhere.
    fn task<'t, 'p: 't>(&self, pass: &Pass<'p>, ffn: &BoundFfn<'t>, inputs: LayerInputs<'t>) -> LayerTask<'t> {
        let LayerInputs { x, residual, tokens } = inputs;
        let BoundFfn { layer, kind, norms, gate_deviations, predictor, activation_threshold, routed, .. } = *ffn;
        // Other modes skip neurons instead.
        let skips = self.calibration.in_chunks || pass.sparsity == Sparsity::Threshold;
        LayerTask {
            config: &pass.model.config,
            layer,
            ffn: kind,
            hidden_norm: norms.get(NormSlot::Hidden),
            gate_deviations,
            predictor: predictor.filter(|_| residual.is_some()),
            activation_threshold,
            skipped: self.skipped(pass, layer).filter(|_| skips),
            sparsity: pass.sparsity,
            shift: pass.threshold_shift(layer),
            recall_check: pass.checks_recall(layer),
            x,
            residual: residual.unwrap_or(x),
            tokens,
            separate: pass.is_separate_on_both_sides(layer),
            routed,
            preference: None,
        }
    }

    /// `Out = attention(from)`. Appends each sequence's keys and values to its cache.
    fn attend(&mut self, pass: &Pass<'_>, of: BoundAttention<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let (n, tokens, skipped) = (pass.register_len(), pass.tokens.len(), self.skipped(pass, of.layer));
        let mut out = std::mem::take(&mut self.registers[Register::Out as usize]);
        let x = &self.registers[of.from as usize][..n];
        let task = AttentionTask { cpu: &self.cpu, config: &pass.model.config, attention: of, x, tokens, skipped };
        let mut done = self.attention.attend(&task, sequences, &mut self.calibration);
        if done.is_ok() {
            self.expect_ffn(pass, of.layer);
            done = self.attention.project(&task, &mut self.calibration, &mut out[..n]);
        }
        self.registers[Register::Out as usize] = out;
        done
    }

    /// `Out = mixer(from)`. The rows of each sequence advance its state of the layer.
    fn mix(&mut self, pass: &Pass<'_>, recurrent: BoundRecurrent<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let BoundRecurrent { layer, from, mixer, .. } = recurrent;
        let absent = || Error::invalid("recurrent state", format!("a state in RAM for layer {layer}"), "no such state");
        let states = sequences.iter_mut().map(|(rows, kv)| {
            let of = kv.states.as_mut().and_then(|it| it.advance_layer(layer)).ok_or_else(absent)?;
            Ok(RowsState { rows, of })
        });
        let mut states = states.collect::<Result<SmallVec<[RowsState<'_>; 1]>>>()?;
        let n = pass.register_len();
        let [registers @ .., out] = &mut self.registers;
        let task = MixerTask {
            cpu: &self.cpu,
            config: &pass.model.config,
            x: &registers[from as usize][..n],
            tokens: pass.tokens.len(),
            states: &mut states,
            out: &mut out[..n],
        };
        self.recurrent.run(mixer, task)?;
        self.expect_ffn(pass, layer);
        Ok(())
    }

    /// `Out = ffn(from)`
    fn ffn(&mut self, pass: &mut Pass<'_>, ffn: &BoundFfn<'_>) -> Result<()> {
        let (n, tokens) = (pass.register_len(), pass.tokens.len());
        let mut out = std::mem::take(&mut self.registers[Register::Out as usize]);
        let x = &self.registers[ffn.from as usize][..n];
        let residual =
            if ffn.keeps_residual { &self.registers[Register::Residual as usize] } else { &self.normed_from };
        let residual = &residual[..n];
        if pass.probe.wants_ffn_input() {
            pass.probe.ffn_input(ffn.layer, tokens, x, residual);
        }
        let inputs = LayerInputs { x, residual: Some(residual), tokens };
        let preference = self.preferences.of(pass, ffn.layer);
        let task = LayerTask { separate: pass.separate, preference, ..self.task(pass, ffn, inputs) };
        let dense = matches!(task.ffn, FfnKind::Dense(_));
        self.calibration.record(InputSite::Ffn, x);
        let done = self.ffn.run(&self.cpu, &task, &mut out[..n], pass.probe);
        if !ffn.routed {
            self.preferences.add_ranges(pass, ffn.layer, self.ffn.moe.ranges());
        }
        if dense && done.is_ok() && self.calibration.recorded.is_some() {
            self.calibration.record(InputSite::Hidden, self.ffn.hidden());
        }
        self.registers[Register::Out as usize] = out;
        self.expect_attention(pass, ffn.layer + 1);
        done
    }

    /// Reserves the buffers for `tokens` tokens.
    fn fit(&mut self, config: &ModelConfig, tokens: usize) -> Result<()> {
        for register in &mut self.registers {
            grow(register, tokens.checked_mul(config.d_model), WHAT)?;
        }
        self.attention.fit(config, tokens)
    }
}

/// Prefetch of the weights that one token reads next, as soon as they are known.
impl CpuProcessor {
    /// Prefetches the FFN of a layer.
    fn expect_ffn(&self, pass: &Pass<'_>, layer: usize) {
        match pass.model.ffn(layer) {
            _ if !pass.is_single() => {}
            Some(ffn) => {
                // The prefetch needs only the weights, so the inputs are empty.
                let task = self.task(pass, &ffn, LayerInputs { x: &[], residual: Some(&[]), tokens: 1 });
                self.ffn.expect(&self.cpu, &task);
            }
            None => self.expect_attention(pass, layer + 1),
        }
    }

    /// Prefetches the attention of a layer, or the head after the last layer.
    fn expect_attention(&self, pass: &Pass<'_>, layer: usize) {
        if pass.is_single() {
            match pass.model.weights.layers.get(layer) {
                // The inputs decide which weights this layer reads.
                Some(next)
                    if next.attention.is_some()
                        && next.skipped_inputs.is_some()
                        && pass.sparsity != Sparsity::Dense =>
                {
                    self.cpu.prefetch(&[]);
                }
                Some(next) => {
                    let first = next.first_read();
                    match next.ffn {
                        // A layer with only an FFN.
                        Ffn::Dense(_) if first.is_empty() => self.expect_ffn(pass, layer),
                        _ if first.is_empty() => {}
                        _ => self.cpu.prefetch(&first),
                    }
                }
                None => self.cpu.prefetch(&[&pass.model.weights.output.weight]),
            }
        }
    }
}

impl Processor for CpuProcessor {
    fn same_bits(&self, model: &Model, mode: Sparsity) -> usize {
        same_bits(&self.cpu, model, mode)
    }

    fn isa(&self) -> Isa {
        self.cpu.isa()
    }

    fn hold_experts(&mut self, held: HeldExperts) {
        self.preferences.held = held;
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        KvCache::new(&model.config, capacity, ty)
    }

    fn holds(&self, kv: &KvCache) -> bool {
        kv.on_host()
    }

    fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()> {
        let Pass { model, tokens, .. } = *pass;
        let (config, weights) = (&model.config, &model.weights);
        self.fit(config, tokens.len())?;
        self.attention.begin(sequences);
        let d = config.d_model;
        let [residual, position, ..] = &mut self.registers;
        // A head that is also the table is read whole.
        if !weights.tied {
            paged_reads::of_table(&weights.token_embedding, tokens);
        }
        if let Some(types) = &weights.token_types {
            paged_reads::of_table(types, &[0, 1][..types.rows().min(2)]);
        }
        for (row, ((x, id), at)) in residual.chunks_exact_mut(d).zip(tokens).zip(&self.attention.places).enumerate() {
            if let Some(input) = pass.input(row) {
                x.copy_from_slice(input);
                continue;
            }
            weights.token_embedding.dequantise_row(*id as usize, x);
            if config.embedding_scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= config.embedding_scale);
            }
            if let (Position::Learned { offset }, Some(table)) = (&config.position, &weights.position_embedding) {
                let position = &mut position[..d];
                table.dequantise_row(at + offset, position);
                self.cpu.add(x, position);
            }
            if let Some(types) = &weights.token_types {
                let second = pass.second_at.is_some_and(|second| row >= second) && types.rows() > 1;
                let of_type = &mut position[..d];
                types.dequantise_row(usize::from(second), of_type);
                self.cpu.add(x, of_type);
            }
        }
        if let Some(input) = &weights.state_input {
            let residual = &mut self.registers[Register::Residual as usize][..tokens.len() * d];
            self.states.combine(&self.cpu, config, input, pass.states, residual)?;
        }
        if let Some(table) = &weights.per_layer {
            let residual = &self.registers[Register::Residual as usize][..tokens.len() * d];
            self.per_layer.fill(&self.cpu, config, table, &pass.embedded_tokens(), residual)?;
        }
        if let Some(table) = &weights.altup {
            let residual = &self.registers[Register::Residual as usize][..tokens.len() * d];
            self.altup.begin(&self.cpu, table, residual, d)?;
        }
        Ok(())
    }

    fn step(&mut self, pass: &mut Pass<'_>, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let (config, n) = (&pass.model.config, pass.register_len());
        match step.operation {
            BoundOperation::Norm { norm, from, into, keeps_input, .. } => {
                if keeps_input {
                    grow(&mut self.normed_from, Some(n), WHAT)?.copy_from_slice(&self.registers[from as usize][..n]);
                }
                match self.registers.get_disjoint_mut([from as usize, into as usize]) {
                    Ok([from, into]) => norm_rows(&self.cpu, config, norm, &mut into[..n], Some(&from[..n])),
                    // `from` and `into` are the same register.
                    Err(_) => norm_rows(&self.cpu, config, norm, &mut self.registers[into as usize][..n], None),
                }
                Ok(())
            }
            BoundOperation::Attention(attention) => self.attend(pass, attention, sequences),
            BoundOperation::Recurrent(recurrent) => self.mix(pass, recurrent, sequences),
            BoundOperation::Route { ffn, experts, from } => {
                let x = std::mem::take(&mut self.registers[from as usize]);
                let done = self.route_of(pass, &ffn, experts, &x[..n]);
                self.registers[from as usize] = x;
                done
            }
            BoundOperation::Ffn(ffn) => self.ffn(pass, &ffn),
            BoundOperation::DenseFfn { weights, from } => {
                let [registers @ .., out] = &mut self.registers;
                let inputs = TokenInputs { x: &registers[from as usize][..n], tokens: pass.tokens.len() };
                self.ffn.dense(&self.cpu, weights, config.activation, inputs, &mut out[..n])
            }
            BoundOperation::Add { from, into } => {
                let x = std::mem::take(&mut self.registers[from as usize]);
                self.cpu.add(&mut self.registers[into as usize][..n], &x[..n]);
                self.registers[from as usize] = x;
                Ok(())
            }
            BoundOperation::AddOut => {
                let [residual, .., out] = &mut self.registers;
                self.cpu.add_scaled(&mut residual[..n], &out[..n], config.residual_scale);
                Ok(())
            }
            BoundOperation::PerLayerInput(weights) => {
                let [residual, .., out] = &mut self.registers;
                self.per_layer.apply(&self.cpu, config, step.layer, weights, &residual[..n], &mut out[..n])
            }
            BoundOperation::Altup { step, weights } => {
                let registers = self.registers.each_mut().map(|register| &mut register[..n]);
                self.altup.step(&self.cpu, step, weights, config.norm_eps, registers)
            }
            BoundOperation::Scale(factor) => {
                self.cpu.scale(&mut self.registers[Register::Residual as usize][..n], factor);
                Ok(())
            }
        }
    }

    fn add_inputs(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()> {
        let d = pass.model.config.d_model;
        for (rows, values) in pass.added_after(layer) {
            self.cpu.add(&mut self.registers[Register::Residual as usize][rows.start * d..rows.end * d], values);
        }
        Ok(())
    }

    fn residual(&mut self, pass: &Pass<'_>) -> Result<&[f32]> {
        Ok(self.current_residual(pass))
    }

    fn head(&mut self, pass: &Pass<'_>, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        let Model { config, weights, .. } = pass.model;
        let rows = tokens.start * config.d_model..tokens.end * config.d_model;
        // The next read is most likely layer 0 of the next token.
        self.expect_attention(pass, 0);
        let x = &mut self.registers[Register::Residual as usize][rows];
        if let Some(table) = &weights.altup {
            self.altup.merge(&self.cpu, table, tokens.clone(), x)?;
        }
        norm_rows(&self.cpu, config, &weights.output_norm, x, None);
        self.cpu.matmul(&mut [weights.output.job(&mut *logits)], x, tokens.len());
        if let Some(cap) = config.final_softcap {
            self.cpu.soft_cap(logits, cap);
        }
        Ok(())
    }

    fn hidden(&mut self, pass: &Pass<'_>, out: &mut [f32]) -> Result<()> {
        let Model { config, weights, .. } = pass.model;
        match &weights.altup {
            Some(table) => self.altup.merge(&self.cpu, table, 0..pass.tokens.len(), out)?,
            None => out.copy_from_slice(&self.registers[Register::Residual as usize][..out.len()]),
        }
        norm_rows(&self.cpu, config, &weights.output_norm, out, None);
        Ok(())
    }

    fn top(&mut self, pass: &Pass<'_>, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        let mut all = std::mem::take(&mut self.logits);
        let row = grow(&mut all, Some(pass.model.config.n_vocab), "logits")?;
        let done = self.head(pass, token..token + 1, row);
        shortlist::largest(row, ids, logits);
        self.logits = all;
        done
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let own = held_bytes(self.registers.iter().chain([&self.logits, &self.normed_from]));
        let streams = self.per_layer.bytes() + self.altup.bytes() + self.states.bytes();
        own + streams + self.attention.bytes() + self.ffn.bytes() + self.recurrent.bytes()
    }
}
